// Ranks that the command starts itself (torchrun). They are no children of ours: each is watched
// from its HELLO on, and how it ended is known by what it said before. A launch takes each rank
// once: what its launcher starts again would go on from where this launch began, which may be long
// past.
#include "coordinator/run/node_launch.h"
#include "libckpt/base/log.h"

namespace ckpt::run {

Status NodeLaunch::WatchRank(uint32_t rank) {
  RankState& state = Of(rank);
  const pid_t pid = server_->peer_pid(rank);
  if (state.watched.valid() && state.watched.pid() == pid)
    return OkStatus();  // it has connected again
  if (state.registered) {
    return FailedPrecondition("rank " + std::to_string(rank) +
                              " was started a second time in one launch (pid " +
                              std::to_string(pid) +
                              "); leave restarts to ckpt-run (--restarts N), and give the launcher "
                              "none (torchrun: --max-restarts 0)");
  }
  CKPT_ASSIGN_OR_RETURN(os::Pidfd pidfd, os::Pidfd::Open(pid));
  CKPT_RETURN_IF_ERROR(
      services_->loop->AddFd(pidfd.fd(), EPOLLIN, [this, rank](uint32_t) { OnWatchedEnd(rank); }));
  state.watched = std::move(pidfd);
  return OkStatus();
}

void NodeLaunch::Unwatch(uint32_t rank) {
  RankState& state = Of(rank);
  if (state.watched.valid()) services_->loop->RemoveFd(state.watched.fd());
  state.watched = {};
}

// By the rank's last words, else `otherwise`.
os::ExitStatus NodeLaunch::EndOf(uint32_t rank, const os::ExitStatus& otherwise) {
  server_->Drain(rank);
  constexpr int kSuspended = 75;
  const auto phase = static_cast<wire::RankPhase>(pages_->page(rank).phase.load());
  if (phase == wire::RankPhase::kReleased) return {.signaled = false, .code = kSuspended};
  return Of(rank).finished ? os::ExitStatus{} : otherwise;
}

void NodeLaunch::OnWatchedEnd(uint32_t rank) {
  Unwatch(rank);
  const os::ExitStatus end = EndOf(rank, {.signaled = false, .code = 1});
  if (end.code == 1)
    LogWarning("rank " + std::to_string(rank) +
               " ended without having finished; its launcher's output says how");
  OnExited(rank, end);
}

void NodeLaunch::OnLauncherExited(const os::ExitStatus& status) {
  for (size_t i = 0; i < ranks_.size(); ++i) {
    const uint32_t rank = RankAt(i);
    if (Of(rank).exited) continue;
    Unwatch(rank);
    OnExited(rank, EndOf(rank, status));
  }
}

}  // namespace ckpt::run
