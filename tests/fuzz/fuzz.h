// What the fuzz targets share. A target feeds one input to what reads bytes that somebody else
// wrote and checks what must hold whatever they are; a crash, a report of a sanitizer or a broken
// promise ends the process, and libFuzzer writes the input to a file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "libckpt/base/digest.h"

namespace ckpt::fuzz {

#define FUZZ_CHECK(condition)                                                      \
  do {                                                                             \
    if (!(condition)) {                                                            \
      std::fprintf(stderr, "%s:%d: broken: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                \
    }                                                                              \
  } while (false)

inline std::string_view Text(const uint8_t* data, size_t size) {
  return std::string_view(reinterpret_cast<const char*>(data), size);
}

// The first byte of an input picks one of `count` readers; the rest is theirs.
inline unsigned Pick(std::string_view* input, unsigned count) {
  if (input->empty()) return 0;
  const auto picked = static_cast<uint8_t>((*input)[0]);
  input->remove_prefix(1);
  return picked % count;
}

// A JSON document whose digest is made right, so that what lies behind the digest is reached too.
inline std::string Signed(std::string_view document) {
  constexpr std::string_view kKey = "\"digest\":\"";
  constexpr size_t kDigits = 2 * sizeof(Digest);
  std::string text(document);
  const size_t at = text.find(kKey);
  if (at == std::string::npos || text.size() < at + kKey.size() + kDigits) return text;
  std::string blank = text;
  blank.erase(at + kKey.size(), kDigits);
  return text.replace(at + kKey.size(), kDigits, DigestOf(AsBytes(blank)).ToString());
}

}  // namespace ckpt::fuzz
