#include "libckpt/session/save.h"

#include <algorithm>

namespace ckpt::session {

std::string_view LevelName(Level level) {
  switch (level) {
    case Level::kNone:
      return "NONE";
    case Level::kStaged:
      return "STAGED";
    case Level::kStagedGang:
      return "STAGED_GANG";
    case Level::kShared:
      return "SHARED";
  }
  return "UNKNOWN";
}

void Save::Advance(Level level) {
  MutexLock lock(mutex_);
  if (!error_.ok() || level <= progress_.level) return;
  progress_.level = level;
  if (level == Level::kShared) progress_.bytes_done = progress_.bytes_total;
  changed_.NotifyAll();
}

void Save::Fail(Status status) {
  MutexLock lock(mutex_);
  if (!error_.ok() || progress_.level == Level::kShared) return;
  // Whoever cancelled it need not be told at a later step.
  failure_reported_ = cancelled_ && status.code() == Code::kCancelled;
  error_ = std::move(status);
  changed_.NotifyAll();
}

void Save::SetBytes(uint64_t done, uint64_t total) {
  MutexLock lock(mutex_);
  progress_.bytes_done = done;
  progress_.bytes_total = total;
}

Status Save::Wait(Level level, const Deadline& deadline) {
  MutexLock lock(mutex_);
  for (;;) {
    if (progress_.level >= level) return OkStatus();
    if (!error_.ok()) {
      failure_reported_ = true;
      return error_;
    }
    if (deadline.Expired()) {
      return DeadlineExceeded("save " + id_.ToString() + " is " +
                              std::string(LevelName(progress_.level)) + ", not yet " +
                              std::string(LevelName(level)) + "; it goes on");
    }
    changed_.WaitUntil(mutex_, deadline);
  }
}

bool Save::AwaitEnd(const Deadline& deadline) {
  MutexLock lock(mutex_);
  while (error_.ok() && progress_.level != Level::kShared) {
    if (deadline.Expired()) return false;
    changed_.WaitUntil(mutex_, deadline);
  }
  return true;
}

Save::Progress Save::progress() const {
  MutexLock lock(mutex_);
  return progress_;
}

bool Save::ended() const {
  MutexLock lock(mutex_);
  return !error_.ok() || progress_.level == Level::kShared;
}

Status Save::error() const {
  MutexLock lock(mutex_);
  return error_;
}

void Save::Cancel() {
  MutexLock lock(mutex_);
  cancelled_ = true;
}

bool Save::cancelled() const {
  MutexLock lock(mutex_);
  return cancelled_;
}

bool Save::TakeFailureReport() {
  MutexLock lock(mutex_);
  if (error_.ok() || failure_reported_) return false;
  failure_reported_ = true;
  return true;
}

}  // namespace ckpt::session
