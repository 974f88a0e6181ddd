// Which checkpoints a job keeps, and what is removed: decisions on what was seen, and what the
// verbs that clean up are told beforehand. EpochStore does the moves (docs/format/commit.md,
// "Removing").
//
// I1  The newest whole checkpoint is kept, whatever the rules say; a damaged one counts for no
// rule. I2  What a kept checkpoint or an open attempt refers to is kept. I3  Nothing is removed
// that is newer than the oldest of the `last` whole ones that are kept.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "libckpt/base/ids.h"
#include "libckpt/base/status.h"

namespace ckpt::storage {

// A checkpoint is kept if any rule says so.
struct KeepRules {
  uint32_t last = 1;                  // the newest ones that are whole; at least 1
  uint64_t every_steps = 0;           // the first at or after each multiple; 0: no such rule
  std::chrono::hours every_hours{0};  // the newest of each so long period; 0: no such rule
  std::vector<AttemptId> pinned;      // these; and each that has a file PINNED in its directory
};

// What people write: none if all are 0. kInvalidArgument for rules without `last`, or for numbers
// that cannot be.
Result<std::optional<KeepRules>> MakeKeepRules(uint64_t last, uint64_t every_steps,
                                               uint64_t every_hours);

// A committed checkpoint as retention sees it, newest first in a list.
struct Retained {
  AttemptId id;
  bool whole = true;
  bool pinned = false;
  int64_t committed_ns = 0;        // by the store's clock
  std::vector<AttemptId> origins;  // what it refers to
};

struct PruneEntry {
  AttemptId id;
  std::string why;  // "one of the newest 2", "s40.e1.a1 refers to it", "no rule keeps it"
  uint64_t bytes = 0;
};
struct PrunePlan {
  Epoch epoch;                           // as which the store removes: its newest list
  std::vector<PruneEntry> keep, remove;  // newest first
  uint64_t RemoveBytes() const;
};

// Decides for `checkpoints` (newest first); `needed` are the origins of open attempts. Without one
// that is whole nothing is removed.
PrunePlan DecidePrune(const std::vector<Retained>& checkpoints,
                      const std::vector<AttemptId>& needed, const KeepRules& rules);

// Whether a checkpoint is whole, as far as the caller wants to look. An error stops the planning.
using IsWhole = std::function<Result<bool>(const AttemptId&)>;

enum class RepairKind {
  kCommit,    // create the COMMIT that the coordinator's record promises
  kTakeBack,  // a checkpoint that an interrupted removal has moved away
  kFinish,    // the rest of a removal that was decided
  kSweep,     // an attempt of an older epoch that can never become visible
};
struct RepairAction {
  RepairKind kind;
  AttemptId id;
  std::string name;  // of the directory
  std::string why;
  uint64_t bytes = 0;  // that it frees
};
struct RepairPlan {
  Epoch epoch;
  std::vector<RepairAction> actions;
  std::vector<std::string> left;  // what looks like garbage and is not proven to be: a line each
};

// What lies in a job's directory.
struct UsageRow {
  std::string name;  // of the directory
  AttemptId id;
  std::string state;  // "visible", "open", "draining", "not visible", "being removed"
  uint64_t files = 0, bytes = 0;
  std::vector<AttemptId> origins;    // that it refers to
  std::vector<AttemptId> needed_by;  // that refer to it
};

}  // namespace ckpt::storage
