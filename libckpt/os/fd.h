// A file descriptor with one owner, closed when the owner goes. All descriptors of this project are
// opened CLOEXEC; the ones a child shall have are named at Spawn.
#pragma once

#include <string>
#include <utility>

#include "libckpt/base/status.h"

namespace ckpt::os {

class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(other.Release()) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) Reset(other.Release());
    return *this;
  }
  ~UniqueFd() { Reset(); }
  UniqueFd(const UniqueFd&) = delete;
  UniqueFd& operator=(const UniqueFd&) = delete;

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int Release() { return std::exchange(fd_, -1); }
  void Reset(int fd = -1);

 private:
  int fd_ = -1;
};

// A second descriptor, CLOEXEC, for the same open file.
Result<UniqueFd> DupFd(int fd);
// CLOEXEC pipe: {read end, write end}.
Result<std::pair<UniqueFd, UniqueFd>> MakePipe();
Status SetNonBlocking(int fd, bool on);
// A file that a child's output is appended to; created if it is not there.
Result<UniqueFd> OpenAppend(const std::string& path);

}  // namespace ckpt::os
