// Chunk codecs: nothing in stored bytes makes a reader fail in another way than by an error, write
// beyond the chunk; what is encoded is decoded bit for bit.
#include <algorithm>

#include "libckpt/codec/codec.h"
#include "tests/fuzz/fuzz.h"

using namespace ckpt;

namespace {

constexpr size_t kRawBytesMax = 1 << 16;
constexpr size_t kGuard = 64;
constexpr std::byte kUntouched{0xA5};

// Stored bytes of anybody, said to be a chunk of `raw_bytes`.
void DecodeAny(codec::Codec codec, uint32_t width, size_t raw_bytes, std::string_view stored) {
  std::string out(raw_bytes + kGuard, static_cast<char>(kUntouched));
  const MutableByteSpan all = std::as_writable_bytes(std::span(out));
  codec::Decode(codec, AsBytes(stored), width, all.first(raw_bytes)).IgnoreError();
  FUZZ_CHECK(std::all_of(all.begin() + static_cast<std::ptrdiff_t>(raw_bytes), all.end(),
                         [](std::byte byte) { return byte == kUntouched; }));
}

void RoundTrip(uint32_t width, bool is_float, int level, std::string_view raw) {
  raw = raw.substr(0, raw.size() / width * width);
  // Short inputs do not shrink: the same ones over and over do.
  std::string chunk;
  while (!raw.empty() && chunk.size() < kRawBytesMax / 4) chunk += raw;
  const Result<codec::Encoded> encoded = codec::Encode(AsBytes(chunk), width, is_float, level);
  FUZZ_CHECK(encoded.ok());
  FUZZ_CHECK(encoded->bytes.size() <= chunk.size());
  if (encoded->codec == codec::Codec::kRaw) return;
  std::string back(chunk.size(), '\0');
  FUZZ_CHECK(codec::Decode(encoded->codec, AsBytes(encoded->bytes), width,
                           std::as_writable_bytes(std::span(back)))
                 .ok());
  FUZZ_CHECK(back == chunk);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view input = fuzz::Text(data, size);
  const uint32_t width = 1u << fuzz::Pick(&input, 4);
  const unsigned what = fuzz::Pick(&input, 5);
  if (what >= 3) {
    RoundTrip(width, what == 3, 1 + static_cast<int>(fuzz::Pick(&input, 5)), input);
    return 0;
  }
  const size_t raw_bytes = fuzz::Pick(&input, 256) * size_t{256} + fuzz::Pick(&input, 256);
  DecodeAny(static_cast<codec::Codec>(what), width, raw_bytes, input);
  return 0;
}
