// What a ckpt-run prints: lines that scroll by, its own and its ranks', and, on a terminal, one
// status line below them that is drawn again in place.
//
// Whoever prints takes the status line away and puts it back in the same write, under no lock: a
// reader that stalls stalls who prints, never who draws. Two that print at the very same time may
// leave an old status line for as long as until it is drawn next.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <string_view>

#include "libckpt/base/clock.h"
#include "libckpt/base/mutex.h"
#include "libckpt/base/status.h"

namespace ckpt::run {

class Console {
 public:
  // Of this process. Threads: any.
  static Console& Get();

  // Whether there is a status line: stderr is a terminal that can draw a line again (TERM).
  bool draws() const { return draws_; }
  // Whole lines to stdout (1) or stderr (2). Blocks: until a reader takes them, or the deadline.
  Status Write(int fd, std::string_view lines, const Deadline& deadline);
  // Cut to the width of the terminal; empty takes the line away. Not while somebody prints: the
  // next one is as good.
  void Draw(const std::string& status);

 private:
  Console();
  std::shared_ptr<const std::string> Drawn() const;

  const bool draws_, out_too_;  // out_too_: stdout is a terminal as well
  std::atomic<int> printing_{0};
  mutable Mutex mutex_;
  std::shared_ptr<const std::string> drawn_ CKPT_GUARDED_BY(mutex_);
};

}  // namespace ckpt::run
