#include "coordinator/ckptctl/terminal.h"

#include <signal.h>

#include <ostream>
#include <sstream>
#include <vector>

#include "libckpt/os/terminal.h"

namespace ckpt::ckptctl {
namespace {

volatile sig_atomic_t interrupted = 0;

void OnInterrupt(int) { interrupted = 1; }

}  // namespace

void LiveBlock::Draw(const std::string& text) {
  const os::TerminalSize size = os::SizeOf(fd_);
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(os::Cut(line, size.columns));
  const size_t most = size.rows > 2 ? size.rows - 1 : 1;
  if (lines.size() > most) {
    const size_t left_out = lines.size() - most + 1;
    lines.resize(most - 1);
    lines.push_back("… " + std::to_string(left_out) + " more lines than this window has");
  }
  std::string drawn = lines_ == 0 ? "" : "\x1b[" + std::to_string(lines_) + "A";
  for (const std::string& line : lines) drawn += "\r" + line + "\x1b[K\n";
  drawn += "\x1b[J";
  out_ << drawn << std::flush;
  lines_ = lines.size();
}

void LiveBlock::Clear() {
  if (lines_ == 0) return;
  out_ << "\x1b[" << lines_ << "A\r\x1b[J" << std::flush;
  lines_ = 0;
}

InterruptNote::InterruptNote() {
  interrupted = 0;
  struct sigaction action {};
  action.sa_handler = OnInterrupt;
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  ::sigaction(SIGINT, &action, nullptr);
}

InterruptNote::~InterruptNote() { ::signal(SIGINT, SIG_DFL); }

bool InterruptNote::Noted() { return interrupted != 0; }

}  // namespace ckpt::ckptctl
