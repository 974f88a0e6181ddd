// The line to this node's agent: who we are, the memory we hold (so that the agent holds it too), a
// full report after each change, and its commands. When the agent goes away the gang goes on, and
// everything is said again when it is back.
//
// I1  A report is a full snapshot; the newest one is what counts. It is said again every now and
//     then: whoever is silent is taken for stuck.
// I2  A command is answered once for each time it comes; carrying it out twice is the gang's to
//     prevent.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "coordinator/run/services.h"
#include "coordinator/run/staging_area.h"
#include "libckpt/os/event_loop.h"
#include "libckpt/os/process.h"
#include "libckpt/wire/channel.h"

namespace ckpt::run {

struct AgentStop {
  uint64_t operation = 0;
  uint64_t epoch = 0;  // 0: whichever
  bool kill = false, save = false;
  int64_t left_ns = 0;  // until its deadline; 0 none
  std::string source;
  bool withdraw = false;  // the stop of that number is not wanted any more
};

struct AgentIdentity {
  JobId job_id;
  uint64_t epoch = 0;
  std::string token;
};

class AgentLink {
 public:
  struct Handler {
    // All copies that the agent holds for this job have come (or the agent cannot be reached).
    std::function<void(std::vector<SlotPtr>)> adopted;
    // Answers why it is refused; empty: accepted.
    std::function<std::string(const AgentStop&)> stop;
  };

  AgentLink(Services* services, Handler handler);
  ~AgentLink();

  void Start();
  // Pages and pidfds are sent once for each launch; slots whenever there are new ones. Both are
  // kept for a reconnect.
  void SetLaunch(const AgentIdentity& identity,
                 std::vector<std::pair<wire::AttachedFd, os::UniqueFd>> fds);
  void AddSlots(const std::vector<SlotPtr>& slots);
  void SetReport(std::string agent_msg);  // ckpt.v1.AgentMsg, serialized
  const std::string& report() const { return report_; }
  bool connected() const { return channel_.valid(); }
  // True once the newest report has left this process (or there is no agent to take it).
  bool Flushed() const { return !channel_.valid() || !channel_.has_queued(); }

 private:
  struct Held {
    wire::AttachedFd what;
    os::UniqueFd fd;
  };

  void Connect();
  void Retry();
  void OnEvents(uint32_t events);
  void OnFrame(wire::Incoming<wire::AgentFrame> incoming);
  void OnAdopt(const wire::Adopt& adopt, std::vector<os::UniqueFd> fds);
  void OnCommand(uint32_t request, const wire::Command& command);
  void SendHeld(const std::vector<Held>& held);
  void Send(const wire::AgentFrame& frame, std::vector<os::UniqueFd> fds = {});
  void Drop(const Status& why);
  wire::Attach MakeAttach() const;
  void AdoptionDone();

  Services* const services_;
  const Handler handler_;
  wire::AgentChannel channel_;
  AgentIdentity identity_;
  std::vector<Held> launch_fds_, slot_fds_;
  std::vector<SlotPtr> adopting_;
  bool adopted_ = false;
  std::string report_;
  int64_t retry_ns_ = 0;
  os::EventLoop::TimerId retry_timer_ = 0, adopt_timer_ = 0, alive_timer_ = 0;
};

}  // namespace ckpt::run
