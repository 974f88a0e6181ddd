// Signals as a flag, for a guest in someone else's program: a handler that only sets an atomic and
// rings an eventfd, and then calls the handler that was there before.
//
// I1  Nothing is installed unless asked for; what was installed is taken back, unless the program
//     has put another handler over it since.
// I2  In a forked child it is as if nothing had been installed: the older action is carried out.
// I3  When the bell is gone, no handler uses the flag or the eventfd any more.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "libckpt/base/status.h"
#include "libckpt/os/fd.h"

namespace ckpt::os {

class SignalBell {
 public:
  // `signals`: bit n is signal n. A signal caught sets `flag` bits in `*raise`, which must outlive
  // the bell. One bell at a time in a process: else kFailedPrecondition.
  static Result<std::unique_ptr<SignalBell>> Install(uint64_t signals, std::atomic<uint32_t>* raise,
                                                     uint32_t flag);
  ~SignalBell();
  SignalBell(const SignalBell&) = delete;
  SignalBell& operator=(const SignalBell&) = delete;

  int fd() const { return event_.get(); }  // readable once a signal was caught
  // The last signal caught since the last call, 0 if none; silences the bell.
  int Take();

 private:
  SignalBell() = default;
  UniqueFd event_;
  uint64_t signals_ = 0;
};

}  // namespace ckpt::os
