// A small generator whose whole state is one number, so that it travels in the value tree
// (SplitMix64, public domain algorithm by Sebastiano Vigna).
#pragma once

#include <cstdint>

namespace train {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t Next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  float NextFloat() { return static_cast<float>(Next() >> 40) * 0x1p-24f; }
  uint64_t state() const { return state_; }
  void set_state(uint64_t state) { state_ = state; }

 private:
  uint64_t state_;
};

}  // namespace train
