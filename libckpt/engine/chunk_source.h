// Where the bytes of one rank's tensors come from: a shard file, or a staging region. Both are a
// stream of tensors cut into chunks, and a chunk is the unit that is fetched and verified.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "libckpt/base/ids.h"
#include "libckpt/format/shard.h"

namespace ckpt::engine {

class ChunkSource {
 public:
  virtual ~ChunkSource() = default;
  // The rank that staged or wrote it.
  virtual Rank rank() const = 0;
  // With begin and end, rising. `chunks` covers all of them.
  virtual const std::vector<format::ShardTensor>& tensors() const = 0;
  virtual const std::vector<format::ChunkRange>& chunks() const = 0;
  // The bytes of a chunk as spans in stream order, valid until `scratch` changes; no span splits an
  // element. kDataLoss naming file, tensor and chunk if they do not have their digest.
  // Threads: safe, each with its own scratch.
  virtual Status Fetch(uint64_t chunk, bool verify, std::vector<std::byte>* scratch,
                       std::vector<ByteSpan>* out) const = 0;
  // Whether the chunk is what it must be beyond its digest (a header that says what the index
  // says).
  virtual Status Inspect(uint64_t chunk, const std::vector<ByteSpan>& bytes) const = 0;
};

}  // namespace ckpt::engine
