#include "coordinator/agent/staging_ledger.h"

#include <algorithm>

namespace ckpt::agent {

uint64_t StagingLedger::FreeBytes() const {
  uint64_t taken = held_->UsedBytes();
  for (const auto& [launch, bytes] : granted_) {
    const uint64_t used = held_->UsedBytes(launch.first);
    taken += bytes > used ? bytes - used : 0;
  }
  for (const auto& [op_id, bytes] : reserved_) taken += bytes;
  return budget_bytes_ > taken ? budget_bytes_ - taken : 0;
}

uint64_t StagingLedger::Grant(const Launch& launch, uint64_t wanted_bytes) {
  MutexLock lock(mutex_);
  granted_.erase(launch);
  const uint64_t bytes = std::min(wanted_bytes, FreeBytes());
  granted_[launch] = bytes;
  return bytes;
}

void StagingLedger::EndGrant(const Launch& launch) {
  MutexLock lock(mutex_);
  granted_.erase(launch);
}

Status StagingLedger::Reserve(uint64_t op_id, uint64_t bytes) {
  MutexLock lock(mutex_);
  reserved_.erase(op_id);
  const uint64_t free_bytes = FreeBytes();
  if (bytes > free_bytes) {
    return ResourceExhausted(FormatBytes(bytes) + " are needed, but only " +
                             FormatBytes(free_bytes) +
                             " of the staging budget are free on this node");
  }
  reserved_[op_id] = bytes;
  return OkStatus();
}

void StagingLedger::Release(uint64_t op_id) {
  MutexLock lock(mutex_);
  reserved_.erase(op_id);
}

}  // namespace ckpt::agent
