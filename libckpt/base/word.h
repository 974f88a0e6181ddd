// The one 64-bit word on which a rank and its ckpt-run agree where to stop: boundary:32 | cut:28 |
// state:4 from the top.
//
// Both sides change it by read-modify-write only, sequentially consistent. step() is one fetch_add
// of kBoundaryOne and a compare; a boundary that wraps falls off the top and never touches cut or
// state; the low half (cut and state) is what a futex watches. Two plain words ("store the step,
// read the request") would be a store-buffer race: both sides can miss each other.
//
// I1  A cut is compared modulo 2^28 with the low 28 bits of the boundary.
// I2  AtOrPast: a rank whose boundary is at the cut is as much "past" it as one beyond: it has left
// that boundary.
#pragma once

#include <cstdint>

namespace ckpt {

enum class WordState : uint32_t {
  kIdle = 0,
  kProposedStop = 1,
  kProposedSave = 2,
  kCommittedStop = 3,
  kCommittedSave = 4,
  kRefused = 5,
  kStaging = 6,
  kFinished = 7,
};

inline constexpr uint64_t kBoundaryOne = uint64_t{1} << 32;
inline constexpr uint32_t kCutMask = (uint32_t{1} << 28) - 1;

struct Word {
  uint32_t boundary = 0;
  uint32_t cut = 0;  // 28 bits
  WordState state = WordState::kIdle;

  bool operator==(const Word&) const = default;
  constexpr uint64_t Pack() const {
    return (uint64_t{boundary} << 32) | (uint64_t{cut & kCutMask} << 4) |
           static_cast<uint64_t>(state);
  }
  static constexpr Word Unpack(uint64_t bits) {
    return Word{static_cast<uint32_t>(bits >> 32), static_cast<uint32_t>(bits >> 4) & kCutMask,
                static_cast<WordState>(bits & 15)};
  }
};

constexpr bool IsProposed(WordState s) {
  return s == WordState::kProposedStop || s == WordState::kProposedSave;
}
constexpr bool IsCommitted(WordState s) {
  return s == WordState::kCommittedStop || s == WordState::kCommittedSave;
}

// Whether `boundary` is the one that `cut` (28 bits) names.
constexpr bool IsAtCut(uint32_t boundary, uint32_t cut) {
  return (boundary & kCutMask) == (cut & kCutMask);
}

// Whether `boundary` is at or past `cut`, modulo 2^28 (half the ring counts as past).
constexpr bool AtOrPast(uint32_t boundary, uint32_t cut) {
  return ((boundary - cut) & kCutMask) < (uint32_t{1} << 27);
}

}  // namespace ckpt
