#include "coordinator/agent/state_dir.h"

#include <sys/file.h>

#include <charconv>
#include <sstream>

#include "libckpt/base/ids.h"
#include "libckpt/os/file.h"

namespace ckpt::agent {
namespace {

constexpr uint64_t kFileBytesMax = 16 << 20;
constexpr size_t kSocketPathMax = 107;

os::FileSystem& Fs() { return os::PosixFileSystem(); }

template <typename Message>
Status Load(const std::string& path, Message* message) {
  CKPT_ASSIGN_OR_RETURN(const std::string bytes, os::ReadFile(Fs(), path, kFileBytesMax));
  if (!message->ParseFromString(bytes)) return DataLoss(path + " is damaged");
  return OkStatus();
}

// "<job>.e<epoch>"
bool ParseName(const std::string& name, StoredLaunch* stored) {
  const size_t dot = name.rfind(".e");
  if (dot == std::string::npos || dot == 0) return false;
  const char* end = name.data() + name.size();
  uint64_t epoch = 0;
  const auto parsed = std::from_chars(name.data() + dot + 2, end, epoch);
  if (parsed.ec != std::errc() || parsed.ptr != end || epoch == 0) return false;
  stored->launch.set_job(name.substr(0, dot));
  stored->launch.set_epoch(epoch);
  return CheckName("job", stored->launch.job()).ok();
}

Status LoadOne(const std::string& dir, StoredLaunch* stored) {
  v1::Launch launch;
  CKPT_RETURN_IF_ERROR(Load(dir + "/launch", &launch));
  if (launch.job() != stored->launch.job() || launch.epoch() != stored->launch.epoch()) {
    return DataLoss(dir + "/launch is of another launch");
  }
  stored->launch = std::move(launch);
  const Status report = Load(dir + "/report", &stored->report);
  if (!report.ok() && report.code() != Code::kNotFound) return report;
  const Result<std::string> process = os::ReadFile(Fs(), dir + "/process", kFileBytesMax);
  if (!process.ok()) {
    return process.status().code() == Code::kNotFound ? OkStatus() : process.status();
  }
  std::istringstream fields(*process);
  if (!(fields >> stored->process.pid >> stored->process.start_ticks)) {
    return DataLoss(dir + "/process is damaged");
  }
  return OkStatus();
}

}  // namespace

Result<StateDir> StateDir::Open(const std::string& path) {
  StateDir dir(path);
  if (dir.socket_path().size() > kSocketPathMax) {
    return InvalidArgument("--state-dir " + path + " is too long: its socket's path may have " +
                           std::to_string(kSocketPathMax) + " bytes");
  }
  CKPT_RETURN_IF_ERROR(Fs().MakeDirs(path + "/jobs"));
  CKPT_RETURN_IF_ERROR(Fs().MakeDirs(path + "/logs"));
  CKPT_ASSIGN_OR_RETURN(dir.lock_, os::OpenAppend(path + "/lock"));
  if (::flock(dir.lock_.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return ErrnoStatus(errno, "locking " + path + "/lock");
    return AlreadyExists("--state-dir " + path +
                         " is in use by another ckpt-agent: stop that one, or give this one "
                         "another folder");
  }
  return dir;
}

std::string StateDir::DirOf(const std::string& job, uint64_t epoch) const {
  return path_ + "/jobs/" + job + ".e" + std::to_string(epoch);
}

Result<Membership> StateDir::LoadMembership() const {
  const Result<std::string> text = os::ReadFile(Fs(), path_ + "/cluster", 4096);
  if (!text.ok()) {
    if (text.status().code() == Code::kNotFound) return Membership{};
    return text.status();
  }
  Membership membership;
  std::istringstream fields(*text);
  if (!(fields >> membership.cluster_id >> membership.term)) {
    return DataLoss(path_ + "/cluster is damaged; remove it if this node shall join anew");
  }
  return membership;
}

Status StateDir::SaveMembership(const Membership& membership) const {
  return os::ReplaceFile(Fs(), path_ + "/cluster",
                         membership.cluster_id + " " + std::to_string(membership.term) + "\n");
}

Status StateDir::SaveLaunch(const v1::Launch& launch) const {
  const std::string dir = DirOf(launch.job(), launch.epoch());
  CKPT_RETURN_IF_ERROR(Fs().MakeDirs(dir));
  return os::ReplaceFile(Fs(), dir + "/launch", launch.SerializeAsString());
}

Status StateDir::SaveProcess(const std::string& job, uint64_t epoch,
                             const ProcessIdentity& process) const {
  return os::ReplaceFile(
      Fs(), DirOf(job, epoch) + "/process",
      std::to_string(process.pid) + " " + std::to_string(process.start_ticks) + "\n");
}

Status StateDir::SaveReport(const v1::JobReport& report) const {
  return os::ReplaceFile(Fs(), DirOf(report.job(), report.epoch()) + "/report",
                         report.SerializeAsString());
}

Result<v1::JobReport> StateDir::LoadResult(const std::string& job, uint64_t epoch) const {
  v1::AgentMsg message;
  CKPT_RETURN_IF_ERROR(Load(result_path(job, epoch), &message));
  if (!message.has_job()) return DataLoss(result_path(job, epoch) + " holds no report");
  return std::move(*message.mutable_job());
}

Status StateDir::RemoveResult(const std::string& job, uint64_t epoch) const {
  const Status removed = Fs().Unlink(result_path(job, epoch));
  return removed.code() == Code::kNotFound ? OkStatus() : removed;
}

Status StateDir::RemoveLaunch(const std::string& job, uint64_t epoch) const {
  return Fs().RemoveTree(DirOf(job, epoch));
}

Result<std::vector<StoredLaunch>> StateDir::LoadLaunches(std::vector<std::string>* problems) const {
  CKPT_ASSIGN_OR_RETURN(const auto entries, Fs().List(path_ + "/jobs"));
  std::vector<StoredLaunch> launches;
  for (const os::DirEntry& entry : entries) {
    if (entry.type != os::FileType::kDirectory) continue;
    StoredLaunch stored;
    if (!ParseName(entry.name, &stored)) {
      problems->push_back(path_ + "/jobs/" + entry.name + " is no launch of an agent: left alone");
      continue;
    }
    const Status status = LoadOne(os::JoinPath(path_ + "/jobs", entry.name), &stored);
    if (!status.ok()) stored.problem = status.message();
    launches.push_back(std::move(stored));
  }
  return launches;
}

}  // namespace ckpt::agent
