// Copies between two strided views of one box: a tensor's memory on one side, a piece's row-major
// bytes on the other, or both arbitrary. Dimensions that are contiguous on both sides are merged
// once, so that the loop that moves bytes sees few and long runs.
#pragma once

#include <cstdint>
#include <vector>

#include "libckpt/format/types.h"

namespace ckpt::engine {

// A strided view: element at global coordinates x lies at Σ (x - origin) · stride, in elements.
struct View {
  const std::vector<uint64_t>* origin = nullptr;
  std::vector<int64_t> strides;
};

// Row-major strides of `shape`.
std::vector<int64_t> RowMajorStrides(const std::vector<uint64_t>& shape);
inline View RowMajorView(const format::Box& box) {
  return View{&box.offset, RowMajorStrides(box.shape)};
}

// `rows` rows of `count` elements. Offsets, strides and pitches in elements.
struct Block {
  int64_t a_offset = 0, b_offset = 0;
  uint64_t count = 0, rows = 1;
  int64_t a_stride = 1, b_stride = 1;
  int64_t a_pitch = 0, b_pitch = 0;
};

class StridedCopy {
 public:
  // All elements of `box`, numbered in row-major order, as they lie in view `a` and in view `b`.
  StridedCopy(const format::Box& box, const View& a, const View& b);

  uint64_t element_count() const { return element_count_; }
  // Elements [begin, end) as blocks, in order.
  template <typename Fn>
  void ForEachBlock(uint64_t begin, uint64_t end, Fn&& fn) const {
    while (begin < end) {
      const Block block = BlockAt(begin, end);
      fn(block);
      begin += block.count * block.rows;
    }
  }
  // The first element whose offset in `a` is ≥ `offset`; element_count() if none.
  // Pre: offsets in `a` rise with the element's number (a row-major view).
  uint64_t LowerBoundInA(int64_t offset) const;

 private:
  struct Dim {
    uint64_t size;
    int64_t a_stride, b_stride;
  };
  Block BlockAt(uint64_t begin, uint64_t end) const;
  void OffsetsOf(uint64_t element, int64_t* a, int64_t* b) const;

  std::vector<Dim> dims_;  // outermost first; never fewer than two
  int64_t a_base_ = 0, b_base_ = 0;
  uint64_t element_count_ = 1;
};

// Moves one block from `from` (view a) to `to` (view b) by the CPU.
void CopyBlock(const Block& block, const std::byte* from, std::byte* to, uint32_t element_bytes);

}  // namespace ckpt::engine
