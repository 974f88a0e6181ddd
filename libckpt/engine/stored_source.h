// One shard of a committed checkpoint as a source of chunks, wherever they are stored. Files are
// opened when they are first read.
#pragma once

#include "libckpt/engine/chunk_source.h"
#include "libckpt/format/index.h"
#include "libckpt/format/manifest.h"
#include "libckpt/storage/store.h"

namespace ckpt::engine {

class ShardSource : public ChunkSource {
 public:
  // Reads the index, and makes sure that the shard and the files of its origins are there with the
  // right size. `several`: ranks of one node may read the same replicated tensors. `store` must
  // outlive it.
  static Result<std::unique_ptr<ShardSource>> Open(storage::Store* store,
                                                   const format::Manifest& manifest,
                                                   const format::ManifestFile& entry, bool several);
  // With an index that the caller has already.
  static Result<std::unique_ptr<ShardSource>> OpenWith(storage::Store* store, const AttemptId& id,
                                                       const std::string& name,
                                                       format::ShardIndex index, bool several);

  Rank rank() const override { return index_.shard; }
  const std::vector<format::ShardTensor>& tensors() const override { return index_.tensors; }
  const std::vector<format::ChunkRange>& chunks() const override { return chunks_; }
  Status Fetch(uint64_t chunk, bool verify, ChunkScratch* scratch,
               std::vector<ByteSpan>* out) const override;
  void Prefetch(uint64_t chunk, ChunkScratch* scratch) const override;
  uint32_t depth() const override;
  uint32_t readers() const override;
  Status Inspect(uint64_t chunk, const std::vector<ByteSpan>& bytes) const override;

  const format::ShardIndex& index() const { return index_; }
  // A chunk as it is stored and as it was, both in `scratch`.
  struct Bytes {
    ByteSpan stored, raw;
  };
  Result<Bytes> FetchBoth(uint64_t chunk, bool verify, ChunkScratch* scratch) const;

 private:
  // The shard's own, or that of an origin.
  struct HolderFile {
    AttemptId id;
    std::string name;
    Mutex mutex;
    std::shared_ptr<const storage::FileReader> file CKPT_GUARDED_BY(mutex);
  };
  ShardSource(storage::Store* store, const AttemptId& id, std::string name,
              format::ShardIndex index, bool several);
  Result<std::shared_ptr<const storage::FileReader>> FileOf(uint8_t origin) const;
  Result<ByteSpan> FetchStored(uint64_t chunk, ChunkScratch* scratch) const;
  storage::Reuse ReuseOf(uint64_t chunk) const {
    return shared_[chunk] ? storage::Reuse::kShared : storage::Reuse::kOnce;
  }
  std::string Where(uint64_t chunk) const { return name_ + ": " + index_.DescribeChunk(chunk); }

  const std::string name_;
  const format::ShardIndex index_;
  storage::Store* const store_;
  mutable std::deque<HolderFile> files_;  // the shard's own, then by origin
  std::vector<format::ChunkRange> chunks_;
  std::vector<bool> shared_;  // by chunk
};

}  // namespace ckpt::engine
