// Processes: started with an error that names the program, watched by pidfd (a pid can be reused, a
// pidfd cannot), killed to the last descendant, and measured to be gone.
//
// I1  A child is reaped by its pidfd or pid, never by "any child": two owners in one process do not
//     take each other's exit codes.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "libckpt/base/clock.h"
#include "libckpt/base/status.h"
#include "libckpt/os/fd.h"

namespace ckpt::os {

struct ExitStatus {
  bool signaled = false;
  int code = 0;  // exit code, or the signal's number
  bool Ok() const { return !signaled && code == 0; }
  // As a shell reports it: 128 + signal.
  int ShellCode() const { return signaled ? 128 + code : code; }
  std::string ToString() const;  // "exited with 3", "killed by signal 9 (SIGKILL)"
  bool operator==(const ExitStatus&) const = default;
};

class Pidfd {
 public:
  Pidfd() = default;
  // kNotFound if there is no such process.
  static Result<Pidfd> Open(pid_t pid);

  int fd() const { return fd_.get(); }  // readable once the process has ended
  pid_t pid() const { return pid_; }
  bool valid() const { return fd_.valid(); }
  // Any process, not only a child.
  Result<bool> HasEnded() const;
  // kNotFound if it has ended (and was reaped).
  Status Signal(int signal) const;
  // Only for a child of ours. Nothing while it runs.
  Result<std::optional<ExitStatus>> TryReap();
  Result<ExitStatus> Reap(const Deadline& deadline);
  // Any process: waits for its end without reaping.
  Status WaitEnd(const Deadline& deadline) const;
  Result<Pidfd> Dup() const;
  // For a pidfd that came over a socket. The pid is read from /proc; -1 if it has ended.
  static Result<Pidfd> FromFd(UniqueFd fd);

 private:
  UniqueFd fd_;
  pid_t pid_ = -1;
};

enum class Grouping { kInherit, kNewGroup, kNewSession };

struct SpawnOptions {
  std::vector<std::string> argv;                // argv[0] is looked up in PATH if it has no '/'
  std::optional<std::vector<std::string>> env;  // "NAME=value"; unset: this process's own
  std::string cwd;                              // empty: this process's own
  int stdin_fd = -1;                            // -1: /dev/null
  int stdout_fd = -1;                           // -1: this process's own
  int stderr_fd = -1;
  Grouping grouping = Grouping::kNewGroup;
  std::vector<std::pair<int, int>> inherit;  // {ours, its number in the child}
  std::optional<mode_t> umask;
  int parent_death_signal = 0;  // sent when the thread that called Spawn ends; 0: none
};

// Starts a program; its signals are all at default and unblocked. Threads: safe.
// Errors: kNotFound "ranks/train: No such file or directory", kPermissionDenied and so on, of the
// chdir or exec in the child.
Result<Pidfd> Spawn(const SpawnOptions& options);

// Environments as vectors.
std::vector<std::string> CurrentEnv();
// Replaces or adds.
void SetEnv(std::vector<std::string>* env, const std::string& name, const std::string& value);

// Orphans among our descendants become our children instead of init's.
Status BecomeSubreaper();

struct ProcessInfo {
  pid_t pid = 0;
  pid_t parent = 0;
  pid_t group = 0;
  char state = '?';
  bool ended = false;        // a zombie: holds nothing but its number
  uint64_t start_ticks = 0;  // with the pid: an identity
  std::string name;
};
// kNotFound if there is none.
Result<ProcessInfo> FindProcess(pid_t pid);
Result<std::vector<ProcessInfo>> Descendants(pid_t of);
// Those of this process that have not ended (zombies hold nothing).
Result<std::vector<ProcessInfo>> LivingDescendants();
// SIGKILL to all descendants of `of`, again until none lives; those that are children of this
// process are reaped but for `keep` (whose owners do it).
// Errors: kDeadlineExceeded naming those left.
Status KillDescendants(pid_t of, const std::vector<pid_t>& keep, const Deadline& deadline);
// Reaps ended children that are not in `keep`; how many.
size_t ReapOrphans(const std::vector<pid_t>& keep);

// Living processes that were started with this entry ("NAME=value") in their environment, and that
// this process may look at: whoever descends from one and did not clear it, whatever its parent,
// group or session.
Result<std::vector<ProcessInfo>> ProcessesWithEnv(const std::string& entry);
// SIGKILL to all of them, again until none lives. Reaps nothing. Errors: as KillDescendants.
Status KillProcessesWithEnv(const std::string& entry, const Deadline& deadline);

// Signals a whole process group; kNotFound if it is empty.
Status SignalGroup(pid_t group, int signal);

// Resident memory, bytes. `pid` 0 is this process.
Result<uint64_t> ResidentBytes(pid_t pid = 0);

// Tells a forked child that the object it copied is not its own.
class ForkGuard {
 public:
  ForkGuard();
  bool InChild() const;

 private:
  pid_t owner_;
};

pid_t SelfPid();
uid_t SelfUid();
// The path of the running program.
Result<std::string> SelfExecutable();
std::string HostName();

// For a program's first line: 0, 1 and 2 that it was started without are /dev/null (unless a
// library has taken one before main), so that no file of its own gets what is meant for people.
void HoldStandardDescriptors();

}  // namespace ckpt::os
