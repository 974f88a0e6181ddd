// Copies of whole checkpoints.
#pragma once

#include <functional>

#include "libckpt/storage/store.h"

namespace ckpt::engine {

struct CopyOptions {
  std::function<void(uint64_t done, uint64_t total)> progress;  // stored bytes
  std::function<bool()> cancelled;
  uint32_t threads = 0;  // 0 chooses
};

// Copies checkpoint `id` from one store to another, every chunk verified on its way, and holding
// all of its bytes itself: what it referred to is copied with it. Chunks stay as they are
// compressed. It keeps its name, ids and values; MANIFEST and COMMIT are new.
// Pre: `to` does not have it (BeginAttempt fails otherwise).
// Errors: kDataLoss naming shard, chunk and tensors; what was begun in `to` has no COMMIT.
// Durable: as Store::Commit.
Status CopyCheckpoint(storage::Store* from, const AttemptId& id, storage::Store* to,
                      const CopyOptions& options);

}  // namespace ckpt::engine
