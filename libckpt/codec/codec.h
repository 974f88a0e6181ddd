// Chunk codecs: how the bytes of one chunk are stored. A reader never depends on how well or by
// which version they were compressed, only on docs/format/v1.md.
//
// Float planes: each element is rotated left by one bit, so that sign and exponent no longer share
// a byte, and the bytes of all elements are split into planes, most significant first; each plane
// is compressed by itself or kept. The exponents of trained weights are few and compress well,
// mantissas hardly at all: plain zstd sees them mixed and gains half as much.
//
// I1  Encode never returns more bytes than it was given: what does not shrink is stored raw.
// I2  Decode writes exactly `out.size()` bytes or fails; nothing in the stored bytes makes it
// allocate or read beyond.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "libckpt/base/bytes.h"
#include "libckpt/base/status.h"

namespace ckpt::codec {

// Numbers are part of the format.
enum class Codec : uint8_t { kRaw = 0, kZstd = 1, kPlanes = 2 };
std::string_view CodecName(Codec codec);

struct Encoded {
  Codec codec = Codec::kRaw;
  std::string bytes;  // empty for kRaw: the chunk itself is stored
};

// Encodes one chunk, choosing by a sample of it: planes for `is_float` elements of 2, 4 or 8 bytes,
// else zstd, else raw when the sample shrinks by less than 1/16. `level` is zstd's, 1 to 19.
// Threads: safe; each thread keeps its own compression context.
Result<Encoded> Encode(ByteSpan chunk, uint32_t element_bytes, bool is_float, int level);

// kDataLoss if `stored` is not exactly what `codec` makes of `out.size()` bytes.
Status Decode(Codec codec, ByteSpan stored, uint32_t element_bytes, MutableByteSpan out);

}  // namespace ckpt::codec
