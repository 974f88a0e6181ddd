#include "coordinator/ckptctl/work_progress.h"

#include <unistd.h>

#include <algorithm>
#include <iostream>

#include "libckpt/base/clock.h"
#include "libckpt/os/terminal.h"

namespace ckpt::ckptctl {
namespace {

constexpr int64_t kShowEveryNs = 100'000'000;

// "[########------------] ".
std::string Bar(uint64_t done, uint64_t total) {
  constexpr size_t kCells = 20;
  const double part = total == 0 ? 0 : static_cast<double>(done) / static_cast<double>(total);
  const size_t full = std::min(kCells, static_cast<size_t>(part * kCells));
  return "[" + std::string(full, '#') + std::string(kCells - full, '-') + "] ";
}

}  // namespace

WorkProgress::WorkProgress(std::string what)
    : what_(std::move(what)),
      live_(os::IsTerminal(STDERR_FILENO)),
      block_(std::cerr, STDERR_FILENO) {}

void WorkProgress::Show(uint64_t done, uint64_t total) {
  if (!live_) return;
  MutexLock lock(mutex_);
  if (done < done_) return;  // a thread that was overtaken
  done_ = done;
  const int64_t now_ns = BoottimeNs();
  if (now_ns - shown_ns_ < kShowEveryNs && done != total) return;
  shown_ns_ = now_ns;
  meter_.Add(done, now_ns);
  block_.Draw(Bar(done, total) + DescribeProgress(what_, done, total, meter_.BytesPerSecond()) +
              "\n");
}

void WorkProgress::Clear() {
  MutexLock lock(mutex_);
  block_.Clear();
}

}  // namespace ckpt::ckptctl
