// Little-endian encoding of small structures, and its reader for untrusted input: it never reads
// beyond the end, never allocates by a number it has not checked, and remembers the first error, so
// that a decoder checks once at the end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "libckpt/base/status.h"

namespace ckpt {

using ByteSpan = std::span<const std::byte>;
using MutableByteSpan = std::span<std::byte>;

inline ByteSpan AsBytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}
inline std::string_view AsText(ByteSpan bytes) {
  return std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

constexpr uint64_t AlignUp(uint64_t value, uint64_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
}
constexpr uint64_t CeilDiv(uint64_t a, uint64_t b) { return a / b + (a % b != 0); }

class ByteWriter {
 public:
  template <typename Int>
  requires std::is_integral_v<Int> ByteWriter& Put(Int value) {
    char raw[sizeof value];
    for (size_t i = 0; i < sizeof value; ++i) {  // one store, as compilers see
      raw[i] = static_cast<char>(static_cast<std::make_unsigned_t<Int>>(value) >> (8 * i));
    }
    out_.append(raw, sizeof value);
    return *this;
  }
  ByteWriter& PutBool(bool value) { return Put<uint8_t>(value ? 1 : 0); }
  // u32 length, then the bytes.
  ByteWriter& PutString(std::string_view text) {
    Put<uint32_t>(static_cast<uint32_t>(text.size()));
    out_.append(text);
    return *this;
  }
  // u32 count, then the numbers.
  template <typename Int>
  ByteWriter& PutArray(std::span<const Int> values) {
    Put<uint32_t>(static_cast<uint32_t>(values.size()));
    for (const Int value : values) Put<Int>(value);
    return *this;
  }
  ByteWriter& PutRaw(std::string_view bytes) {
    out_.append(bytes);
    return *this;
  }
  void Reserve(size_t bytes) { out_.reserve(bytes); }
  size_t size() const { return out_.size(); }
  std::string Take() && { return std::move(out_); }
  const std::string& str() const { return out_; }

 private:
  std::string out_;
};

class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : rest_(bytes) {}
  explicit ByteReader(ByteSpan bytes) : rest_(AsText(bytes)) {}

  // 0, empty or false once an error has been seen.
  template <typename Int>
  requires std::is_integral_v<Int> Int Get() {
    using Unsigned = std::make_unsigned_t<Int>;
    Unsigned value = 0;
    const std::string_view raw = GetRaw(sizeof(Int));
    for (size_t i = 0; i < raw.size(); ++i) {
      value |=
          static_cast<Unsigned>(static_cast<Unsigned>(static_cast<uint8_t>(raw[i])) << (8 * i));
    }
    return static_cast<Int>(value);
  }
  bool GetBool() { return Get<uint8_t>() != 0; }
  std::string_view GetString(size_t size_max = SIZE_MAX) {
    const uint32_t size = Get<uint32_t>();
    if (size > size_max) failed_ = true;
    return failed_ ? std::string_view() : GetRaw(size);
  }
  template <typename Int>
  std::vector<Int> GetArray(size_t count_max = SIZE_MAX) {
    std::vector<Int> values;
    const uint32_t count = Get<uint32_t>();
    if (count > count_max || count > rest_.size() / sizeof(Int)) failed_ = true;
    if (failed_) return values;
    values.reserve(count);
    for (uint32_t i = 0; i < count; ++i) values.push_back(Get<Int>());
    return values;
  }
  // A count of things that take at least `each_min` bytes; an impossible one is an error.
  uint32_t GetCount(size_t each_min) {
    const uint32_t count = Get<uint32_t>();
    if (each_min != 0 && count > rest_.size() / each_min) failed_ = true;
    return failed_ ? 0 : count;
  }
  std::string_view GetRaw(size_t size) {
    if (failed_ || size > rest_.size()) {
      failed_ = true;
      return {};
    }
    const std::string_view raw = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return raw;
  }
  void Fail() { failed_ = true; }
  bool failed() const { return failed_; }
  std::string_view rest() const { return rest_; }

  // OK if nothing failed and nothing is left over; `what` names the structure.
  Status Finish(std::string_view what) const {
    if (failed_) return DataLoss(std::string(what) + " is cut short or holds an impossible length");
    if (!rest_.empty())
      return DataLoss(std::string(what) + " has " + std::to_string(rest_.size()) +
                      " bytes too many");
    return OkStatus();
  }

 private:
  std::string_view rest_;
  bool failed_ = false;
};

// a * b and a + b that say when they overflow.
inline bool MulOverflows(uint64_t a, uint64_t b, uint64_t* out) {
  return __builtin_mul_overflow(a, b, out);
}
inline bool AddOverflows(uint64_t a, uint64_t b, uint64_t* out) {
  return __builtin_add_overflow(a, b, out);
}

}  // namespace ckpt
