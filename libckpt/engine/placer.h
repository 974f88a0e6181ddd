// Moves wanted boxes from chunks to where they belong: each chunk is fetched once, verified, and
// copied to all targets that need some of it while it is in cache.
#pragma once

#include "libckpt/engine/catalog.h"

namespace ckpt::engine {

// Loads all of `wanted` for `rank`. Memory beyond the targets: one chunk for each thread.
Status Place(const Catalog& catalog, const SourceSet& sources, Rank rank,
             const std::vector<Wanted>& wanted, const LoadOptions& options);

}  // namespace ckpt::engine
