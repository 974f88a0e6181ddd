// Descriptors that a child of fork() must not hold: a data loader that outlives its rank would keep
// the rank's connection open. (Those that are executed anew lose them by O_CLOEXEC.)
#pragma once

namespace ckpt::os {

// While it lives, `fd` is closed in each child that is forked, before the child runs on.
// Threads: any. Pre: it goes before `fd` is closed.
class ClosedInChildren {
 public:
  explicit ClosedInChildren(int fd);
  ~ClosedInChildren();
  ClosedInChildren(const ClosedInChildren&) = delete;
  ClosedInChildren& operator=(const ClosedInChildren&) = delete;

 private:
  int place_ = -1;  // none was free: the child keeps the descriptor
};

}  // namespace ckpt::os
