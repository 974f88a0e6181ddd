#include "libckpt/os/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <ctime>

namespace ckpt::os {

// Not FUTEX_PRIVATE: the word is shared between processes. The time-out is relative, so that it
// needs no clock that the kernel's futex does not know (it has no CLOCK_BOOTTIME).
Status FutexWait(const uint32_t* word, uint32_t expected, const Deadline& deadline) {
  if (deadline.Expired()) return deadline.Exceeded();
  const int64_t left_ns = std::min<int64_t>(deadline.Left().count(), 3'600'000'000'000);
  const timespec left{.tv_sec = left_ns / 1'000'000'000, .tv_nsec = left_ns % 1'000'000'000};
  if (::syscall(SYS_futex, word, FUTEX_WAIT, expected, &left, nullptr, 0) == 0) return OkStatus();
  switch (errno) {
    case EAGAIN:
    case EINTR:
      return OkStatus();
    case ETIMEDOUT:
      return deadline.Expired() ? deadline.Exceeded() : OkStatus();
    default:
      return ErrnoStatus(errno, "futex");
  }
}

void FutexWakeAll(const uint32_t* word) {
  ::syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace ckpt::os
