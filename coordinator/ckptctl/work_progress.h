// A line on stderr that says how far a tool is, where that is a terminal. Threads: any.
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
  int64_t shown_ns_ CKPT_GUARDED_BY(mutex_) = 0;
};

}  // namespace ckpt::ckptctl
