// Where a launch resumes from: the newest copy that is known, in RAM or in the store, and never
// silently from zero. Pure: the leader asks again when the store has changed.
//
// I1  All ranks resume from one and the same copy.
// I2  RAM counts only if the copy is gang-complete and full, and every node holds all of its own
//     ranks.
// I3  Something newer that may still become durable is waited for, as long as the caller may wait.
// I4  Nothing older than what is expected is resumed from, unless what is expected is damaged.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "coordinator/run/gang_link.h"
#include "libckpt/storage/store.h"

namespace ckpt::run {

struct NodeCopies {
  std::vector<uint32_t> ranks;  // that run on this node now
  std::vector<RamCopy> ram;
};

struct ResumeInput {
  std::vector<NodeCopies> nodes;
  std::vector<storage::CheckpointInfo> checkpoints;
  std::set<AttemptId> damaged;  // failed to load: not again
  bool may_wait = true;
  std::optional<AttemptId> expect = {};  // whoever launched this knows of it
};

struct ResumeDecision {
  enum class Kind { kFresh, kRam, kStore, kWait, kBehind };
  Kind kind = Kind::kFresh;
  RamCopy copy;              // kRam: it; else `copy.id` only. kBehind: the newest that was found
  bool drain_alive = false;  // kWait: the nodes of this gang hold all of it
  std::string message;       // for people; empty if there is nothing unusual
};

ResumeDecision DecideResume(const ResumeInput& input);

constexpr int64_t kDrainWaitNs = int64_t{600} * 1'000'000'000;

// How long the copy of a kWait is waited for: one that the nodes of this gang hold is being written
// by somebody, else there is only a guess. Whoever launched this and knows of a copy sees to it
// that the copy is written, which may have to wait for this gang to be gone: it hears of it soon,
// and starts the gang again.
int64_t WaitNs(const ResumeInput& input, const ResumeDecision& decision);

// Attempts of older epochs that a new epoch must adopt: complete in somebody's RAM, not durable
// yet.
std::vector<AttemptId> AdoptableAttempts(const std::vector<NodeCopies>& nodes);

}  // namespace ckpt::run
