// Launching, stopping, and what becomes of a gang once no process of it is left.
#include <algorithm>

#include "coordinator/core/impl.h"
#include "libckpt/base/clock.h"
#include "libckpt/base/ids.h"

namespace ckpt::core {
namespace {

constexpr int64_t kKillBudgetNs = 10 * kSecondNs;
constexpr int64_t kLaunchGraceNs = 45 * kSecondNs;  // beyond the silence that any agent is allowed
constexpr int64_t kStartDelayNs = kSecondNs;  // after a start that failed; then four times as long
constexpr int64_t kStartDelayNsMax = 60 * kSecondNs;
constexpr std::string_view kRefused = "refused to start: ";

std::string Describe(const Placement& placement) {
  std::string text;
  for (const NodePlacement& place : placement) {
    const uint32_t last = place.first_rank + place.rank_count - 1;
    text += (text.empty() ? "" : ", ") + place.node + " (rank" +
            (place.rank_count == 1 ? " " : "s ") + std::to_string(place.first_rank);
    if (place.rank_count > 1) text += "-" + std::to_string(last);
    text += ")";
  }
  return text;
}

template <typename Pred>
bool AllMembers(const Job& job, Pred pred) {
  return std::all_of(job.members.begin(), job.members.end(), pred);
}
bool AnyIn(const Job& job, NodeJobState state) {
  return !AllMembers(job, [&](const Member& m) { return m.state != state; });
}

std::string IdOf(const CopyState& copy) {
  return AttemptId{Epoch(copy.epoch), Step(copy.step), Attempt(copy.attempt)}.ToString();
}

std::array<int64_t, 3> KeyOf(const AttemptId& id) {
  return {static_cast<int64_t>(id.epoch.value()), id.step.value(), id.attempt.value()};
}

}  // namespace

// ---- launching

void Core::Impl::LaunchAt(Job& job, const Placement& placement) {
  Edit(job.spec.name);
  job.epoch = job.epoch_seen = 1 + std::max(job.epoch, job.epoch_seen);
  job.token = options_.mint_token();
  job.launch_op = MintOpId();
  job.gang_address.clear();
  std::erase_if(job.held_up, [&](const auto& said) { return said.first.second + 2 < job.epoch; });
  job.members.clear();
  for (const NodePlacement& place : placement) job.members.push_back({place});
  job.state = JobState::kStarting;
  job.stop = StopPurpose::kNone;
  job.stop_kill = false;
  job.reason.clear();
  job.resumed_from.clear();
  if (job.step_seconds > 0) job.measured.step_seconds = job.step_seconds;
  job.step_seconds = 0;
  job.launched_ns = now_.boot_ns;
  Emit("launched", &job, "epoch " + std::to_string(job.epoch) + " on " + Describe(placement));
  LaunchMembers(job);
  settle_ = true;
}

// The leader first: the others join at the address that it reports.
void Core::Impl::LaunchMembers(Job& job) {
  if (job.stop != StopPurpose::kNone) return;
  for (Member& member : job.members) {
    const bool turn = member.place.node_rank == 0 || !job.gang_address.empty();
    if (turn && !member.launched && Connected(member.place.node)) SendLaunch(job, member);
  }
}

void Core::Impl::SendLaunch(Job& job, Member& member) {
  Edit(job.spec.name);
  const NodeInfo& node = nodes_.at(member.place.node).info;
  member.launched = true;
  member.boot_ns = node.boot_ns;
  member.heard = false;
  member.silent_since_ns = now_.boot_ns + kLaunchGraceNs;
  stopping_.insert(job.spec.name);
  Launch launch;
  launch.job = job.spec.name;
  launch.epoch = job.epoch;
  launch.op_id = job.launch_op;
  launch.spec = job.spec;
  launch.place = member.place;
  launch.nnodes = static_cast<uint32_t>(job.members.size());
  if (member.place.node_rank != 0) launch.leader_address = job.gang_address;
  launch.token = job.token;
  launch.listen_host = node.address;
  launch.job_id = job.job_id;
  if (const auto copy = Expected(job)) launch.expect = IdOf(*copy);
  SendTo(member.place.node, std::move(launch));
}

bool Core::Impl::RelaunchInPlace(Job& job) {
  const auto place = OldPlace(job, Rooms(job.op_id));
  if (place) LaunchAt(job, *place);
  return place.has_value();
}

// ---- stopping

void Core::Impl::BeginStop(Job& job, StopPurpose purpose, bool kill, int64_t budget_ns) {
  Edit(job.spec.name);
  job.stop = purpose;
  job.stop_budget_ns = budget_ns;
  job.stop_deadline_ns = now_.boot_ns + budget_ns;
  if (purpose != StopPurpose::kCrash) job.state = JobState::kSuspending;
  stopping_.insert(job.spec.name);
  settle_ = true;
  if (kill) {
    OrderKill(job);
    return;
  }
  job.stop_kill = false;
  job.stop_op = MintOpId();
  job.last_stop = {};
  job.last_stop_epoch = job.epoch;
  job.last_op_id = job.op_id;
  job.member_bytes.clear();
  for (Member& member : job.members) SendStop(job, member);
}

void Core::Impl::OrderKill(Job& job) {
  Edit(job.spec.name);
  job.stop_kill = true;
  job.kill_op = MintOpId();
  for (Member& member : job.members) {
    if (!member.launched) member.state = NodeJobState::kFailed;  // nothing was ever sent there
    SendStop(job, member);
  }
  FoldGang(job);
}

const char* Core::Impl::SourceOfStop(const Job& job) {
  const Operation* op = FindOp(job.op_id != 0 ? job.op_id : job.last_op_id);
  const bool preempts = op != nullptr && op->kind == OperationKind::kPreempt;
  if (job.stop == StopPurpose::kPreempt || preempts) return "preemption";
  return job.stop == StopPurpose::kCrash ? "crash" : "operator";
}

void Core::Impl::SendStop(Job& job, Member& member) {
  if (IsOver(member.state)) return;
  const int64_t left_ms = (job.stop_deadline_ns - now_.boot_ns) / 1'000'000;
  Stop stop;
  stop.job = job.spec.name;
  stop.epoch = job.epoch;
  stop.op_id = job.stop_kill ? job.kill_op : job.stop_op;
  stop.kill = job.stop_kill;
  stop.deadline_ms = std::max<int64_t>(1, left_ms);
  stop.source = SourceOfStop(job);
  stop.withdraw = job.stop == StopPurpose::kUndo && !job.stop_kill;
  SendTo(member.place.node, std::move(stop));
}

// The suspend is not wanted any more. A gang that is past its barriers does not hear it: it is
// launched again once it is released.
void Core::Impl::TakeBackStop(Job& job) {
  Edit(job.spec.name).stop = StopPurpose::kUndo;
  for (Member& member : job.members) SendStop(job, member);
}

// The gang rolled back: it runs on as if nothing had been asked.
void Core::Impl::SuspendFailed(Job& job, const std::string& message) {
  Edit(job.spec.name);
  const StopPurpose purpose = job.stop;
  const uint64_t op_id = job.op_id;
  job.stop = StopPurpose::kNone;
  job.state = JobState::kRunning;
  job.reason = "runs on: " + message;
  job.last_stop_clean = false;
  Emit("suspend_failed", &job, message);
  Operation* op = FindOp(op_id);
  if (op == nullptr || op->state != OperationState::kRunning) return;
  const std::string why = job.spec.name + " could not be stopped and runs on: " + message;
  if (purpose == StopPurpose::kPreempt) {
    AbortPreempt(EditOp(op_id), why);
  } else if (purpose != StopPurpose::kUndo) {
    FinishOp(EditOp(op_id), OperationState::kFailed, Phase::kAborted, why);
  }
}

// ---- what the members say, taken together

void Core::Impl::MemberFailed(Job& job, Member& member, const std::string& message) {
  if (IsOver(member.state)) return;
  Edit(job.spec.name);
  member.state = NodeJobState::kFailed;
  member.message = message;
}

void Core::Impl::FoldGang(Job& job) {
  if (!IsLive(job.state) || job.members.empty()) return;
  if (AllMembers(job, [](const Member& m) { return IsOver(m.state); })) {
    GangOver(job);
    return;
  }
  if (job.stop == StopPurpose::kNone && AnyIn(job, NodeJobState::kFailed)) {
    Edit(job.spec.name).reason = FailureOf(job);
    Emit("failed", &job, FailureOf(job));
    BeginStop(job, StopPurpose::kCrash, true, kKillBudgetNs);
    return;
  }
  const bool up = AllMembers(job, [](const Member& m) {
    return m.state == NodeJobState::kRunning || m.state == NodeJobState::kFinished;
  });
  if (up && job.state == JobState::kStarting && job.stop == StopPurpose::kNone) GangRunning(job);
}

void Core::Impl::GangRunning(Job& job) {
  Edit(job.spec.name);
  job.state = JobState::kRunning;
  job.running_since_ns = job.last_copy_ns = now_.boot_ns;
  job.starts_failed = job.behind_count = 0;
  job.reason.clear();
  BookFallBack(job);
  if (!job.resumed_from.empty()) {
    Emit("resumed", &job, "from " + job.resumed_from).data["resumed_from"] = job.resumed_from;
  }
  Emit("running", &job, Plural(job.spec.ranks, "rank"));
  settle_ = true;
}

void Core::Impl::GangOver(Job& job) {
  Edit(job.spec.name);
  settle_ = true;
  stopping_.erase(job.spec.name);
  const bool failed = AnyIn(job, NodeJobState::kFailed);
  if (!failed && !AnyIn(job, NodeJobState::kReleased)) {
    EndJob(job, JobState::kFinished, "");
  } else if (job.stop == StopPurpose::kCancel) {
    EndJob(job, JobState::kCancelled, "cancelled");
  } else if (job.stop == StopPurpose::kCrash || (failed && job.stop == StopPurpose::kNone)) {
    if (job.stop == StopPurpose::kNone) Emit("failed", &job, FailureOf(job));
    RestartOrFail(job, FailureOf(job));
  } else {
    GangSuspended(job, !failed, FailureOf(job));
  }
}

void Core::Impl::GangSuspended(Job& job, bool clean, const std::string& what) {
  const StopPurpose purpose = job.stop;
  const bool killed = job.stop_kill;
  job.stop = StopPurpose::kNone;
  job.stop_kill = false;
  job.last_stop_clean = clean;
  job.state = JobState::kSuspended;
  if (clean) {
    if (job.last_stop.released_ns == 0) job.last_stop.released_ns = now_.boot_ns;
    EventRecord& line = Emit("released", &job, "all nodes measured free; " + FallbackOf(job));
    line.boottime_ns = job.last_stop.released_ns;
    line.data = TimesData(job.last_stop);
    job.reason = FallbackOf(job);
  } else {
    if (!killed) ++job.restart_count;
    const double lost = BookLostWork(job);
    job.reason = (killed ? "killed at its deadline" : "failed while it was stopping: " + what) +
                 "; lost " + std::to_string(static_cast<int64_t>(lost)) + " GPU-seconds; " +
                 FallbackOf(job);
    Emit("failed", &job, job.reason);
  }
  if (purpose == StopPurpose::kPreempt || purpose == StopPurpose::kUndo) {
    ++job.preempted_count;
    job.state = JobState::kPreempted;
    job.waiting_since_wall_ns = now_.wall_ns;
    if (purpose == StopPurpose::kUndo) RelaunchInPlace(job);
  } else if (purpose == StopPurpose::kNone) {
    job.reason = "was stopped from outside the coordinator; `ckptctl resume " + job.spec.name +
                 "` goes on; " + job.reason;
  }
}

void Core::Impl::RestartOrFail(Job& job, const std::string& what) {
  const bool never_ran = job.running_since_ns == 0;
  const uint32_t restarts_max = job.spec.restarts_max.value_or(kRestartsDefault);
  const Operation* op = FindOp(job.op_id);
  const bool moving = op != nullptr && op->kind == OperationKind::kMigrate &&
                      op->state == OperationState::kRunning && job.state == JobState::kStarting;
  BookLostWork(job);
  const bool started = job.state != JobState::kStarting;
  const bool behind = !AllMembers(job, [](const Member& m) { return !m.behind; });
  job.stop = StopPurpose::kNone;
  job.stop_kill = false;
  job.reason = what;
  if (behind && !moving) {
    HoldBehind(job, what);
  } else if (moving) {
    job.state = JobState::kSuspended;  // the operation moves it back
  } else if (never_ran && what.find(kRefused) != std::string::npos) {
    EndJob(job, JobState::kFailed, what);
  } else if (job.restart_count >= restarts_max) {
    EndJob(job, JobState::kFailed,
           what + "; gave up after " + Plural(restarts_max, "restart") + "; `ckptctl resume " +
               job.spec.name + "` tries again: " + FallbackOf(job));
  } else {
    ++job.restart_count;
    job.state = JobState::kPending;
    job.waiting_since_wall_ns = now_.wall_ns;
    Emit("restarted", &job,
         FallbackOf(job) + " (restart " + std::to_string(job.restart_count) + " of " +
             std::to_string(restarts_max) + ")");
    if (started) {
      RelaunchInPlace(job);
    } else {
      DelayStart(job);
    }
  }
}

// What it should go on from may be found yet (an agent that is late, a store that is not mounted, a
// copy that is still to be written): that is no restart, and nothing older is taken meanwhile.
void Core::Impl::HoldBehind(Job& job, const std::string& what) {
  const std::string way_out =
      "`ckptctl resume " + job.spec.name + " --from-store` goes on without it, from what is found";
  if (++job.behind_count >= options_.behind_max) {
    EndJob(job, JobState::kFailed,
           what + "; gave up after " + std::to_string(job.behind_count) +
               " tries; `ckptctl resume " + job.spec.name + "` tries again: " + FallbackOf(job) +
               "; " + way_out);
    return;
  }
  job.state = JobState::kPending;
  job.waiting_since_wall_ns = now_.wall_ns;
  job.reason = what + "; " + FallbackOf(job) + "; " + way_out;
  Emit("behind", &job, job.reason);
  DelayStart(job);
}

// It did resume from an older copy than was known: a damaged one was skipped, or an operator said
// so. Booked once: a launch that crashes before it saves starts from there again.
void Core::Impl::BookFallBack(Job& job) {
  const auto copies = MergedCopies(job);
  const auto known = std::find_if(copies.begin(), copies.end(), [&](const CopyState& copy) {
    return copy.epoch < job.epoch && (copy.durable || copy.staged_gang) &&
           !job.left_behind.contains(copy.Key());
  });
  const auto from = AttemptId::Parse(job.resumed_from.substr(job.resumed_from.find(' ') + 1));
  if (from.ok() && job.left_behind.contains(KeyOf(*from))) {  // it was found after all
    Edit(job.spec.name).left_behind.erase(KeyOf(*from));
  }
  if (known == copies.end()) return;
  if (from.ok() && KeyOf(*from) >= known->Key()) return;
  std::set<std::array<int64_t, 3>> left;
  for (const CopyState& copy : copies) {
    if (copy.epoch < job.epoch && (!from.ok() || copy.Key() > KeyOf(*from)))
      left.insert(copy.Key());
  }
  Edit(job.spec.name).left_behind = std::move(left);
  const int64_t steps = known->step - (from.ok() ? from->step.value() : 0);
  const std::string what = "step " + std::to_string(known->step) + " was left behind";
  Emit("fell_back", &job,
       what + ": it starts " +
           (from.ok() ? "from step " + std::to_string(from->step.value()) : "from the beginning"));
  // It runs, and has not measured a step yet.
  const double step_seconds = job.step_seconds > 0 ? job.step_seconds : job.measured.step_seconds;
  BookLoss(job, steps, static_cast<double>(steps) * step_seconds, what);
}

// A full store, a node that cannot start it: restarts are for more than the same second.
void Core::Impl::DelayStart(Job& job) {
  int64_t delay_ns = kStartDelayNs;
  for (uint32_t i = 0; i < job.starts_failed && delay_ns < kStartDelayNsMax; ++i) delay_ns *= 4;
  delay_ns = std::min(delay_ns, kStartDelayNsMax);
  ++job.starts_failed;
  job.start_after_ns = now_.boot_ns + delay_ns;
  delayed_.insert(job.spec.name);
  job.reason += "; starts again in " + FormatDuration(Nanos(delay_ns));
}

void Core::Impl::EndJob(Job& job, JobState state, std::string reason) {
  Edit(job.spec.name);
  job.state = state;
  job.reason = std::move(reason);
  job.stop = StopPurpose::kNone;
  job.stop_kill = false;
  stopping_.erase(job.spec.name);
  const char* kind = state == JobState::kFinished    ? "finished"
                     : state == JobState::kCancelled ? "cancelled"
                                                     : "gave_up";
  Emit(kind, &job, job.reason);
  ForgetSuperseded(job);
  settle_ = true;
}

// ---- words and sums

std::string Core::Impl::FailureOf(const Job& job) const {
  for (const Member& member : job.members) {
    if (member.state != NodeJobState::kFailed || member.message.empty()) continue;
    return "node " + member.place.node + ": " + member.message;
  }
  return "its processes ended without a reason given";
}

std::optional<CopyState> Core::Impl::Expected(const Job& job) const {
  for (CopyState& copy : MergedCopies(job)) {
    if (job.given_up.contains(copy.Key())) continue;
    if (copy.durable || copy.staged_gang) return std::move(copy);
  }
  return std::nullopt;
}

std::string Core::Impl::FallbackOf(const Job& job) const {
  if (const auto known = Expected(job)) {
    const CopyState& copy = *known;
    std::string where;
    for (const std::string& node : copy.ram_nodes) {
      where += " " + node + (Connected(node) ? "" : " (out of reach)");
    }
    return "resumes from step " + std::to_string(copy.step) +
           (copy.durable ? " (durable)" : ", in RAM of" + where + " only, not durable");
  }
  return "no copy of it is known here: the store's newest checkpoint counts, or the start";
}

// Work since the newest copy must be computed again.
double Core::Impl::BookLostWork(Job& job) {
  if (job.running_since_ns == 0 || job.state == JobState::kStarting) return 0;
  double seconds =
      static_cast<double>(now_.boot_ns - std::max(job.last_copy_ns, job.running_since_ns)) / 1e9;
  for (const CopyState& copy : MergedCopies(job)) {
    if ((!copy.durable && !copy.staged_gang) || job.step_seconds <= 0) continue;
    if (job.left_behind.contains(copy.Key())) continue;
    seconds = static_cast<double>(std::max<int64_t>(0, job.step - copy.step)) * job.step_seconds;
    break;
  }
  const int64_t steps =
      job.step_seconds > 0 ? static_cast<int64_t>(seconds / job.step_seconds + 0.5) : 0;
  return BookLoss(job, steps, seconds, "computed again");
}

// In the job's record, and in that of the operation that it was part of.
double Core::Impl::BookLoss(Job& job, int64_t steps, double seconds, const std::string& why) {
  const double lost = std::max(0.0, seconds) * job.spec.ranks;
  if (lost <= 0 && steps <= 0) return 0;
  Edit(job.spec.name);
  job.lost_gpu_seconds += lost;
  job.lost_steps += std::max<int64_t>(0, steps);
  EventRecord& line =
      Emit("lost", &job,
           Plural(static_cast<uint64_t>(std::max<int64_t>(0, steps)), "step") + ", " +
               std::to_string(static_cast<int64_t>(lost)) + " GPU-seconds: " + why);
  line.data["steps"] = std::to_string(steps);
  line.data["gpu_seconds"] = std::to_string(lost);
  if (Operation* op = FindOp(job.op_id)) {
    for (VictimProgress& victim : EditOp(op->op_id).victims) {
      if (victim.job != job.spec.name) continue;
      victim.lost_gpu_seconds += lost;
      victim.lost_steps += steps;
    }
  }
  return lost;
}

}  // namespace ckpt::core
