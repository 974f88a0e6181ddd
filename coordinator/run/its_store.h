// Whether a store can be the one that a copy of this job came from, before anything is made in it.
#pragma once

#include "libckpt/storage/store.h"

namespace ckpt::run {

// Every launch claims an epoch in its store before its ranks start: where none was claimed, no
// launch that staged `known` has been. So a folder beneath a mount point whose file system is away
// is left as it is. kFailedPrecondition then; errors of reading are what they are. Blocks: on disk.
Status NeedsItsStore(storage::Store* store, const AttemptId& known);

}  // namespace ckpt::run
