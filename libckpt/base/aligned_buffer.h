// Memory that direct I/O accepts: begins at a page, whole pages long. Not zeroed. From a MiB on it
// is asked for in huge pages: a transfer of 2 MiB is then one request of a disk and not three,
// which is up to half of its time, and costs less to pin.
#pragma once

#include <cstddef>
#include <memory>

#include "libckpt/base/bytes.h"
#include "libckpt/base/limits.h"

namespace ckpt {

class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  explicit AlignedBuffer(size_t bytes) { Reserve(bytes); }

  // At least `bytes`; what was in it is lost if it has to grow.
  void Reserve(size_t bytes);
  std::byte* data() const { return memory_.get(); }
  size_t size() const { return size_; }
  MutableByteSpan span() const { return {memory_.get(), size_}; }

 private:
  struct Free {
    Free() : mapped_bytes(0) {}
    explicit Free(size_t mapped) : mapped_bytes(mapped) {}
    size_t mapped_bytes;  // 0: of the heap
    void operator()(std::byte* memory) const;
  };
  std::unique_ptr<std::byte, Free> memory_;
  size_t size_ = 0;
};

}  // namespace ckpt
