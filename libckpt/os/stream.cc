#include "libckpt/os/stream.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "libckpt/os/file.h"

namespace ckpt::os {
namespace {

UniqueFd OpenDirectory(const std::string& path) {
  return UniqueFd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
}

void RemoveAbandoned(const std::string& base, std::string_view prefix) {
  FileSystem& fs = PosixFileSystem();
  const Result<std::vector<DirEntry>> entries = fs.List(base);
  if (!entries.ok()) return;  // litter of others is no reason to fail
  for (const DirEntry& entry : *entries) {
    if (!entry.name.starts_with(prefix)) continue;
    const std::string path = JoinPath(base, entry.name);
    const UniqueFd directory = OpenDirectory(path);
    if (!directory.valid() || ::flock(directory.get(), LOCK_EX | LOCK_NB) != 0) continue;
    fs.RemoveTree(path).IgnoreError();
  }
}

}  // namespace

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
  RemoveAbandoned(base, prefix);
  // Under another name until it is locked: nobody takes it for abandoned.
  const std::string dot = std::string(base) + "/.";
  std::string fresh = dot + std::string(prefix) + "XXXXXX";
  if (::mkdtemp(fresh.data()) == nullptr) return ErrnoStatus(errno, "making " + fresh);
  UniqueFd lock = OpenDirectory(fresh);
  if (!lock.valid() || ::flock(lock.get(), LOCK_SH) != 0) {
    return ErrnoStatus(errno, "locking " + fresh);
  }
  const std::string path = std::string(base) + "/" + fresh.substr(dot.size());
  CKPT_RETURN_IF_ERROR(PosixFileSystem().RenameNoReplace(fresh, path));
  (void)lock.Release();  // until the process ends, however it does
  return path;
}

}  // namespace ckpt::os
