// One save as its caller sees it: a level that only rises, bytes done, and at most one error, which
// is final. Threads: everything here is safe from any thread.
//
// I1  kShared is set by one line only, after the store acknowledged the commit (standalone) or
// ckpt-run reported it: nothing says "durable" before it is.
// I2  A save ends once: failed, or at kShared.
#pragma once

#include <cstdint>
#include <string>

#include "libckpt/base/clock.h"
#include "libckpt/base/ids.h"
#include "libckpt/base/mutex.h"
#include "libckpt/base/status.h"

namespace ckpt::session {

// ckpt_level_t.
enum class Level : uint32_t { kNone = 0, kStaged = 1, kStagedGang = 2, kShared = 3 };
std::string_view LevelName(Level level);

class Save {
 public:
  struct Progress {
    Level level = Level::kNone;
    uint64_t bytes_done = 0;
    uint64_t bytes_total = 0;
  };

  explicit Save(const AttemptId& id) : id_(id) {}
  const AttemptId& id() const { return id_; }

  void Advance(Level level);
  void Fail(Status status);
  void SetBytes(uint64_t done, uint64_t total);

  // kDeadlineExceeded: not there yet, the save goes on. Anything else is the save's own error.
  Status Wait(Level level, const Deadline& deadline);
  // The same without hearing the error: whether it ended by the deadline.
  bool AwaitEnd(const Deadline& deadline);
  Progress progress() const;
  // Failed or durable.
  bool ended() const;
  Status error() const;

  // Asks those who work on it to stop; it then fails with kCancelled. No effect once it has ended.
  void Cancel();
  bool cancelled() const;

  // True once for each save: who reports a background failure first does so alone.
  bool TakeFailureReport();

 private:
  const AttemptId id_;
  mutable Mutex mutex_;
  CondVar changed_;
  Progress progress_ CKPT_GUARDED_BY(mutex_);
  Status error_ CKPT_GUARDED_BY(mutex_);
  bool cancelled_ CKPT_GUARDED_BY(mutex_) = false;
  bool failure_reported_ CKPT_GUARDED_BY(mutex_) = false;
};

}  // namespace ckpt::session
