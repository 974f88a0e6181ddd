// A call into NCCL that has no deadline of its own, with one all the same: it runs on a thread, and
// who waits stops waiting. A thread that was given up on is joined by the next call after it has
// returned; one that never returns lives as long as the process, which is said.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "libckpt/base/clock.h"
#include "libckpt/base/status.h"

namespace ckpt::comm::nccl {

class BoundedCall {
 public:
  // Starts `call` at once. It must own what it touches: it may outlive this.
  BoundedCall(std::string what, std::function<Status()> call);
  // What does not return is left alone.
  ~BoundedCall();
  BoundedCall(const BoundedCall&) = delete;
  BoundedCall& operator=(const BoundedCall&) = delete;

  // What the call returned; kDeadlineExceeded if it has not. May be asked again.
  Status Wait(const Deadline& deadline);

 private:
  struct Shared;
  struct GivenUp;
  const std::string what_;
  std::shared_ptr<Shared> shared_;
};

}  // namespace ckpt::comm::nccl
