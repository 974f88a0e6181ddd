// A file written by several threads as one stream of bytes: parts get their places in order, are
// copied into the blocks that these lie in side by side, and whoever fills the last of a block
// writes it, while the others go on. Blocks are aligned, so that they go past the page cache.
//
// Where the file has a queue (FileWriter::depth), a block is only handed to it, and few threads
// keep kBlocksAheadMax blocks under way; where it has none, each thread waits for its own.
//
// The tempting alternative, a queue to writer threads, needs the same turns and a second hand-over.
//
// I1  Part n gets its place after part n - 1; after the first failure nobody waits any more.
// I2  Memory: the two blocks that a part of at most a block lies in, for each thread that appends,
//     and kBlocksAheadMax under way: whoever has started more than his share of them waits for
//     the oldest of his own, and not for a thread that may be away.
// I3  A block's memory outlives its write; every write has ended before Flush returns.
#pragma once

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "libckpt/base/aligned_buffer.h"
#include "libckpt/base/mutex.h"
#include "libckpt/engine/parallel.h"
#include "libckpt/storage/store.h"

namespace ckpt::engine {

// A write to a disk waits more than it computes: more threads than cores.
inline constexpr uint32_t kWriteThreadsDefault = 8;

class BlockStream {
 public:
  // `bytes_max`: no more will be appended; a small file takes small blocks. `block_bytes`: whole
  // pages.
  BlockStream(storage::FileWriter* file, uint64_t bytes_max,
              uint64_t block_bytes = kWriteBlockBytes)
      : file_(file),
        ahead_max_(file->depth() > 1 ? std::min(file->depth(), kBlocksAheadMax) : 0),
        block_bytes_(std::clamp(AlignUp(bytes_max, kPageBytes), kPageBytes, block_bytes)) {}
  // Pre: nobody appends any more.
  ~BlockStream() { AwaitAll().IgnoreError(); }  // I3

  // Waits for part `number`'s turn, tells where the part begins in the file, and appends `spans`.
  // `placed` runs in turn. Blocks: on disk if a block is full. Errors: those of the file; kAborted
  // if another part has failed.
  template <typename Placed>
  Status Append(uint64_t number, const std::vector<ByteSpan>& spans, Placed&& placed) {
    CKPT_RETURN_IF_ERROR(AwaitTurn(number));
    uint64_t at = at_;
    placed(at);
    for (const ByteSpan span : spans) at_ += span.size();
    EndTurn(number);
    Status status;
    for (const ByteSpan span : spans) {
      status = Fill(at, span);
      if (!status.ok()) break;
      at += span.size();
    }
    if (!status.ok()) Fail();
    return status;
  }
  // The last block. Pre: every part was appended.
  Status Flush();
  // Threads that keep the disk busy if nobody says how many.
  uint32_t ThreadsFor(uint32_t wanted) const {
    if (wanted != 0) return wanted;
    return ahead_max_ > 0 ? kThreadsBesideQueue : kWriteThreadsDefault;
  }
  // After a failure elsewhere: lets those go that wait for their turn.
  void Fail();

 private:
  struct Block {
    std::shared_ptr<const AlignedBuffer> holder;  // of several: a huge page is more than a block
    MutableByteSpan memory;
    uint64_t offset = 0;
    uint64_t bytes = 0;  // filled, in whatever order
    storage::StartedWrite write;
  };
  Status AwaitTurn(uint64_t number);
  void EndTurn(uint64_t number);
  Status Fill(uint64_t at, ByteSpan span);
  Block* BlockAt(uint64_t at);
  // Counts what was copied into the block; the block if it is full now.
  std::unique_ptr<Block> Filled(Block* block, uint64_t bytes);
  Status Write(std::unique_ptr<Block> block);
  using UnderWay = std::deque<std::unique_ptr<Block>>;  // oldest first
  // Waits until at most `most` of those are under way; frees the others.
  Status AwaitOldest(UnderWay* blocks, size_t most);
  Status AwaitAll();
  std::unique_ptr<Block> TakeBlock(uint64_t offset) CKPT_REQUIRES(mutex_);

  storage::FileWriter* const file_;
  const uint32_t ahead_max_;  // 0: nothing goes on by itself
  const uint64_t block_bytes_;
  uint64_t at_ = 0;  // only whoever has the turn touches it

  Mutex mutex_;
  CondVar turn_;
  uint64_t next_ CKPT_GUARDED_BY(mutex_) = 0;
  bool failed_ CKPT_GUARDED_BY(mutex_) = false;
  std::map<uint64_t, std::unique_ptr<Block>> open_ CKPT_GUARDED_BY(mutex_);  // by offset
  std::vector<std::unique_ptr<Block>> free_ CKPT_GUARDED_BY(mutex_);
  // Of each thread, which alone touches its own while it appends.
  std::map<std::thread::id, UnderWay> under_way_ CKPT_GUARDED_BY(mutex_);
};

// Consecutive chunks that one thread takes at once: about a block, at least one chunk.
struct Part {
  uint64_t first = 0, last = 0;
};
template <typename Chunks>
std::vector<Part> PartsOf(const Chunks& chunks) {
  std::vector<Part> parts;
  uint64_t bytes = kWriteBlockBytes;
  for (uint64_t c = 0; c < chunks.size(); ++c) {
    const uint64_t size = chunks[c].end - chunks[c].begin;
    if (bytes + size > kWriteBlockBytes) {
      parts.push_back({c, c});
      bytes = 0;
    }
    bytes += size;
    parts.back().last = c + 1;
  }
  return parts;
}

// What a part needs before it is written, begun beforehand (ParallelAhead).
struct BegunAhead {
  uint32_t parts = 0;
  std::function<void(const Part& part, uint32_t slot)> begin;
};

// Runs `write(number, part, slot)` for every part on a few threads; whichever way one ends, the
// others do not wait for it. Then the last block.
template <typename Write>
Status WriteParts(const std::vector<Part>& parts, uint32_t threads, BlockStream* stream,
                  const Write& write, const BegunAhead& ahead = {}) {
  class FailUnlessDone {
   public:
    explicit FailUnlessDone(BlockStream* s) : stream_(s) {}
    ~FailUnlessDone() {
      if (stream_ != nullptr) stream_->Fail();
    }
    void Done() { stream_ = nullptr; }

   private:
    BlockStream* stream_;
  };
  CKPT_RETURN_IF_ERROR(ParallelAhead(
      parts.size(), stream->ThreadsFor(threads), ahead.parts,
      [&](uint64_t i, uint32_t slot) { ahead.begin(parts[i], slot); },
      [&](uint64_t i, uint32_t slot) -> Status {
        FailUnlessDone guard(stream);
        CKPT_RETURN_IF_ERROR(write(i, parts[i], slot));
        guard.Done();
        return OkStatus();
      }));
  return stream->Flush();
}

}  // namespace ckpt::engine
