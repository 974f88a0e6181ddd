// Starting a program.
//
// fork and exec rather than posix_spawn: the working directory, a session and descriptors at chosen
// numbers need several steps whose errors must be told apart. Everything that allocates happens
// before the fork; the child calls async-signal-safe functions only.
#include <fcntl.h>
#include <linux/close_range.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "libckpt/base/fault.h"
#include "libckpt/os/process.h"
#include "libckpt/os/socket.h"

extern char** environ;

namespace ckpt::os {
namespace {

constexpr auto kExecTime = std::chrono::seconds(60);

// What the child needs, ready made.
struct Plan {
  std::string program;
  std::vector<char*> argv, envp;
  const char* cwd = nullptr;
  std::vector<std::pair<int, int>> fds;  // {ours, number in the child}, stdio included
  std::vector<int> staged;               // room for the child: copies above all targets
  int first_free = 3;                    // above all targets
  Grouping grouping = Grouping::kInherit;
  int parent_death_signal = 0;
  std::optional<mode_t> umask;
  pid_t parent = 0;
};

enum class Stage : int { kFds = 1, kChdir = 2, kExec = 3 };
struct ChildError {
  Stage stage;
  int error;
};

std::vector<char*> Pointers(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (const std::string& text : texts) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

std::string PathOf(const std::vector<std::string>& env) {
  for (const std::string& entry : env) {
    if (entry.starts_with("PATH=")) return entry.substr(5);
  }
  return "/usr/local/bin:/usr/bin:/bin";
}

// Relative to the child's working directory, so that exec decides for names with a '/'.
Result<std::string> FindProgram(const std::string& name, const std::vector<std::string>& env) {
  if (name.empty()) return InvalidArgument("starting a program: its name is empty");
  if (name.find('/') != std::string::npos) return name;
  const std::string path = PathOf(env);
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find(':', begin), path.size());
    const std::string candidate =
        (end == begin ? "." : path.substr(begin, end - begin)) + "/" + name;
    if (::access(candidate.c_str(), X_OK) == 0) return candidate;
    begin = end + 1;
  }
  return NotFound("starting " + name + ": no such program in PATH (" + path + ")");
}

[[noreturn]] void Fail(int report, Stage stage) {
  const ChildError failure{stage, errno};
  const ssize_t n = ::write(report, &failure, sizeof failure);
  ::_exit(n == sizeof failure ? 127 : 126);
}

void ResetSignals() {
  struct sigaction action {};
  action.sa_handler = SIG_DFL;
  for (int signal = 1; signal < NSIG; ++signal) ::sigaction(signal, &action, nullptr);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
}

// Puts each descriptor at its number. They are copied above all targets first: a target may be the
// number of another's source.
bool PlaceFds(Plan* plan) {
  ::syscall(SYS_close_range, 3U, ~0U, CLOSE_RANGE_CLOEXEC);  // whatever a library left open
  for (size_t i = 0; i < plan->fds.size(); ++i) {
    plan->staged[i] = ::fcntl(plan->fds[i].first, F_DUPFD_CLOEXEC, plan->first_free);
    if (plan->staged[i] < 0) return false;
  }
  for (size_t i = 0; i < plan->fds.size(); ++i) {
    if (::dup2(plan->staged[i], plan->fds[i].second) < 0) return false;
  }
  return true;
}

[[noreturn]] void RunChild(Plan* plan, int report) {
  const int moved = ::fcntl(report, F_DUPFD_CLOEXEC, plan->first_free);
  if (moved < 0) Fail(report, Stage::kFds);
  if (plan->grouping == Grouping::kNewGroup) ::setpgid(0, 0);
  if (plan->grouping == Grouping::kNewSession) ::setsid();
  if (plan->parent_death_signal != 0) {
    ::prctl(PR_SET_PDEATHSIG, plan->parent_death_signal, 0, 0, 0);
    if (::getppid() != plan->parent) ::_exit(126);  // it ended before the line above
  }
  if (plan->umask) ::umask(*plan->umask);
  if (!PlaceFds(plan)) Fail(moved, Stage::kFds);
  if (plan->cwd != nullptr && ::chdir(plan->cwd) != 0) Fail(moved, Stage::kChdir);
  ResetSignals();
  ::execve(plan->program.c_str(), plan->argv.data(), plan->envp.data());
  Fail(moved, Stage::kExec);
}

Status DescribeFailure(const ChildError& failure, const SpawnOptions& options) {
  const std::string what = "starting " + options.argv[0];
  switch (failure.stage) {
    case Stage::kChdir:
      return ErrnoStatus(failure.error, what + ": working directory " + options.cwd);
    case Stage::kExec:
      return ErrnoStatus(failure.error, what);
    case Stage::kFds:
      break;
  }
  return ErrnoStatus(failure.error, what + ": passing descriptors");
}

// The child's report pipe closes at exec.
Status AwaitExec(int report, const SpawnOptions& options) {
  const Deadline deadline("exec", kExecTime);
  CKPT_RETURN_IF_ERROR(WaitFd(report, POLLIN, deadline).Annotate("starting " + options.argv[0]));
  ChildError failure{};
  ssize_t n;
  do {
    n = ::read(report, &failure, sizeof failure);
  } while (n < 0 && errno == EINTR);
  return n == sizeof failure ? DescribeFailure(failure, options) : OkStatus();
}

// {fd or another in its place, number in the child}
void AddFds(const SpawnOptions& options, int null_fd, Plan* plan) {
  plan->fds.emplace_back(options.stdin_fd >= 0 ? options.stdin_fd : null_fd, 0);
  plan->fds.emplace_back(options.stdout_fd >= 0 ? options.stdout_fd : 1, 1);
  plan->fds.emplace_back(options.stderr_fd >= 0 ? options.stderr_fd : 2, 2);
  for (const auto& fd : options.inherit) plan->fds.push_back(fd);
  for (const auto& [ours, number] : plan->fds) {
    plan->first_free = std::max(plan->first_free, number + 1);
  }
  plan->staged.resize(plan->fds.size());
}

}  // namespace

Result<Pidfd> Spawn(const SpawnOptions& options) {
  CKPT_FAULT("os.process.spawn");
  if (options.argv.empty()) return InvalidArgument("starting a program: no command is given");
  const std::vector<std::string> env = options.env ? *options.env : CurrentEnv();
  Plan plan;
  CKPT_ASSIGN_OR_RETURN(plan.program, FindProgram(options.argv[0], env));
  plan.argv = Pointers(options.argv);
  plan.envp = Pointers(env);
  plan.cwd = options.cwd.empty() ? nullptr : options.cwd.c_str();
  plan.grouping = options.grouping;
  plan.parent_death_signal = options.parent_death_signal;
  plan.umask = options.umask;
  plan.parent = ::getpid();
  const UniqueFd null_fd(::open("/dev/null", O_RDWR | O_CLOEXEC));
  if (!null_fd.valid()) return ErrnoStatus(errno, "opening /dev/null");
  AddFds(options, null_fd.get(), &plan);

  CKPT_ASSIGN_OR_RETURN(auto report, MakePipe());
  // Handlers of ours must not run in the child before it has reset them.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const pid_t pid = ::fork();
  const int error = errno;
  if (pid == 0) RunChild(&plan, report.second.get());
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (pid < 0) return ErrnoStatus(error, "starting " + options.argv[0]);

  report.second.Reset();
  Result<Pidfd> child = Pidfd::Open(pid);
  const Status started = child.ok() ? AwaitExec(report.first.get(), options) : child.status();
  if (started.ok()) return child;
  ::kill(pid, SIGKILL);  // not reaped yet, so the number is still its own
  while (::waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
  }
  return started;
}

std::vector<std::string> CurrentEnv() {
  std::vector<std::string> env;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    env.emplace_back(*entry);
  }
  return env;
}

void SetEnv(std::vector<std::string>* env, const std::string& name, const std::string& value) {
  const std::string prefix = name + "=";
  std::erase_if(*env, [&](const std::string& entry) { return entry.starts_with(prefix); });
  env->push_back(prefix + value);
}

}  // namespace ckpt::os
