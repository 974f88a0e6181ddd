// Where the bytes of one rank's tensors come from: a shard file, or a staging region. Both are a
// stream of tensors cut into chunks, and a chunk is the unit that is fetched and verified.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "libckpt/base/aligned_buffer.h"
#include "libckpt/base/digest.h"
#include "libckpt/base/ids.h"
#include "libckpt/base/mutex.h"
#include "libckpt/format/shard.h"
#include "libckpt/storage/store.h"

namespace ckpt::engine {

// What one chunk is fetched into: as it is stored, and what it was decoded to. Of one thread at a
// time.
struct ChunkScratch {
  // A fetch into `stored` that goes on by itself.
  struct Begun {
    std::shared_ptr<const storage::FileReader> file;
    uint64_t chunk = 0;
    storage::StartedFetch fetch;
  };
  ChunkScratch() = default;
  ~ChunkScratch() { Drop(); }
  ChunkScratch(const ChunkScratch&) = delete;
  ChunkScratch& operator=(const ChunkScratch&) = delete;
  // What was begun and is not wanted any more.
  void Drop() {
    if (begun) begun->file->AwaitFetch(begun->fetch).status().IgnoreError();
    begun.reset();
  }
  AlignedBuffer stored;
  std::vector<std::byte> decoded;
  std::optional<Begun> begun;
};

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
  virtual Status Fetch(uint64_t chunk, bool verify, ChunkScratch* scratch,
                       std::vector<ByteSpan>* out) const = 0;
  // Begins what Fetch of the same chunk into the same scratch ends, where depth() > 1. Errors come
  // with Fetch.
  virtual void Prefetch(uint64_t /*chunk*/, ChunkScratch* /*scratch*/) const {}
  // How many chunks can be on their way without a thread for each.
  virtual uint32_t depth() const { return 1; }
  // Threads that fetch best if nobody says how many; 0: as many as copy.
  virtual uint32_t readers() const { return 0; }
  // The seed of a chunk's digest, where the caller had better take it itself while it copies the
  // bytes out of memory, so that they are read once; nullopt where Fetch verifies.
  virtual std::optional<uint64_t> SeedOf(uint64_t) const { return std::nullopt; }
  // What Fetch would say if it had found this digest. Pre: SeedOf gave a seed.
  virtual Status Compare(uint64_t, const Digest&) const { return OkStatus(); }
  // Whether the chunk is what it must be beyond its digest (a header that says what the index
  // says).
  virtual Status Inspect(uint64_t chunk, const std::vector<ByteSpan>& bytes) const = 0;
};

// The sources of a checkpoint, each opened when it is first needed: a rank of thousands reads the
// indexes of the few shards that hold its tensors.
// Threads: safe once all are added.
class SourceSet {
 public:
  using Open = std::function<Result<std::unique_ptr<ChunkSource>>()>;
  void Add(Rank rank, Open open) {
    entries_.emplace_back(rank, std::move(open));
    lazy_ = true;
  }
  void AddOpened(std::unique_ptr<ChunkSource> source);

  bool lazy() const { return lazy_; }  // some have yet to be opened
  uint32_t size() const { return static_cast<uint32_t>(entries_.size()); }
  Rank rank(uint32_t source) const { return entries_[source].rank; }
  // Valid as long as the set. Blocks: on disk. Errors: those of opening; the next call tries again.
  Result<const ChunkSource*> Get(uint32_t source) const;
  // The same, but not kept beyond the pointer.
  Result<std::shared_ptr<const ChunkSource>> Borrow(uint32_t source) const;
  // Opens `wanted`, several at once.
  Status OpenAll(const std::vector<uint32_t>& wanted) const;
  // Whether each can be opened; keeps none.
  Status CheckAll() const;

 private:
  struct Entry {
    Entry(Rank r, Open o) : rank(r), open(std::move(o)) {}
    const Rank rank;
    const Open open;
    mutable Mutex mutex;
    mutable std::shared_ptr<const ChunkSource> source CKPT_GUARDED_BY(mutex);
  };
  std::deque<Entry> entries_;
  bool lazy_ = false;
};

}  // namespace ckpt::engine
