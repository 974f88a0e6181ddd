#include "coordinator/ckptctl/work_progress.h"

#include <unistd.h>

#include <iostream>

#include "libckpt/base/clock.h"
#include "libckpt/os/terminal.h"

namespace ckpt::ckptctl {
namespace {

constexpr int64_t kShowEveryNs = 100'000'000;

}  // namespace

WorkProgress::WorkProgress(std::string what)
    : what_(std::move(what)),
      live_(os::IsTerminal(STDERR_FILENO)),
      block_(std::cerr, STDERR_FILENO) {}

void WorkProgress::Show(uint64_t done, uint64_t total) {
  if (!live_) return;
  MutexLock lock(mutex_);
  const int64_t now_ns = BoottimeNs();
  if (now_ns - shown_ns_ < kShowEveryNs && done != total) return;
  shown_ns_ = now_ns;
  meter_.Add(done, now_ns);
  block_.Draw(DescribeProgress(what_, done, total, meter_.BytesPerSecond()) + "\n");
}

void WorkProgress::Clear() {
  MutexLock lock(mutex_);
  block_.Clear();
}

}  // namespace ckpt::ckptctl
