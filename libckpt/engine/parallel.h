// Runs one function over many indices on the caller's thread and a few more that live only as long:
// at rest the library has no copying thread, and a fork() finds none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "libckpt/base/status.h"

namespace ckpt::engine {

inline constexpr uint32_t kCopyThreadsMax = 16;
inline constexpr uint32_t kCopyThreadsDefault = 2;

// How many threads copy if a caller wants `wanted` (0: the default, within the machine's cores).
uint32_t CopyThreads(uint32_t wanted);

// Calls `body(index, thread)` for every index below `count`, each once, in rising order of start,
// on at most `threads` threads (0: the default). After the first error no further index is started,
// and that error is returned; what it throws counts as one. If the system grants no more threads,
// fewer do the work.
Status ParallelFor(uint64_t count, uint32_t threads,
                   const std::function<Status(uint64_t index, uint32_t thread)>& body);

}  // namespace ckpt::engine
