#include "coordinator/agent/state_dir.h"

#include <sstream>

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

Status LoadOne(const std::string& dir, StoredLaunch* stored) {
  CKPT_RETURN_IF_ERROR(Load(dir + "/launch", &stored->launch));
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

Status StateDir::RemoveLaunch(const std::string& job, uint64_t epoch) const {
  return Fs().RemoveTree(DirOf(job, epoch));
}

Result<std::vector<StoredLaunch>> StateDir::LoadLaunches(std::vector<std::string>* problems) const {
  CKPT_ASSIGN_OR_RETURN(const auto entries, Fs().List(path_ + "/jobs"));
  std::vector<StoredLaunch> launches;
  for (const os::DirEntry& entry : entries) {
    if (entry.type != os::FileType::kDirectory) continue;
    StoredLaunch stored;
    const Status status = LoadOne(os::JoinPath(path_ + "/jobs", entry.name), &stored);
    if (status.ok()) {
      launches.push_back(std::move(stored));
    } else {
      problems->push_back(entry.name + ": " + status.ToString());
    }
  }
  return launches;
}

}  // namespace ckpt::agent
