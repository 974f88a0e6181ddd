// One shard of a committed checkpoint as a source of chunks, wherever they are stored.
#pragma once

#include "libckpt/engine/chunk_source.h"
#include "libckpt/format/index.h"
#include "libckpt/format/manifest.h"
#include "libckpt/storage/store.h"

namespace ckpt::engine {

class ShardSource : public ChunkSource {
 public:
  // Reads the index, opens the shard and the files of its origins. `store` must outlive it.
  static Result<std::unique_ptr<ShardSource>> Open(storage::Store* store,
                                                   const format::Manifest& manifest,
                                                   const format::ManifestFile& entry);
  // With an index that the caller has already.
  static Result<std::unique_ptr<ShardSource>> OpenWith(storage::Store* store, const AttemptId& id,
                                                       const std::string& name,
                                                       format::ShardIndex index);

  Rank rank() const override { return index_.shard; }
  const std::vector<format::ShardTensor>& tensors() const override { return index_.tensors; }
  const std::vector<format::ChunkRange>& chunks() const override { return chunks_; }
  Status Fetch(uint64_t chunk, bool verify, ChunkScratch* scratch,
               std::vector<ByteSpan>* out) const override;
  Status Inspect(uint64_t chunk, const std::vector<ByteSpan>& bytes) const override;

  const format::ShardIndex& index() const { return index_; }
  // A chunk as it is stored and as it was, both in `scratch`.
  struct Bytes {
    ByteSpan stored, raw;
  };
  Result<Bytes> FetchBoth(uint64_t chunk, bool verify, ChunkScratch* scratch) const;

 private:
  ShardSource(std::string name, format::ShardIndex index);
  std::string Where(uint64_t chunk) const { return name_ + ": " + index_.DescribeChunk(chunk); }

  const std::string name_;
  const format::ShardIndex index_;
  std::vector<std::unique_ptr<storage::FileReader>> files_;  // the shard's own, then by origin
  std::vector<format::ChunkRange> chunks_;
};

}  // namespace ckpt::engine
