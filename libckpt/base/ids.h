// Strong types for the numbers that must not be mixed up, and the 128-bit job id.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "libckpt/base/status.h"

namespace ckpt {

template <typename Tag, typename Int>
class StrongInt {
 public:
  constexpr StrongInt() = default;
  constexpr explicit StrongInt(Int value) : value_(value) {}
  constexpr Int value() const { return value_; }
  constexpr auto operator<=>(const StrongInt&) const = default;
  constexpr StrongInt Next() const { return StrongInt(value_ + 1); }

 private:
  Int value_ = 0;
};

using Rank =
    StrongInt<struct RankTag, uint32_t>;  // a training process of a gang, 0 … world size - 1
using Epoch = StrongInt<struct EpochTag, uint64_t>;      // one launch of a job; 0 means "none"
using Attempt = StrongInt<struct AttemptTag, uint32_t>;  // one try to save, numbered by the leader
                                                         // within an epoch; 0 "none"
using Step =
    StrongInt<struct StepTag, int64_t>;  // the user's own step number: data, never used to agree

// Names one attempt to save. Ordered as "newest" is: by epoch, then step, then attempt.
struct AttemptId {
  Epoch epoch;
  Step step;
  Attempt attempt;
  auto operator<=>(const AttemptId&) const = default;

  // "s<step>.e<epoch>.a<attempt>", the name of its directory. Step may be negative ("s-1…").
  std::string ToString() const;
  // kInvalidArgument unless `name` is exactly what ToString would print.
  static Result<AttemptId> Parse(std::string_view name);
};

// 128 random bits, minted once for each job; printed as 32 hex digits.
struct JobId {
  std::array<uint8_t, 16> bytes{};
  auto operator<=>(const JobId&) const = default;
  bool IsZero() const { return bytes == std::array<uint8_t, 16>{}; }
  std::string ToString() const;
  static Result<JobId> Parse(std::string_view hex);
  static JobId Random();
};

// Job names, rank files and the like: 1 to 128 characters of [A-Za-z0-9._-], not starting with a
// dot.
Status CheckName(std::string_view kind, std::string_view name);

}  // namespace ckpt

template <typename Tag, typename Int>
struct std::hash<ckpt::StrongInt<Tag, Int>> {
  size_t operator()(const ckpt::StrongInt<Tag, Int>& id) const {
    return std::hash<Int>()(id.value());
  }
};
