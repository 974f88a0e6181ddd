#include "libckpt/os/thread.h"

#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>

#include "libckpt/base/guard.h"
#include "libckpt/base/log.h"

namespace ckpt::os {

namespace {

// The last resort: whoever started it should have made a Status of it.
void RunGuarded(const std::string& name, const std::function<void()>& body) {
  const Status status = NoThrow("thread " + name, [&body] {
    body();
    return OkStatus();
  });
  if (!status.ok()) LogError(status.message());
}

// A tenth of a core where the program's own threads want all of it. The lowest there is would be
// starved for minutes by a busy machine, and nobody but root may lift it up again.
constexpr int kIdleBelow = 10;
constexpr int kLowestNice = 19;

}  // namespace

void LowerOwnPriority(Priority priority) {
  if (priority == Priority::kNormal) return;
  const auto own = static_cast<id_t>(::gettid());  // Linux keeps both for each thread
  // Not SCHED_IDLE: on a busy machine such a thread can be stopped for seconds in the middle of
  // what others will wait for, and nobody may lift it up again.
  const int now = ::getpriority(PRIO_PROCESS, own);
  ::setpriority(PRIO_PROCESS, own, std::min(now + kIdleBelow, kLowestNice));
}

Thread::Thread(std::string_view name, std::function<void()> body) {
  // Blocked before the thread exists, so that no signal can reach it. Not those that a thread
  // raises against itself: crash handlers of the host program want them.
  sigset_t all, before;
  sigfillset(&all);
  for (const int own : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS, SIGPROF}) {
    sigdelset(&all, own);
  }
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([name = std::string(name.substr(0, 15)), body = std::move(body)] {
    pthread_setname_np(pthread_self(), name.c_str());
    RunGuarded(name, body);
  });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Thread::~Thread() { Join(); }

void Thread::Join() {
  if (thread_.joinable()) thread_.join();
}

WorkerPool::WorkerPool(std::string name, size_t thread_count, size_t queue_max, Priority priority)
    : name_(std::move(name)), queue_max_(queue_max), priority_(priority) {
  threads_.reserve(thread_count);
  for (size_t i = 0; i < thread_count; ++i) {
    threads_.emplace_back(name_ + "/" + std::to_string(i), [this] { Work(); });
  }
}

WorkerPool::~WorkerPool() { Shutdown(); }

Status WorkerPool::TrySubmit(std::function<void()> task) {
  MutexLock lock(mutex_);
  if (closed_) return Cancelled("pool " + name_ + " is shut down");
  if (queue_.size() >= queue_max_) {
    return ResourceExhausted("pool " + name_ + ": " + std::to_string(queue_max_) + " tasks wait");
  }
  queue_.push_back(std::move(task));
  changed_.NotifyAll();
  return OkStatus();
}

Status WorkerPool::Submit(std::function<void()> task, const Deadline& deadline) {
  MutexLock lock(mutex_);
  while (!closed_ && queue_.size() >= queue_max_) {
    if (!changed_.WaitUntil(mutex_, deadline) && queue_.size() >= queue_max_) {
      return deadline.Exceeded().Annotate("pool " + name_);
    }
  }
  if (closed_) return Cancelled("pool " + name_ + " is shut down");
  queue_.push_back(std::move(task));
  changed_.NotifyAll();
  return OkStatus();
}

Status WorkerPool::Drain(const Deadline& deadline) {
  MutexLock lock(mutex_);
  while (!queue_.empty() || running_ != 0) {
    if (!changed_.WaitUntil(mutex_, deadline) && (!queue_.empty() || running_ != 0)) {
      return deadline.Exceeded().Annotate("pool " + name_);
    }
  }
  return OkStatus();
}

void WorkerPool::Shutdown() {
  {
    MutexLock lock(mutex_);
    closed_ = true;
    changed_.NotifyAll();
  }
  for (Thread& thread : threads_) thread.Join();
}

void WorkerPool::Work() {
  LowerOwnPriority(priority_);
  for (;;) {
    std::function<void()> task;
    {
      MutexLock lock(mutex_);
      while (queue_.empty() && !closed_) changed_.Wait(mutex_);
      if (queue_.empty()) return;
      task = std::move(queue_.front());
      queue_.pop_front();
      ++running_;
      changed_.NotifyAll();
    }
    RunGuarded(name_, task);
    task = nullptr;  // what it captured goes before it counts as done
    MutexLock lock(mutex_);
    --running_;
    changed_.NotifyAll();
  }
}

}  // namespace ckpt::os
