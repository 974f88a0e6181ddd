// One thread, one loop: descriptors, timers on CLOCK_BOOTTIME, signals, and functions posted by
// other threads, all run one after the other on the thread that calls Run.
//
// I1  A callback may add and remove anything, itself included; a removed one is not called again,
//     even if its event was already fetched.
// I2  Only Post and Stop may be called from other threads.
#pragma once

#include <sys/epoll.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

#include "libckpt/base/clock.h"
#include "libckpt/base/mutex.h"
#include "libckpt/base/status.h"
#include "libckpt/os/fd.h"

namespace ckpt::os {

struct SignalInfo {
  int signal = 0;
  int64_t sender_pid = 0;
};

class EventLoop {
 public:
  using FdCallback = std::function<void(uint32_t events)>;  // EPOLLIN …
  using Task = std::function<void()>;
  using TimerId = uint64_t;  // never 0

  static Result<std::unique_ptr<EventLoop>> Create();
  ~EventLoop();
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  // Level-triggered. The loop does not own `fd`: remove it before it is closed.
  Status AddFd(int fd, uint32_t events, FdCallback callback);
  Status ModifyFd(int fd, uint32_t events);
  void RemoveFd(int fd);  // no effect if it was not added
  // What it says (EPOLLIN) is not heard for a while: it cannot be dealt with now, and would be said
  // again and again.
  void RestFd(int fd, Nanos pause);

  TimerId AddTimer(Nanos after, Task task);
  TimerId AddPeriodic(Nanos every, Task task);
  void CancelTimer(TimerId id);  // no effect if it has fired or was never there

  // Pre: no other thread has started yet, or all block `signal`: it is blocked here and for threads
  // started later. Unblocked when the loop is destroyed.
  Status AddSignal(int signal, std::function<void(const SignalInfo&)> callback);

  // Threads: any. Tasks run in the order they were posted; those left when the loop is destroyed
  // are dropped.
  void Post(Task task);
  // Threads: any. Run returns once what was posted before has run. Sticky: a later Run returns at
  // once.
  void Stop();

  // Until Stop.
  Status Run();
  // Handles what is ready, waiting for it until the deadline at most; true if anything was run.
  Result<bool> RunOnce(const Deadline& deadline);

 private:
  struct Watch {
    int fd;
    FdCallback callback;
  };
  struct Timer {
    int64_t at_ns;
    int64_t every_ns;  // 0: once
    Task task;
  };

  EventLoop() = default;
  Status Init();
  void ArmTimerFd();
  bool RunTimers();
  bool RunPosted();
  void DrainSignals();

  UniqueFd epoll_, event_, timer_, signal_;
  uint64_t next_id_ = 1;
  bool stopped_ = false;  // of the loop's thread
  std::unordered_map<int, uint64_t> fd_ids_;
  std::unordered_map<uint64_t, std::shared_ptr<Watch>> watches_;
  std::unordered_map<TimerId, Timer> timers_;
  std::multimap<int64_t, TimerId> timer_order_;
  std::unordered_map<int, std::function<void(const SignalInfo&)>> signals_;

  Mutex mutex_;
  std::vector<Task> posted_ CKPT_GUARDED_BY(mutex_);
};

}  // namespace ckpt::os
