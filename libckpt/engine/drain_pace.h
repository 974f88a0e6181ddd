// How fast a copy in RAM is written to the store while the training that it is of goes on: writing
// takes a share of the time, and the share follows the measured time of a step, so that training
// slows down by a few percent at most.
//
// The tempting alternative, a fixed number of bytes a second, is too much for one machine and
// nothing for another.
//
// I1  Nobody steps (a stop, a wait, the end of the training): no pause at all.
// I2  The share never falls below kShareMin, so that each drain ends.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "libckpt/base/clock.h"
#include "libckpt/base/mutex.h"

namespace ckpt::engine {

class DrainPace {
 public:
  // What training may lose while a copy drains; the target is 5 %, and noise takes its part.
  static constexpr double kSlowdownMax = 0.04;
  static constexpr double kShareMin = 0.05;
  static constexpr double kShareFirst = 0.1;  // before anything was measured
  static constexpr Nanos kPauseMax = std::chrono::milliseconds(500);

  // Everything below: Threads: any.

  // `boundaries` have been passed so far by all ranks together. The more looks, the finer the
  // measure. Fewer boundaries than before: other processes train now.
  void Look(int64_t now_ns, uint64_t boundaries);
  // A copy drains from here on, or does not any more. They nest.
  void Begin();
  void End();
  // Nobody trains who could be slowed down, whatever the boundaries say. They nest.
  void BeginHurry();
  void EndHurry();

  // How long to pause after `took` of writing.
  Nanos PauseAfter(int64_t now_ns, Nanos took) const;
  // Pauses for so long; less once somebody is in a hurry or `cancelled`.
  void Pause(Nanos took, const std::function<bool()>& cancelled);

  double share() const;
  // Of a step while nothing drains; 0 if it was not measured yet.
  Nanos step_time() const;

 private:
  // Steps between two boundaries that were seen.
  struct Window {
    int64_t since_ns = 0;
    uint64_t since = 0;  // boundaries
  };
  void Close(double step_ns) CKPT_REQUIRES(mutex_);

  Nanos PauseLocked(int64_t now_ns, Nanos took) const CKPT_REQUIRES(mutex_);

  mutable Mutex mutex_;
  CondVar hurried_;
  Window window_ CKPT_GUARDED_BY(mutex_);
  bool restart_ CKPT_GUARDED_BY(mutex_) = true;  // the next boundary opens a new window
  uint64_t boundaries_ CKPT_GUARDED_BY(mutex_) = 0;
  int64_t moved_ns_ CKPT_GUARDED_BY(mutex_) = 0;   // when a boundary was passed last
  int64_t stride_ns_ CKPT_GUARDED_BY(mutex_) = 0;  // between the last two looks that saw one
  uint32_t draining_ CKPT_GUARDED_BY(mutex_) = 0;
  uint32_t hurries_ CKPT_GUARDED_BY(mutex_) = 0;
  double free_step_ns_ CKPT_GUARDED_BY(mutex_) = 0;  // while nothing drains
  double slowdown_ CKPT_GUARDED_BY(mutex_) = 0;      // while something does
  double share_ CKPT_GUARDED_BY(mutex_) = kShareFirst;
};

class InAHurry {
 public:
  explicit InAHurry(DrainPace* pace) : pace_(pace) { pace_->BeginHurry(); }
  ~InAHurry() { pace_->EndHurry(); }
  InAHurry(const InAHurry&) = delete;
  InAHurry& operator=(const InAHurry&) = delete;

 private:
  DrainPace* const pace_;
};

// WriteOptions::pace; `boundaries` (may be empty) is looked at each time. Threads: any number.
std::function<void(Nanos took)> PacedBy(std::shared_ptr<DrainPace> pace,
                                        std::function<uint64_t()> boundaries,
                                        std::function<bool()> cancelled);

}  // namespace ckpt::engine
