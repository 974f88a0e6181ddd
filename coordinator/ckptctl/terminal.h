// What a terminal can do that a file cannot: lines that are drawn again in place, and an interrupt
// that is a question ("am I still interested?") and not an end.
#pragma once

#include <iosfwd>
#include <string>

namespace ckpt::ckptctl {

bool IsTerminal(int fd);
// Columns of the terminal behind `fd`, 80 if it does not say; rows likewise, 24.
struct TerminalSize {
  size_t columns = 80, rows = 24;
};
TerminalSize SizeOf(int fd);

// Columns that UTF-8 text takes.
size_t Width(const std::string& utf8);

// A block of lines that is drawn again in place; what does not fit into the terminal is cut, and
// the cut is said.
class LiveBlock {
 public:
  LiveBlock(std::ostream& out, int fd) : out_(out), fd_(fd) {}
  ~LiveBlock() { Clear(); }
  LiveBlock(const LiveBlock&) = delete;
  LiveBlock& operator=(const LiveBlock&) = delete;

  void Draw(const std::string& text);
  void Clear();
  // What was drawn last stays.
  void Keep() { lines_ = 0; }

 private:
  std::ostream& out_;
  const int fd_;
  size_t lines_ = 0;  // drawn, the cursor is below them
};

// While it lives, the first Ctrl-C is only noted; the second ends the program as always.
class InterruptNote {
 public:
  InterruptNote();
  ~InterruptNote();
  InterruptNote(const InterruptNote&) = delete;
  InterruptNote& operator=(const InterruptNote&) = delete;

  static bool Noted();
};

}  // namespace ckpt::ckptctl
