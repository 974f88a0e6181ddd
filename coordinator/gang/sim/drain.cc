// What agents start when the leader has gone for good: a gang without ranks that writes the newest
// copy that all have sealed and commits the same attempt. Here it is a model of that rule
// (coordinator/run has the real one): what is tested is that the machines leave what it needs. Up
// to two at a time, beside a leader that was only believed to be dead; each may die or fail and is
// started anew.
#include <algorithm>

#include "coordinator/gang/sim/world.h"

namespace ckpt::gang::sim {
namespace {

constexpr int64_t kDrainsAt = 1400 * kMs;
constexpr uint32_t kTroublesMax = 2;  // of each: then it is left alone

}  // namespace

void World::PlanDrain() {
  const bool believed = random_.Chance(0.1), twice = random_.Chance(0.3);
  At(kDrainsAt, [this, believed, twice] {
    const bool gone = std::all_of(ranks_.begin(), ranks_.end(),
                                  [](const SimRank& rank) { return rank.pc == Pc::kExited; });
    if (!gone || stored_.decision != Decision::kRelease || (!leader_gone_ && !believed)) return;
    StartDrain(0);
    if (twice) After(random_.Range(0, 60) * kMs, [this] { StartDrain(1); });
  });
}

// Of what lies in the staging memory, the newest that every rank has sealed; 0: there is none.
uint32_t World::PickDrained() const {
  uint32_t newest = 0;
  for (const SlotState& slot : ranks_[0].slots) {
    const bool whole = std::all_of(ranks_.begin(), ranks_.end(), [&](const SimRank& rank) {
      return HoldsWhole(rank, slot.generation);
    });
    if (whole) newest = std::max(newest, slot.generation);
  }
  return newest;
}

void World::StartDrain(uint32_t which) {
  Drain& drain = drains_[which];
  const uint64_t life = ++drain.life;
  drain.generation = PickDrained();
  drain.attempt = generation_attempt_[drain.generation];
  drain.left = static_cast<uint32_t>(ranks_.size());
  ++result_.drained;
  Say("DRAIN ", which, " of attempt ", drain.attempt, " begins");
  if (!marked_.contains(drain.attempt)) {
    return Fail("drain-lost", "what was released is not what is left: generation " +
                                  std::to_string(drain.generation));
  }
  if (drain.troubles < kTroublesMax && random_.Chance(0.4)) {
    ++drain.troubles;
    After(random_.Range(1, 60) * kMs, [this, which, life] { RestartDrain(which, life, "dies"); });
  }
  for (const SimRank& rank : ranks_) {
    const uint32_t index = rank.index;
    After(random_.Range(1, 40) * kMs, [this, which, life, index] {
      if (drains_[which].life == life) WriteDrained(which, index);
    });
  }
}

void World::RestartDrain(uint32_t which, uint64_t life, const char* why) {
  Drain& drain = drains_[which];
  if (drain.life != life || drain.over) return;
  Say("DRAIN ", which, " ", why);
  ++drain.life;
  After(random_.Range(5, 40) * kMs, [this, which] { StartDrain(which); });
}

void World::WriteDrained(uint32_t which, uint32_t rank) {
  Drain& drain = drains_[which];
  if (drain.troubles < kTroublesMax && random_.Chance(weather_.drain_fails)) {
    ++drain.troubles;
    return RestartDrain(which, drain.life, "finds no space on the store");
  }
  for (const SlotState& slot : ranks_[rank].slots) {
    if (slot.generation != drain.generation) continue;
    for (uint32_t chunk = 0; chunk < kChunks; ++chunk) {
      disk_[{drain.attempt, rank, chunk}] = slot.chunks[chunk];
    }
  }
  if (--drain.left != 0) return;
  const uint64_t life = drain.life;
  After(random_.Range(1, 20) * kMs, [this, which, life] {
    if (drains_[which].life == life) CommitDrained(&drains_[which]);
  });
}

void World::CommitDrained(Drain* drain) {
  drain->over = true;
  CheckContent(CommitAttempt{drain->attempt, drain->generation, 0, {}});
  const bool refused = aborted_.contains(drain->attempt) && !committed_.contains(drain->attempt);
  if (!refused) committed_.insert(drain->attempt);
  Say("store: attempt ", drain->attempt, refused ? " refused" : " committed", " for a drain");
  Mix(drain->attempt);
}

// What was released is not lost because its leader died.
void World::CheckDrained() {
  for (const Drain& drain : drains_) {
    if (drain.life == 0 || committed_.contains(drain.attempt)) continue;
    if (aborted_.contains(drain.attempt)) continue;
    Fail("drain-lost", "attempt " + std::to_string(drain.attempt) +
                           " was released and is not durable in the end");
  }
}

}  // namespace ckpt::gang::sim
