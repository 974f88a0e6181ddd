#include "coordinator/run/console.h"

#include <stdlib.h>

#include "libckpt/os/stream.h"
#include "libckpt/os/terminal.h"

namespace ckpt::run {
namespace {

constexpr Nanos kDrawTimeout = std::chrono::milliseconds(100);
constexpr std::string_view kAway = "\r\x1b[K";

bool CanDraw() {
  const char* term = ::getenv("TERM");
  const std::string_view kind = term == nullptr ? "" : term;
  return os::IsTerminal(2) && !kind.empty() && kind != "dumb";
}

}  // namespace

Console& Console::Get() {
  static Console console;
  return console;
}

Console::Console()
    : draws_(CanDraw()),
      out_too_(draws_ && os::IsTerminal(1)),
      drawn_(std::make_shared<const std::string>()) {}

std::shared_ptr<const std::string> Console::Drawn() const {
  MutexLock lock(mutex_);
  return drawn_;
}

Status Console::Write(int fd, std::string_view lines, const Deadline& deadline) {
  const std::shared_ptr<const std::string> status = Drawn();
  if (status->empty() || (fd == 1 && !out_too_)) return os::WriteWithin(fd, lines, deadline);
  std::string all(kAway);
  all.append(lines).append(*status);
  ++printing_;
  Status written = os::WriteWithin(fd, all, deadline);
  --printing_;
  return written;
}

void Console::Draw(const std::string& status) {
  if (!draws_ || (printing_ > 0 && !status.empty())) return;
  // One column stays free: a terminal wraps when the last one is filled.
  auto line = std::make_shared<const std::string>(os::Cut(status, os::SizeOf(2).columns - 1));
  {
    MutexLock lock(mutex_);
    if (drawn_->empty() && line->empty()) return;
    drawn_ = line;
  }
  os::WriteWithin(2, std::string(kAway) + *line, Deadline("the status line", kDrawTimeout))
      .IgnoreError();
}

}  // namespace ckpt::run
