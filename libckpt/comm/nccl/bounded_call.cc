#include "libckpt/comm/nccl/bounded_call.h"

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

BoundedCall::BoundedCall(std::string what, std::function<Status()> call)
    : what_(std::move(what)), shared_(std::make_shared<Shared>()) {
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
  LogError(what_ + " has not returned; its thread is left until the process ends");
  new std::shared_ptr<Shared>(shared_);  // for ever: the thread uses it
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
