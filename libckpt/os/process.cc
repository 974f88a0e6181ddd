// Watching, killing and measuring processes.
#include "libckpt/os/process.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <climits>
#include <cstring>
#include <map>
#include <sstream>

// Older headers do not name it.
#ifndef P_PIDFD
#define P_PIDFD 3
#endif

namespace ckpt::os {
namespace {

ExitStatus FromSiginfo(const siginfo_t& info) {
  return ExitStatus{.signaled = info.si_code != CLD_EXITED, .code = info.si_status};
}

// /proc files have no size: read until the end.
Result<std::string> ReadProc(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus(errno, "opening " + path);
  std::string text;
  char buffer[4096];
  for (;;) {
    const ssize_t n = ::read(fd.get(), buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, "reading " + path);
    if (n == 0) return text;
    text.append(buffer, static_cast<size_t>(n));
  }
}

// "PID (name) S PPID PGRP SESSION …": the name may hold anything, so the last ')' counts.
std::optional<ProcessInfo> ParseStat(const std::string& text) {
  const size_t open = text.find('('), close = text.rfind(')');
  if (open == std::string::npos || close == std::string::npos || close < open) return std::nullopt;
  ProcessInfo info;
  info.pid = std::atoi(text.c_str());
  info.name = text.substr(open + 1, close - open - 1);
  std::istringstream rest(text.substr(close + 1));
  long long thread_count = 0;
  std::string skipped;
  rest >> info.state >> info.parent >> info.group;
  for (int field = 6; field < 20; ++field) rest >> skipped;
  rest >> thread_count >> skipped >> info.start_ticks;
  if (!rest) return std::nullopt;
  // The first thread of a program may have ended while others run: it shows as a zombie too.
  info.ended = info.state == 'X' || (info.state == 'Z' && thread_count <= 1);
  return info;
}

std::optional<ProcessInfo> ReadProcess(pid_t pid) {
  const Result<std::string> text = ReadProc("/proc/" + std::to_string(pid) + "/stat");
  return text.ok() ? ParseStat(*text) : std::nullopt;
}

Result<std::vector<ProcessInfo>> AllProcesses() {
  DIR* dir = ::opendir("/proc");
  if (dir == nullptr) return ErrnoStatus(errno, "listing /proc");
  std::vector<ProcessInfo> all;
  while (const dirent* entry = ::readdir(dir)) {
    const pid_t pid = std::atoi(entry->d_name);
    if (pid <= 0) continue;
    if (const auto info = ReadProcess(pid)) all.push_back(*info);
  }
  ::closedir(dir);
  return all;
}

// The number may have been given to another process since it was listed.
void KillExactly(const ProcessInfo& process) {
  const Result<Pidfd> pidfd = Pidfd::Open(process.pid);
  if (!pidfd.ok()) return;
  const auto now = ReadProcess(process.pid);
  if (now && now->start_ticks == process.start_ticks) pidfd->Signal(SIGKILL).IgnoreError();
}

bool Contains(const std::vector<pid_t>& pids, pid_t pid) {
  return std::find(pids.begin(), pids.end(), pid) != pids.end();
}

std::string NameThem(const std::vector<ProcessInfo>& processes) {
  std::string text;
  for (const ProcessInfo& p : processes) {
    if (text.size() > 200) return text + " …";
    text += (text.empty() ? "" : ", ") + std::to_string(p.pid) + " (" + p.name + ")";
  }
  return text;
}

// Two empty listings in a row: /proc is not read at one instant, and a process that forks and ends
// meanwhile can slip through one.
template <typename List, typename Reap>
Status KillUntilNone(List list, Reap reap, const Deadline& deadline) {
  for (int empty_count = 0;;) {
    CKPT_ASSIGN_OR_RETURN(const std::vector<ProcessInfo> living, list());
    for (const ProcessInfo& process : living) KillExactly(process);
    reap();
    empty_count = living.empty() ? empty_count + 1 : 0;
    if (empty_count == 2) return OkStatus();
    if (deadline.Expired() && !living.empty()) {
      return deadline.Exceeded().Annotate("processes that do not die: " + NameThem(living));
    }
    if (!living.empty()) ::poll(nullptr, 0, 2);
  }
}

}  // namespace

std::string ExitStatus::ToString() const {
  if (!signaled) return "exited with " + std::to_string(code);
  const char* name = ::sigabbrev_np(code);
  return "killed by signal " + std::to_string(code) +
         (name != nullptr ? " (SIG" + std::string(name) + ")" : "");
}

Result<Pidfd> Pidfd::Open(pid_t pid) {
  const long fd = ::syscall(SYS_pidfd_open, pid, 0);
  if (fd < 0 && errno == ESRCH) return NotFound("there is no process " + std::to_string(pid));
  if (fd < 0) return ErrnoStatus(errno, "opening process " + std::to_string(pid));
  Pidfd pidfd;
  pidfd.fd_.Reset(static_cast<int>(fd));
  pidfd.pid_ = pid;
  return pidfd;
}

Result<Pidfd> Pidfd::FromFd(UniqueFd fd) {
  CKPT_ASSIGN_OR_RETURN(const std::string text,
                        ReadProc("/proc/self/fdinfo/" + std::to_string(fd.get())));
  const size_t at = text.find("\nPid:");
  if (at == std::string::npos) return InvalidArgument("a descriptor that should be a pidfd is not");
  Pidfd pidfd;
  pidfd.fd_ = std::move(fd);
  pidfd.pid_ = std::atoi(text.c_str() + at + 5);
  return pidfd;
}

Result<Pidfd> Pidfd::Dup() const {
  Pidfd copy;
  CKPT_ASSIGN_OR_RETURN(copy.fd_, DupFd(fd_.get()));
  copy.pid_ = pid_;
  return copy;
}

Result<bool> Pidfd::HasEnded() const {
  pollfd entry{.fd = fd_.get(), .events = POLLIN, .revents = 0};
  for (;;) {
    const int ready = ::poll(&entry, 1, 0);
    if (ready >= 0) return ready > 0;
    if (errno != EINTR) return ErrnoStatus(errno, "polling a process");
  }
}

Status Pidfd::Signal(int signal) const {
  if (::syscall(SYS_pidfd_send_signal, fd_.get(), signal, nullptr, 0) == 0) return OkStatus();
  const std::string who = "process " + std::to_string(pid_);
  if (errno == ESRCH) return NotFound(who + " has ended");
  return ErrnoStatus(errno, "signalling " + who);
}

Result<std::optional<ExitStatus>> Pidfd::TryReap() {
  siginfo_t info{};
  int result;
  do {
    result = ::waitid(static_cast<idtype_t>(P_PIDFD), static_cast<id_t>(fd_.get()), &info,
                      WEXITED | WNOHANG);
  } while (result != 0 && errno == EINTR);
  if (result != 0 && errno == ECHILD) {
    return FailedPrecondition("process " + std::to_string(pid_) +
                              " is no child of this one, or was reaped");
  }
  if (result != 0) return ErrnoStatus(errno, "waiting for a process");
  if (info.si_pid == 0) return std::optional<ExitStatus>();
  return std::optional<ExitStatus>(FromSiginfo(info));
}

Result<ExitStatus> Pidfd::Reap(const Deadline& deadline) {
  for (;;) {
    CKPT_ASSIGN_OR_RETURN(const std::optional<ExitStatus> status, TryReap());
    if (status) return *status;
    CKPT_RETURN_IF_ERROR(WaitEnd(deadline));
  }
}

Status Pidfd::WaitEnd(const Deadline& deadline) const {
  pollfd entry{.fd = fd_.get(), .events = POLLIN, .revents = 0};
  for (;;) {
    const int ready = ::poll(&entry, 1, deadline.LeftMs());
    if (ready > 0) return OkStatus();
    if (ready < 0 && errno != EINTR) return ErrnoStatus(errno, "polling a process");
    if (ready == 0 && deadline.Expired()) {
      return deadline.Exceeded().Annotate("process " + std::to_string(pid_) + " still runs");
    }
  }
}

Status BecomeSubreaper() {
  if (::prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0) return OkStatus();
  return ErrnoStatus(errno, "becoming the parent of orphans");
}

Result<std::vector<ProcessInfo>> Descendants(pid_t of) {
  CKPT_ASSIGN_OR_RETURN(std::vector<ProcessInfo> all, AllProcesses());
  std::multimap<pid_t, ProcessInfo> by_parent;
  for (ProcessInfo& process : all) by_parent.emplace(process.parent, std::move(process));
  std::vector<ProcessInfo> found;
  std::vector<pid_t> parents{of};
  while (!parents.empty()) {
    const pid_t parent = parents.back();
    parents.pop_back();
    const auto [begin, end] = by_parent.equal_range(parent);
    for (auto it = begin; it != end; ++it) {
      parents.push_back(it->second.pid);
      found.push_back(it->second);
    }
    by_parent.erase(begin, end);  // a listing taken while pids are reused could hold a circle
  }
  return found;
}

Result<std::vector<ProcessInfo>> LivingDescendants() {
  CKPT_ASSIGN_OR_RETURN(std::vector<ProcessInfo> all, Descendants(::getpid()));
  std::erase_if(all, [](const ProcessInfo& process) { return process.ended; });
  return all;
}

Result<ProcessInfo> FindProcess(pid_t pid) {
  const auto info = ReadProcess(pid);
  if (!info) return NotFound("there is no process " + std::to_string(pid));
  return *info;
}

Result<std::vector<ProcessInfo>> ProcessesWithEnv(const std::string& entry) {
  CKPT_ASSIGN_OR_RETURN(std::vector<ProcessInfo> all, AllProcesses());
  const std::string wanted = '\0' + entry + '\0';
  std::erase_if(all, [&](const ProcessInfo& process) {
    if (process.ended) return true;
    const auto env = ReadProc("/proc/" + std::to_string(process.pid) + "/environ");
    return !env.ok() || ('\0' + *env + '\0').find(wanted) == std::string::npos;
  });
  return all;
}

Status KillDescendants(pid_t of, const std::vector<pid_t>& keep, const Deadline& deadline) {
  const auto living = [of]() -> Result<std::vector<ProcessInfo>> {
    CKPT_ASSIGN_OR_RETURN(std::vector<ProcessInfo> all, Descendants(of));
    std::erase_if(all, [](const ProcessInfo& process) { return process.ended; });
    return all;
  };
  return KillUntilNone(
      living, [&] { ReapOrphans(keep); }, deadline);
}

Status KillProcessesWithEnv(const std::string& entry, const Deadline& deadline) {
  return KillUntilNone([&] { return ProcessesWithEnv(entry); }, [] {}, deadline);
}

size_t ReapOrphans(const std::vector<pid_t>& keep) {
  const Result<std::vector<ProcessInfo>> all = AllProcesses();
  if (!all.ok()) return 0;
  size_t count = 0;
  for (const ProcessInfo& process : *all) {
    if (process.parent != ::getpid() || !process.ended || Contains(keep, process.pid)) continue;
    siginfo_t info{};
    if (::waitid(P_PID, static_cast<id_t>(process.pid), &info, WEXITED | WNOHANG) == 0 &&
        info.si_pid != 0) {
      ++count;
    }
  }
  return count;
}

Status SignalGroup(pid_t group, int signal) {
  if (group <= 1) return InvalidArgument("no process group " + std::to_string(group));
  if (::kill(-group, signal) == 0) return OkStatus();
  const std::string who = "process group " + std::to_string(group);
  if (errno == ESRCH) return NotFound(who + " is empty");
  return ErrnoStatus(errno, "signalling " + who);
}

Result<uint64_t> ResidentBytes(pid_t pid) {
  const std::string who = pid == 0 ? "self" : std::to_string(pid);
  CKPT_ASSIGN_OR_RETURN(const std::string text, ReadProc("/proc/" + who + "/statm"));
  std::istringstream fields(text);
  uint64_t size_pages = 0, resident_pages = 0;
  if (!(fields >> size_pages >> resident_pages)) return Internal("/proc/" + who + "/statm is odd");
  return resident_pages * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
}

ForkGuard::ForkGuard() : owner_(::getpid()) {}
bool ForkGuard::InChild() const { return ::getpid() != owner_; }

pid_t SelfPid() { return ::getpid(); }
uid_t SelfUid() { return ::getuid(); }

Result<std::string> SelfExecutable() {
  char path[PATH_MAX];
  const ssize_t n = ::readlink("/proc/self/exe", path, sizeof path);
  if (n < 0) return ErrnoStatus(errno, "reading /proc/self/exe");
  return std::string(path, static_cast<size_t>(n));
}

void HoldStandardDescriptors() {
  for (int fd = 0; fd <= 2; ++fd) {
    if (::fcntl(fd, F_GETFD) >= 0) continue;
    if (::open("/dev/null", O_RDWR) != fd)
      return;  // nothing can be opened; who needs to will say so
  }
}

std::string HostName() {
  char name[256] = {};
  if (::gethostname(name, sizeof name - 1) != 0) return "localhost";
  return name;
}

}  // namespace ckpt::os
