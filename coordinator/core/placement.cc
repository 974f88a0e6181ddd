#include "coordinator/core/placement.h"

#include <algorithm>

namespace ckpt::core {
namespace {

struct Fit {
  const std::string* node;
  uint32_t ranks;
};

std::vector<Fit> LargestFirst(uint64_t bytes_per_rank, const std::vector<Room>& rooms) {
  std::vector<Fit> fits;
  for (const Room& room : rooms) {
    const uint32_t ranks = RanksThatFit(room, bytes_per_rank);
    if (ranks > 0) fits.push_back({&room.node, ranks});
  }
  std::stable_sort(fits.begin(), fits.end(), [](const Fit& a, const Fit& b) {
    return a.ranks != b.ranks ? a.ranks > b.ranks : *a.node < *b.node;
  });
  return fits;
}

}  // namespace

uint32_t RanksThatFit(const Room& room, uint64_t bytes_per_rank) {
  if (bytes_per_rank == 0) return room.slots;
  return static_cast<uint32_t>(std::min<uint64_t>(room.slots, room.staging_bytes / bytes_per_rank));
}

std::optional<Placement> Place(uint32_t ranks, uint64_t bytes_per_rank,
                               const std::vector<Room>& rooms) {
  std::vector<Fit> fits = LargestFirst(bytes_per_rank, rooms);
  Placement placement;
  uint32_t placed = 0;
  while (placed < ranks && !fits.empty()) {
    const uint32_t left = ranks - placed;
    // The smallest that takes all the rest, else the largest.
    auto pick =
        std::find_if(fits.rbegin(), fits.rend(), [&](const Fit& fit) { return fit.ranks >= left; });
    auto it = pick == fits.rend() ? fits.begin() : std::next(pick).base();
    // Among equals the first by name.
    while (it != fits.begin() && std::prev(it)->ranks == it->ranks) --it;
    const uint32_t take = std::min(left, it->ranks);
    placement.push_back({*it->node, static_cast<uint32_t>(placement.size()), placed, take});
    placed += take;
    fits.erase(it);
  }
  if (placed < ranks || ranks == 0) return std::nullopt;
  return placement;
}

}  // namespace ckpt::core
