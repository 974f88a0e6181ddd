#include "coordinator/ckptctl/compare.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace ckpt::ckptctl {
namespace {

using format::DType;

template <typename T>
T Get(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

// A float of `exponent` and `mantissa` bits; `ieee`: its highest exponent means infinity and NaN.
double Small(uint32_t bits, int exponent, int mantissa, bool ieee) {
  const int bias = (1 << (exponent - 1)) - 1;
  const uint32_t fraction = bits & ((1u << mantissa) - 1);
  const int power = static_cast<int>(bits >> mantissa) & ((1 << exponent) - 1);
  const bool negative = ((bits >> (mantissa + exponent)) & 1) != 0;
  const bool highest = power == (1 << exponent) - 1;
  const bool nan = highest && (ieee ? fraction != 0 : fraction == (1u << mantissa) - 1);
  double value = power == 0 ? std::ldexp(fraction, 1 - bias - mantissa)
                            : std::ldexp(fraction + (1u << mantissa), power - bias - mantissa);
  if (highest && ieee) value = std::numeric_limits<double>::infinity();
  if (nan) value = std::numeric_limits<double>::quiet_NaN();
  return negative ? -value : value;
}

double Number(DType dtype, const std::byte* at) {
  switch (dtype) {
    case DType::kI8:
      return Get<int8_t>(at);
    case DType::kU16:
      return Get<uint16_t>(at);
    case DType::kI16:
      return Get<int16_t>(at);
    case DType::kU32:
      return Get<uint32_t>(at);
    case DType::kI32:
      return Get<int32_t>(at);
    case DType::kU64:
      return static_cast<double>(Get<uint64_t>(at));
    case DType::kI64:
      return static_cast<double>(Get<int64_t>(at));
    case DType::kF16:
      return Small(Get<uint16_t>(at), 5, 10, true);
    case DType::kBF16:
      return std::bit_cast<float>(static_cast<uint32_t>(Get<uint16_t>(at)) << 16);
    case DType::kF8E4M3:
      return Small(Get<uint8_t>(at), 4, 3, false);
    case DType::kF8E5M2:
      return Small(Get<uint8_t>(at), 5, 2, true);
    case DType::kF32:
    case DType::kC64:
      return Get<float>(at);
    case DType::kF64:
    case DType::kC128:
      return Get<double>(at);
    default:
      return Get<uint8_t>(at);
  }
}

void AddPart(DType dtype, const std::byte* a, const std::byte* b, Difference* out) {
  const double x = Number(dtype, a);
  const double y = Number(dtype, b);
  double abs = std::fabs(x - y);
  if (std::isnan(abs)) abs = std::isnan(x) && std::isnan(y) ? 0 : HUGE_VAL;
  const double larger = std::max(std::fabs(x), std::fabs(y));
  out->max_abs = std::max(out->max_abs, abs);
  if (!(abs > 0)) return;
  out->max_rel = std::max(out->max_rel, std::isfinite(abs) ? abs / larger : HUGE_VAL);
}

}  // namespace

Difference Compare(DType dtype, ByteSpan a, ByteSpan b) {
  Difference difference;
  const size_t element = std::max<size_t>(1, format::ElementBytes(dtype));
  const bool pair = dtype == DType::kC64 || dtype == DType::kC128;
  const size_t part = pair ? element / 2 : element;
  if (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0) return difference;
  for (size_t at = 0; at + element <= a.size(); at += element) {
    if (std::memcmp(a.data() + at, b.data() + at, element) == 0) continue;
    if (difference.count++ == 0) difference.first = at / element;
    for (size_t p = 0; p < element; p += part) {
      AddPart(dtype, a.data() + at + p, b.data() + at + p, &difference);
    }
  }
  return difference;
}

}  // namespace ckpt::ckptctl
