// The machine's own file system.
//
// Paths are handed to the kernel as they are; what must stay beneath a directory goes through
// openat2(RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS). Where that call is missing (an old kernel, a
// seccomp filter), the path is walked component by component with O_NOFOLLOW, which is as safe.
#include <dirent.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <deque>
#include <optional>

#include "libckpt/base/fault.h"
#include "libckpt/base/limits.h"
#include "libckpt/base/mutex.h"
#include "libckpt/os/fd.h"
#include "libckpt/os/file.h"
#include "libckpt/os/fork.h"

namespace ckpt::os {
namespace {

Status PathError(int error, std::string_view verb, const std::string& path) {
  return ErrnoStatus(error, std::string(verb) + " " + path);
}

int OpenFlags(const OpenOptions& options) {
  int flags = O_CLOEXEC | O_NOFOLLOW | O_NOCTTY | (options.write ? O_RDWR : O_RDONLY);
  if (options.create) flags |= O_CREAT;
  if (options.exclusive) flags |= O_EXCL;
  if (options.truncate) flags |= O_TRUNC;
  return flags;
}

FileType TypeOf(mode_t mode) {
  if (S_ISREG(mode)) return FileType::kRegular;
  if (S_ISDIR(mode)) return FileType::kDirectory;
  if (S_ISLNK(mode)) return FileType::kSymlink;
  return FileType::kOther;
}

FileStat ToFileStat(const struct stat& st) {
  return FileStat{.type = TypeOf(st.st_mode),
                  .bytes = static_cast<uint64_t>(st.st_size),
                  .inode = st.st_ino,
                  .device = st.st_dev,
                  .links = st.st_nlink,
                  .mode = st.st_mode & 07777,
                  .mtime_ns = int64_t{st.st_mtim.tv_sec} * 1'000'000'000 + st.st_mtim.tv_nsec};
}

constexpr uint64_t kDirectAlignment = kPageBytes;
constexpr size_t kPacedMax = 8;  // writes of a file that are being written back

bool Aligned(const void* memory, uint64_t offset, uint64_t bytes) {
  return (reinterpret_cast<uintptr_t>(memory) | offset | bytes) % kDirectAlignment == 0;
}

class PosixFile final : public File {
 public:
  PosixFile(UniqueFd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}

  // By fcntl, not at open: a file system that refuses O_DIRECT may have created the file by then.
  void StartDirect() {
    const int flags = ::fcntl(fd_.get(), F_GETFL);
    direct_ = flags >= 0 && ::fcntl(fd_.get(), F_SETFL, flags | O_DIRECT) == 0;
    paced_ = !direct_;
  }
  bool direct() const override { return direct_; }
  int descriptor() const override { return fd_.get(); }
  // A data loader that outlives its rank would keep a file open that nobody may remove or unmount.
  void CloseInChildren() { closed_in_children_.emplace(fd_.get()); }

  Status PWrite(uint64_t offset, ByteSpan data) override {
    CKPT_FAULT("os.file.pwrite");
    CKPT_RETURN_IF_ERROR(CheckUsable());
    const uint64_t begin = offset, bytes = data.size();
    while (!data.empty()) {
      if (direct_ && !Aligned(data.data(), offset, data.size())) StopDirect();
      const ssize_t n = ::pwrite(fd_.get(), data.data(), data.size(), static_cast<off_t>(offset));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && errno == EINVAL && direct_) {  // a stricter alignment than ours
        StopDirect();
        continue;
      }
      if (n <= 0) return Failed(n < 0 ? errno : ENOSPC, "writing").MaybeApplied();
      data = data.subspan(static_cast<size_t>(n));
      offset += static_cast<uint64_t>(n);
    }
    return paced_ ? Pace(begin, bytes) : OkStatus();
  }

  Status PRead(uint64_t offset, MutableByteSpan out) override {
    CKPT_ASSIGN_OR_RETURN(const size_t n, PReadSome(offset, out));
    if (n == out.size()) return OkStatus();
    return DataLoss(path_ + " ends at " + std::to_string(offset + n) + ", " +
                    std::to_string(out.size() - n) + " bytes before what was to be read");
  }

  Result<size_t> PReadSome(uint64_t offset, MutableByteSpan out) override {
    CKPT_FAULT("os.file.pread");
    if (!fd_.valid()) return Closed();
    size_t done = 0;
    while (done < out.size()) {
      const bool aligned = Aligned(out.data() + done, offset + done, out.size() - done);
      if (direct_ && !aligned) {
        if (done > 0) break;  // a direct read that ends within a page ends at the end of the file
        StopDirect();
      }
      const ssize_t n = ::pread(fd_.get(), out.data() + done, out.size() - done,
                                static_cast<off_t>(offset + done));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && errno == EINVAL && direct_) {
        StopDirect();
        continue;
      }
      if (n < 0) return Failed(errno, "reading");
      if (n == 0) break;
      done += static_cast<size_t>(n);
    }
    return done;
  }

  Status Allocate(uint64_t bytes) override {
    CKPT_FAULT("os.file.allocate");
    CKPT_RETURN_IF_ERROR(CheckUsable());
    if (bytes == 0) return OkStatus();
    int result;
    do {
      result = ::fallocate(fd_.get(), FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(bytes));
    } while (result != 0 && errno == EINTR);
    if (result == 0 || errno == EOPNOTSUPP || errno == ENOSYS) return OkStatus();
    return Failed(errno, "reserving space for");
  }

  Status Truncate(uint64_t bytes) override {
    CKPT_FAULT("os.file.truncate");
    CKPT_RETURN_IF_ERROR(CheckUsable());
    if (::ftruncate(fd_.get(), static_cast<off_t>(bytes)) == 0) return OkStatus();
    return Failed(errno, "truncating");
  }

  Status Sync() override {
    CKPT_RETURN_IF_ERROR(CheckUsable());
    Status status = SyncNow();
    if (!status.ok()) poisoned_ = true;
    return status;
  }

  Status Close() override {
    if (!fd_.valid()) return Closed();
    closed_in_children_.reset();
    if (::close(fd_.Release()) == 0 || errno == EINTR) return OkStatus();
    return Failed(errno, "closing").MaybeApplied();
  }

  Result<uint64_t> Size() override {
    if (!fd_.valid()) return Closed();
    struct stat st;
    if (::fstat(fd_.get(), &st) != 0) return Failed(errno, "looking at");
    return static_cast<uint64_t>(st.st_size);
  }

  const std::string& path() const override { return path_; }

 private:
  Status SyncNow() {
    CKPT_FAULT("os.file.sync");
    int result;
    do {
      result = ::fsync(fd_.get());
    } while (result != 0 && errno == EINTR);
    return result == 0 ? OkStatus() : Failed(errno, "syncing").MaybeApplied();
  }
  // From here on through the page cache; safe beside other calls, whose ranges are disjoint.
  void StopDirect() {
    const int flags = ::fcntl(fd_.get(), F_GETFL);
    if (flags >= 0) ::fcntl(fd_.get(), F_SETFL, flags & ~O_DIRECT);
    direct_ = false;
    paced_ = true;
  }

  // Starts writing back what was just written, and waits for what was started kPacedMax writes
  // before: dirty pages stay few, and Sync finds little to do.
  Status Pace(uint64_t offset, uint64_t bytes) {
    if (::sync_file_range(fd_.get(), static_cast<off_t>(offset), static_cast<off_t>(bytes),
                          SYNC_FILE_RANGE_WRITE) != 0) {
      paced_ = false;  // not for this file system
      return OkStatus();
    }
    std::pair<uint64_t, uint64_t> oldest{0, 0};
    {
      MutexLock lock(mutex_);
      started_.emplace_back(offset, bytes);
      if (started_.size() <= kPacedMax) return OkStatus();
      oldest = started_.front();
      started_.pop_front();
    }
    constexpr unsigned kWait =
        SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;
    if (::sync_file_range(fd_.get(), static_cast<off_t>(oldest.first),
                          static_cast<off_t>(oldest.second), kWait) == 0) {
      return OkStatus();
    }
    poisoned_ = true;  // I1
    return Failed(errno, "writing back").MaybeApplied();
  }

  Status CheckUsable() const {
    if (!fd_.valid()) return Closed();
    if (poisoned_) {
      return FailedPrecondition(path_ + ": an earlier sync failed, what was written may be lost");
    }
    return OkStatus();
  }
  Status Closed() const { return FailedPrecondition(path_ + " is closed"); }
  Status Failed(int error, std::string_view verb) const { return PathError(error, verb, path_); }

  UniqueFd fd_;
  std::optional<ClosedInChildren> closed_in_children_;  // goes before fd_
  const std::string path_;
  std::atomic<bool> poisoned_{false};  // I1
  std::atomic<bool> direct_{false};
  std::atomic<bool> paced_{false};
  Mutex mutex_;
  std::deque<std::pair<uint64_t, uint64_t>> started_ CKPT_GUARDED_BY(mutex_);
};

Status CheckBeneath(const std::string& name) {
  if (name.empty() || name.front() == '/') {
    return InvalidArgument("'" + name + "' is not a name beneath a directory");
  }
  size_t begin = 0;
  while (begin <= name.size()) {
    const size_t end = std::min(name.find('/', begin), name.size());
    const std::string_view part = std::string_view(name).substr(begin, end - begin);
    if (part.empty() || part == "." || part == "..") {
      return InvalidArgument("'" + name + "' has an empty, '.' or '..' component");
    }
    begin = end + 1;
  }
  return OkStatus();
}

// For kernels without openat2: no component may be a link.
int WalkBeneath(int dir, const std::string& name, int flags, mode_t mode) {
  UniqueFd at;
  size_t begin = 0;
  for (size_t slash; (slash = name.find('/', begin)) != std::string::npos; begin = slash + 1) {
    const std::string part = name.substr(begin, slash - begin);
    const int next = ::openat(at.valid() ? at.get() : dir, part.c_str(),
                              O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (next < 0) return -1;
    at.Reset(next);
  }
  return ::openat(at.valid() ? at.get() : dir, name.substr(begin).c_str(), flags, mode);
}

int OpenAtBeneath(int dir, const std::string& name, int flags, mode_t mode) {
  open_how how{};
  how.flags = static_cast<uint64_t>(flags);
  how.mode = (flags & O_CREAT) != 0 ? mode : 0;
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS;
  for (int tries = 0;; ++tries) {
    const long fd = ::syscall(SYS_openat2, dir, name.c_str(), &how, sizeof how);
    if (fd >= 0) return static_cast<int>(fd);
    // EAGAIN: something was renamed meanwhile and the kernel could not be sure.
    if ((errno == EAGAIN || errno == EINTR) && tries < 100) continue;
    if (errno != ENOSYS && errno != EPERM) return -1;
    return WalkBeneath(dir, name, flags, mode);
  }
}

Status SyncFd(int fd, const std::string& path) {
  CKPT_FAULT("os.dir.sync");
  int result;
  do {
    result = ::fsync(fd);
  } while (result != 0 && errno == EINTR);
  // Some network file systems have no directory sync: their metadata is synchronous.
  if (result == 0 || errno == EINVAL) return OkStatus();
  return PathError(errno, "syncing directory", path).MaybeApplied();
}

Result<UniqueFd> OpenDir(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return PathError(errno, "opening directory", path);
  return UniqueFd(fd);
}

FileType TypeOfEntry(int dir, const dirent& entry) {
  switch (entry.d_type) {
    case DT_REG:
      return FileType::kRegular;
    case DT_DIR:
      return FileType::kDirectory;
    case DT_LNK:
      return FileType::kSymlink;
    case DT_UNKNOWN:
      break;
    default:
      return FileType::kOther;
  }
  struct stat st;
  if (::fstatat(dir, entry.d_name, &st, AT_SYMLINK_NOFOLLOW) != 0) return FileType::kOther;
  return TypeOf(st.st_mode);
}

// Takes `fd` over. Unsorted.
Result<std::vector<DirEntry>> ReadEntries(UniqueFd fd, const std::string& path) {
  DIR* dir = ::fdopendir(fd.get());
  if (dir == nullptr) return PathError(errno, "listing", path);
  fd.Release();
  std::vector<DirEntry> entries;
  errno = 0;
  while (const dirent* entry = ::readdir(dir)) {
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") {
      entries.push_back({std::string(name), TypeOfEntry(::dirfd(dir), *entry)});
    }
    errno = 0;
  }
  const int error = errno;
  ::closedir(dir);
  if (error != 0) return PathError(error, "listing", path);
  return entries;
}

constexpr int kTreeDepthMax = 100;

Status RemoveChildren(int dir, const std::string& path, int depth);

Status RemoveEntry(int dir, const DirEntry& entry, const std::string& path, int depth) {
  const std::string child_path = JoinPath(path, entry.name);
  if (entry.type != FileType::kDirectory) {
    if (::unlinkat(dir, entry.name.c_str(), 0) == 0 || errno == ENOENT) return OkStatus();
    return PathError(errno, "removing", child_path);
  }
  if (depth >= kTreeDepthMax) {
    return FailedPrecondition(child_path + " is nested too deep to be removed");
  }
  const UniqueFd child(
      ::openat(dir, entry.name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!child.valid()) {
    return errno == ENOENT ? OkStatus() : PathError(errno, "opening directory", child_path);
  }
  CKPT_RETURN_IF_ERROR(RemoveChildren(child.get(), child_path, depth + 1));
  if (::unlinkat(dir, entry.name.c_str(), AT_REMOVEDIR) == 0 || errno == ENOENT) return OkStatus();
  return PathError(errno, "removing directory", child_path);
}

Status RemoveChildren(int dir, const std::string& path, int depth) {
  UniqueFd again(::openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!again.valid()) return PathError(errno, "opening directory", path);
  CKPT_ASSIGN_OR_RETURN(const std::vector<DirEntry> entries, ReadEntries(std::move(again), path));
  for (const DirEntry& entry : entries) {
    CKPT_RETURN_IF_ERROR(RemoveEntry(dir, entry, path, depth));
  }
  return OkStatus();
}

class Posix final : public FileSystem {
 public:
  Result<std::unique_ptr<File>> Open(const std::string& path, const OpenOptions& options) override {
    CKPT_FAULT("os.fs.open");
    const int fd = ::open(path.c_str(), OpenFlags(options), 0666);
    return Opened(fd, path, options);
  }

  Result<std::unique_ptr<File>> OpenBeneath(const std::string& dir, const std::string& name,
                                            const OpenOptions& options) override {
    CKPT_FAULT("os.fs.open");
    CKPT_RETURN_IF_ERROR(CheckBeneath(name));
    CKPT_ASSIGN_OR_RETURN(const UniqueFd parent, OpenDir(dir));
    const int fd = OpenAtBeneath(parent.get(), name, OpenFlags(options), 0666);
    return Opened(fd, JoinPath(dir, name), options);
  }

  Status MakeDir(const std::string& path) override {
    CKPT_FAULT("os.fs.mkdir");
    if (::mkdir(path.c_str(), 0777) == 0) return OkStatus();
    return PathError(errno, "creating directory", path);
  }

  Status MakeDirs(const std::string& path) override {
    if (IsDirectory(path)) return OkStatus();
    const std::string parent = ParentOf(path);
    if (parent != path) CKPT_RETURN_IF_ERROR(MakeDirs(parent));
    const Status made = MakeDir(path);
    if (made.ok()) return SyncDir(parent);
    // Someone else may have made it meanwhile.
    return made.code() == Code::kAlreadyExists && IsDirectory(path) ? OkStatus() : made;
  }

  Status Link(const std::string& from, const std::string& to) override {
    CKPT_FAULT("os.fs.link");
    if (::linkat(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), 0) == 0) return OkStatus();
    return PathError(errno, "linking " + from + " to", to);
  }

  Status Rename(const std::string& from, const std::string& to) override {
    CKPT_FAULT("os.fs.rename");
    if (::rename(from.c_str(), to.c_str()) == 0) return OkStatus();
    return PathError(errno, "renaming " + from + " to", to);
  }

  Status RenameNoReplace(const std::string& from, const std::string& to) override {
    CKPT_FAULT("os.fs.rename");
    if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) {
      return OkStatus();
    }
    if (errno != EINVAL && errno != ENOSYS) {
      return PathError(errno, "renaming " + from + " to", to);
    }
    CKPT_ASSIGN_OR_RETURN(const FileStat stat, Stat(from));
    if (stat.type != FileType::kRegular) {
      return Unimplemented("renaming " + from + " to " + to +
                           ": this file system cannot do it without replacing");
    }
    CKPT_RETURN_IF_ERROR(Link(from, to));
    return Unlink(from);
  }

  Status Unlink(const std::string& path) override {
    CKPT_FAULT("os.fs.unlink");
    if (::unlink(path.c_str()) == 0) return OkStatus();
    return PathError(errno, "removing", path);
  }

  Status RemoveDir(const std::string& path) override {
    CKPT_FAULT("os.fs.rmdir");
    if (::rmdir(path.c_str()) == 0) return OkStatus();
    return PathError(errno, "removing directory", path);
  }

  Status RemoveTree(const std::string& path) override {
    CKPT_FAULT("os.fs.rmtree");
    const Result<FileStat> stat = Stat(path);
    if (!stat.ok()) {
      return stat.status().code() == Code::kNotFound ? OkStatus() : stat.status();
    }
    CKPT_ASSIGN_OR_RETURN(const UniqueFd parent, OpenDir(ParentOf(path)));
    return RemoveEntry(parent.get(), DirEntry{BaseName(path), stat->type}, ParentOf(path), 0);
  }

  Result<std::vector<DirEntry>> List(const std::string& dir) override {
    CKPT_FAULT("os.fs.list");
    CKPT_ASSIGN_OR_RETURN(UniqueFd fd, OpenDir(dir));
    CKPT_ASSIGN_OR_RETURN(std::vector<DirEntry> entries, ReadEntries(std::move(fd), dir));
    std::sort(entries.begin(), entries.end(),
              [](const DirEntry& a, const DirEntry& b) { return a.name < b.name; });
    return entries;
  }

  Result<FileStat> Stat(const std::string& path) override {
    CKPT_FAULT("os.fs.stat");
    struct stat st;
    if (::lstat(path.c_str(), &st) != 0) return PathError(errno, "looking at", path);
    return ToFileStat(st);
  }

  Status SyncDir(const std::string& dir) override {
    CKPT_ASSIGN_OR_RETURN(const UniqueFd fd, OpenDir(dir));
    return SyncFd(fd.get(), dir);
  }

 private:
  static Result<std::unique_ptr<File>> Opened(int fd, const std::string& path,
                                              const OpenOptions& options) {
    if (fd >= 0) {
      auto file = std::make_unique<PosixFile>(UniqueFd(fd), path);
      if (options.write) file->CloseInChildren();
      if (options.direct) file->StartDirect();
      return std::unique_ptr<File>(std::move(file));
    }
    const std::string_view verb = options.create ? "creating" : "opening";
    if (errno == ELOOP || errno == EXDEV) {
      return PermissionDenied(std::string(verb) + " " + path +
                              ": a symbolic link or a way out of the directory is not followed");
    }
    return PathError(errno, verb, path);
  }

  static bool IsDirectory(const std::string& path) {
    struct stat st;
    return ::stat(path.c_str(), &st) == 0 && S_ISDIR(st.st_mode);
  }
};

}  // namespace

FileSystem& PosixFileSystem() {
  static Posix* const fs = new Posix;  // outlives every thread
  return *fs;
}

}  // namespace ckpt::os
