#include "libckpt/os/signal_bell.h"

#include <sched.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <utility>

#include "libckpt/base/clock.h"
#include "libckpt/os/fork.h"

namespace ckpt::os {
namespace {

constexpr int kSignalMax = 63;

// What the handler reads; it may run at any instruction, so these are atomics, and the older
// actions are written before the handler is installed.
std::atomic<bool> g_installed{false};
std::atomic<int> g_owner{0};
std::atomic<int> g_event{-1};
std::atomic<int> g_last{0};
std::atomic<std::atomic<uint32_t>*> g_raise{nullptr};
std::atomic<uint32_t> g_flag{0};
std::atomic<uint32_t> g_inside{0};  // handlers that may be using the two pointers above
struct sigaction g_before[kSignalMax + 1];
ClosedInChildren* g_hidden = nullptr;  // the event, from children

void CarryOutDefault(int signal) {
  ::signal(signal, SIG_DFL);
  ::raise(signal);
}

void Chain(int signal, siginfo_t* info, void* context, bool in_child) {
  const struct sigaction& before = g_before[signal];
  if ((before.sa_flags & SA_SIGINFO) != 0) {
    before.sa_sigaction(signal, info, context);
  } else if (before.sa_handler == SIG_DFL) {
    if (in_child) CarryOutDefault(signal);
  } else if (before.sa_handler != SIG_IGN) {
    before.sa_handler(signal);
  }
}

void OnSignal(int signal, siginfo_t* info, void* context) {
  const int saved_errno = errno;
  const bool in_child = ::getpid() != g_owner.load();
  if (!in_child) {
    g_inside.fetch_add(1);
    g_last.store(signal);
    if (std::atomic<uint32_t>* raise = g_raise.load()) raise->fetch_or(g_flag.load());
    const uint64_t one = 1;
    const int event = g_event.load();
    if (event >= 0 && ::write(event, &one, sizeof one) < 0) {
      // Full: it rings already.
    }
    g_inside.fetch_sub(1);
  }
  Chain(signal, info, context, in_child);
  errno = saved_errno;
}

bool IsOurs(const struct sigaction& action) {
  return (action.sa_flags & SA_SIGINFO) != 0 && action.sa_sigaction == &OnSignal;
}

}  // namespace

Result<std::unique_ptr<SignalBell>> SignalBell::Install(uint64_t signals,
                                                        std::atomic<uint32_t>* raise,
                                                        uint32_t flag) {
  if (g_installed.exchange(true))
    return FailedPrecondition(
        "signals are handled by another session of this process; open the second one with "
        "signals = 0");
  std::unique_ptr<SignalBell> bell(new SignalBell);
  bell->event_.Reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!bell->event_.valid()) {
    const int error = errno;
    g_installed.store(false);
    return ErrnoStatus(error, "creating an eventfd");
  }
  if (g_owner.exchange(::getpid()) != ::getpid()) g_inside.store(0);  // a fork's copy
  g_hidden = new ClosedInChildren(bell->event_.get());
  g_event.store(bell->event_.get());
  g_last.store(0);
  g_raise.store(raise);
  g_flag.store(flag);
  for (int signal = 1; signal <= kSignalMax; ++signal) {
    if ((signals >> signal & 1) == 0) continue;
    struct sigaction action {};
    action.sa_sigaction = &OnSignal;
    action.sa_flags = SA_SIGINFO | SA_RESTART;
    sigemptyset(&action.sa_mask);
    if (::sigaction(signal, nullptr, &g_before[signal]) != 0 ||
        ::sigaction(signal, &action, nullptr) != 0)
      return ErrnoStatus(errno, "installing a handler for signal " + std::to_string(signal));
    bell->signals_ |= uint64_t{1} << signal;
  }
  return bell;
}

SignalBell::~SignalBell() {
  for (int signal = 1; signal <= kSignalMax; ++signal) {
    if ((signals_ >> signal & 1) == 0) continue;
    struct sigaction now {};
    if (::sigaction(signal, nullptr, &now) == 0 && IsOurs(now))
      ::sigaction(signal, &g_before[signal], nullptr);
  }
  // A handler that the program put over ours may still chain to it: it finds nothing to raise.
  g_raise.store(nullptr);
  g_event.store(-1);
  // One that runs on another thread may have them already: it needs a moment, and never waits.
  const Deadline deadline("signal handlers that are running", std::chrono::seconds(10));
  while (g_inside.load() != 0 && !deadline.Expired()) ::sched_yield();
  delete std::exchange(g_hidden, nullptr);
  g_installed.store(false);
}

int SignalBell::Take() {
  uint64_t count;
  if (::read(event_.get(), &count, sizeof count) < 0) {
    // Not rung.
  }
  return g_last.exchange(0);
}

}  // namespace ckpt::os
