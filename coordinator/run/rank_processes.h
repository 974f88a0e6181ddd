// The rank processes of one launch on this node: started in process groups of their own, watched by
// pidfd, killed to the last descendant, and measured to be gone.
//
// I1  exited(rank) is said once for each rank, then all_gone() once: by then no descendant of this
//     process is left, measured, not assumed. What cannot be measured or does not end is named by
//     stuck() and measured again.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "coordinator/run/output_relay.h"
#include "libckpt/os/event_loop.h"
#include "libckpt/os/process.h"

namespace ckpt::run {

struct RankCommand {
  uint32_t rank = 0;
  std::vector<std::string> argv;
  std::vector<std::string> env;
  std::string log_file;  // empty: through the relay
};

class RankProcesses {
 public:
  struct Handler {
    std::function<void(uint32_t rank, const os::ExitStatus&)> exited;
    std::function<void()> all_gone;
    std::function<void(const std::string& why)> stuck;  // before it, each time the reason changes
  };
  using Measurer = std::function<Result<std::vector<os::ProcessInfo>>()>;

  RankProcesses(os::EventLoop* loop, Handler handler, Measurer measure = os::LivingDescendants)
      : loop_(loop), handler_(std::move(handler)), measure_(std::move(measure)) {}
  ~RankProcesses();  // kills what is left

  // All or none: an error kills those that were started (all_gone is still said).
  Status Start(const std::vector<RankCommand>& commands);
  void Signal(int signal);  // to every group
  // SIGKILL to everything that descends from the ranks.
  void Kill();
  bool started() const { return started_; }  // any process, ever
  std::vector<std::pair<uint32_t, const os::Pidfd*>> living() const;

 private:
  Status StartOne(const RankCommand& command);
  void OnEnd(uint32_t rank);
  void Measure();
  void Stuck(const std::string& why);

  os::EventLoop* const loop_;
  const Handler handler_;
  const Measurer measure_;
  std::unique_ptr<OutputRelay> relay_;
  std::map<uint32_t, os::Pidfd> living_;
  bool started_ = false;
  os::EventLoop::TimerId measure_timer_ = 0;
  int64_t measuring_since_ns_ = 0;
  bool gone_ = false, killing_ = false;
  std::string stuck_;
};

}  // namespace ckpt::run
