// Waiting on a 32-bit word in memory that processes share.
#pragma once

#include <atomic>
#include <cstdint>

#include "libckpt/base/clock.h"
#include "libckpt/base/status.h"

namespace ckpt::os {

// Sleeps while *word == expected. OK when woken, when the word differs, or for no reason: the
// caller looks again. kDeadlineExceeded once the deadline has passed.
Status FutexWait(const uint32_t* word, uint32_t expected, const Deadline& deadline);
// Wakes all who wait, in any process.
void FutexWakeAll(const uint32_t* word);

}  // namespace ckpt::os
