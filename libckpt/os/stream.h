// Pipes and log files: bytes in order, no offsets.
#pragma once

#include <string>
#include <string_view>

#include "libckpt/base/clock.h"
#include "libckpt/base/status.h"
#include "libckpt/os/fd.h"

namespace ckpt::os {

struct ReadChunk {
  bool ended = false;  // nobody holds the other end any more
  std::string bytes;   // neither: nothing waits (of a non-blocking descriptor)
};
Result<ReadChunk> ReadAvailable(int fd, size_t bytes_max);

// Blocks: until the reader has taken them or the deadline has passed, also where `fd` blocks.
// Errors: kDeadlineExceeded, with a part of the bytes written perhaps.
Status WriteWithin(int fd, std::string_view bytes, const Deadline& deadline);

// A new directory that only this user may enter (mode 0700), beneath $XDG_RUNTIME_DIR, else
// $TMPDIR, else /tmp; `prefix` begins its name. What processes that were killed have left under
// this prefix is removed: a directory is in use as long as the process that made it lives, which
// holds a lock on it.
Result<std::string> MakePrivateDir(std::string_view prefix);

}  // namespace ckpt::os
