// The connection of a rank to its ckpt-run, and the one thread that watches it: receives frames,
// samples the control page every 100 ms (alive, progress, time of a step), passes signals on as
// NOTICE, and connects again, with jitter, when ckpt-run has gone.
//
// I1  Frames are handled on the watch thread, in order, under no lock.
// I2  A request whose connection breaks before its answer fails kUnavailable; it is never repeated
// by itself.
// I3  A ckpt-run that answers for another epoch is none of ours: the link stays down.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "libckpt/base/clock.h"
#include "libckpt/base/mutex.h"
#include "libckpt/base/rng.h"
#include "libckpt/base/status.h"
#include "libckpt/os/event_loop.h"
#include "libckpt/os/fork.h"
#include "libckpt/os/memfd.h"
#include "libckpt/os/signal_bell.h"
#include "libckpt/os/thread.h"
#include "libckpt/wire/channel.h"

namespace ckpt::session {

class Link {
 public:
  using Incoming = wire::Incoming<wire::Frame>;

  struct Config {
    std::string socket;
    wire::Hello hello;
    os::SignalBell* bell = nullptr;  // may be null
    Nanos sample_every = std::chrono::milliseconds(100);
    Nanos retry_min = std::chrono::milliseconds(100);
    Nanos retry_max = std::chrono::seconds(5);
  };
  // All on the watch thread.
  struct Handlers {
    std::function<void(Incoming)> on_frame;  // whatever nobody waits for
    std::function<void()> on_lost;
    // Somebody answers again: the new page. An error keeps the link down for good.
    std::function<Status(const wire::Welcome&, os::Memfd page)> on_back;
    std::function<void()> on_up;  // after on_back was OK: frames can be sent again
    std::function<void()> on_sample;
    std::function<void(int signal)> on_signal;
  };

  Link(Config config, Handlers handlers);
  ~Link();

  struct Hello {
    wire::Welcome welcome;
    os::Memfd page;
  };
  // Connects and says HELLO; the watch thread is not running yet. kUnavailable if nobody is there.
  Result<Hello> Connect(const Deadline& deadline);
  Status StartThread();
  // No handler is called afterwards.
  void Stop();

  bool up() const { return up_.load(); }

  // Threads: any. kUnavailable (not applied) without a connection.
  Status Post(wire::Body body, const std::vector<int>& fds = {});
  // The same for a frame that is answered late or never: what comes goes to on_frame.
  Status Request(wire::Body body, const std::vector<int>& fds = {});
  // Waits for the answer; FAILED becomes its status.
  Result<Incoming> Call(wire::Body body, const Deadline& deadline);
  // Several answers: until `last` says so.
  Result<std::vector<Incoming>> CallMany(wire::Body body,
                                         const std::function<bool(const wire::Frame&)>& last,
                                         const Deadline& deadline);

 private:
  struct Pending {
    std::deque<Incoming> answers;
    bool lost = false;
  };

  uint32_t NextRequest();
  Status Send(const wire::Frame& frame, const std::vector<int>& fds);
  void OnReadable();
  void Dispatch(Incoming incoming);
  void Lose(const std::string& why);
  void Publish();
  void ScheduleReconnect();
  void Reconnect();
  std::shared_ptr<wire::Channel> channel() const;

  const Config config_;
  const Handlers handlers_;
  std::unique_ptr<os::EventLoop> loop_;
  os::Thread thread_;
  std::atomic<bool> up_{false};
  std::shared_ptr<wire::Channel> pending_;  // connected, not yet for use
  uint32_t failures_ = 0;                   // watch thread: connects in a row that failed

  mutable Mutex mutex_;
  CondVar answered_;
  std::shared_ptr<wire::Channel> channel_ CKPT_GUARDED_BY(mutex_);
  std::optional<os::ClosedInChildren> not_in_children_ CKPT_GUARDED_BY(mutex_);
  uint32_t last_request_ CKPT_GUARDED_BY(mutex_) = 0;
  std::map<uint32_t, Pending> requests_ CKPT_GUARDED_BY(mutex_);
  Mutex send_mutex_;  // one datagram after the other; never held while waiting for an answer
};

}  // namespace ckpt::session
