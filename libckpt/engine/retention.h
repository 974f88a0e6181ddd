// Removing old checkpoints by themselves, after a commit: the rules a job was started with, and
// what is known of its checkpoints.
//
// I1  A checkpoint counts for a rule only if its MANIFEST is the one that COMMIT names, all its
//     files are there with the right size and index, and no load has found it damaged.
// I2  A failure here is no failure of a save: it is logged, and the next commit tries again.
// Threads: all calls are safe; one removes at a time.
#pragma once

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "libckpt/base/mutex.h"
#include "libckpt/storage/store.h"

namespace ckpt::engine {

// Reads every index, and the size of every file; not the tensors. Errors: what says nothing about
// the checkpoint (a disk that cannot be read).
Result<bool> LooksWhole(storage::Store* store, const AttemptId& id);

class Retention {
 public:
  // Without rules nothing is ever removed. `store` must outlive it.
  Retention(storage::Store* store, std::optional<storage::KeepRules> rules)
      : store_(store), rules_(std::move(rules)) {}

  // It counts for no rule from here on.
  void FoundDamaged(const AttemptId& id);
  // After the commit of `id`, which is whole. A second call while one removes returns at once: the
  // first one goes on with what has come. Blocks: on disk.
  void AfterCommit(const AttemptId& id);

 private:
  Result<bool> IsWhole(const AttemptId& id);
  void RemoveOnce();

  storage::Store* const store_;
  const std::optional<storage::KeepRules> rules_;
  Mutex mutex_;
  std::set<AttemptId> whole_ CKPT_GUARDED_BY(mutex_), damaged_ CKPT_GUARDED_BY(mutex_);
  bool removing_ CKPT_GUARDED_BY(mutex_) = false;
  bool again_ CKPT_GUARDED_BY(mutex_) = false;  // asked for while one removes
};

}  // namespace ckpt::engine
