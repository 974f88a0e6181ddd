#include "libckpt/base/aligned_buffer.h"

#include <sys/mman.h>

#include <cstdlib>
#include <new>

namespace ckpt {
namespace {

constexpr size_t kHugePageBytes = size_t{2} << 20;
constexpr size_t kHugeFromBytes = size_t{1} << 20;

// Mapped apart from the heap, whose pages would keep the advice when they are somebody else's.
std::byte* MapHuge(size_t bytes) {
  const size_t asked = bytes + kHugePageBytes - kPageBytes;
  void* const mapped =
      ::mmap(nullptr, asked, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  auto* const begin = static_cast<std::byte*>(mapped);
  const size_t lead = AlignUp(reinterpret_cast<uintptr_t>(begin), kHugePageBytes) -
                      reinterpret_cast<uintptr_t>(begin);
  if (lead > 0) (void)::munmap(begin, lead);
  const size_t tail = asked - lead - bytes;
  if (tail > 0) (void)::munmap(begin + lead + bytes, tail);
  (void)::madvise(begin + lead, bytes, MADV_HUGEPAGE);  // where the system has some
  return begin + lead;
}

}  // namespace

void AlignedBuffer::Reserve(size_t bytes) {
  if (bytes <= size_) return;
  memory_.reset();  // not both at once
  size_ = 0;
  if (bytes >= kHugeFromBytes) {
    const size_t whole = AlignUp(bytes, kHugePageBytes);
    memory_ = std::unique_ptr<std::byte, Free>(MapHuge(whole), Free{whole});
    size_ = whole;
    return;
  }
  const size_t whole = AlignUp(bytes, kPageBytes);
  auto* const memory = static_cast<std::byte*>(std::aligned_alloc(kPageBytes, whole));
  if (memory == nullptr) throw std::bad_alloc();
  memory_ = std::unique_ptr<std::byte, Free>(memory, Free{});
  size_ = whole;
}

void AlignedBuffer::Free::operator()(std::byte* memory) const {
  if (mapped_bytes > 0)
    (void)::munmap(memory, mapped_bytes);
  else
    std::free(memory);
}

}  // namespace ckpt
