// A bell may go while another thread is in its handler.
#include "libckpt/os/signal_bell.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <thread>

namespace ckpt::os {
namespace {

TEST(SignalBell, NoHandlerTouchesTheFlagOnceTheBellIsGone) {
  struct sigaction ignored {
  }, before{};
  ignored.sa_handler = SIG_IGN;
  ASSERT_EQ(sigaction(SIGUSR2, &ignored, &before), 0);
  std::atomic<bool> quit{false};
  std::thread other([&] {
    while (!quit) pthread_kill(pthread_self(), SIGUSR2);
  });
  constexpr size_t kRounds = 300;
  std::array<std::atomic<uint32_t>, kRounds> flags{};
  for (std::atomic<uint32_t>& flag : flags) {
    auto bell = SignalBell::Install(uint64_t{1} << SIGUSR2, &flag, 1);
    ASSERT_TRUE(bell.ok()) << bell.status().ToString();
    while (flag == 0) std::this_thread::yield();
    bell->reset();
    flag = 0;  // as if it had been freed
  }
  quit = true;
  other.join();
  for (const std::atomic<uint32_t>& flag : flags) EXPECT_EQ(flag, 0u);
  sigaction(SIGUSR2, &before, nullptr);
}

TEST(SignalBell, AForkedChildDoesNotHoldIt) {
  std::atomic<uint32_t> flag{0};
  auto bell = SignalBell::Install(uint64_t{1} << SIGUSR2, &flag, 1);
  ASSERT_TRUE(bell.ok()) << bell.status().ToString();
  const int fd = (*bell)->fd();
  const pid_t pid = fork();
  if (pid == 0) _exit(fcntl(fd, F_GETFD) == -1 ? 42 : 1);
  int status = 0;
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 42);
  EXPECT_NE(fcntl(fd, F_GETFD), -1);
}

}  // namespace
}  // namespace ckpt::os
