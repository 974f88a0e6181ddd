// Fetches generations from another agent into fresh sealed memory.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "coordinator/agent/data_wire.h"
#include "coordinator/agent/held_copies.h"
#include "libckpt/base/status.h"

namespace ckpt::agent {

struct FetchPlan {
  std::string from;  // host:port of the other agent's data server
  std::string token;
  std::string job;
  uint64_t epoch = 0;
  uint32_t attempt = 0;  // 0: the newest
  std::vector<uint32_t> ranks;
  // Asked once, with the memory that it takes, before it takes it; an error ends the fetch.
  std::function<Status(uint64_t bytes)> reserve;
  size_t connection_count = 4;  // streams in parallel, at most
};

struct FetchProgress {
  std::atomic<uint64_t> bytes_done{0};
  std::atomic<uint64_t> bytes_total{0};
  std::atomic<bool> cancelled{false};
};

// All ranks of the plan, of one and the same attempt, each opened and checked; or an error and
// nothing is kept.
//
// Threads: runs its own, joined before it returns. Blocks: on the network, bounded by bytes.
// Errors:  kNotFound (not held there), kUnauthenticated, what `reserve` says,
//          kDataLoss (a digest or a header does not fit), kUnavailable, kCancelled.
Result<std::vector<HeldRegion>> FetchGeneration(const FetchPlan& plan, FetchProgress* progress);

}  // namespace ckpt::agent
