// Which ranks go where: pure arithmetic on what is free.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/core/types.h"

namespace ckpt::core {

// What a node has to offer.
struct Room {
  std::string node;
  uint32_t slots = 0;
  uint64_t staging_bytes = 0;
};

// Ranks that `room` can take, each with `bytes_per_rank` to stage (0: not known, not checked).
uint32_t RanksThatFit(const Room& room, uint64_t bytes_per_rank);

// Consecutive ranks, packed: one node that fits best if there is one, else the fewest nodes, the
// last of them the one that fits the rest best. Nothing if they do not all fit.
std::optional<Placement> Place(uint32_t ranks, uint64_t bytes_per_rank,
                               const std::vector<Room>& rooms);

}  // namespace ckpt::core
