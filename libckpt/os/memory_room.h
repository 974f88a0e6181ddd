// How much memory a program may still take: what the machine has, and what its cgroup allows.
#pragma once

#include <cstdint>
#include <string>

#include "libckpt/base/status.h"

namespace ckpt::os {

struct MemoryRoom {
  uint64_t bytes = 0;
  std::string limit;         // what sets it, for people
  uint64_t limit_bytes = 0;  // of that as a whole
};

// The least that machine (MemAvailable) and cgroups (version 1 and 2, all levels) leave. Page cache
// counts as room. Files of `proc` and `cgroups` are read; tests name others.
Result<MemoryRoom> AvailableMemory(const std::string& proc = "/proc",
                                   const std::string& cgroups = "/sys/fs/cgroup");

}  // namespace ckpt::os
