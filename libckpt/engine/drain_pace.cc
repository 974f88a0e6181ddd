#include "libckpt/engine/drain_pace.h"

#include <algorithm>

namespace ckpt::engine {
namespace {

// A window tells something once it has this many steps and is this long; or is very long.
constexpr uint64_t kStepsMin = 16;
constexpr int64_t kWindowMinNs = 1'000'000'000;
constexpr int64_t kWindowMaxNs = 10'000'000'000;
constexpr uint64_t kStepsOfALongWindow = 2;
// Without a boundary for so many times the usual, and never sooner than this, nobody steps.
constexpr int64_t kStillStrides = 4;
constexpr int64_t kStillMinNs = 1'000'000'000;
// What a new measure counts beside the older ones.
constexpr double kNewest = 0.4;
constexpr double kShareGrowth = 1.5;
constexpr double kShareDrop = 0.5;
constexpr Nanos kLook = std::chrono::milliseconds(20);  // at whether it was cancelled

double Mix(double older, double newest) { return older + kNewest * (newest - older); }

}  // namespace

void DrainPace::Look(int64_t now_ns, uint64_t boundaries) {
  MutexLock lock(mutex_);
  if (boundaries == boundaries_) return;
  restart_ = restart_ || boundaries < boundaries_;
  if (moved_ns_ != 0) stride_ns_ = now_ns - moved_ns_;
  boundaries_ = boundaries;
  moved_ns_ = now_ns;
  if (restart_) {
    restart_ = false;
    window_ = {now_ns, boundaries};
    return;
  }
  const uint64_t steps = boundaries - window_.since;
  const int64_t length_ns = now_ns - window_.since_ns;
  const bool enough = (steps >= kStepsMin && length_ns >= kWindowMinNs) ||
                      (steps >= kStepsOfALongWindow && length_ns >= kWindowMaxNs);
  if (!enough) return;
  Close(static_cast<double>(length_ns) / static_cast<double>(steps));
  window_ = {now_ns, boundaries};
}

void DrainPace::Close(double step_ns) {
  if (draining_ == 0) {
    free_step_ns_ = free_step_ns_ == 0 ? step_ns : Mix(free_step_ns_, step_ns);
    return;
  }
  if (free_step_ns_ == 0) return;
  slowdown_ = Mix(slowdown_, std::max(0.0, step_ns / free_step_ns_ - 1));
  const double wanted = slowdown_ > 0 ? kSlowdownMax / slowdown_ : kShareGrowth;
  share_ = std::clamp(share_ * std::clamp(wanted, kShareDrop, kShareGrowth), kShareMin, 1.0);
}

void DrainPace::Begin() {
  MutexLock lock(mutex_);
  if (draining_++ == 0) restart_ = true;
}

void DrainPace::End() {
  MutexLock lock(mutex_);
  if (--draining_ == 0) restart_ = true;
}

void DrainPace::BeginHurry() {
  MutexLock lock(mutex_);
  ++hurries_;
  hurried_.NotifyAll();
}

void DrainPace::EndHurry() {
  MutexLock lock(mutex_);
  --hurries_;
}

Nanos DrainPace::PauseLocked(int64_t now_ns, Nanos took) const {
  const int64_t still_ns = std::max(kStillMinNs, kStillStrides * stride_ns_);
  if (hurries_ > 0 || now_ns - moved_ns_ > still_ns) return Nanos(0);
  const auto pause = static_cast<double>(took.count()) * (1 - share_) / share_;
  return std::min(kPauseMax, Nanos(static_cast<int64_t>(pause)));
}

Nanos DrainPace::PauseAfter(int64_t now_ns, Nanos took) const {
  MutexLock lock(mutex_);
  return PauseLocked(now_ns, took);
}

void DrainPace::Pause(Nanos took, const std::function<bool()>& cancelled) {
  const int64_t began_ns = BoottimeNs();
  for (;;) {
    if (cancelled && cancelled()) return;
    MutexLock lock(mutex_);
    const int64_t now_ns = BoottimeNs();
    const Nanos left = PauseLocked(now_ns, took) - Nanos(now_ns - began_ns);
    if (left <= Nanos(0)) return;
    hurried_.WaitUntil(mutex_, Deadline("a pause of writing", std::min(left, kLook)));
  }
}

double DrainPace::share() const {
  MutexLock lock(mutex_);
  return share_;
}

Nanos DrainPace::step_time() const {
  MutexLock lock(mutex_);
  return Nanos(static_cast<int64_t>(free_step_ns_));
}

std::function<void(Nanos)> PacedBy(std::shared_ptr<DrainPace> pace,
                                   std::function<uint64_t()> boundaries,
                                   std::function<bool()> cancelled) {
  return [pace = std::move(pace), boundaries = std::move(boundaries),
          cancelled = std::move(cancelled)](Nanos took) {
    if (boundaries) pace->Look(BoottimeNs(), boundaries());
    pace->Pause(took, cancelled);
  };
}

}  // namespace ckpt::engine
