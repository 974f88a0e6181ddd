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

void BlockStream::EndTurn(uint64_t number, const Status& status) {
  MutexLock lock(mutex_);
  next_ = number + 1;
  failed_ = failed_ || !status.ok();
  turn_.NotifyAll();
}

void BlockStream::Fail() {
  MutexLock lock(mutex_);
  failed_ = true;
  turn_.NotifyAll();
}

Status BlockStream::Fill(ByteSpan span, std::unique_ptr<Block>* full) {
  while (!span.empty()) {
    if (current_ == nullptr) current_ = TakeBlock(at_);
    const uint64_t room = std::min<uint64_t>(span.size(), block_bytes_ - current_->bytes);
    std::memcpy(current_->memory.data() + current_->bytes, span.data(), room);
    current_->bytes += room;
    at_ += room;
    span = span.subspan(room);
    if (current_->bytes < block_bytes_) continue;
    if (*full != nullptr) CKPT_RETURN_IF_ERROR(Write(std::move(*full)));
    *full = std::move(current_);
  }
  return OkStatus();
}

Status BlockStream::Write(std::unique_ptr<Block> block) {
  CKPT_FAULT("engine.write.block");
  const ByteSpan bytes = block->memory.span().first(block->bytes);
  if (ahead_max_ == 0) {
    CKPT_RETURN_IF_ERROR(file_->Write(block->offset, bytes));
    MutexLock lock(mutex_);
    free_.push_back(std::move(block));
    return OkStatus();
  }
  CKPT_ASSIGN_OR_RETURN(block->write, file_->Start(block->offset, bytes));
  {
    MutexLock lock(mutex_);
    under_way_.push_back(std::move(block));
  }
  return AwaitOldest(ahead_max_);
}

Status BlockStream::AwaitOldest(size_t most) {
  Status first;
  for (;;) {
    std::unique_ptr<Block> oldest;
    {
      MutexLock lock(mutex_);
      if (under_way_.size() <= most) return first;
      oldest = std::move(under_way_.front());
      under_way_.pop_front();
    }
    Status written = file_->Await(oldest->write);
    if (!written.ok() && first.ok()) first = std::move(written);
    MutexLock lock(mutex_);
    free_.push_back(std::move(oldest));
  }
}

std::unique_ptr<BlockStream::Block> BlockStream::TakeBlock(uint64_t offset) {
  std::unique_ptr<Block> block;
  {
    MutexLock lock(mutex_);
    if (!free_.empty()) {
      block = std::move(free_.back());
      free_.pop_back();
    }
  }
  if (block == nullptr) block = std::make_unique<Block>(block_bytes_);
  block->offset = offset;
  block->bytes = 0;
  return block;
}

Status BlockStream::Flush() {
  if (current_ != nullptr) CKPT_RETURN_IF_ERROR(Write(std::move(current_)));
  return AwaitAll();
}

}  // namespace ckpt::engine
