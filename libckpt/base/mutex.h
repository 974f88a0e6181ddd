// The only mutex of the project, annotated so that clang's -Wthread-safety proves who holds what.
// No lock is held across I/O, callbacks, CUDA, NCCL or RPC.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "libckpt/base/clock.h"

#if defined(__clang__)
#define CKPT_TSA(x) __attribute__((x))
#else
#define CKPT_TSA(x)
#endif
#define CKPT_CAPABILITY(x) CKPT_TSA(capability(x))
#define CKPT_SCOPED_CAPABILITY CKPT_TSA(scoped_lockable)
#define CKPT_GUARDED_BY(x) CKPT_TSA(guarded_by(x))
#define CKPT_REQUIRES(...) CKPT_TSA(requires_capability(__VA_ARGS__))
#define CKPT_ACQUIRE(...) CKPT_TSA(acquire_capability(__VA_ARGS__))
#define CKPT_RELEASE(...) CKPT_TSA(release_capability(__VA_ARGS__))
#define CKPT_EXCLUDES(...) CKPT_TSA(locks_excluded(__VA_ARGS__))
#define CKPT_NO_TSA CKPT_TSA(no_thread_safety_analysis)

namespace ckpt {

class CKPT_CAPABILITY("mutex") Mutex {
 public:
  void Lock() CKPT_ACQUIRE() { mutex_.lock(); }
  void Unlock() CKPT_RELEASE() { mutex_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

class CKPT_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) CKPT_ACQUIRE(mutex) : mutex_(mutex) { mutex_.Lock(); }
  ~MutexLock() CKPT_RELEASE() { mutex_.Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

class CondVar {
 public:
  void NotifyOne() { cv_.notify_one(); }
  void NotifyAll() { cv_.notify_all(); }

  void Wait(Mutex& mutex) CKPT_REQUIRES(mutex) CKPT_NO_TSA {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    cv_.wait(lock);
    lock.release();
  }
  // False once the deadline has passed; wakes spuriously like any condition variable.
  bool WaitUntil(Mutex& mutex, const Deadline& deadline) CKPT_REQUIRES(mutex) CKPT_NO_TSA {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    // An hour at a time: std::condition_variable overflows on waits of centuries.
    const auto left = std::min<Nanos>(deadline.Left(), std::chrono::hours(1));
    cv_.wait_for(lock, left);
    lock.release();
    return !deadline.Expired();
  }

 private:
  std::condition_variable cv_;
};

}  // namespace ckpt
