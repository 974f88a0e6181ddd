// Whether boxes tile a box: every element in exactly one of them.
//
// Volumes that sum up to the whole and no overlap is the same as a tiling, so nothing is painted
// element by element. Overlaps are found by a sweep along the dimension with the most distinct
// starts.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "libckpt/format/types.h"

namespace ckpt::plan {

struct TilingFault {
  // Two boxes (indices) that share an element; if none, `missing_elements` are in no box.
  std::optional<std::pair<uint32_t, uint32_t>> overlap;
  uint64_t missing_elements = 0;
};

// The first two boxes that share an element, if any. Empty boxes share nothing. Pre: equal dims.
std::optional<std::pair<uint32_t, uint32_t>> FindOverlap(
    const std::vector<const format::Box*>& boxes);

// Nothing if `boxes`, each within `whole`, tile it.
std::optional<TilingFault> CheckTiling(const format::Box& whole,
                                       const std::vector<const format::Box*>& boxes);

}  // namespace ckpt::plan
