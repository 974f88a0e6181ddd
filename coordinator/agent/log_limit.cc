#include "coordinator/agent/log_limit.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "libckpt/os/fd.h"

namespace ckpt::agent {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kStatBlock = 512;

// Before it is opened: OpenAppend would create it.
Result<struct stat> Look(const std::string& path) {
  struct stat st;
  if (::lstat(path.c_str(), &st) != 0) return ErrnoStatus(errno, "looking at " + path);
  return st;
}

}  // namespace

Status LimitLog(const std::string& path, uint64_t bytes_max) {
  CKPT_ASSIGN_OR_RETURN(const struct stat st, Look(path));
  const auto size = static_cast<uint64_t>(st.st_size);
  const uint64_t on_disk = static_cast<uint64_t>(st.st_blocks) * kStatBlock;
  if (!S_ISREG(st.st_mode) || on_disk <= bytes_max || size <= bytes_max / 2) return OkStatus();
  CKPT_ASSIGN_OR_RETURN(const os::UniqueFd fd, os::OpenAppend(path));
  const uint64_t cut = (size - bytes_max / 2) / kPage * kPage;
  const int punched =
      ::fallocate(fd.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(cut));
  if (punched == 0) return OkStatus();
  if (errno != EOPNOTSUPP && errno != ENOSYS) return ErrnoStatus(errno, "shortening " + path);
  if (::ftruncate(fd.get(), 0) == 0) return OkStatus();
  return ErrnoStatus(errno, "truncating " + path);
}

Result<uint64_t> FirstKept(const std::string& path, uint64_t offset) {
  CKPT_ASSIGN_OR_RETURN(const struct stat st, Look(path));
  if (!S_ISREG(st.st_mode)) return InvalidArgument(path + " is not a file");
  CKPT_ASSIGN_OR_RETURN(const os::UniqueFd fd, os::OpenAppend(path));
  const off_t data = ::lseek(fd.get(), static_cast<off_t>(offset), SEEK_DATA);
  return data < 0 ? offset : static_cast<uint64_t>(data);  // nothing there, or it cannot tell
}

}  // namespace ckpt::agent
