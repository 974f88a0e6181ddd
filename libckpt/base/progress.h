// How fast bytes move and when they will be through, in words.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <utility>

namespace ckpt {

// Over the last few seconds: a rate that follows what happens now.
class RateMeter {
 public:
  void Add(uint64_t done, int64_t now_ns);
  double BytesPerSecond() const;  // 0 not known yet

 private:
  std::deque<std::pair<int64_t, uint64_t>> samples_;
};

// "staged 40.0 of 64.0 MiB (62 %), 1.20 GiB/s, 2 s left"; "staged 64.0 MiB" when it is through.
std::string DescribeProgress(const std::string& what, uint64_t done, uint64_t total, double rate);

// "3 s", "4 min 10 s", "2 h 5 min".
std::string RoughDuration(double seconds);

}  // namespace ckpt
