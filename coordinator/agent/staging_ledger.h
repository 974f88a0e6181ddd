// Who may take how much of this node's staging budget: what is held, what was granted to launches
// that have not taken it yet, and what fetches under way will take.
//
// I1  Held, granted and reserved together never exceed the budget.
//
// Threads: any.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "coordinator/agent/held_copies.h"
#include "libckpt/base/mutex.h"
#include "libckpt/base/status.h"

namespace ckpt::agent {

class StagingLedger {
 public:
  using Launch = std::pair<std::string, uint64_t>;  // job, epoch

  // `held` outlives it.
  StagingLedger(uint64_t budget_bytes, const HeldCopies* held)
      : budget_bytes_(budget_bytes), held_(held) {}

  // Up to `wanted_bytes`, less if less is free. It counts, beyond what the job holds, until
  // EndGrant.
  uint64_t Grant(const Launch& launch, uint64_t wanted_bytes);
  void EndGrant(const Launch& launch);

  // For the fetch `op_id`, until Release. kResourceExhausted says how much is free.
  Status Reserve(uint64_t op_id, uint64_t bytes);
  void Release(uint64_t op_id);

 private:
  uint64_t FreeBytes() const CKPT_REQUIRES(mutex_);

  const uint64_t budget_bytes_;
  const HeldCopies* const held_;
  mutable Mutex mutex_;
  std::map<Launch, uint64_t> granted_ CKPT_GUARDED_BY(mutex_);
  std::map<uint64_t, uint64_t> reserved_ CKPT_GUARDED_BY(mutex_);  // by op_id
};

}  // namespace ckpt::agent
