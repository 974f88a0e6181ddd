// A shard: the tensors one rank writes, as one stream of bytes that is a safetensors file.
//
//   u64 LE header length │ JSON header, padded with spaces to a multiple of 4096 │ data
//
// Tensors lie in falling order of element size, then name, then box, without holes; so each is
// aligned to its own element. The stream is cut into chunks: chunk 0 is the header, then chunks of
// `chunk_bytes` from the data section on, a new one wherever the element size changes. While all
// chunks are stored raw the file is the stream.
//
// I1  The header is a function of the tensors alone: nothing in it varies from save to save.
// I2  Tensors cover the data section exactly once, in order; chunks cover the stream likewise.
// I3  No chunk splits an element.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "libckpt/base/limits.h"
#include "libckpt/base/status.h"
#include "libckpt/format/types.h"

namespace ckpt::format {

inline constexpr uint64_t kShardAlignment = 4096;
inline constexpr uint64_t kChunkBytesMax = uint64_t{256} << 20;
inline constexpr uint64_t kChunkBytesGranule = 16;  // chunk_bytes is a multiple: the widest element

// One tensor, or a slice of one, in a shard.
struct ShardTensor {
  std::string name;  // the true one
  DType dtype = DType::kU8;
  Placement placement = Placement::kUnsharded;
  std::vector<uint64_t> global_shape;
  Box box;                      // which part of the tensor; the whole box if it is not sliced
  uint64_t begin = 0, end = 0;  // bytes of the stream; set by LayOutShard
  bool operator==(const ShardTensor&) const = default;
  bool Whole() const;  // box is all of the tensor
  uint64_t Bytes() const { return box.ElementCount() * ElementBytes(dtype); }
};
// Falling element size, then name (bytes), then box offset, then box shape.
bool ShardOrderLess(const ShardTensor& a, const ShardTensor& b);

// A range of the stream.
struct ChunkRange {
  uint64_t begin = 0, end = 0;
  bool operator==(const ChunkRange&) const = default;
};

struct ShardLayout {
  std::vector<ShardTensor> tensors;  // with begin and end
  std::string header;                // the first header.size() bytes of the stream: chunk 0
  std::vector<ChunkRange> chunks;
  uint64_t chunk_bytes = 0;
  uint64_t stream_bytes = 0;
};

// Lays out a shard of `tensors`, which are in ShardOrderLess order without equals (begin and end
// are ignored). Errors: kInvalidArgument, naming the tensor, for a bad tensor, a wrong order or a
// duplicate, a chunk size that is no multiple of 16 in [16, kChunkBytesMax];
// kResourceExhausted if the header outgrows what safetensors readers accept.
Result<ShardLayout> LayOutShard(std::vector<ShardTensor> tensors,
                                uint64_t chunk_bytes = kChunkBytesDefault);

// The chunk table of a stream: `tensors` have begin and end and cover [header_bytes, …).
std::vector<ChunkRange> ComputeChunks(const std::vector<ShardTensor>& tensors,
                                      uint64_t header_bytes, uint64_t chunk_bytes);
// The chunks [first, last) that share bytes with [begin, end) of the stream; empty for an empty
// range or one beyond the stream. `Chunks`: anything indexable with .begin and .end, ascending.
struct ChunkSpan {
  uint64_t first = 0, last = 0;
  bool operator==(const ChunkSpan&) const = default;
};
ChunkSpan ChunkOf(const std::vector<ChunkRange>& chunks, uint64_t begin, uint64_t end);

// A tensor's key in the header: escaped name, and "#begin:end,…" in global coordinates for a slice.
// Reversible: '%' and '#' of the name are "%25" and "%23"; the name "__metadata__" is
// "%5F_metadata__".
std::string ShardKey(const ShardTensor& tensor);
// The name (and box) behind a key. `sliced` false: `box` is untouched. kInvalidArgument for a key
// that ShardKey never makes.
struct ParsedShardKey {
  std::string name;
  bool sliced = false;
  Box box;
};
Result<ParsedShardKey> ParseShardKey(std::string_view key);

// How safetensors says a tensor: its dtype name and shape there. What it cannot say is put in a
// container: complex as floats with a last dimension of 2, packed fp4 as U8.
std::string_view ContainerDType(DType dtype);
std::vector<uint64_t> ContainerShape(const ShardTensor& tensor);

// One entry of a header as it stands in the file.
struct HeaderEntry {
  std::string key;
  std::string dtype;  // safetensors' name
  std::vector<uint64_t> shape;
  uint64_t begin = 0, end = 0;  // bytes of the stream (not of the data section)
  bool operator==(const HeaderEntry&) const = default;
};
struct ShardHeader {
  uint64_t header_bytes = 0;         // 8 + length: where the data begin
  std::vector<HeaderEntry> entries;  // by begin
};
// Length of the whole header (8 + JSON) from the first 8 bytes of a file of `file_bytes`, checked
// against both the file and the limit. kDataLoss otherwise.
Result<uint64_t> ShardHeaderBytes(std::string_view first8, uint64_t file_bytes);
// Strict: known dtypes, sizes that match shapes, offsets that cover the data exactly once, no
// duplicates, nothing unknown. `header` is the first ShardHeaderBytes of a stream of
// `stream_bytes`.
Result<ShardHeader> ParseShardHeader(std::string_view header, uint64_t stream_bytes);
// Whether the header says what the index says. kDataLoss naming the tensor that differs.
Status CheckHeader(const ShardHeader& header, const std::vector<ShardTensor>& tensors);

}  // namespace ckpt::format
