#include "libckpt/engine/block_stream.h"

#include <algorithm>
#include <cstring>

#include "libckpt/base/fault.h"

namespace ckpt::engine {
namespace {

// The parts before are being encoded or written by threads that fail by themselves; this only
// bounds a mistake.
constexpr auto kTurnWaitMax = std::chrono::hours(1);

}  // namespace

Status BlockStream::AwaitTurn(uint64_t number) {
  const Deadline deadline("writing: the turn of a part of a shard", kTurnWaitMax);
  MutexLock lock(mutex_);
  while (next_ != number && !failed_) {
    if (!turn_.WaitUntil(mutex_, deadline)) return deadline.Exceeded();
  }
  return failed_ ? Aborted("another part of the shard could not be written") : OkStatus();
}

void BlockStream::EndTurn(uint64_t number) {
  MutexLock lock(mutex_);
  next_ = number + 1;
  turn_.NotifyAll();
}

void BlockStream::Fail() {
  MutexLock lock(mutex_);
  failed_ = true;
  turn_.NotifyAll();
}

Status BlockStream::Fill(uint64_t at, ByteSpan span) {
  while (!span.empty()) {
    Block* const block = BlockAt(at);
    const uint64_t begin = at - block->offset;
    const uint64_t room = std::min<uint64_t>(span.size(), block_bytes_ - begin);
    std::memcpy(block->memory.data() + begin, span.data(), room);
    at += room;
    span = span.subspan(room);
    if (std::unique_ptr<Block> full = Filled(block, room))
      CKPT_RETURN_IF_ERROR(Write(std::move(full)));
  }
  return OkStatus();
}

BlockStream::Block* BlockStream::BlockAt(uint64_t at) {
  const uint64_t offset = at / block_bytes_ * block_bytes_;
  MutexLock lock(mutex_);
  std::unique_ptr<Block>& block = open_[offset];
  if (block == nullptr) block = TakeBlock(offset);
  return block.get();
}

std::unique_ptr<BlockStream::Block> BlockStream::Filled(Block* block, uint64_t bytes) {
  MutexLock lock(mutex_);
  block->bytes += bytes;
  if (block->bytes < block_bytes_) return nullptr;
  return std::move(open_.extract(block->offset).mapped());
}

Status BlockStream::Write(std::unique_ptr<Block> block) {
  CKPT_FAULT("engine.write.block");
  const ByteSpan bytes = block->memory.first(block->bytes);
  if (ahead_max_ == 0) {
    CKPT_RETURN_IF_ERROR(file_->Write(block->offset, bytes));
    MutexLock lock(mutex_);
    free_.push_back(std::move(block));
    return OkStatus();
  }
  CKPT_ASSIGN_OR_RETURN(block->write, file_->Start(block->offset, bytes));
  UnderWay* mine = nullptr;
  size_t share = 0;
  {
    MutexLock lock(mutex_);
    mine = &under_way_[std::this_thread::get_id()];
    mine->push_back(std::move(block));
    share = std::max<size_t>(1, ahead_max_ / under_way_.size());
  }
  return AwaitOldest(mine, share);
}

Status BlockStream::AwaitOldest(UnderWay* blocks, size_t most) {
  Status first;
  while (blocks->size() > most) {
    Status written = file_->Await(blocks->front()->write);
    if (!written.ok() && first.ok()) first = std::move(written);
    MutexLock lock(mutex_);
    free_.push_back(std::move(blocks->front()));
    blocks->pop_front();
  }
  return first;
}

Status BlockStream::AwaitAll() {
  std::map<std::thread::id, UnderWay> all;
  {
    MutexLock lock(mutex_);
    all.swap(under_way_);
  }
  Status first;
  for (auto& [thread, blocks] : all) {
    Status written = AwaitOldest(&blocks, 0);
    if (first.ok()) first = std::move(written);
  }
  return first;
}

std::unique_ptr<BlockStream::Block> BlockStream::TakeBlock(uint64_t offset) {
  if (free_.empty()) {
    // Two blocks of the usual size make a huge page.
    const bool small = block_bytes_ < kWriteBlockBytes;
    const auto holder =
        std::make_shared<const AlignedBuffer>(small ? block_bytes_ : 2 * block_bytes_);
    for (uint64_t at = 0; at + block_bytes_ <= holder->size(); at += block_bytes_) {
      auto block = std::make_unique<Block>();
      block->holder = holder;
      block->memory = holder->span().subspan(at, block_bytes_);
      free_.push_back(std::move(block));
    }
  }
  std::unique_ptr<Block> block = std::move(free_.back());
  free_.pop_back();
  block->offset = offset;
  block->bytes = 0;
  return block;
}

Status BlockStream::Flush() {
  std::map<uint64_t, std::unique_ptr<Block>> open;
  {
    MutexLock lock(mutex_);
    open.swap(open_);
  }
  for (auto& [offset, block] : open) CKPT_RETURN_IF_ERROR(Write(std::move(block)));
  return AwaitAll();
}

}  // namespace ckpt::engine
