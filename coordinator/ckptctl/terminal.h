// Blocks of lines that are drawn again in place, and an interrupt that is a question ("am I still
// interested?") and not an end.
#pragma once

#include <iosfwd>
#include <string>

namespace ckpt::ckptctl {

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
