// Threads with a name and an owner that joins them, and a small pool with a bounded queue.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "libckpt/base/clock.h"
#include "libckpt/base/mutex.h"
#include "libckpt/base/status.h"

namespace ckpt::os {

// What a thread gets of cores that others want too: its part, or next to nothing. Work of the
// second kind must hold no lock that others wait for.
enum class Priority { kNormal, kIdle };

// For the calling thread, and for good: the kernel lets most programs only go down. No effect where
// it refuses.
void LowerOwnPriority(Priority priority);

class Thread {
 public:
  Thread() = default;
  // `name` (15 bytes are kept) shows in ps and debuggers. All signals are blocked in the thread:
  // they are for the program's own threads. What `body` throws is logged and goes no further.
  Thread(std::string_view name, std::function<void()> body);
  Thread(Thread&&) noexcept = default;
  // Pre: this one is joined or was never started.
  Thread& operator=(Thread&&) noexcept = default;
  ~Thread();  // joins
  bool joinable() const { return thread_.joinable(); }
  void Join();  // no effect if it is joined already

 private:
  std::thread thread_;
};

// Runs tasks on `thread_count` threads named NAME/0 ….
//
// I1  At most `queue_max` tasks wait; full means wait (Submit) or kResourceExhausted (TrySubmit).
// I2  Shutdown is a gate: no new task, those accepted are run to the end, then threads are joined.
// I3  What a task throws is logged and goes no further.
class WorkerPool {
 public:
  WorkerPool(std::string name, size_t thread_count, size_t queue_max,
             Priority priority = Priority::kNormal);
  ~WorkerPool();  // Shutdown
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  // kCancelled after Shutdown. Threads: any.
  Status TrySubmit(std::function<void()> task);
  Status Submit(std::function<void()> task, const Deadline& deadline);
  // Waits until nothing is queued or running.
  Status Drain(const Deadline& deadline);
  void Shutdown();
  size_t thread_count() const { return threads_.size(); }

 private:
  void Work();

  const std::string name_;
  const size_t queue_max_;
  const Priority priority_;
  Mutex mutex_;
  CondVar changed_;
  std::deque<std::function<void()>> queue_ CKPT_GUARDED_BY(mutex_);
  size_t running_ CKPT_GUARDED_BY(mutex_) = 0;
  bool closed_ CKPT_GUARDED_BY(mutex_) = false;
  std::vector<Thread> threads_;
};

}  // namespace ckpt::os
