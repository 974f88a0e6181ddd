// One set of replicas writes what it holds once: all its boxes in file order are one long stream,
// which is cut into equal parts, one for each member. Cuts fall between tensors, or between rows
// within a large one, so a set of N makes at most N - 1 tensors come in parts.
//
// The tempting alternative deals every tensor to the least loaded member and splits the large ones
// N ways: it makes N pieces of each large tensor and balances worse.
#pragma once

#include <cstdint>
#include <vector>

#include "libckpt/format/types.h"

namespace ckpt::plan {

// A part of `item` that `member` writes.
struct SplitPart {
  uint32_t item = 0;
  uint32_t member = 0;
  format::Box box;
};

struct SplitItem {
  const format::Box* box = nullptr;
  uint32_t element_bytes = 0;
};

// Bytes below which a box is not cut.
inline constexpr uint64_t kSplitBytesMin = 4096;

// The parts in order of items, members rising. Each member gets total / members, give or take one
// row of the box that a cut falls into (or kSplitBytesMin). Empty items go to the member whose part
// they lie in.
std::vector<SplitPart> SplitOverMembers(const std::vector<SplitItem>& items, uint32_t members);

// Elements `begin` … `end` of `box` in row-major order as boxes, in that order.
std::vector<format::Box> RangeToBoxes(const format::Box& box, uint64_t begin, uint64_t end);

}  // namespace ckpt::plan
