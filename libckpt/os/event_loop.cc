#include "libckpt/os/event_loop.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

namespace ckpt::os {
namespace {

// Watch ids of the loop's own descriptors; others start above.
constexpr uint64_t kEventId = 1, kTimerId = 2, kSignalId = 3, kFirstId = 16;
constexpr int kEventsMax = 64;

Status EpollAdd(int epoll, int fd, uint32_t events, uint64_t id) {
  epoll_event event{.events = events, .data = {.u64 = id}};
  if (::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0) return OkStatus();
  return ErrnoStatus(errno, "watching descriptor " + std::to_string(fd));
}

void ReadAway(int fd) {
  uint64_t count;
  while (::read(fd, &count, sizeof count) == sizeof count) {
  }
}

}  // namespace

Result<std::unique_ptr<EventLoop>> EventLoop::Create() {
  std::unique_ptr<EventLoop> loop(new EventLoop);
  CKPT_RETURN_IF_ERROR(loop->Init());
  return loop;
}

Status EventLoop::Init() {
  next_id_ = kFirstId;
  epoll_.Reset(::epoll_create1(EPOLL_CLOEXEC));
  event_.Reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  timer_.Reset(::timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK));
  if (!epoll_.valid() || !event_.valid() || !timer_.valid()) {
    return ErrnoStatus(errno, "creating an event loop");
  }
  CKPT_RETURN_IF_ERROR(EpollAdd(epoll_.get(), event_.get(), EPOLLIN, kEventId));
  return EpollAdd(epoll_.get(), timer_.get(), EPOLLIN, kTimerId);
}

EventLoop::~EventLoop() {
  if (signals_.empty()) return;
  sigset_t set;
  sigemptyset(&set);
  for (const auto& [signal, callback] : signals_) sigaddset(&set, signal);
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

Status EventLoop::AddFd(int fd, uint32_t events, FdCallback callback) {
  if (fd_ids_.contains(fd)) {
    return AlreadyExists("descriptor " + std::to_string(fd) + " is watched already");
  }
  const uint64_t id = next_id_++;
  CKPT_RETURN_IF_ERROR(EpollAdd(epoll_.get(), fd, events, id));
  fd_ids_[fd] = id;
  watches_[id] = std::make_shared<Watch>(Watch{fd, std::move(callback)});
  return OkStatus();
}

Status EventLoop::ModifyFd(int fd, uint32_t events) {
  const auto it = fd_ids_.find(fd);
  if (it == fd_ids_.end()) return NotFound("descriptor " + std::to_string(fd) + " is not watched");
  epoll_event event{.events = events, .data = {.u64 = it->second}};
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event) == 0) return OkStatus();
  return ErrnoStatus(errno, "watching descriptor " + std::to_string(fd));
}

void EventLoop::RemoveFd(int fd) {
  const auto it = fd_ids_.find(fd);
  if (it == fd_ids_.end()) return;
  watches_.erase(it->second);
  fd_ids_.erase(it);
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
}

void EventLoop::RestFd(int fd, Nanos pause) {
  if (!ModifyFd(fd, 0).ok()) return;
  AddTimer(pause, [this, fd, watch = fd_ids_[fd]] {
    const auto it = fd_ids_.find(fd);
    if (it == fd_ids_.end() || it->second != watch) return;  // another one by now
    ModifyFd(fd, EPOLLIN).IgnoreError();
  });
}

EventLoop::TimerId EventLoop::AddTimer(Nanos after, Task task) {
  const TimerId id = next_id_++;
  const int64_t at_ns = Deadline("timer", after).at_ns();
  timers_[id] = Timer{.at_ns = at_ns, .every_ns = 0, .task = std::move(task)};
  timer_order_.emplace(at_ns, id);
  ArmTimerFd();
  return id;
}

EventLoop::TimerId EventLoop::AddPeriodic(Nanos every, Task task) {
  const TimerId id = AddTimer(every, std::move(task));
  timers_[id].every_ns = std::max<int64_t>(every.count(), 1);
  return id;
}

void EventLoop::CancelTimer(TimerId id) {
  const auto it = timers_.find(id);
  if (it == timers_.end()) return;
  const auto [begin, end] = timer_order_.equal_range(it->second.at_ns);
  for (auto at = begin; at != end; ++at) {
    if (at->second == id) {
      timer_order_.erase(at);
      break;
    }
  }
  timers_.erase(it);
}

void EventLoop::ArmTimerFd() {
  itimerspec when{};
  if (!timer_order_.empty()) {
    const int64_t at_ns = std::max<int64_t>(timer_order_.begin()->first, 1);
    when.it_value = {.tv_sec = at_ns / 1'000'000'000, .tv_nsec = at_ns % 1'000'000'000};
  }
  ::timerfd_settime(timer_.get(), TFD_TIMER_ABSTIME, &when, nullptr);
}

// Only those due when it begins: a timer that arms itself anew with 0 must not starve the rest.
bool EventLoop::RunTimers() {
  const int64_t now_ns = BoottimeNs();
  std::vector<TimerId> due;
  for (auto it = timer_order_.begin(); it != timer_order_.end() && it->first <= now_ns; ++it) {
    due.push_back(it->second);
  }
  for (const TimerId id : due) {
    const auto it = timers_.find(id);
    if (it == timers_.end()) continue;  // cancelled by one before it
    const Task task = it->second.task;
    const int64_t every_ns = it->second.every_ns;
    CancelTimer(id);
    if (every_ns != 0) {
      timers_[id] = Timer{.at_ns = now_ns + every_ns, .every_ns = every_ns, .task = task};
      timer_order_.emplace(now_ns + every_ns, id);
    }
    task();
  }
  ArmTimerFd();
  return !due.empty();
}

Status EventLoop::AddSignal(int signal, std::function<void(const SignalInfo&)> callback) {
  signals_[signal] = std::move(callback);
  sigset_t set;
  sigemptyset(&set);
  for (const auto& [number, unused] : signals_) sigaddset(&set, number);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  const int fd = ::signalfd(signal_.get(), &set, SFD_CLOEXEC | SFD_NONBLOCK);
  if (fd < 0) return ErrnoStatus(errno, "watching signals");
  if (signal_.valid()) return OkStatus();  // changed in place
  signal_.Reset(fd);
  return EpollAdd(epoll_.get(), fd, EPOLLIN, kSignalId);
}

void EventLoop::DrainSignals() {
  signalfd_siginfo info;
  while (::read(signal_.get(), &info, sizeof info) == sizeof info) {
    const auto it = signals_.find(static_cast<int>(info.ssi_signo));
    if (it == signals_.end()) continue;
    const auto callback = it->second;
    callback({.signal = static_cast<int>(info.ssi_signo), .sender_pid = info.ssi_pid});
  }
}

void EventLoop::Post(Task task) {
  {
    MutexLock lock(mutex_);
    posted_.push_back(std::move(task));
  }
  const uint64_t one = 1;
  // It fails only when the counter is full, and then the loop wakes anyway.
  [[maybe_unused]] const ssize_t n = ::write(event_.get(), &one, sizeof one);
}

void EventLoop::Stop() {
  Post([this] { stopped_ = true; });
}

bool EventLoop::RunPosted() {
  std::vector<Task> tasks;
  {
    MutexLock lock(mutex_);
    tasks.swap(posted_);
  }
  for (const Task& task : tasks) task();
  return !tasks.empty();
}

Status EventLoop::Run() {
  const Deadline forever = Deadline::Infinite("event loop");
  while (!stopped_) CKPT_RETURN_IF_ERROR(RunOnce(forever).status());
  return OkStatus();
}

Result<bool> EventLoop::RunOnce(const Deadline& deadline) {
  std::array<epoll_event, kEventsMax> events;
  const int count = ::epoll_wait(epoll_.get(), events.data(), kEventsMax, deadline.LeftMs());
  if (count < 0 && errno == EINTR) return false;
  if (count < 0) return ErrnoStatus(errno, "waiting for events");
  bool ran = false;
  for (int i = 0; i < count; ++i) {
    const uint64_t id = events[i].data.u64;
    if (id == kEventId) {
      ReadAway(event_.get());
      ran |= RunPosted();
    } else if (id == kTimerId) {
      ReadAway(timer_.get());
      ran |= RunTimers();
    } else if (id == kSignalId) {
      DrainSignals();
      ran = true;
    } else if (const auto it = watches_.find(id); it != watches_.end()) {
      const std::shared_ptr<Watch> watch = it->second;  // it may remove itself
      watch->callback(events[i].events);
      ran = true;
    }
  }
  return ran;
}

}  // namespace ckpt::os
