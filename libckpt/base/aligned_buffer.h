// Memory that direct I/O accepts: begins at a page, whole pages long. Not zeroed.
#pragma once

#include <cstdlib>
#include <memory>
#include <new>

#include "libckpt/base/bytes.h"
#include "libckpt/base/limits.h"

namespace ckpt {

class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  explicit AlignedBuffer(size_t bytes) { Reserve(bytes); }

  // At least `bytes`; what was in it is lost if it has to grow.
  void Reserve(size_t bytes) {
    if (bytes <= size_) return;
    size_ = AlignUp(bytes, kPageBytes);
    memory_.reset(static_cast<std::byte*>(std::aligned_alloc(kPageBytes, size_)));
    if (memory_ == nullptr) throw std::bad_alloc();
  }
  std::byte* data() const { return memory_.get(); }
  size_t size() const { return size_; }
  MutableByteSpan span() const { return {memory_.get(), size_}; }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  std::unique_ptr<std::byte, Free> memory_;
  size_t size_ = 0;
};

}  // namespace ckpt
