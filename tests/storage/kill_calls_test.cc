// kill -9 before and after every system call of saves and of what retention removes between them,
// in a real process on a real file system: what the killed one was told is there and loads bit for
// bit, and the next launch saves. A slice here; every call with CKPT_SOAK=1 (./run soak
// storage).
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "libckpt/os/uring/uring_file.h"
#include "tests/storage/small_job.h"

namespace ckpt::engine::testing {
namespace {

constexpr int kSliceStride = 149;
constexpr int64_t kLastStep = 4;

// What the child does; it writes one byte for each step that it was told is durable.
[[noreturn]] void SaveAndPrune(const std::string& directory, os::FileSystem& fs, int told) {
  SmallJob job(directory, fs);
  if (!job.Save(1).ok() || ::write(told, "1", 1) != 1) ::_exit(2);
  if (::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) ::_exit(3);
  ::raise(SIGSTOP);  // from here on calls are counted
  for (int64_t step = 2; step <= kLastStep; ++step) {
    if (!job.Save(step).ok() || ::write(told, "1", 1) != 1) ::_exit(2);
    if (!job.Prune(2).ok()) ::_exit(4);
  }
  ::_exit(0);
}

enum class End { kKilled, kThrough, kRefused };

// Lets `child` run until the n-th stop at the begin or end of a system call of any of its threads,
// and kills it there.
End KillAtStop(pid_t child, int n) {
  int status = 0;
  if (::waitpid(child, &status, 0) != child || !WIFSTOPPED(status)) return End::kRefused;
  const auto options = static_cast<long>(PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACECLONE);
  if (::ptrace(PTRACE_SETOPTIONS, child, nullptr, options) != 0) return End::kRefused;
  pid_t stopped = child;
  long deliver = 0;
  for (int count = 0;;) {
    ::ptrace(PTRACE_SYSCALL, stopped, nullptr, deliver);  // fails if that thread is gone: no matter
    deliver = 0;
    stopped = ::waitpid(-1, &status, __WALL);
    if (stopped < 0) return End::kRefused;
    if (stopped == child && (WIFEXITED(status) || WIFSIGNALED(status)))
      return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? End::kThrough : End::kRefused;
    if (!WIFSTOPPED(status)) continue;
    const int signal = WSTOPSIG(status);
    if (signal == (SIGTRAP | 0x80)) {
      if (++count < n) continue;
      ::kill(child, SIGKILL);
      while (::waitpid(-1, &status, __WALL) > 0) {
      }
      return End::kKilled;
    }
    if (signal != SIGTRAP && signal != SIGSTOP) deliver = signal;
  }
}

int BytesIn(int pipe) {
  char bytes[16];
  const ssize_t count = ::read(pipe, bytes, sizeof bytes);
  return count < 0 ? 0 : static_cast<int>(count);
}

// False if the child came to its end before the n-th stop.
bool KillOnceAt(os::FileSystem& fs, int n) {
  const Scratch scratch;
  const std::string directory = scratch.path() + "/job";
  int told[2] = {-1, -1};
  EXPECT_EQ(::pipe2(told, O_CLOEXEC | O_NONBLOCK), 0);
  const pid_t child = ::fork();
  if (child == 0) SaveAndPrune(directory, fs, told[1]);
  const End end = KillAtStop(child, n);
  const int acknowledged = BytesIn(told[0]);
  ::close(told[0]);
  ::close(told[1]);
  EXPECT_NE(end, End::kRefused) << "stop " << n;
  if (end == End::kRefused) {
    ::kill(child, SIGKILL);
    return false;
  }
  SmallJob next(directory, fs);  // claims, and takes back what a removal has left
  EXPECT_CKPT_OK(next.CheckNewest(acknowledged));
  EXPECT_CKPT_OK(next.Save(kLastStep + 1));
  EXPECT_CKPT_OK(next.CheckNewest(kLastStep + 1));
  EXPECT_CKPT_OK(next.Prune(1));
  EXPECT_CKPT_OK(next.CheckNewest(kLastStep + 1));
  if (::testing::Test::HasFailure()) ADD_FAILURE() << "killed at stop " << n;
  return end == End::kKilled;
}

bool MayTrace() {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) == 0 ? 0 : 1);
  int status = 0;
  return ::waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

void KillAtCalls(os::FileSystem& fs) {
  const bool all = std::getenv("CKPT_SOAK") != nullptr;
  int kills = 0;
  for (int n = 1; KillOnceAt(fs, n) && !::testing::Test::HasFailure(); n += all ? 1 : kSliceStride)
    ++kills;
  EXPECT_GT(kills, 5);
  std::printf("%d kills\n", kills);
}

TEST(KillCalls, WhatWasAcknowledgedLoadsAndTheNextLaunchSaves) {
  if (!MayTrace()) GTEST_SKIP() << "ptrace is not allowed here";
  KillAtCalls(os::PosixFileSystem());
}

// What goes through io_uring is submitted and reaped by calls too.
TEST(KillCalls, AlsoWhereTheKernelsQueueWrites) {
  if (!MayTrace()) GTEST_SKIP() << "ptrace is not allowed here";
  if (!Queues(os::UringFileSystem())) GTEST_SKIP() << "io_uring or direct I/O is refused here";
  KillAtCalls(os::UringFileSystem());
}

}  // namespace
}  // namespace ckpt::engine::testing
