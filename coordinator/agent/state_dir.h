// What an agent remembers across its own restarts: which cluster it belongs to, the highest term it
// has seen, and the launches it has made. Small files, replaced as one step.
//
//   STATE/cluster                    "<cluster id> <term>"
//   STATE/jobs/<job>.e<epoch>/       launch, report (protobuf), process "<pid> <start ticks>",
//                                    result: the last report of a ckpt-run, written by itself
//   STATE/logs/<job>/                run.e<epoch>.log of ckpt-run; e<epoch>/rank<r>.log of ranks
//   STATE/agent.sock, STATE/lock
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ckpt/v1/agent.pb.h"
#include "libckpt/base/status.h"
#include "libckpt/os/fd.h"

namespace ckpt::agent {

struct Membership {
  std::string cluster_id;  // empty: none yet
  uint64_t term = 0;
};

// Tells a process from a later one with the same number.
struct ProcessIdentity {
  int64_t pid = 0;
  uint64_t start_ticks = 0;
};

struct StoredLaunch {
  v1::Launch launch;
  v1::JobReport report;     // empty job: none yet
  std::string problem;      // not empty: only its name and epoch are known, and why
  ProcessIdentity process;  // pid 0: never started
};

class StateDir {
 public:
  // Creates what is missing, and keeps every other agent out as long as it lives. kInvalidArgument
  // if the socket's path would be too long, kAlreadyExists if another agent is there.
  static Result<StateDir> Open(const std::string& path);

  std::string socket_path() const { return path_ + "/agent.sock"; }
  std::string log_dir(const std::string& job) const { return path_ + "/logs/" + job; }

  Result<Membership> LoadMembership() const;
  Status SaveMembership(const Membership& membership) const;

  // Durable before a process is started: an agent that comes back knows of it.
  Status SaveLaunch(const v1::Launch& launch) const;
  Status SaveProcess(const std::string& job, uint64_t epoch, const ProcessIdentity& process) const;
  Status SaveReport(const v1::JobReport& report) const;
  std::string result_path(const std::string& job, uint64_t epoch) const {
    return DirOf(job, epoch) + "/result";
  }
  // What its ckpt-run wrote as it left: kNotFound if it did not live to.
  Result<v1::JobReport> LoadResult(const std::string& job, uint64_t epoch) const;
  Status RemoveResult(const std::string& job, uint64_t epoch) const;
  Status RemoveLaunch(const std::string& job, uint64_t epoch) const;
  // One that is damaged comes with its `problem`; what is no launch's is left alone and named in
  // `problems`.
  Result<std::vector<StoredLaunch>> LoadLaunches(std::vector<std::string>* problems) const;

 private:
  explicit StateDir(std::string path) : path_(std::move(path)) {}
  std::string DirOf(const std::string& job, uint64_t epoch) const;
  std::string path_;
  os::UniqueFd lock_;
};

}  // namespace ckpt::agent
