#include "coordinator/run/rank_processes.h"

#include <signal.h>

#include "libckpt/base/log.h"
#include "libckpt/os/stream.h"

namespace ckpt::run {
namespace {

// Processes that ranks left behind (data loaders) may end by themselves for so long.
constexpr int64_t kStragglerGraceNs = 300'000'000;
constexpr Nanos kMeasureEvery = std::chrono::milliseconds(5);
constexpr Nanos kMeasureStuckEvery = std::chrono::milliseconds(100);
constexpr int64_t kStuckNs = 5'000'000'000;  // what has not ended by then is named
constexpr Nanos kKillTimeout = std::chrono::seconds(5);

std::string NamesOf(const std::vector<os::ProcessInfo>& processes) {
  std::string names;
  for (const os::ProcessInfo& process : processes) {
    names +=
        (names.empty() ? "" : ", ") + process.name + " (pid " + std::to_string(process.pid) + ")";
  }
  return names;
}

}  // namespace

RankProcesses::~RankProcesses() {
  loop_->CancelTimer(measure_timer_);
  for (const auto& [rank, pidfd] : living_) loop_->RemoveFd(pidfd.fd());
  if (gone_ || !started_) return;
  os::KillDescendants(os::SelfPid(), {}, Deadline("killing ranks", kKillTimeout)).IgnoreError();
}

Status RankProcesses::Start(const std::vector<RankCommand>& commands) {
  Status status;
  for (const RankCommand& command : commands) {
    status = StartOne(command);
    if (!status.ok()) break;
  }
  if (!status.ok()) {
    status.Annotate("starting rank " + std::to_string(commands[living_.size()].rank));
    Kill();
    if (living_.empty() && started_)
      measure_timer_ = loop_->AddTimer(Nanos(0), [this] { Measure(); });
  }
  return status;
}

Status RankProcesses::StartOne(const RankCommand& command) {
  os::SpawnOptions options;
  options.argv = command.argv;
  options.env = command.env;
  options.grouping = os::Grouping::kNewGroup;
  os::UniqueFd out, err;
  if (!command.log_file.empty()) {
    CKPT_ASSIGN_OR_RETURN(out, os::OpenAppend(command.log_file));
  } else {
    if (!relay_) {
      CKPT_ASSIGN_OR_RETURN(relay_, OutputRelay::Create());
    }
    CKPT_ASSIGN_OR_RETURN(out, relay_->Add(command.rank, 1));
    CKPT_ASSIGN_OR_RETURN(err, relay_->Add(command.rank, 2));
  }
  options.stdout_fd = out.get();
  options.stderr_fd = err.valid() ? err.get() : out.get();
  CKPT_ASSIGN_OR_RETURN(os::Pidfd pidfd, os::Spawn(options));
  started_ = true;
  const uint32_t rank = command.rank;
  CKPT_RETURN_IF_ERROR(loop_->AddFd(pidfd.fd(), EPOLLIN, [this, rank](uint32_t) { OnEnd(rank); }));
  living_[rank] = std::move(pidfd);
  return OkStatus();
}

void RankProcesses::OnEnd(uint32_t rank) {
  const auto it = living_.find(rank);
  if (it == living_.end()) return;
  Result<std::optional<os::ExitStatus>> ended = it->second.TryReap();
  if (ended.ok() && !ended->has_value()) return;
  loop_->RemoveFd(it->second.fd());
  living_.erase(it);
  const os::ExitStatus status =
      ended.ok() ? **ended : os::ExitStatus{.signaled = false, .code = 255};
  handler_.exited(rank, status);
  if (!living_.empty()) return;
  measuring_since_ns_ = BoottimeNs();
  Measure();
}

// Only an empty listing says "gone"; whatever else it says is asked again. Kills do not wait.
void RankProcesses::Measure() {
  os::ReapOrphans({});
  const Result<std::vector<os::ProcessInfo>> left = measure_();
  if (left.ok() && left->empty()) {
    gone_ = true;
    return handler_.all_gone();
  }
  const int64_t since = BoottimeNs() - measuring_since_ns_;
  if (left.ok() && since >= kStragglerGraceNs) {
    if (!killing_) LogWarning("killing what the ranks left behind: " + NamesOf(*left));
    killing_ = true;
    for (const os::ProcessInfo& process : *left) {
      const Result<os::Pidfd> pidfd = os::Pidfd::Open(process.pid);
      if (pidfd.ok()) pidfd->Signal(SIGKILL).IgnoreError();
    }
  }
  if (!left.ok()) {
    Stuck("whether processes of the ranks are left is not known: " + left.status().message());
  } else if (since >= kStuckNs) {
    Stuck("processes that the ranks left behind do not end: " + NamesOf(*left));
  }
  measure_timer_ =
      loop_->AddTimer(stuck_.empty() ? kMeasureEvery : kMeasureStuckEvery, [this] { Measure(); });
}

void RankProcesses::Stuck(const std::string& why) {
  if (why == stuck_) return;
  stuck_ = why;
  LogError(why + "; not released yet");
  handler_.stuck(why);
}

void RankProcesses::Signal(int signal) {
  for (const auto& [rank, pidfd] : living_) {
    const Status group = os::SignalGroup(pidfd.pid(), signal);
    if (!group.ok()) pidfd.Signal(signal).IgnoreError();
  }
}

// The groups; who left them is found when the ranks are gone (Measure).
void RankProcesses::Kill() { Signal(SIGKILL); }

std::vector<std::pair<uint32_t, const os::Pidfd*>> RankProcesses::living() const {
  std::vector<std::pair<uint32_t, const os::Pidfd*>> list;
  for (const auto& [rank, pidfd] : living_) list.emplace_back(rank, &pidfd);
  return list;
}

}  // namespace ckpt::run
