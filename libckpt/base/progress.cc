#include "libckpt/base/progress.h"

#include <cmath>

#include "libckpt/base/clock.h"

namespace ckpt {
namespace {

constexpr int64_t kWindowNs = 5'000'000'000;
constexpr int64_t kSpanMinNs = 200'000'000;  // a shorter span tells nothing
constexpr size_t kSamplesMax = 256;

}  // namespace

void RateMeter::Add(uint64_t done, int64_t now_ns) {
  if (!samples_.empty() && done < samples_.back().second) samples_.clear();  // something new
  samples_.emplace_back(now_ns, done);
  while (samples_.size() > 2 &&
         (samples_[1].first < now_ns - kWindowNs || samples_.size() > kSamplesMax)) {
    samples_.pop_front();
  }
}

double RateMeter::BytesPerSecond() const {
  if (samples_.size() < 2) return 0;
  const int64_t span_ns = samples_.back().first - samples_.front().first;
  if (span_ns < kSpanMinNs) return 0;
  return static_cast<double>(samples_.back().second - samples_.front().second) /
         (static_cast<double>(span_ns) / 1e9);
}

std::string DescribeProgress(const std::string& what, uint64_t done, uint64_t total, double rate) {
  if (done >= total) return what + " " + FormatBytes(total);
  std::string text =
      what + " " + FormatBytes(done) + " of " + FormatBytes(total) + " (" +
      std::to_string(total == 0 ? 0
                                : static_cast<uint64_t>(static_cast<double>(done) * 100 /
                                                        static_cast<double>(total))) +
      " %)";
  if (rate < 1) return text;
  return text + ", " + FormatBytes(static_cast<uint64_t>(rate)) + "/s, " +
         RoughDuration(static_cast<double>(total - done) / rate) + " left";
}

std::string RoughDuration(double seconds) {
  if (!(seconds < 1e9)) return "for ever";
  const auto whole = static_cast<uint64_t>(std::ceil(seconds));
  const auto two = [](uint64_t big, const char* unit, uint64_t small, const char* rest) {
    return std::to_string(big) + unit + (small == 0 ? "" : " " + std::to_string(small) + rest);
  };
  if (whole < 60) return std::to_string(whole) + " s";
  if (whole < 3600) return two(whole / 60, " min", whole % 60, " s");
  if (whole < 86400) return two(whole / 3600, " h", whole % 3600 / 60, " min");
  return two(whole / 86400, " d", whole % 86400 / 3600, " h");
}

}  // namespace ckpt
