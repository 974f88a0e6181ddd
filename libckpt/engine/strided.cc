#include "libckpt/engine/strided.h"

#include <algorithm>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace ckpt::engine {
namespace {

template <size_t kBytes>
void CopyElements(const std::byte* from, std::byte* to, uint64_t count, int64_t from_step,
                  int64_t to_step) {
  for (uint64_t i = 0; i < count; ++i) {
    std::memcpy(to, from, kBytes);
    from += from_step;
    to += to_step;
  }
}

// Long rows go past the cache: nobody reads the copy soon, and a store that first fetches its line
// moves three bytes for two. memcpy does so only for sizes near the whole cache's.
constexpr uint64_t kStreamedBytesMin = uint64_t{64} << 10;

#if defined(__SSE2__)
inline void StreamLine(const std::byte* from, std::byte* to) {
  const auto* source = reinterpret_cast<const __m128i*>(from);
  auto* target = reinterpret_cast<__m128i*>(to);
  const __m128i a = _mm_loadu_si128(source), b = _mm_loadu_si128(source + 1);
  const __m128i c = _mm_loadu_si128(source + 2), d = _mm_loadu_si128(source + 3);
  _mm_stream_si128(target, a);
  _mm_stream_si128(target + 1, b);
  _mm_stream_si128(target + 2, c);
  _mm_stream_si128(target + 3, d);
}

void CopyLong(const std::byte* from, std::byte* to, uint64_t bytes) {
  constexpr uint64_t kLine = 64, kLane = 4096, kLanes = 4;
  const uint64_t head = (kLine - reinterpret_cast<uintptr_t>(to) % kLine) % kLine;
  std::memcpy(to, from, head);
  from += head;
  to += head;
  bytes -= head;
  // Several pages at once: more banks of the memory are busy.
  for (; bytes >= kLanes * kLane; bytes -= kLanes * kLane) {
    for (uint64_t at = 0; at < kLane; at += kLine) {
      for (uint64_t lane = 0; lane < kLanes; ++lane) {
        StreamLine(from + lane * kLane + at, to + lane * kLane + at);
      }
    }
    from += kLanes * kLane;
    to += kLanes * kLane;
  }
  for (; bytes >= kLine; bytes -= kLine, from += kLine, to += kLine) StreamLine(from, to);
  _mm_sfence();
  std::memcpy(to, from, bytes);
}
#else
void CopyLong(const std::byte* from, std::byte* to, uint64_t bytes) {
  std::memcpy(to, from, bytes);
}
#endif

void CopyRow(const std::byte* from, std::byte* to, uint64_t count, int64_t from_step,
             int64_t to_step, uint32_t element_bytes) {
  if (from_step == element_bytes && to_step == element_bytes) {
    const uint64_t bytes = count * element_bytes;
    if (bytes >= kStreamedBytesMin) return CopyLong(from, to, bytes);
    std::memcpy(to, from, bytes);
    return;
  }
  switch (element_bytes) {
    case 1:
      return CopyElements<1>(from, to, count, from_step, to_step);
    case 2:
      return CopyElements<2>(from, to, count, from_step, to_step);
    case 4:
      return CopyElements<4>(from, to, count, from_step, to_step);
    case 8:
      return CopyElements<8>(from, to, count, from_step, to_step);
    default:
      return CopyElements<16>(from, to, count, from_step, to_step);
  }
}

}  // namespace

std::vector<int64_t> RowMajorStrides(const std::vector<uint64_t>& shape) {
  std::vector<int64_t> strides(shape.size());
  int64_t stride = 1;
  for (size_t d = shape.size(); d-- > 0;) {
    strides[d] = stride;
    stride *= static_cast<int64_t>(shape[d]);
  }
  return strides;
}

StridedCopy::StridedCopy(const format::Box& box, const View& a, const View& b) {
  element_count_ = box.ElementCount();
  for (size_t d = 0; d < box.shape.size(); ++d) {
    a_base_ += static_cast<int64_t>(box.offset[d] - (*a.origin)[d]) * a.strides[d];
    b_base_ += static_cast<int64_t>(box.offset[d] - (*b.origin)[d]) * b.strides[d];
    if (box.shape[d] == 1) continue;
    const Dim dim{box.shape[d], a.strides[d], b.strides[d]};
    const auto inner = static_cast<int64_t>(dim.size);
    if (!dims_.empty() && dims_.back().a_stride == inner * dim.a_stride &&
        dims_.back().b_stride == inner * dim.b_stride) {
      dims_.back() = Dim{dims_.back().size * dim.size, dim.a_stride, dim.b_stride};
    } else {
      dims_.push_back(dim);
    }
  }
  while (dims_.size() < 2) dims_.insert(dims_.begin(), Dim{1, 1, 1});
}

void StridedCopy::OffsetsOf(uint64_t element, int64_t* a, int64_t* b) const {
  *a = a_base_;
  *b = b_base_;
  for (size_t d = dims_.size(); d-- > 0;) {
    const auto index = static_cast<int64_t>(element % dims_[d].size);
    element /= dims_[d].size;
    *a += index * dims_[d].a_stride;
    *b += index * dims_[d].b_stride;
  }
}

Block StridedCopy::BlockAt(uint64_t begin, uint64_t end) const {
  const Dim& inner = dims_[dims_.size() - 1];
  const Dim& outer = dims_[dims_.size() - 2];
  Block block;
  OffsetsOf(begin, &block.a_offset, &block.b_offset);
  block.a_stride = inner.a_stride;
  block.b_stride = inner.b_stride;
  const uint64_t column = begin % inner.size;
  if (column != 0 || end - begin < inner.size) {
    block.count = std::min(inner.size - column, end - begin);
    return block;
  }
  block.count = inner.size;
  block.rows = std::min(outer.size - begin / inner.size % outer.size, (end - begin) / inner.size);
  block.a_pitch = outer.a_stride;
  block.b_pitch = outer.b_stride;
  return block;
}

uint64_t StridedCopy::LowerBoundInA(int64_t offset) const {
  uint64_t low = 0;
  uint64_t high = element_count_;
  while (low < high) {
    const uint64_t middle = low + (high - low) / 2;
    int64_t a = 0, b = 0;
    OffsetsOf(middle, &a, &b);
    if (a < offset) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

void CopyBlock(const Block& block, const std::byte* from, std::byte* to, uint32_t element_bytes) {
  const auto bytes = static_cast<int64_t>(element_bytes);
  from += block.a_offset * bytes;
  to += block.b_offset * bytes;
  for (uint64_t row = 0; row < block.rows; ++row) {
    CopyRow(from, to, block.count, block.a_stride * bytes, block.b_stride * bytes, element_bytes);
    from += block.a_pitch * bytes;
    to += block.b_pitch * bytes;
  }
}

}  // namespace ckpt::engine
