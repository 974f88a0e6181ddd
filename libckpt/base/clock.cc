#include "libckpt/base/clock.h"

#include <time.h>

#include <algorithm>
#include <climits>
#include <cstdio>

namespace ckpt {
namespace {

constexpr int64_t kForeverNs = int64_t{100} * 365 * 86400 * 1'000'000'000;

int64_t NowNs(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

std::string Printf(const char* format, double value) {
  char text[48];
  snprintf(text, sizeof text, format, value);
  return text;
}

}  // namespace

int64_t BoottimeNs() { return NowNs(CLOCK_BOOTTIME); }
int64_t WallNs() { return NowNs(CLOCK_REALTIME); }

Deadline::Deadline(std::string_view name, Nanos from_now)
    : name_(name),
      at_ns_(BoottimeNs() + std::clamp<int64_t>(from_now.count(), 0, kForeverNs)),
      total_ns_(from_now.count()) {}

Deadline Deadline::At(std::string_view name, int64_t boottime_ns) {
  // It may be a stranger's number: the difference must not overflow into the future.
  return Deadline(name, Nanos(std::max<int64_t>(boottime_ns, 0) - BoottimeNs()));
}

Deadline Deadline::Infinite(std::string_view name) { return Deadline(name, Nanos(kForeverNs)); }

Nanos Deadline::Left() const {
  return Nanos(std::clamp<int64_t>(at_ns_ - BoottimeNs(), 0, kForeverNs));
}

int Deadline::LeftMs() const {
  return static_cast<int>(std::min<int64_t>((Left().count() + 999'999) / 1'000'000, INT_MAX));
}

Status Deadline::Exceeded() const {
  return DeadlineExceeded(std::string(name_) + ": not done within " +
                          FormatDuration(Nanos(total_ns_)));
}

std::string FormatDuration(Nanos duration) {
  const double ns = static_cast<double>(duration.count());
  if (ns >= 1e9) return Printf("%.3f s", ns / 1e9);
  if (ns >= 1e6) return Printf("%.1f ms", ns / 1e6);
  return Printf("%.0f us", ns / 1e3);
}

std::string FormatBytes(uint64_t bytes) {
  static constexpr const char* kFormats[] = {"%.0f B", "%.1f KiB", "%.1f MiB", "%.2f GiB",
                                             "%.2f TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kFormats)) {
    value /= 1024;
    ++unit;
  }
  return Printf(kFormats[unit], value);
}

}  // namespace ckpt
