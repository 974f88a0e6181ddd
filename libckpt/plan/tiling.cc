#include "libckpt/plan/tiling.h"

#include <algorithm>

namespace ckpt::plan {
namespace {

using format::Box;
using BoxRefs = std::vector<const Box*>;

bool Share(const Box& a, const Box& b) {
  for (size_t d = 0; d < a.shape.size(); ++d) {
    if (a.offset[d] >= b.offset[d] + b.shape[d] || b.offset[d] >= a.offset[d] + a.shape[d])
      return false;
  }
  return true;
}

// The dimension along which a sweep keeps the fewest boxes open.
size_t SweepDimension(const BoxRefs& boxes, const std::vector<uint32_t>& live) {
  size_t best = 0;
  size_t best_count = 0;
  std::vector<uint64_t> starts;
  for (size_t d = 0; d < boxes[live[0]]->shape.size(); ++d) {
    starts.clear();
    for (const uint32_t i : live) starts.push_back(boxes[i]->offset[d]);
    std::sort(starts.begin(), starts.end());
    const size_t count = std::unique(starts.begin(), starts.end()) - starts.begin();
    if (count > best_count) {
      best = d;
      best_count = count;
    }
  }
  return best;
}

}  // namespace

std::optional<std::pair<uint32_t, uint32_t>> FindOverlap(const BoxRefs& boxes) {
  std::vector<uint32_t> live;
  for (uint32_t i = 0; i < boxes.size(); ++i) {
    if (!boxes[i]->Empty()) live.push_back(i);
  }
  if (live.size() < 2) return std::nullopt;
  if (boxes[live[0]]->shape.empty()) return std::make_pair(live[0], live[1]);
  const size_t dim = SweepDimension(boxes, live);
  std::sort(live.begin(), live.end(), [&](uint32_t a, uint32_t b) {
    return std::make_pair(boxes[a]->offset[dim], a) < std::make_pair(boxes[b]->offset[dim], b);
  });
  std::vector<uint32_t> open;
  for (const uint32_t next : live) {
    const uint64_t start = boxes[next]->offset[dim];
    std::erase_if(
        open, [&](uint32_t i) { return boxes[i]->offset[dim] + boxes[i]->shape[dim] <= start; });
    for (const uint32_t other : open) {
      if (Share(*boxes[other], *boxes[next])) return std::minmax(other, next);
    }
    open.push_back(next);
  }
  return std::nullopt;
}

std::optional<TilingFault> CheckTiling(const Box& whole, const BoxRefs& boxes) {
  if (auto overlap = FindOverlap(boxes)) return TilingFault{overlap, 0};
  uint64_t covered = 0;
  for (const Box* box : boxes) covered += box->ElementCount();
  const uint64_t all = whole.ElementCount();
  if (covered == all) return std::nullopt;
  return TilingFault{std::nullopt, all - covered};
}

}  // namespace ckpt::plan
