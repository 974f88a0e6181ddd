#include "libckpt/os/machine_check.h"

#include <atomic>

#include "libckpt/base/clock.h"
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

Status Probe(const std::string& folder) {
  static std::atomic<uint64_t> counter{0};
  FileSystem& fs = PosixFileSystem();
  const std::string probe =
      JoinPath(folder, ".probe-" + HostName() + "-" + std::to_string(SelfPid()) + "-" +
                           std::to_string(counter.fetch_add(1)));
  CKPT_RETURN_IF_ERROR(WriteNewFile(fs, probe, ""));
  return fs.Unlink(probe);
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
