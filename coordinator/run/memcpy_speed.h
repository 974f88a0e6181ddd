// The limit that staging is compared with: a plain memcpy into memory that is there.
#pragma once

#include <cstdint>

#include "libckpt/base/clock.h"

namespace ckpt::run {

// How long `threads` threads take to copy `bytes` in all, from and into populated memory. At most
// 1 GiB is copied and the time scaled up. 0 if there is no memory for it.
Nanos TimeMemcpy(uint64_t bytes, uint32_t threads);

}  // namespace ckpt::run
