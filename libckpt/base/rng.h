// A small deterministic generator (splitmix64): the same numbers from the same seed on every
// machine, which the standard library's distributions do not promise. For tests, jitter and
// sampling; never for ids or secrets.
#pragma once

#include <cstdint>

namespace ckpt {

class Rng {
 public:
  explicit Rng(uint64_t seed) : state_(seed) {}

  uint64_t Next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }
  // 0 … bound - 1; 0 for bound 0. The bias of the multiplication is below 2^-32 for bounds that
  // tests use.
  uint64_t Below(uint64_t bound) {
    return static_cast<uint64_t>((static_cast<unsigned __int128>(Next()) * bound) >> 64);
  }
  // low … high, both included.
  uint64_t Between(uint64_t low, uint64_t high) { return low + Below(high - low + 1); }
  bool Chance(uint32_t percent) { return Below(100) < percent; }

 private:
  uint64_t state_;
};

}  // namespace ckpt
