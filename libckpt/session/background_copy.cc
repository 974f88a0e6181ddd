#include "libckpt/session/background_copy.h"

#include <algorithm>
#include <utility>

#include "libckpt/base/guard.h"
#include "libckpt/base/log.h"

namespace ckpt::session {
namespace {

// Behind the loop, on a machine that is busy with it: the fence is what is waited for, not this.
constexpr Nanos kBackgroundMax = std::chrono::hours(24);

}  // namespace

Status BackgroundCopies::Copy::Run(bool on_loop, uint32_t threads, const Deadline& deadline) {
  const Status status = capture->Run(threads, deadline);
  // Somebody else is still at it.
  if (status.code() == Code::kDeadlineExceeded && deadline.Expired()) return status;
  {
    MutexLock lock(mutex);
    copied = true;
    if (status.ok() && changed != nullptr && !on_loop) return OkStatus();  // I3
    if (claimed) {
      while (!ended) {
        if (!moved.WaitUntil(mutex, deadline) && !ended) return deadline.Exceeded();
      }
      return OkStatus();
    }
    claimed = true;
  }
  End(status);
  return OkStatus();
}

void BackgroundCopies::Copy::End(Status status) {
  if (status.ok() && changed != nullptr) {
    status = NoThrow("asking whether the state was changed", [&]() -> Status {
      if (!changed()) return OkStatus();
      return FailedPrecondition(
          "the state was changed before the fence, while it was being copied; the save is given "
          "up");
    });
  }
  const Status said = NoThrow("the end of a copy", [&] {
    std::exchange(done, nullptr)(status);
    return OkStatus();
  });
  if (!said.ok()) LogError(said.message());
  MutexLock lock(mutex);
  ended = true;
  moved.NotifyAll();
}

bool BackgroundCopies::Copy::Copied() {
  MutexLock lock(mutex);
  return copied || ended;
}

bool BackgroundCopies::Copy::Ended() {
  MutexLock lock(mutex);
  return ended;
}

std::shared_ptr<BackgroundCopies::Copy> BackgroundCopies::Queue::Next() {
  MutexLock lock(mutex);
  for (const std::shared_ptr<Copy>& copy : copies) {
    if (!copy->Copied()) return copy;
  }
  scheduled = false;
  return nullptr;
}

std::vector<std::shared_ptr<BackgroundCopies::Copy>> BackgroundCopies::Queue::All() {
  MutexLock lock(mutex);
  return copies;
}

Status BackgroundCopies::Begin(std::unique_ptr<engine::SharedCapture> capture, Changed changed,
                               Done done) {
  if (copier_ == nullptr) {
    copier_ = std::make_unique<os::WorkerPool>("ckpt-copy", 1, 1, os::Priority::kIdle);
  }
  auto copy = std::make_shared<Copy>();
  copy->capture = std::move(capture);
  copy->changed = std::move(changed);
  copy->done = std::move(done);
  bool schedule = false;
  {
    MutexLock lock(queue_->mutex);
    auto& copies = queue_->copies;
    copies.erase(std::remove_if(copies.begin(), copies.end(),
                                [](const std::shared_ptr<Copy>& c) { return c->Ended(); }),
                 copies.end());
    copies.push_back(std::move(copy));
    schedule = !std::exchange(queue_->scheduled, true);
  }
  if (!schedule) return OkStatus();
  const Status queued = copier_->TrySubmit([queue = queue_] {
    while (const std::shared_ptr<Copy> next = queue->Next()) {
      next->Run(false, 1, Deadline("a copy behind the loop", kBackgroundMax)).IgnoreError();  // I1
    }
  });
  if (queued.ok()) return OkStatus();
  MutexLock lock(queue_->mutex);
  queue_->scheduled = false;
  queue_->copies.pop_back();
  return queued;
}

Status BackgroundCopies::Finish(uint32_t threads, const Deadline& deadline) {
  for (const std::shared_ptr<Copy>& copy : queue_->All()) {
    CKPT_RETURN_IF_ERROR(copy->Run(true, threads, deadline));
  }
  return OkStatus();
}

}  // namespace ckpt::session
