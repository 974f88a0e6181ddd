// What benchmarks print: a measured value, the limit measured in the same run, their ratio and the
// target, as one JSON object a line. Rounds are paired (limit, value, limit, value, …) and the
// median ratio counts, so that a slow minute of the machine hits both sides.
#pragma once

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "libckpt/base/clock.h"

namespace ckpt::bench {

inline double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n == 0 ? 0 : n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

template <typename Fn>
double Seconds(Fn&& fn) {
  const int64_t begin = BoottimeNs();
  fn();
  return static_cast<double>(BoottimeNs() - begin) * 1e-9;
}

struct Rounds {
  std::vector<double> values, limits;
  void Add(double value, double limit) {
    values.push_back(value);
    limits.push_back(limit);
  }
  double MedianRatio() const {
    std::vector<double> ratios;
    for (size_t i = 0; i < values.size(); ++i) ratios.push_back(values[i] / limits[i]);
    return Median(ratios);
  }
};

enum class Better { kLower, kHigher };

// `limit` 0: there is none, and the value itself is compared with the target.
inline void Print(const std::string& name, double value, double limit, double ratio, double target,
                  Better better, const std::string& unit) {
  const double compared = limit > 0 ? ratio : value;
  const bool pass = better == Better::kLower ? compared <= target : compared >= target;
  std::printf(
      "{\"name\":\"%s\",\"value\":%.6g,\"limit\":%.6g,\"ratio\":%.4f,\"target\":%.4g,"
      "\"pass\":%s,\"unit\":\"%s\"}\n",
      name.c_str(), value, limit, ratio, target, pass ? "true" : "false", unit.c_str());
  std::fflush(stdout);
}

inline void Print(const std::string& name, const Rounds& rounds, double target, Better better,
                  const std::string& unit) {
  Print(name, Median(rounds.values), Median(rounds.limits), rounds.MedianRatio(), target, better,
        unit);
}

}  // namespace ckpt::bench
