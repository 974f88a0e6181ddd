#include "libckpt/os/space.h"

#include <sys/statvfs.h>

#include <cerrno>

namespace ckpt::os {

Result<uint64_t> FreeBytes(const std::string& path) {
  struct statvfs room;
  if (::statvfs(path.c_str(), &room) != 0) return ErrnoStatus(errno, "looking for room at " + path);
  return static_cast<uint64_t>(room.f_bavail) * room.f_frsize;
}

}  // namespace ckpt::os
