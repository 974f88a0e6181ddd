#include "libckpt/codec/codec.h"

#include <zstd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <memory>
#include <vector>

namespace ckpt::codec {
namespace {

constexpr size_t kSampleBytes = 32 * 1024;
constexpr uint8_t kPlaneRaw = 0;
constexpr uint8_t kPlaneZstd = 1;

template <auto kFree>
struct FreeBy {
  template <typename T>
  void operator()(T* context) const {
    kFree(context);
  }
};

Status Zstd(std::string_view what, size_t result) {
  return DataLoss(std::string(what) + ": " + ZSTD_getErrorName(result));
}

// Appends the frame of `data` to `out`.
Status Compress(ByteSpan data, int level, std::string* out) {
  thread_local std::unique_ptr<ZSTD_CCtx, FreeBy<ZSTD_freeCCtx>> context(ZSTD_createCCtx());
  const size_t start = out->size();
  out->resize(start + ZSTD_compressBound(data.size()));
  const size_t size = ZSTD_compressCCtx(context.get(), out->data() + start, out->size() - start,
                                        data.data(), data.size(), level);
  if (ZSTD_isError(size)) return Internal(std::string("zstd: ") + ZSTD_getErrorName(size));
  out->resize(start + size);
  return OkStatus();
}

Status Decompress(ByteSpan stored, MutableByteSpan out) {
  thread_local std::unique_ptr<ZSTD_DCtx, FreeBy<ZSTD_freeDCtx>> context(ZSTD_createDCtx());
  const size_t size =
      ZSTD_decompressDCtx(context.get(), out.data(), out.size(), stored.data(), stored.size());
  if (ZSTD_isError(size)) return Zstd("a zstd frame does not decode", size);
  if (size != out.size()) {
    return DataLoss("a zstd frame holds " + std::to_string(size) + " bytes where " +
                    std::to_string(out.size()) + " are declared");
  }
  return OkStatus();
}

template <typename Word>
void Split(ByteSpan chunk, std::byte* planes) {
  const size_t count = chunk.size() / sizeof(Word);
  for (size_t i = 0; i < count; ++i) {
    Word word;
    std::memcpy(&word, chunk.data() + i * sizeof(Word), sizeof(Word));
    word = std::rotl(word, 1);
    for (size_t p = 0; p < sizeof(Word); ++p) {
      planes[p * count + i] = static_cast<std::byte>(word >> (8 * (sizeof(Word) - 1 - p)));
    }
  }
}

constexpr size_t kPlanesMax = 8;
using Planes = std::array<const std::byte*, kPlanesMax>;  // most significant first

template <typename Word>
void Join(const Planes& planes, MutableByteSpan out) {
  const size_t count = out.size() / sizeof(Word);
  for (size_t i = 0; i < count; ++i) {
    Word word = 0;
    for (size_t p = 0; p < sizeof(Word); ++p) {
      word = static_cast<Word>((word << 8) | std::to_integer<Word>(planes[p][i]));
    }
    word = std::rotr(word, 1);
    std::memcpy(out.data() + i * sizeof(Word), &word, sizeof(Word));
  }
}

bool HasPlanes(uint32_t element_bytes, size_t bytes) {
  return (element_bytes == 2 || element_bytes == 4 || element_bytes == 8) &&
         bytes % element_bytes == 0;
}

void SplitAny(ByteSpan chunk, uint32_t element_bytes, std::byte* planes) {
  if (element_bytes == 2) Split<uint16_t>(chunk, planes);
  if (element_bytes == 4) Split<uint32_t>(chunk, planes);
  if (element_bytes == 8) Split<uint64_t>(chunk, planes);
}

// A plane: u8 method, u32 stored bytes, the bytes.
Status AppendPlane(ByteSpan plane, int level, std::string* out) {
  std::string frame;
  CKPT_RETURN_IF_ERROR(Compress(plane, level, &frame));
  const bool keep = frame.size() >= plane.size();
  ByteWriter head;
  head.Put<uint8_t>(keep ? kPlaneRaw : kPlaneZstd)
      .Put<uint32_t>(static_cast<uint32_t>(keep ? plane.size() : frame.size()));
  out->append(head.str());
  out->append(keep ? AsText(plane) : std::string_view(frame));
  return OkStatus();
}

Status EncodePlanes(ByteSpan chunk, uint32_t element_bytes, int level, std::string* out) {
  thread_local std::vector<std::byte> planes;
  planes.resize(chunk.size());
  SplitAny(chunk, element_bytes, planes.data());
  const size_t count = chunk.size() / element_bytes;
  for (uint32_t p = 0; p < element_bytes; ++p) {
    CKPT_RETURN_IF_ERROR(AppendPlane(ByteSpan(planes).subspan(p * count, count), level, out));
  }
  return OkStatus();
}

Status DecodePlanes(ByteSpan stored, uint32_t element_bytes, MutableByteSpan out) {
  if (!HasPlanes(element_bytes, out.size())) {
    return DataLoss("planes of elements of " + std::to_string(element_bytes) + " bytes");
  }
  thread_local std::vector<std::byte> decoded;
  decoded.resize(out.size());
  const size_t count = out.size() / element_bytes;
  Planes planes{};
  ByteReader reader(stored);
  for (uint32_t p = 0; p < element_bytes; ++p) {
    const uint8_t method = reader.Get<uint8_t>();
    const ByteSpan bytes = AsBytes(reader.GetRaw(reader.Get<uint32_t>()));
    if (reader.failed() || method > kPlaneZstd || (method == kPlaneRaw && bytes.size() != count)) {
      reader.Fail();
      break;
    }
    planes[p] = bytes.data();  // a plane that was kept is used where it lies
    if (method == kPlaneRaw) continue;
    const MutableByteSpan plane(decoded.data() + p * count, count);
    CKPT_RETURN_IF_ERROR(Decompress(bytes, plane));
    planes[p] = plane.data();
  }
  CKPT_RETURN_IF_ERROR(reader.Finish("a chunk stored as planes"));
  if (element_bytes == 2) Join<uint16_t>(planes, out);
  if (element_bytes == 4) Join<uint32_t>(planes, out);
  if (element_bytes == 8) Join<uint64_t>(planes, out);
  return OkStatus();
}

Status EncodeAs(Codec codec, ByteSpan chunk, uint32_t element_bytes, int level, std::string* out) {
  if (codec == Codec::kZstd) return Compress(chunk, level, out);
  return EncodePlanes(chunk, element_bytes, level, out);
}

}  // namespace

std::string_view CodecName(Codec codec) {
  switch (codec) {
    case Codec::kRaw:
      return "raw";
    case Codec::kZstd:
      return "zstd";
    case Codec::kPlanes:
      return "planes";
  }
  return "unknown";
}

Result<Encoded> Encode(ByteSpan chunk, uint32_t element_bytes, bool is_float, int level) {
  if (level < 1 || level > 19) {
    return InvalidArgument("compression level " + std::to_string(level) + " is not 1 to 19");
  }
  Encoded encoded;
  if (chunk.empty()) return encoded;
  const Codec codec =
      is_float && HasPlanes(element_bytes, chunk.size()) ? Codec::kPlanes : Codec::kZstd;
  // From the middle: the start of a tensor is often untypical (padding rows, rare tokens).
  const size_t sample_bytes = std::min(chunk.size(), kSampleBytes / 8 * 8);
  const size_t start = (chunk.size() - sample_bytes) / 2 / 8 * 8;
  std::string sample;
  CKPT_RETURN_IF_ERROR(
      EncodeAs(codec, chunk.subspan(start, sample_bytes), element_bytes, level, &sample));
  if (sample.size() > sample_bytes - sample_bytes / 16) return encoded;
  CKPT_RETURN_IF_ERROR(EncodeAs(codec, chunk, element_bytes, level, &encoded.bytes));
  if (encoded.bytes.size() >= chunk.size()) {
    encoded.bytes.clear();
    return encoded;
  }
  encoded.codec = codec;
  return encoded;
}

Status Decode(Codec codec, ByteSpan stored, uint32_t element_bytes, MutableByteSpan out) {
  switch (codec) {
    case Codec::kRaw:
      if (stored.size() != out.size())
        return DataLoss("a raw chunk of another length than declared");
      std::copy(stored.begin(), stored.end(), out.begin());
      return OkStatus();
    case Codec::kZstd:
      return Decompress(stored, out);
    case Codec::kPlanes:
      return DecodePlanes(stored, element_bytes, out);
  }
  return DataLoss("a chunk has the unknown codec " + std::to_string(static_cast<int>(codec)));
}

}  // namespace ckpt::codec
