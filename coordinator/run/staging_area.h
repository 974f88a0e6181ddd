// The staging memory of the ranks of one node: memfds that are sized, allocated and laid out by
// ckpt-run, touched beforehand and filled by the ranks, read by writers, held for whoever resumes.
//
// I1  All slots of a set are there or none: a generation is gang-wide.
// I2  The budget counts every byte that is held, from its allocation to its release, by whichever
//     launch.
// I3  A slot outlives its launch for as long as anyone (a writer, a resume) holds it.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "coordinator/run/gang_link.h"
#include "libckpt/engine/staging.h"
#include "libckpt/os/memfd.h"

namespace ckpt::run {

// How many bytes may be held. Threads: any.
class StagingBudget {
 public:
  explicit StagingBudget(uint64_t total_bytes) : total_bytes_(total_bytes) {}
  // kResourceExhausted with the numbers.
  Status Take(uint64_t bytes);
  void Give(uint64_t bytes);
  uint64_t total_bytes() const { return total_bytes_; }
  uint64_t used_bytes() const { return used_bytes_.load(); }

 private:
  const uint64_t total_bytes_;
  std::atomic<uint64_t> used_bytes_{0};
};

// One rank's memory for one generation.
class StagingSlot {
 public:
  // Formats fresh memory; what a generation fills is allocated, and zeroed by whoever touches it
  // first: the rank, behind its loop. Blocks: on memory. Errors: the budget's,
  // kResourceExhausted from the system.
  static Result<std::shared_ptr<StagingSlot>> Create(std::shared_ptr<StagingBudget> budget,
                                                     const engine::StagingIdentity& identity,
                                                     uint32_t slot,
                                                     const format::RankLayout& layout,
                                                     const plan::RankPlan& plan);
  // Opens what another process made: mapped, not populated, not counted (its owner counts it).
  // Errors: kFailedPrecondition if it was made for another job than `job` (zero: any).
  static Result<std::shared_ptr<StagingSlot>> Adopt(os::UniqueFd fd, uint64_t bytes, uint32_t slot,
                                                    const JobId& job);
  ~StagingSlot();

  uint32_t rank() const { return region_.identity().rank.value(); }
  uint32_t slot() const { return slot_; }
  uint64_t bytes() const { return memfd_.bytes(); }
  const os::Memfd& memfd() const { return memfd_; }
  engine::StagingRegion& region() { return region_; }
  uint64_t staged_bytes() const;  // payload of the generation it holds

 private:
  StagingSlot(os::Memfd memfd, os::Mapping mapping, engine::StagingRegion region, uint32_t slot)
      : memfd_(std::move(memfd)),
        mapping_(std::move(mapping)),
        region_(std::move(region)),
        slot_(slot) {}

  std::shared_ptr<StagingBudget> budget_;  // null: adopted
  os::Memfd memfd_;
  os::Mapping mapping_;
  engine::StagingRegion region_;
  uint32_t slot_;
};
using SlotPtr = std::shared_ptr<StagingSlot>;
using SlotSet = std::vector<SlotPtr>;  // one slot index, by local rank

uint64_t SlotBytes(const format::RankLayout& layout, const plan::RankPlan& plan);

// Whether the region holds a whole generation: SEALED, GANG_COMPLETE or DURABLE.
bool HoldsGeneration(const engine::StagingRegion& region);

// What these slots hold, as a joining node reports it: one entry for each generation.
std::vector<RamCopy> Inventory(const std::vector<SlotPtr>& slots);

}  // namespace ckpt::run
