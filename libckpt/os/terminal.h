// What a terminal can do that a file cannot: lines that are drawn again in place.
#pragma once

#include <cstddef>
#include <string>

namespace ckpt::os {

bool IsTerminal(int fd);
// Of the terminal behind `fd`; what it does not say is as usual.
struct TerminalSize {
  size_t columns = 80, rows = 24;
};
TerminalSize SizeOf(int fd);

// Columns that UTF-8 text takes.
size_t Width(const std::string& utf8);
// At most `columns` of `line`, whole characters; that it was cut can be seen.
std::string Cut(const std::string& line, size_t columns);

}  // namespace ckpt::os
