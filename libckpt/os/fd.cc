#include "libckpt/os/fd.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

namespace ckpt::os {

void UniqueFd::Reset(int fd) {
  // EINTR on Linux: the descriptor is closed all the same; a second close could hit another's.
  if (fd_ >= 0) ::close(fd_);
  fd_ = fd;
}

Result<UniqueFd> DupFd(int fd) {
  const int copy = ::fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (copy < 0) return ErrnoStatus(errno, "duplicating a descriptor");
  return UniqueFd(copy);
}

Result<std::pair<UniqueFd, UniqueFd>> MakePipe() {
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0) return ErrnoStatus(errno, "pipe");
  return std::pair(UniqueFd(fds[0]), UniqueFd(fds[1]));
}

Status SetNonBlocking(int fd, bool on) {
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0) return ErrnoStatus(errno, "reading descriptor flags");
  const int wanted = on ? flags | O_NONBLOCK : flags & ~O_NONBLOCK;
  if (::fcntl(fd, F_SETFL, wanted) != 0) return ErrnoStatus(errno, "setting descriptor flags");
  return OkStatus();
}

Result<UniqueFd> OpenAppend(const std::string& path) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0666);
  if (fd < 0) return ErrnoStatus(errno, "opening " + path);
  return UniqueFd(fd);
}

}  // namespace ckpt::os
