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

Status BackgroundCopies::Copy::Run(uint32_t threads, const Deadline& deadline) {
  const Status status = capture->Run(threads, deadline);
  // Somebody else is still at it.
  if (status.code() == Code::kDeadlineExceeded && deadline.Expired()) return status;
  {
    MutexLock lock(mutex);
    if (claimed) {
      while (!ended) {
        if (!changed.WaitUntil(mutex, deadline) && !ended) return deadline.Exceeded();
      }
      return OkStatus();
    }
    claimed = true;
  }
  const Status said = NoThrow("the end of a copy", [&] {
    std::exchange(done, nullptr)(status);
    return OkStatus();
  });
  if (!said.ok()) LogError(said.message());
  MutexLock lock(mutex);
  ended = true;
  changed.NotifyAll();
  return OkStatus();
}

bool BackgroundCopies::Copy::Ended() {
  MutexLock lock(mutex);
  return ended;
}

std::shared_ptr<BackgroundCopies::Copy> BackgroundCopies::Queue::Next() {
  MutexLock lock(mutex);
  for (const std::shared_ptr<Copy>& copy : copies) {
    if (!copy->Ended()) return copy;
  }
  scheduled = false;
  return nullptr;
}

std::vector<std::shared_ptr<BackgroundCopies::Copy>> BackgroundCopies::Queue::All() {
  MutexLock lock(mutex);
  return copies;
}

Status BackgroundCopies::Begin(std::unique_ptr<engine::SharedCapture> capture, Done done) {
  if (copier_ == nullptr) {
    copier_ = std::make_unique<os::WorkerPool>("ckpt-copy", 1, 1, os::Priority::kIdle);
  }
  auto copy = std::make_shared<Copy>();
  copy->capture = std::move(capture);
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
      next->Run(1, Deadline("a copy behind the loop", kBackgroundMax)).IgnoreError();  // I1
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
    CKPT_RETURN_IF_ERROR(copy->Run(threads, deadline));
  }
  return OkStatus();
}

}  // namespace ckpt::session
