#include "libckpt/comm/nccl/bounded_call.h"

#include <algorithm>
#include <vector>

#include "libckpt/base/log.h"
#include "libckpt/base/mutex.h"
#include "libckpt/os/thread.h"

namespace ckpt::comm::nccl {

struct BoundedCall::Shared {
  Mutex mutex;
  CondVar changed;
  bool done CKPT_GUARDED_BY(mutex) = false;
  Status status CKPT_GUARDED_BY(mutex);
  os::Thread thread;  // touched by the owner only
};

// Those that were given up on, until they return after all. Never destroyed: their threads may run
// when the process ends.
struct BoundedCall::GivenUp {
  Mutex mutex;
  std::vector<std::shared_ptr<Shared>> calls CKPT_GUARDED_BY(mutex);

  static GivenUp& Get() {
    static auto* const all = new GivenUp;
    return *all;
  }
  void Reap() {
    std::vector<std::shared_ptr<Shared>> done;  // joined outside the lock
    MutexLock lock(mutex);
    const auto end = std::partition(calls.begin(), calls.end(), [](const auto& shared) {
      MutexLock of(shared->mutex);
      return !shared->done;
    });
    done.assign(end, calls.end());
    calls.erase(end, calls.end());
  }
  void Add(std::shared_ptr<Shared> shared) {
    MutexLock lock(mutex);
    calls.push_back(std::move(shared));
  }
};

BoundedCall::BoundedCall(std::string what, std::function<Status()> call)
    : what_(std::move(what)), shared_(std::make_shared<Shared>()) {
  GivenUp::Get().Reap();
  Shared* const shared = shared_.get();
  shared->thread = os::Thread("ckpt-nccl", [shared, call = std::move(call)] {
    Status status = call();
    MutexLock lock(shared->mutex);
    shared->status = std::move(status);
    shared->done = true;
    shared->changed.NotifyAll();
  });
}

BoundedCall::~BoundedCall() {
  {
    MutexLock lock(shared_->mutex);
    if (shared_->done) return;  // joined with what is shared
  }
  LogError(what_ + " has not returned; its thread is left to it");
  GivenUp::Get().Add(shared_);
}

Status BoundedCall::Wait(const Deadline& deadline) {
  MutexLock lock(shared_->mutex);
  while (!shared_->done) {
    if (!shared_->changed.WaitUntil(shared_->mutex, deadline) && !shared_->done)
      return deadline.Exceeded().Annotate(what_ + " has not returned");
  }
  return shared_->status;
}

}  // namespace ckpt::comm::nccl
