// Time as the project uses it: durations on CLOCK_BOOTTIME (it goes on while a machine sleeps and
// never jumps), and deadlines that carry a name, because every wait has one and an error must say
// which.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "libckpt/base/status.h"

namespace ckpt {

using Nanos = std::chrono::nanoseconds;

// Nanoseconds since boot.
int64_t BoottimeNs();
// Nanoseconds since the epoch of UTC, for people and logs only: never compared, never waited on.
int64_t WallNs();

class Deadline {
 public:
  // `name` must outlive the deadline (a literal): "barrier B1", "writing shards".
  Deadline(std::string_view name, Nanos from_now);
  static Deadline At(std::string_view name, int64_t boottime_ns);
  static Deadline Infinite(std::string_view name);

  bool Expired() const { return BoottimeNs() >= at_ns_; }
  Nanos Left() const;  // never negative; capped at 100 years
  int LeftMs() const;  // rounded up, for poll(2); capped at INT_MAX
  int64_t at_ns() const { return at_ns_; }
  std::string_view name() const { return name_; }
  // kDeadlineExceeded: "NAME: not done within 5.0 s".
  Status Exceeded() const;
  // The earlier of the two.
  Deadline Min(const Deadline& other) const { return other.at_ns_ < at_ns_ ? other : *this; }

 private:
  Deadline() = default;
  std::string_view name_;
  int64_t at_ns_ = 0;
  int64_t total_ns_ = 0;
};

// "1.234 s", "56.7 ms", "890 us".
std::string FormatDuration(Nanos duration);
// "1.50 GiB", "64.0 MiB", "17 B".
std::string FormatBytes(uint64_t bytes);

}  // namespace ckpt
