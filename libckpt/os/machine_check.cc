#include "libckpt/os/machine_check.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>

#include "libckpt/base/aligned_buffer.h"
#include "libckpt/base/clock.h"
#include "libckpt/os/fd.h"
#include "libckpt/os/file.h"
#include "libckpt/os/memfd.h"
#include "libckpt/os/memory_room.h"
#include "libckpt/os/process.h"
#include "libckpt/os/space.h"

namespace ckpt::os {
namespace {

Finding FromStatus(std::string name, const Status& status, std::string good, std::string remedy) {
  if (status.ok()) return {std::move(name), FindingLevel::kOk, std::move(good), ""};
  return {std::move(name), FindingLevel::kFail, status.message(), std::move(remedy)};
}

// `path`, or the nearest folder above it that exists.
std::string Existing(const std::string& path) {
  std::string at = path;
  while (at != "/" && at != "." && !PosixFileSystem().Stat(at).ok()) at = ParentOf(at);
  return at;
}

std::string ProbeName(const std::string& folder) {
  static std::atomic<uint64_t> counter{0};
  return JoinPath(folder, ".probe-" + HostName() + "-" + std::to_string(SelfPid()) + "-" +
                              std::to_string(counter.fetch_add(1)));
}

Status Probe(const std::string& folder) {
  FileSystem& fs = PosixFileSystem();
  const std::string probe = ProbeName(folder);
  CKPT_RETURN_IF_ERROR(WriteNewFile(fs, probe, ""));
  return fs.Unlink(probe);
}

// As posix_file does it: a file system may accept the flag and refuse the write.
Status ProbeDirect(const std::string& folder) {
  const std::string probe = ProbeName(folder);
  const UniqueFd fd(::open(probe.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!fd.valid()) return ErrnoStatus(errno, "making a file");
  ::unlink(probe.c_str());
  const int flags = ::fcntl(fd.get(), F_GETFL);
  if (::fcntl(fd.get(), F_SETFL, flags | O_DIRECT) != 0) return ErrnoStatus(errno, "O_DIRECT");
  AlignedBuffer page(kPageBytes);
  std::memset(page.data(), 0x5a, kPageBytes);
  if (::pwrite(fd.get(), page.data(), kPageBytes, 0) != static_cast<ssize_t>(kPageBytes))
    return ErrnoStatus(errno, "a direct write of a page");
  if (::pread(fd.get(), page.data(), kPageBytes, 0) != static_cast<ssize_t>(kPageBytes))
    return ErrnoStatus(errno, "a direct read of a page");
  return OkStatus();
}

}  // namespace

std::vector<Finding> CheckKernel() {
  std::vector<Finding> findings;
  findings.push_back(FromStatus("kernel: memfd", Memfd::Create("ckpt-check", 4096).status(),
                                "staging memory can be shared and sealed",
                                "staging needs memfd_create with seals (Linux 3.17) and a seccomp "
                                "profile that lets it pass"));
  findings.push_back(FromStatus("kernel: pidfd", Pidfd::Open(SelfPid()).status(),
                                "processes can be watched by descriptor",
                                "ckpt-run and the agent need pidfd_open (Linux 5.3) and a seccomp "
                                "profile that lets it pass"));
  return findings;
}

Finding CheckFolder(const std::string& name, const std::string& path, uint64_t bytes_min) {
  const std::string folder = Existing(path);
  const std::string where = folder == path ? path : path + " (to be made in " + folder + ")";
  Finding finding{name, FindingLevel::kFail, "", ""};
  if (const Status probed = Probe(folder); !probed.ok()) {
    finding.message = where + " cannot be written: " + probed.message();
    finding.remedy = "make it writable for this user, or name another folder";
    return finding;
  }
  const Result<uint64_t> free = FreeBytes(folder);
  if (!free.ok()) {
    finding.message = free.status().message();
    finding.remedy = "look at the file system of " + folder;
    return finding;
  }
  finding.message = where + ": writable, " + FormatBytes(*free) + " free";
  finding.level = *free < bytes_min        ? FindingLevel::kFail
                  : *free < 10 * bytes_min ? FindingLevel::kWarn
                                           : FindingLevel::kOk;
  if (finding.level != FindingLevel::kOk) finding.remedy = "make room, or name another folder";
  return finding;
}

Finding CheckDirect(const std::string& name, const std::string& path) {
  const std::string folder = Existing(path);
  const Status probed = ProbeDirect(folder);
  if (probed.ok())
    return {name, FindingLevel::kOk, "works in " + folder + ": files go past the page cache", ""};
  return {name, FindingLevel::kWarn,
          "not in " + folder + ": " + probed.message() +
              "; files go through the page cache, and are pushed to the disk as they come",
          "a file system that allows it (ext4, XFS, NFS and most network ones do) leaves the page "
          "cache to the training"};
}

Finding CheckMemory(const std::string& name, uint64_t bytes) {
  const Result<MemoryRoom> available = AvailableMemory();
  if (!available.ok()) return {name, FindingLevel::kWarn, available.status().message(), ""};
  Finding finding{name, FindingLevel::kOk,
                  FormatBytes(available->bytes) + " of memory available (" + available->limit +
                      "), " + FormatBytes(bytes) + " may be asked of it",
                  ""};
  if (available->bytes < bytes) {
    finding.level = FindingLevel::kWarn;
    finding.remedy = "a suspend may find too little: free memory, or lower --staging-budget";
  }
  return finding;
}

}  // namespace ckpt::os
