#include "coordinator/run/drain_pick.h"

#include <set>

namespace ckpt::run {
namespace {

struct Gathered {
  bool complete = false, durable = false;
  uint32_t world = 0;
  std::map<uint32_t, uint32_t> holder;  // node by rank; the lowest that has it
};

std::string Missing(const Gathered& copy) {
  std::string missing;
  for (uint32_t rank = 0; rank < copy.world; ++rank) {
    if (copy.holder.contains(rank)) continue;
    missing += (missing.empty() ? "rank " : ", ") + std::to_string(rank);
  }
  return missing;
}

}  // namespace

DrainPick PickDrain(const std::map<uint32_t, std::vector<RamCopy>>& nodes) {
  std::map<AttemptId, Gathered> copies;
  for (const auto& [node, ram] : nodes) {
    for (const RamCopy& copy : ram) {
      Gathered& all = copies[copy.id];
      all.complete = all.complete || copy.gang_complete;
      all.durable = all.durable || copy.durable;
      all.world = std::max(all.world, copy.world);
      for (const uint32_t rank : copy.ranks) all.holder.try_emplace(rank, node);
    }
  }
  DrainPick pick;
  for (auto it = copies.rbegin(); it != copies.rend(); ++it) {
    const auto& [id, copy] = *it;
    const std::string missing = Missing(copy);
    if (missing.empty() || copy.complete) {
      pick = DrainPick{.kind = DrainPick::Kind::kDrain, .id = id, .world = copy.world};
      if (copy.durable) {
        pick.kind = DrainPick::Kind::kDurable;
      } else if (!missing.empty()) {
        pick.kind = DrainPick::Kind::kIncomplete;
        pick.message = id.ToString() + " is complete, but " + missing + " of " +
                       std::to_string(copy.world) + " is in no agent's memory here";
      } else {
        for (const auto& [rank, node] : copy.holder) pick.writers[node].push_back(rank);
      }
      return pick;
    }
    if (pick.kind == DrainPick::Kind::kIncomplete) continue;
    pick = DrainPick{.kind = DrainPick::Kind::kIncomplete, .id = id, .world = copy.world};
    pick.message = "no copy is complete; of the newest, " + id.ToString() + ", " + missing +
                   " of " + std::to_string(copy.world) + " is missing";
  }
  return pick;
}

}  // namespace ckpt::run
