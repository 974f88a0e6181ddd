// The staging memory that this node holds for its jobs: duplicates of the memfds of its ckpt-runs,
// and regions fetched from other nodes. A copy lives as long as its descriptor is held here,
// whatever becomes of the process that made it.
//
// I1  Memory is counted once, however many descriptors of it are held.
// I2  What a region says of itself is read through StagingRegion::Open, which trusts nothing.
//
// Threads: any.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "libckpt/base/ids.h"
#include "libckpt/base/mutex.h"
#include "libckpt/base/status.h"
#include "libckpt/engine/staging.h"
#include "libckpt/os/memfd.h"
#include "libckpt/os/thread.h"

namespace ckpt::agent {

// What the region's header says, checked.
struct RegionInfo {
  JobId job_id;
  uint32_t rank = 0;
  uint32_t world = 0;
  AttemptId id;
  bool full = false;
  engine::GenerationState state = engine::GenerationState::kFree;
  uint64_t data_offset = 0;  // from here on nothing changes once it is sealed
  uint64_t staged_bytes = 0;

  // All that was staged belongs to one boundary: it can be served and restored from.
  bool Whole() const;
};
// kDataLoss if it is not a staging region.
Result<RegionInfo> InspectRegion(const os::Memfd& memory);

struct HeldKey {
  std::string job;
  uint64_t epoch = 0;  // the launch that brought it
  uint32_t rank = 0;
  uint32_t slot = 0;
  auto operator<=>(const HeldKey&) const = default;
};

struct HeldRegion {
  HeldKey key;
  os::Memfd memory;
  bool fetched = false;  // from another node
};

class HeldCopies {
 public:
  HeldCopies();
  // Replaces the region of the same key.
  void Put(HeldRegion region);
  void Drop(const HeldKey& key);
  // Everything that launch `epoch` of `job` brought; how many bytes are no longer held. They are
  // given back to the system on a thread of its own: gigabytes take a while.
  uint64_t DropEpoch(const std::string& job, uint64_t epoch);

  // Distinct memory, all jobs (I1).
  uint64_t UsedBytes() const;
  uint64_t UsedBytes(const std::string& job) const;

  struct Whole {
    HeldKey key;
    RegionInfo info;
    os::Memfd memory;  // a duplicate
  };
  // The whole generations of a job, newest first; each memory once.
  std::vector<Whole> WholeOf(const std::string& job) const;
  // The region of `rank` in that attempt (attempt 0: the newest of `epoch`, epoch 0: of any).
  // kNotFound says what is held instead.
  Result<Whole> Find(const std::string& job, uint64_t epoch, uint32_t attempt, uint32_t rank) const;

 private:
  std::vector<HeldRegion> Duplicates(const std::string& job) const;

  mutable Mutex mutex_;
  std::vector<HeldRegion> regions_ CKPT_GUARDED_BY(mutex_);
  os::WorkerPool freer_;
};

}  // namespace ckpt::agent
