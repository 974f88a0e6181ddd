// A line on stderr with a bar, bytes, rate and time left of a tool, where that is a terminal:
// output that is read by programs is never touched. Threads: any.
#pragma once

#include <string>

#include "coordinator/ckptctl/terminal.h"
#include "libckpt/base/mutex.h"
#include "libckpt/base/progress.h"

namespace ckpt::ckptctl {

class WorkProgress {
 public:
  explicit WorkProgress(std::string what);
  void Show(uint64_t done, uint64_t total);
  void Clear();

 private:
  const std::string what_;
  const bool live_;
  Mutex mutex_;
  RateMeter meter_ CKPT_GUARDED_BY(mutex_);
  LiveBlock block_ CKPT_GUARDED_BY(mutex_);
  uint64_t done_ CKPT_GUARDED_BY(mutex_) = 0;
  int64_t shown_ns_ CKPT_GUARDED_BY(mutex_) = 0;
};

}  // namespace ckpt::ckptctl
