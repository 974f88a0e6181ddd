#include "coordinator/run/status_line.h"

#include <cstdio>

#include "libckpt/base/clock.h"

namespace ckpt::run {
namespace {

constexpr int64_t kSecondNs = 1'000'000'000;

// Slow steps are told by their length, fast ones by their number.
std::string Rate(int64_t step_time_ns) {
  if (step_time_ns >= kSecondNs) return FormatDuration(Nanos(step_time_ns)) + " a step";
  char text[32];
  snprintf(text, sizeof text, "%.3g steps/s",
           static_cast<double>(kSecondNs) / static_cast<double>(step_time_ns));
  return text;
}

std::string PhaseOf(const NodeLaunch& launch, const NodeStatus& status) {
  if (status.phase != "running") return status.phase;
  if (!status.running) return "starting";
  if (launch.config().start.resume_kind != 0 && !status.all_restored) return "restoring";
  return status.rank_phase.empty() ? status.phase : status.rank_phase;
}

}  // namespace

std::string StatusText(const RunView& view) {
  std::string line = view.phase;
  if (!view.operation.empty()) line = view.operation + ": " + line;
  if (!view.waits_for.empty()) line += ", waits for " + view.waits_for;
  if (view.total != 0) {
    line += ", " + DescribeProgress(view.doing, view.done, view.total, view.bytes_per_second);
  }
  line += ", step " + std::to_string(view.step);
  if (view.step_time_ns > 0 && view.ranks_up > 0) line += ", " + Rate(view.step_time_ns);
  line += view.durable.empty() ? ", nothing durable yet" : ", durable " + view.durable;
  return line + ", " + std::to_string(view.ranks_up) + " of " + std::to_string(view.ranks) +
         " ranks up";
}

std::string StatusLine::Now() {
  RunView view = drain_ != nullptr ? OfDrain() : OfRanks();
  if (view.doing != metered_) meter_ = RateMeter();
  metered_ = view.doing;
  if (view.total != 0) {
    meter_.Add(view.done, BoottimeNs());
    view.bytes_per_second = meter_.BytesPerSecond();
  }
  return "ckpt-run " + options_.job + ": " + StatusText(view);
}

RunView StatusLine::OfDrain() const {
  RunView view{.phase = "draining", .ranks = options_.rank_count};
  const std::vector<RamCopy> copies = drain_->copies();
  if (copies.empty()) return view;
  view.step = copies.back().id.step.value();
  const WriteProgress progress = drain_->progress(copies.back().id.attempt.value());
  view.doing = "written";
  view.done = progress.bytes_done;
  view.total = progress.bytes_total;
  return view;
}

RunView StatusLine::OfRanks() const {
  RunView view{.phase = "waiting for the gang", .ranks = options_.rank_count};
  const NodeLaunch* launch = ranks_->current();
  if (launch != nullptr && ranks_->preparing()) view.phase = "starting again";
  if (launch != nullptr && !ranks_->preparing()) AddLaunch(*launch, &view);
  const LeaderLaunch* gang = leader_ != nullptr ? leader_->current() : nullptr;
  if (gang != nullptr) AddGang(*gang, &view);
  if (leader_ != nullptr && view.durable.empty() && leader_->resumed_from().starts_with("store ")) {
    view.durable = leader_->resumed_from().substr(6);
  }
  return view;
}

void StatusLine::AddLaunch(const NodeLaunch& launch, RunView* view) const {
  const NodeStatus status = launch.status();
  view->phase = PhaseOf(launch, status);
  view->step = status.step;
  view->step_time_ns = status.step_time_ns;
  view->ranks_up = static_cast<uint32_t>(launch.processes().size());
  for (const RamCopy& copy : launch.copies()) {
    if (copy.durable) view->durable = copy.id.ToString();
  }
  const WriteProgress drain = launch.drain();
  if (status.restoring_total != 0) {
    view->doing = "restored";
    view->done = status.restoring_done;
    view->total = status.restoring_total;
  } else if (status.staging_total != 0) {
    view->doing = "staged";
    view->done = status.staging_done;
    view->total = status.staging_total;
  } else if (drain.bytes_total != 0) {
    view->doing = "written";
    view->done = drain.bytes_done;
    view->total = drain.bytes_total;
  }
}

void StatusLine::AddGang(const LeaderLaunch& launch, RunView* view) const {
  if (!launch.newest_durable().empty()) view->durable = launch.newest_durable();
  const gang::Leader::View gang = launch.view();
  if (gang.request == gang::Request::kNone || gang.phase == gang::OpPhase::kReleased) return;
  view->operation = gang::Name(gang.request);
  const bool rolls_back = gang.phase == gang::OpPhase::kRolledBack;
  if (gang.phase == gang::OpPhase::kQueued || rolls_back) return;
  for (const uint32_t rank : gang.missing) {
    view->waits_for += (view->waits_for.empty() ? "rank " : ", ") + std::to_string(rank);
  }
}

}  // namespace ckpt::run
