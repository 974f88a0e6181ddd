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
// Beside a queue of the kernel that moves bytes by itself: handing over may wait a little too.
inline constexpr uint32_t kThreadsBesideQueue = 4;

// How many threads copy if a caller wants `wanted` (0: the default, within the machine's cores).
uint32_t CopyThreads(uint32_t wanted);

// Calls `body(index, thread)` for every index below `count`, each once, in rising order of start,
// on at most `threads` threads (0: the default). After the first error no further index is started,
// and that error is returned; what it throws counts as one. If the system grants no more threads,
// fewer do the work.
Status ParallelFor(uint64_t count, uint32_t threads,
                   const std::function<Status(uint64_t index, uint32_t thread)>& body);

// The same for work that goes on by itself once it was begun: each thread calls
// `begin(index, slot)` for up to `ahead` indices beyond the one that it finishes with
// `body(index, slot)`. A slot is of one index at a time; there are AheadSlots(ahead). With ahead 0
// nothing is begun beforehand and the slot is the thread.
inline constexpr uint32_t AheadSlots(uint32_t ahead) { return kCopyThreadsMax * (ahead + 1); }
Status ParallelAhead(uint64_t count, uint32_t threads, uint32_t ahead,
                     const std::function<void(uint64_t index, uint32_t slot)>& begin,
                     const std::function<Status(uint64_t index, uint32_t slot)>& body);
// How far ahead threads read if the files keep `depth` reads under way (1: they do not).
uint32_t ReadsAhead(uint32_t depth, uint32_t threads);

}  // namespace ckpt::engine
