// Staging memory of the standalone engine: two slots where memory allows, touched once, behind the
// loop, and used again and again, so that a save neither grows the process nor pays for page
// faults.
#pragma once

#include <memory>
#include <vector>

#include "libckpt/base/clock.h"
#include "libckpt/base/mutex.h"
#include "libckpt/base/status.h"
#include "libckpt/engine/staging.h"
#include "libckpt/os/memfd.h"
#include "libckpt/session/pinned_memory.h"
#include "libckpt/session/warmer.h"

namespace ckpt::session {

class StagingSlots {
 public:
  struct Slot {
    os::Mapping memory;
    std::unique_ptr<engine::StagingRegion> region;
    PinnedMemory pinned;  // goes before the memory
    bool taken = false;
  };

  // `devices` copy into it. kResourceExhausted if not even one slot fits into memory.
  static Result<std::shared_ptr<StagingSlots>> Create(const engine::StagingIdentity& identity,
                                                      const format::RankLayout& layout,
                                                      const plan::RankPlan& plan,
                                                      const std::vector<device::Device*>& devices);

  // Threads: any. Null at the deadline if none is free.
  Slot* Take(const Deadline& deadline);
  void Give(Slot* slot);

  size_t count() const { return slots_.size(); }
  uint64_t bytes() const { return slots_[0]->memory.size(); }  // of one slot
  // For a writer that hangs: its memory stays for the rest of the process.
  void Leak();

 private:
  Mutex mutex_;
  CondVar freed_;
  std::vector<std::shared_ptr<Slot>> slots_;
  std::unique_ptr<Warmer> warmer_ = std::make_unique<Warmer>();
};

}  // namespace ckpt::session
