// The index of a shard: what is in the shard's stream, and for every chunk how it is stored and its
// digest. Binary, little-endian, ends in the XXH3-128 of everything before it; that digest stands
// for the whole shard in the MANIFEST.
//
// A chunk that has not changed since an older checkpoint may be stored there only: a *reference* to
// a chunk of an *origin*, always the file that holds the bytes, never another reference.
//
// I1  Decode allocates nothing by a number that it has not checked against the bytes it was given.
// I2  A decoded index is consistent with itself and with the real size of its shard file: tensors
//     cover the data section, chunks cover the stream, own chunks cover the file, exactly once, in
//     order.
// I3  Chunk 0, the header, is stored raw in the shard's own file; each origin is referred to.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "libckpt/base/bytes.h"
#include "libckpt/base/digest.h"
#include "libckpt/base/ids.h"
#include "libckpt/format/names.h"
#include "libckpt/format/shard.h"

namespace ckpt::format {

// How a chunk is stored. Only ever add; a reader refuses what it does not know.
enum class Codec : uint8_t { kRaw = 0, kZstd = 1, kPlanes = 2 };
inline constexpr uint32_t kOriginsMax = 4;  // of one shard

// A shard of an older checkpoint of the same job, in which referred chunks are stored.
struct Origin {
  AttemptId id;
  Uid uid{};
  Rank shard;
  uint64_t file_bytes = 0;
  std::string file;  // its name in that checkpoint's directory
  bool operator==(const Origin&) const = default;
};

struct ChunkEntry {
  Codec codec = Codec::kRaw;    // of the stored bytes, wherever they are
  uint64_t begin = 0, end = 0;  // raw bytes: a range of the stream (derived, not on disk)
  uint64_t stored_offset = 0;   // in the file that holds it
  uint64_t stored_bytes = 0;
  Digest digest;  // of the raw bytes, seeded with the (uid, shard, chunk number) of where it is
  uint8_t origin = 0;         // 0: the shard's own file; k: origins[k - 1]
  uint32_t origin_chunk = 0;  // its number there; 0 for an own one
  // StoredCheck of the stored bytes; 0 for a raw chunk, whose digest says it all. A flipped bit
  // that a codec does not care about is damage too, and the first sign of more.
  uint16_t stored_check = 0;
  bool operator==(const ChunkEntry&) const = default;
  uint64_t raw_bytes() const { return end - begin; }
  bool referred() const { return origin != 0; }
};

struct ShardIndex {
  Uid uid{};   // of the checkpoint
  Rank shard;  // its number is the rank that wrote it
  uint64_t header_bytes = 0;
  uint64_t chunk_bytes = 0;
  uint64_t stream_bytes = 0;  // raw
  uint64_t file_bytes = 0;    // stored
  std::vector<ShardTensor> tensors;
  std::vector<Origin> origins;  // at most kOriginsMax, by rising id
  std::vector<ChunkEntry> chunks;
  bool operator==(const ShardIndex&) const = default;

  // Pre: made by MakeRawIndex or Decode (or consistent in the same way).
  std::string Encode() const;
  // `file_bytes` is the real size of the shard file. Errors: kDataLoss for damage,
  // kFailedPrecondition for a version, feature or codec this release does not know.
  static Result<ShardIndex> Decode(std::string_view bytes, uint64_t file_bytes);

  // The chunks [first, last) that share bytes with [begin, end) of the stream.
  ChunkSpan ChunkOf(uint64_t begin, uint64_t end) const;
  // Seed of the digest of chunk `chunk`: that of the place where it is stored.
  uint64_t Seed(uint64_t chunk) const;
  // For messages: "chunk 7 (bytes 4096 to 8192: 'layer.0.weight', 'layer.0.bias')".
  std::string DescribeChunk(uint64_t chunk) const;
};

uint16_t StoredCheck(ByteSpan stored);

// The index of a shard all of whose chunks are raw. `digests`: one for each of layout.chunks.
ShardIndex MakeRawIndex(const Uid& uid, Rank shard, const ShardLayout& layout,
                        const std::vector<Digest>& digests);
// The digest an index file ends in, which is what MANIFEST holds; zero if it is too short.
Digest IndexDigest(std::string_view encoded_index);

}  // namespace ckpt::format
