#include "libckpt/os/stream.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace ckpt::os {

Result<ReadChunk> ReadAvailable(int fd, size_t bytes_max) {
  ReadChunk chunk;
  chunk.bytes.resize(bytes_max);
  ssize_t count;
  do {
    count = ::read(fd, chunk.bytes.data(), bytes_max);
  } while (count < 0 && errno == EINTR);
  if (count < 0 && errno != EAGAIN && errno != EWOULDBLOCK) return ErrnoStatus(errno, "read");
  chunk.ended = count == 0;
  chunk.bytes.resize(count > 0 ? static_cast<size_t>(count) : 0);
  return chunk;
}

Status WriteWithin(int fd, std::string_view bytes, const Deadline& deadline) {
  while (!bytes.empty()) {
    pollfd wait{fd, POLLOUT, 0};
    const int ready = ::poll(&wait, 1, deadline.LeftMs());
    if (ready == 0) return deadline.Exceeded();
    if (ready < 0 && errno == EINTR) continue;
    // A writable pipe takes PIPE_BUF bytes without blocking, whatever its flags.
    const ssize_t count = ::write(fd, bytes.data(), std::min<size_t>(bytes.size(), PIPE_BUF));
    if (count >= 0) {
      bytes.remove_prefix(static_cast<size_t>(count));
    } else if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) {
      return ErrnoStatus(errno, "write");
    }
  }
  return OkStatus();
}

Result<std::string> MakePrivateDir(std::string_view prefix) {
  const char* base = ::getenv("XDG_RUNTIME_DIR");
  if (base == nullptr || ::access(base, W_OK) != 0) base = ::getenv("TMPDIR");
  if (base == nullptr || ::access(base, W_OK) != 0) base = "/tmp";
  std::string path = std::string(base) + "/" + std::string(prefix) + "XXXXXX";
  if (::mkdtemp(path.data()) == nullptr) return ErrnoStatus(errno, "making " + path);
  return path;
}

}  // namespace ckpt::os
