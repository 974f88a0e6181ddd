// Logs that stay small while others append to them. The oldest part of a file is given back to the
// disk in place: the writer's descriptor stays good, no byte that it writes meanwhile is lost, and
// offsets keep their meaning, so that a reader goes on where it was.
#pragma once

#include <cstdint>
#include <string>

#include "libckpt/base/status.h"

namespace ckpt::agent {

// Keeps the newest half of `bytes_max` once the file takes more than that on disk. Where the file
// system cannot free a part of a file, all of it goes. Threads: any. Errors: kNotFound, I/O.
Status LimitLog(const std::string& path, uint64_t bytes_max);

// The first offset from `offset` on that is still kept; `offset` itself at the end of the file.
Result<uint64_t> FirstKept(const std::string& path, uint64_t offset);

}  // namespace ckpt::agent
