#include "libckpt/os/process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "libckpt/os/file.h"
#include "libckpt/os/memfd.h"
#include "libckpt/os/socket.h"

namespace ckpt::os {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

Deadline Soon() { return Deadline("process test", seconds(60)); }

SpawnOptions Shell(const std::string& script) { return {.argv = {"sh", "-c", script}}; }

std::string Output(SpawnOptions options) {
  auto pipe = MakePipe();
  options.stdout_fd = pipe->second.get();
  Result<Pidfd> child = Spawn(options);
  if (!child.ok()) return child.status().ToString();
  pipe->second.Reset();
  std::string text;
  char buffer[4096];
  for (ssize_t n; (n = read(pipe->first.get(), buffer, sizeof buffer)) > 0;) text.append(buffer, n);
  EXPECT_TRUE(child->Reap(Soon())->Ok());
  return text;
}

TEST(Spawn, ReportsExitCodesAndSignals) {
  Result<Pidfd> child = Spawn(Shell("exit 75"));
  ASSERT_TRUE(child.ok()) << child.status().ToString();
  EXPECT_EQ(*child->Reap(Soon()), (ExitStatus{false, 75}));
  EXPECT_EQ(child->TryReap().status().code(), Code::kFailedPrecondition) << "reaped already";

  child = Spawn(Shell("kill -9 $$"));
  ASSERT_TRUE(child.ok());
  const Result<ExitStatus> status = child->Reap(Soon());
  ASSERT_TRUE(status.ok());
  EXPECT_EQ(*status, (ExitStatus{true, SIGKILL}));
  EXPECT_EQ(status->ShellCode(), 137);
  EXPECT_EQ(status->ToString(), "killed by signal 9 (SIGKILL)");
  EXPECT_EQ((ExitStatus{false, 3}).ToString(), "exited with 3");
}

TEST(Spawn, NamesWhatCouldNotBeStarted) {
  const auto fails = [](SpawnOptions options) { return Spawn(options).status(); };
  const Status missing = fails({.argv = {"no-such-program-here"}});
  EXPECT_EQ(missing.code(), Code::kNotFound);
  EXPECT_NE(missing.message().find("no-such-program-here"), std::string::npos);
  EXPECT_EQ(fails({.argv = {"/no/such/program"}}).code(), Code::kNotFound);
  EXPECT_EQ(fails({.argv = {"/etc/passwd"}}).code(), Code::kPermissionDenied);
  EXPECT_EQ(fails({.argv = {}}).code(), Code::kInvalidArgument);
  const Status cwd = fails({.argv = {"true"}, .cwd = "/no/such/dir"});
  EXPECT_EQ(cwd.code(), Code::kNotFound);
  EXPECT_NE(cwd.message().find("/no/such/dir"), std::string::npos);
  EXPECT_EQ(Descendants(getpid())->size(), 0u) << "what could not start is reaped";
}

TEST(Spawn, GivesEnvironmentDirectoryAndDescriptors) {
  std::vector<std::string> env = CurrentEnv();
  SetEnv(&env, "CKPT_TEST", "one");
  SetEnv(&env, "CKPT_TEST", "two");
  SpawnOptions options = Shell("echo $CKPT_TEST; pwd; umask; cat <&5; cat");
  options.umask = 026;
  options.env = env;
  options.cwd = "/usr";
  auto five = MakePipe();
  ASSERT_EQ(write(five->second.get(), "five\n", 5), 5);
  five->second.Reset();
  options.inherit = {{five->first.get(), 5}};
  EXPECT_EQ(Output(options), "two\n/usr\n0026\nfive\n") << "stdin is empty";
}

TEST(Spawn, DescriptorsMaySwapNumbers) {
  auto a = MakePipe(), b = MakePipe();
  ASSERT_EQ(write(a->second.get(), "a", 1), 1);
  ASSERT_EQ(write(b->second.get(), "b", 1), 1);
  a->second.Reset();
  b->second.Reset();
  SpawnOptions options = Shell("cat <&" + std::to_string(b->first.get()) + "; cat <&" +
                               std::to_string(a->first.get()));
  options.inherit = {{a->first.get(), b->first.get()}, {b->first.get(), a->first.get()}};
  EXPECT_EQ(Output(options), "ab");
}

TEST(Spawn, NothingElseIsInherited) {
  const int leak = fcntl(STDOUT_FILENO, F_DUPFD, 77);  // not CLOEXEC, as a careless library does
  ASSERT_GE(leak, 77);
  EXPECT_EQ(
      Output(Shell("if [ -e /proc/$$/fd/" + std::to_string(leak) + " ]; then echo leaked; fi")),
      "");
  close(leak);
}

TEST(Spawn, SignalsAreAtDefaultInTheChild) {
  sigset_t set, before;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigprocmask(SIG_BLOCK, &set, &before);
  signal(SIGHUP, SIG_IGN);
  const std::string masks = Output(Shell("grep -E 'SigBlk|SigIgn' /proc/self/status"));
  signal(SIGHUP, SIG_DFL);
  sigprocmask(SIG_SETMASK, &before, nullptr);
  EXPECT_NE(masks.find("SigBlk:\t0000000000000000"), std::string::npos) << masks;
  EXPECT_NE(masks.find("SigIgn:\t0000000000000000"), std::string::npos) << masks;
}

TEST(Spawn, GroupsAndSessions) {
  SpawnOptions options = Shell("sleep 1000 & sleep 1000");
  Result<Pidfd> child = Spawn(options);
  ASSERT_TRUE(child.ok());
  EXPECT_EQ(getpgid(child->pid()), child->pid());
  EXPECT_TRUE(SignalGroup(child->pid(), SIGKILL).ok());
  EXPECT_EQ(*child->Reap(Soon()), (ExitStatus{true, SIGKILL}));
  options.grouping = Grouping::kNewSession;
  child = Spawn(options);
  ASSERT_TRUE(child.ok());
  EXPECT_EQ(getsid(child->pid()), child->pid());
  EXPECT_TRUE(SignalGroup(child->pid(), SIGKILL).ok());
  EXPECT_TRUE(child->Reap(Soon()).ok());
  EXPECT_EQ(SignalGroup(0, SIGKILL).code(), Code::kInvalidArgument) << "never our own";
  // Ours to reap if another test has made this process a subreaper.
  EXPECT_TRUE(KillDescendants(getpid(), {}, Soon()).ok());
}

TEST(Pidfd, ToldApartByDescriptor) {
  Result<Pidfd> child = Spawn({.argv = {"sleep", "1000"}});
  ASSERT_TRUE(child.ok());
  EXPECT_FALSE(*child->HasEnded());
  EXPECT_FALSE(child->TryReap()->has_value());
  EXPECT_EQ(child->Reap(Deadline("a sleeper", milliseconds(1))).status().code(),
            Code::kDeadlineExceeded);
  Result<Pidfd> copy = Pidfd::FromFd(DupFd(child->fd()).value());
  ASSERT_TRUE(copy.ok());
  EXPECT_EQ(copy->pid(), child->pid());
  EXPECT_TRUE(copy->Signal(SIGKILL).ok());
  EXPECT_TRUE(copy->WaitEnd(Soon()).ok());
  EXPECT_TRUE(*child->HasEnded());
  EXPECT_TRUE(child->Reap(Soon()).ok());
  EXPECT_EQ(copy->Signal(SIGKILL).code(), Code::kNotFound);
  EXPECT_EQ(Pidfd::FromFd(DupFd(0).value()).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(Pidfd::Open(child->pid()).status().code(), Code::kNotFound);
}

// A whole tree, with a double-forked daemon in it, dies and is measured to be gone.
TEST(Descendants, AllAreFoundAndKilled) {
  ASSERT_TRUE(BecomeSubreaper().ok());
  Result<Pidfd> child =
      Spawn(Shell("(sh -c 'sleep 1000 & setsid sleep 1000 & sleep 1000' &); sleep 1000 & wait"));
  ASSERT_TRUE(child.ok());
  const Deadline deadline = Soon();
  while (LivingDescendants()->size() < 6 && !deadline.Expired()) poll(nullptr, 0, 2);
  ASSERT_EQ(LivingDescendants()->size(), 6u);
  ASSERT_TRUE(KillDescendants(getpid(), {child->pid()}, Soon()).ok());
  EXPECT_EQ(LivingDescendants()->size(), 0u);
  EXPECT_EQ(Descendants(getpid())->size(), 1u) << "the child that is kept for its owner";
  EXPECT_TRUE(child->Reap(Soon())->signaled);
  EXPECT_EQ(Descendants(getpid())->size(), 0u);
}

// Found by what they were started with, though their parents are gone and they left every group.
TEST(ProcessesWithEnv, AreFoundAndKilledWhereverTheyHide) {
  ASSERT_TRUE(BecomeSubreaper().ok());
  const std::string entry = "CKPT_TEST_LAUNCH=" + std::to_string(getpid());
  SpawnOptions options = Shell("setsid sh -c 'setsid sleep 1000 & sleep 1000' & exit 0");
  options.env = CurrentEnv();
  options.env->push_back(entry);
  options.umask = 077;
  Result<Pidfd> child = Spawn(options);
  ASSERT_TRUE(child.ok());
  const Deadline deadline = Soon();
  while (ProcessesWithEnv(entry)->size() < 3 && !deadline.Expired()) poll(nullptr, 0, 2);
  EXPECT_TRUE(child->Reap(Soon())->Ok());
  ASSERT_TRUE(KillProcessesWithEnv(entry, Soon()).ok());
  EXPECT_EQ(ProcessesWithEnv(entry)->size(), 0u);
  EXPECT_EQ(ProcessesWithEnv("CKPT_TEST_LAUNCH=")->size(), 0u) << "whole entries only";
  ReapOrphans({});
}

TEST(Descendants, OrphansAreReapedAndOwnersKeepTheirs) {
  ASSERT_TRUE(BecomeSubreaper().ok());
  Result<Pidfd> child = Spawn(Shell("(true &); exit 3"));
  ASSERT_TRUE(child.ok());
  ASSERT_TRUE(child->WaitEnd(Soon()).ok());
  const Deadline deadline = Soon();
  while (Descendants(getpid())->size() > 1 && !deadline.Expired()) ReapOrphans({child->pid()});
  EXPECT_EQ(Descendants(getpid())->size(), 1u);
  EXPECT_EQ(child->Reap(Soon())->code, 3);
}

TEST(ForkGuard, TellsTheChild) {
  ForkGuard guard;
  EXPECT_FALSE(guard.InChild());
  const pid_t pid = fork();
  if (pid == 0) _exit(guard.InChild() ? 7 : 8);
  int status = 0;
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_EQ(WEXITSTATUS(status), 7);
}

TEST(Memory, ResidentGrowsWithUse) {
  const uint64_t before = *ResidentBytes();
  constexpr uint64_t kBytes = 64 << 20;
  Result<Mapping> mapping = Mapping::Anonymous(kBytes, true);
  ASSERT_TRUE(mapping.ok());
  EXPECT_GE(*ResidentBytes(), before + kBytes / 2);
  EXPECT_EQ(ResidentBytes(-5).status().code(), Code::kNotFound);
}

TEST(Self, KnowsItsProgram) {
  EXPECT_EQ(BaseName(*SelfExecutable()).find("ckpt_os_test"), 0u);
  EXPECT_FALSE(HostName().empty());
}

}  // namespace
}  // namespace ckpt::os
