#include "libckpt/os/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>

namespace ckpt::os {

bool IsTerminal(int fd) { return ::isatty(fd) == 1; }

TerminalSize SizeOf(int fd) {
  winsize window{};
  TerminalSize size;
  if (::ioctl(fd, TIOCGWINSZ, &window) != 0) return size;
  if (window.ws_col != 0) size.columns = window.ws_col;
  if (window.ws_row != 0) size.rows = window.ws_row;
  return size;
}

size_t Width(const std::string& utf8) {
  return static_cast<size_t>(
      std::count_if(utf8.begin(), utf8.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

std::string Cut(const std::string& line, size_t columns) {
  if (Width(line) <= columns) return line;
  std::string text;
  size_t width = 0;
  for (const char c : line) {
    width += (c & 0xc0) != 0x80 ? 1 : 0;
    if (width >= columns) break;
    text += c;
  }
  return text + "…";
}

}  // namespace ckpt::os
