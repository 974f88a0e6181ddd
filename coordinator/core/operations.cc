// The stored transactions: each goes as far as the records allow, whenever they change.
#include <algorithm>

#include "coordinator/core/impl.h"
#include "libckpt/base/clock.h"

namespace ckpt::core {
namespace {

constexpr int64_t kStartBudgetNs = 600 * kSecondNs;  // granted or resumed, until registered
constexpr double kFetchBytesPerSecondMin = 50e6;     // slower than any network worth the name
constexpr int64_t kFetchBudgetNs = 60 * kSecondNs;
constexpr std::string_view kWithdrawn = "withdrawn";

}  // namespace

void Core::Impl::AdvanceOps() {
  for (const uint64_t op_id : std::set<uint64_t>(running_ops_)) {
    if (running_ops_.contains(op_id)) Advance(ops_.at(op_id));
  }
}

void Core::Impl::Advance(Operation& op) {
  switch (op.kind) {
    case OperationKind::kPreempt:
      return op.phase >= Phase::kGranted ? AdvanceGranted(op) : AdvancePreempt(op);
    case OperationKind::kMigrate:
      return AdvanceMigrate(op);
    case OperationKind::kSuspend:
      return AdvanceSuspend(op);
    case OperationKind::kResume:
      return AdvanceResume(op);
    case OperationKind::kCheckpoint:
      return AdvanceCheckpoint(op);
    case OperationKind::kCancel:
      return AdvanceCancel(op);
  }
}

Phase Core::Impl::PhaseOf(const Job& job) const {
  if (!IsLive(job.state)) return Phase::kReleased;
  if (job.last_stop.staged_ns != 0) return Phase::kStaged;
  if (job.last_stop.cut_ns != 0) return Phase::kQuiesced;
  return Phase::kNotified;
}

// Phases only go forward.
void Core::Impl::SetPhase(Operation& op, Phase phase) {
  if (phase <= op.phase) return;
  EditOp(op.op_id).phase = phase;
  const bool own = op.kind == OperationKind::kSuspend || op.kind == OperationKind::kMigrate;
  if (own && phase <= Phase::kReleased) {
    for (VictimProgress& self : op.victims) self.phase = phase;
  }
  settle_ = true;
}

void Core::Impl::FinishOp(Operation& op, OperationState state, Phase phase, std::string message) {
  EditOp(op.op_id);
  op.state = state;
  op.phase = phase;
  op.message = std::move(message);
  op.done_ns = now_.boot_ns;
  op.done_wall_ns = now_.wall_ns;
  running_ops_.erase(op.op_id);
  settle_ = true;
  const auto release = [&](const std::string& name) {
    Job* job = Find(name);
    if (job != nullptr && job->op_id == op.op_id) Edit(name).op_id = 0;
  };
  release(op.job);
  for (const VictimProgress& victim : op.victims) release(victim.job);
  const bool failed = state == OperationState::kFailed;
  EventRecord& line = Emit(failed ? "aborted" : "done", Find(op.job),
                           std::string(OperationKindName(op.kind)) + ": " + op.message);
  line.op_id = op.op_id;
}

// ---- preempt

void Core::Impl::AdvancePreempt(Operation& op) {
  const Job* newcomer = Find(op.job);
  if (newcomer == nullptr || !IsWaiting(newcomer->state)) {
    AbortPreempt(op, op.job + " no longer waits for capacity");
    return;
  }
  Phase least = Phase::kReleased;
  for (VictimProgress& victim : op.victims) {
    const Job* job = Find(victim.job);
    if (job == nullptr) continue;
    const bool live = IsLive(job->state);
    if (live && job->epoch != victim.epoch) {
      AbortPreempt(op, victim.job + " runs as another epoch than the one that was stopped");
      return;
    }
    const Phase phase = std::max(victim.phase, PhaseOf(*job));
    if (phase != victim.phase) EditOp(op.op_id);
    victim.phase = phase;
    least = std::min(least, phase);
  }
  SetPhase(op, least);
  if (least == Phase::kReleased) Grant(op);
}

// All nodes of all victims are measured free: the capacity changes hands in one step.
void Core::Impl::Grant(Operation& op) {
  for (const NodePlacement& place : op.placement) {
    if (!Connected(place.node)) return;  // until it is back, or the deadline
  }
  EditOp(op.op_id);
  op.granted_ns = now_.boot_ns;
  op.deadline_ns = now_.boot_ns + kStartBudgetNs;
  op.budget_ns = kStartBudgetNs;
  for (const VictimProgress& victim : op.victims) {
    Job* job = Find(victim.job);
    if (job == nullptr || job->op_id != op.op_id) continue;
    Edit(victim.job).op_id = 0;
    if (job->state == JobState::kPreempted) {
      job->reason = "preempted for " + op.job + "; " + FallbackOf(*job);
    }
  }
  SetPhase(op, Phase::kGranted);
  Job& newcomer = Edit(op.job);
  EventRecord& line = Emit("granted", &newcomer, Plural(newcomer.spec.ranks, "slot"));
  line.op_id = op.op_id;
  LaunchAt(newcomer, op.placement);
  op.epoch = newcomer.epoch;
}

void Core::Impl::AdvanceGranted(Operation& op) {
  const Job* newcomer = Find(op.job);
  const std::string granted =
      "granted " + Plural(newcomer == nullptr ? 0 : newcomer->spec.ranks, "slot");
  if (newcomer == nullptr || newcomer->state == JobState::kFailed ||
      newcomer->state == JobState::kCancelled) {
    FinishOp(op, OperationState::kFailed, Phase::kGranted,
             granted + ", but " + op.job +
                 " did not start: " + (newcomer == nullptr ? "it is gone" : newcomer->reason));
  } else if (newcomer->state != JobState::kStarting) {
    FinishOp(op, OperationState::kDone, Phase::kGranted, granted + " to " + op.job);
  }
}

// What undoes each state: a victim that is released goes back to its place, which was kept; one
// that still stops goes back as soon as it is released; one that runs is left alone.
void Core::Impl::AbortPreempt(Operation& op, const std::string& why) {
  std::vector<VictimProgress> victims = op.victims;
  std::string undone;
  for (const VictimProgress& victim : victims) {
    const Job* job = Find(victim.job);
    if (job == nullptr || job->op_id != op.op_id) continue;
    undone += "; " + victim.job +
              (job->state == JobState::kPreempted ? " is launched again in its place"
               : job->stop == StopPurpose::kPreempt
                   ? " runs on, or is launched again in its place once it has stopped"
                   : " runs on");
  }
  FinishOp(op, OperationState::kFailed, Phase::kAborted, why + undone);
  for (VictimProgress& victim : victims) UndoVictim(victim);
}

void Core::Impl::UndoVictim(VictimProgress& victim) {
  Job* job = Find(victim.job);
  if (job == nullptr || job->epoch != victim.epoch) return;
  Edit(victim.job);
  if (IsLive(job->state) && job->stop == StopPurpose::kPreempt) {
    TakeBackStop(*job);
  } else if (job->state == JobState::kPreempted) {
    RelaunchInPlace(*job);
  }
}

// ---- taken back

// What it stops has not been released.
bool Core::Impl::CanWithdraw(const Operation& op) {
  const bool stops = op.kind == OperationKind::kSuspend || op.kind == OperationKind::kPreempt ||
                     op.kind == OperationKind::kMigrate;
  return stops && op.state == OperationState::kRunning && op.phase < Phase::kReleased;
}

Reply Core::Impl::On(const Withdraw& request) {
  Operation* op = FindOp(request.op_id);
  if (op == nullptr) {
    return {NotFound("no operation " + std::to_string(request.op_id) + " is on record")};
  }
  const std::string name = std::string(OperationKindName(op->kind)) + " of " + op->job;
  if (op->state != OperationState::kRunning) {
    if (op->message.starts_with(kWithdrawn)) return {OkStatus(), op->job, op->op_id};
    return {FailedPrecondition(name + " has ended already: " + op->message)};
  }
  if (!CanWithdraw(*op)) {
    const std::string cancel = "`ckptctl cancel " + op->job + "` ends the job";
    const bool moves = op->kind == OperationKind::kMigrate;
    return {FailedPrecondition(name + " is " + std::string(PhaseName(op->phase)) +
                               " and cannot be withdrawn; " +
                               (moves ? "migrate it back when it is there" : cancel))};
  }
  EditOp(op->op_id);
  if (op->kind == OperationKind::kPreempt) {
    AbortPreempt(*op, std::string(kWithdrawn));
    return {OkStatus(), op->job, op->op_id};
  }
  Job& job = Edit(op->job);
  FinishOp(*op, OperationState::kFailed, Phase::kAborted,
           std::string(kWithdrawn) + "; " + op->job +
               " runs on, or is launched again in its place once it has stopped");
  if (IsLive(job.state) && !job.stop_kill) TakeBackStop(job);
  return {OkStatus(), op->job, op->op_id};
}

// ---- migrate

void Core::Impl::AdvanceMigrate(Operation& op) {
  Job* job = Find(op.job);
  if (job == nullptr || IsEnded(job->state)) {
    FinishOp(op, OperationState::kFailed, Phase::kAborted,
             op.job + " is " + std::string(job == nullptr ? "gone" : JobStateName(job->state)));
    return;
  }
  if (op.phase == Phase::kGranted) {
    if (job->epoch != op.epoch || !IsLive(job->state)) {
      MoveBack(op, "it failed on its new place: " + job->reason);
    } else if (job->state == JobState::kRunning) {
      FinishOp(op, OperationState::kDone, Phase::kGranted,
               op.from_node + " -> " + op.to_node + "; " + op.message);
    }
    return;
  }
  if (IsLive(job->state)) {
    SetPhase(op, PhaseOf(*job));
  } else if (op.phase < Phase::kReleased) {
    StartFetch(op);
  } else if (op.phase == Phase::kFetched) {
    EditOp(op.op_id);
    op.granted_ns = now_.boot_ns;
    op.budget_ns = kStartBudgetNs;
    op.deadline_ns = now_.boot_ns + kStartBudgetNs;
    LaunchAt(*job, op.placement);
    op.epoch = job->epoch;
    Emit("migrating", job, op.from_node + " -> " + op.to_node).op_id = op.op_id;
    SetPhase(op, Phase::kGranted);
  }
}

// Also after the target's return: the order carries the same number.
void Core::Impl::StartFetch(Operation& op) {
  Job& job = Edit(op.job);
  if (!job.last_stop_clean) {
    MoveBack(op, "it could not be stopped cleanly: " + job.reason);
    return;
  }
  EditOp(op.op_id);
  const auto copies = MergedCopies(job);
  Fetch fetch;
  fetch.job = op.job;
  fetch.from_node = op.from_node;
  fetch.from_data_address = nodes_.at(op.from_node).info.data_address;
  fetch.epoch = copies.empty() ? job.epoch : copies.front().epoch;
  fetch.attempt = copies.empty() ? 0 : copies.front().attempt;
  for (const VictimProgress& self : op.victims) {
    for (const NodePlacement& place : self.placement) {
      if (place.node != op.from_node) continue;
      for (uint32_t i = 0; i < place.rank_count; ++i) fetch.ranks.push_back(place.first_rank + i);
    }
  }
  if (op.command_op == 0) {
    op.command_op = MintOpId();
    const double bytes = copies.empty() ? 0 : static_cast<double>(copies.front().bytes);
    op.budget_ns = kFetchBudgetNs + static_cast<int64_t>(bytes / kFetchBytesPerSecondMin * 1e9);
    op.deadline_ns = now_.boot_ns + op.budget_ns;
    job.reason = "moves from " + op.from_node + " to " + op.to_node;
    Emit("fetching", &job, op.from_node + " -> " + op.to_node).node = op.to_node;
  }
  fetch.op_id = op.command_op;
  SetPhase(op, Phase::kReleased);
  SendTo(op.to_node, std::move(fetch));
}

// The old place was kept for this.
void Core::Impl::MoveBack(Operation& op, const std::string& why) {
  Job& job = Edit(op.job);
  const Placement old = op.victims.front().placement;
  if (!IsLive(job.state)) {
    const bool reachable = std::all_of(
        old.begin(), old.end(), [&](const NodePlacement& place) { return Connected(place.node); });
    if (reachable) {
      LaunchAt(job, old);
    } else {
      job.members.clear();  // remembered as its place, to go back to when its nodes do
      for (const NodePlacement& place : old) {
        job.members.push_back({place, NodeJobState::kReleased});
      }
      job.state = JobState::kPreempted;
      job.waiting_since_wall_ns = now_.wall_ns;
    }
  }
  const bool elsewhere = op.phase == Phase::kGranted && IsLive(job.state) && job.epoch == op.epoch;
  FinishOp(op, OperationState::kFailed, Phase::kAborted,
           why + "; " + op.job + (elsewhere ? " still starts there" : " goes on at its old place"));
}

// ---- suspend, resume, checkpoint, cancel

void Core::Impl::AdvanceSuspend(Operation& op) {
  const Job* job = Find(op.job);
  if (job != nullptr && IsLive(job->state) && job->stop == StopPurpose::kSuspend) {
    SetPhase(op, PhaseOf(*job));
    return;
  }
  if (job != nullptr && job->state == JobState::kSuspended) {
    SetPhase(op, Phase::kReleased);
    FinishOp(op, job->last_stop_clean ? OperationState::kDone : OperationState::kFailed,
             Phase::kReleased, job->reason);
  } else if (job != nullptr && job->state == JobState::kFinished) {
    FinishOp(op, OperationState::kDone, Phase::kReleased, op.job + " finished first");
  } else {
    FinishOp(op, OperationState::kFailed, Phase::kAborted,
             op.job + " is " + (job == nullptr ? "gone" : std::string(JobStateName(job->state))));
  }
}

void Core::Impl::AdvanceResume(Operation& op) {
  const Job* job = Find(op.job);
  if (job == nullptr || job->state == JobState::kFailed || job->state == JobState::kCancelled ||
      job->state == JobState::kSuspended) {
    FinishOp(op, OperationState::kFailed, Phase::kAborted,
             job == nullptr ? op.job + " is gone" : job->reason);
  } else if (job->state == JobState::kRunning || job->state == JobState::kFinished) {
    FinishOp(op, OperationState::kDone, Phase::kGranted,
             "runs as epoch " + std::to_string(job->epoch) +
                 (job->resumed_from.empty() ? "" : ", from " + job->resumed_from));
  } else if (IsWaiting(job->state) && job->behind_count > 0) {
    FinishOp(op, OperationState::kFailed, Phase::kAborted, job->reason);
  } else if (IsWaiting(job->state) && !job->reason.empty()) {
    FinishOp(op, OperationState::kDone, Phase::kReserved,
             "waits, and starts by itself: " + job->reason);
  } else if (job->state == JobState::kStarting) {
    op.epoch = job->epoch;
    if (op.phase < Phase::kGranted) op.granted_ns = now_.boot_ns;
    SetPhase(op, Phase::kGranted);
  }
}

// Under its number: an agent that has it already answers again and saves once.
void Core::Impl::SendSave(const Operation& op) {
  const Job* job = Find(op.job);
  if (job == nullptr || !IsLive(job->state) || job->epoch != op.epoch) return;
  SendTo(job->members.front().place.node,
         SaveNow{op.job, op.epoch, op.command_op, op.budget_ns / 1'000'000});
}

void Core::Impl::AdvanceCheckpoint(Operation& op) {
  const Job* job = Find(op.job);
  if (job == nullptr) {
    FinishOp(op, OperationState::kFailed, op.phase, op.job + " is gone");
    return;
  }
  for (const CopyState& copy : MergedCopies(*job)) {
    if (copy.Key() <= op.newest_before) break;
    if (copy.durable) {
      FinishOp(op, OperationState::kDone, Phase::kDone,
               "step " + std::to_string(copy.step) + " is durable");
      return;
    }
    if (!copy.failure.empty()) {
      FinishOp(op, OperationState::kFailed, op.phase, copy.failure);
      return;
    }
    if (copy.staged_gang) SetPhase(op, Phase::kStaged);
  }
  const bool hopeless =
      job->epoch != op.epoch || (!IsLive(job->state) && op.phase < Phase::kStaged);
  if (hopeless) {
    FinishOp(op, OperationState::kFailed, op.phase,
             op.job + " stopped before its save was durable: " + job->reason);
  }
}

void Core::Impl::AdvanceCancel(Operation& op) {
  const Job* job = Find(op.job);
  if (job != nullptr && !IsEnded(job->state)) return;
  FinishOp(op, OperationState::kDone, Phase::kReleased,
           op.job + " is " + (job == nullptr ? "gone" : std::string(JobStateName(job->state))));
}

// ---- deadlines

// What a gang has not released by its deadline is killed; the gang itself should have done so.
void Core::Impl::OverdueJobs() {
  for (const std::string& name : std::set<std::string>(stopping_)) {
    Job* job = Find(name);
    if (job == nullptr || !IsLive(job->state)) {
      stopping_.erase(name);
      continue;
    }
    ProbeSilentMembers(*job);
    const bool stops = job->stop != StopPurpose::kNone;
    // A kill that an agent hears of late would hit whatever is there then.
    if (stops && !job->stop_kill && !SilentNodes(*job).empty()) {
      job->stop_deadline_ns = std::max(job->stop_deadline_ns, now_.boot_ns);
      continue;
    }
    if (stops && !job->stop_kill && now_.boot_ns > job->stop_deadline_ns + options_.kill_slack_ns) {
      Emit("overdue", job, "not released by its deadline: killed");
      OrderKill(*job);
      continue;
    }
    const bool quiet = std::all_of(job->members.begin(), job->members.end(),
                                   [](const Member& m) { return m.heard || IsOver(m.state); });
    if (!stops && quiet) stopping_.erase(name);
  }
}

// Nodes that run `job` and say nothing: they may not hear either.
std::string Core::Impl::SilentNodes(const Job& job) const {
  std::string names;
  if (!IsLive(job.state)) return names;
  for (const Member& member : job.members) {
    const auto node = nodes_.find(member.place.node);
    const bool hears = node != nodes_.end() && node->second.connected &&
                       now_.boot_ns - node->second.heard_ns <= options_.quiet_ns;
    if (IsOver(member.state) || hears) continue;
    names += (names.empty() ? "" : ", ") + member.place.node;
  }
  return names;
}

std::string Core::Impl::SilenceOf(const Operation& op) const {
  std::string text;
  std::vector<std::string> names{op.job};
  for (const VictimProgress& victim : op.victims) {
    if (victim.job != op.job) names.push_back(victim.job);
  }
  for (const std::string& name : names) {
    const auto job = jobs_.find(name);
    const std::string silent = job == jobs_.end() ? "" : SilentNodes(job->second);
    if (!silent.empty()) text += "; node " + silent + ", which runs " + name + ", does not answer";
  }
  return text;
}

void Core::Impl::Overdue(Operation& op) {
  if (op.state != OperationState::kRunning) return;
  const bool stops = op.kind != OperationKind::kCheckpoint;
  const int64_t slack_ns = stops ? 3 * options_.kill_slack_ns : 0;
  if (now_.boot_ns <= op.deadline_ns + slack_ns) return;
  const std::string why = "not " +
                          std::string(op.phase >= Phase::kGranted ? "registered" : "done") +
                          " within " + FormatDuration(Nanos(op.budget_ns)) + " (it was " +
                          std::string(PhaseName(op.phase)) + ")" + SilenceOf(op);
  if (op.kind == OperationKind::kPreempt && op.phase < Phase::kGranted) {
    AbortPreempt(EditOp(op.op_id), why);
  } else if (op.kind == OperationKind::kMigrate) {
    Job* job = Find(op.job);
    const bool stopping = job != nullptr && job->stop == StopPurpose::kMigrate;
    if (stopping) TakeBackStop(*job);
    MoveBack(EditOp(op.op_id), why);
  } else {
    Job* job = Find(op.job);
    FinishOp(EditOp(op.op_id), OperationState::kFailed, op.phase, why);
    // It failed: so it does not happen later either.
    if (job != nullptr && job->stop == StopPurpose::kSuspend && !job->stop_kill) TakeBackStop(*job);
  }
}

}  // namespace ckpt::core
