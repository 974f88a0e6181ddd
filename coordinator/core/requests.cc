// What people and schedulers ask for. Everything is checked before anything is stopped, and every
// refusal says what would work.
#include <algorithm>

#include "coordinator/core/impl.h"
#include "libckpt/base/clock.h"
#include "libckpt/base/ids.h"
#include "libckpt/base/limits.h"

namespace ckpt::core {
namespace {

constexpr int64_t kStopBudgetNs = 30 * kSecondNs;
constexpr double kSlowestStagingBytesPerSecond = 0.25e9;
constexpr int64_t kResumeBudgetNs = 600 * kSecondNs;
constexpr int64_t kCheckpointBudgetNs = 600 * kSecondNs;

Reply Refuse(Status status) { return Reply{std::move(status)}; }

std::string Verb(const char* verb, const std::string& job) {
  return "`ckptctl " + std::string(verb) + " " + job + "`";
}

std::string ClassNames() { return "realtime, evaluation, training, batch"; }

bool KnownClass(const std::string& name) {
  return name.empty() || name == "realtime" || name == "evaluation" || name == "training" ||
         name == "batch";
}

}  // namespace

// ---- submit

Status Core::Impl::CheckSpec(const JobSpec& spec) const {
  CKPT_RETURN_IF_ERROR(CheckName("job", spec.name));
  if (spec.command.empty() || spec.command.front().empty()) {
    return InvalidArgument("job " + spec.name + " has no command: put it after `--`");
  }
  if (spec.ranks == 0 || spec.ranks > kRanksMax) {
    return InvalidArgument("job " + spec.name + " asks for " + std::to_string(spec.ranks) +
                           " ranks; 1 to " + std::to_string(kRanksMax) + " are possible");
  }
  if (!KnownClass(spec.job_class)) {
    return InvalidArgument("job " + spec.name + " has the unknown class \"" + spec.job_class +
                           "\"; known are " + ClassNames());
  }
  return OkStatus();
}

Status Core::Impl::CheckFitsCluster(const JobSpec& spec) const {
  if (nodes_.empty()) {
    return FailedPrecondition(
        "no agent has connected to this coordinator yet: start "
        "`ckpt-agent` on each node, see `ckptctl nodes`");
  }
  uint64_t slots = 0;
  uint64_t fitting = 0;
  std::string budgets;
  for (const auto& [name, node] : nodes_) {
    slots += node.info.slots;
    fitting += RanksThatFit({name, node.info.slots, node.info.staging_budget_bytes},
                            spec.state_bytes_per_rank);
    budgets += (budgets.empty() ? "" : ", ") + name + " " + Plural(node.info.slots, "slot") + " " +
               FormatBytes(node.info.staging_budget_bytes);
  }
  if (spec.ranks > slots) {
    return FailedPrecondition("job " + spec.name + " needs " + Plural(spec.ranks, "slot") +
                              "; the whole cluster has " + std::to_string(slots) + " on " +
                              Plural(nodes_.size(), "node"));
  }
  if (spec.ranks > fitting) {
    return FailedPrecondition(
        "job " + spec.name + " declares " + FormatBytes(spec.state_bytes_per_rank) +
        " of state a rank; within the staging budgets (" + budgets + ") only " +
        std::to_string(fitting) + " of its " + std::to_string(spec.ranks) +
        " ranks could be staged: raise --staging-budget of the agents");
  }
  return OkStatus();
}

Reply Core::Impl::On(const PutJob& request) {
  const JobSpec& spec = request.spec;
  if (const Job* job = Find(spec.name)) {
    if (request.op_id != 0 && job->put_op_id == request.op_id) return {OkStatus(), spec.name};
    return Refuse(AlreadyExists("the name " + spec.name + " is in use by a job that is " +
                                std::string(JobStateName(VisibleState(*job))) +
                                ": choose another name (" + Verb("job", spec.name) + " shows it)"));
  }
  Status status = CheckSpec(spec);
  if (status.ok()) status = CheckFitsCluster(spec);
  if (!status.ok()) return Refuse(std::move(status));
  Job& job = jobs_[spec.name];
  Edit(spec.name);
  job.spec = spec;
  if (job.spec.job_class.empty()) job.spec.job_class = "training";
  job.put_op_id = request.op_id;
  job.submitted_wall_ns = job.waiting_since_wall_ns = now_.wall_ns;
  Emit("submitted", &job,
       Plural(spec.ranks, "rank") + ", priority " + std::to_string(spec.priority) + ", " +
           job.spec.job_class);
  settle_ = true;
  return {OkStatus(), spec.name};
}

// ---- what all others share

std::optional<Reply> Core::Impl::Repeated(uint64_t op_id, OperationKind kind,
                                          const std::string& job) const {
  const auto it = ops_.find(op_id);
  if (op_id == 0 || it == ops_.end()) return std::nullopt;
  const Operation& op = it->second;
  if (op.kind != kind || (!job.empty() && op.job != job)) {
    return Refuse(InvalidArgument("operation id " + std::to_string(op_id) +
                                  " belongs to another request: " +
                                  std::string(OperationKindName(op.kind)) + " of " + op.job));
  }
  return Reply{OkStatus(), op.job, op_id};
}

Result<Job*> Core::Impl::JobForRequest(const std::string& name, uint64_t epoch) {
  Job* job = Find(name);
  if (job == nullptr) {
    return NotFound("no job is named " + name + "; `ckptctl jobs` lists them");
  }
  if (epoch != 0 && epoch != job->epoch) {
    return FailedPrecondition("job " + name + " is at epoch " + std::to_string(job->epoch) +
                              ", not " + std::to_string(epoch) + ": it has been launched since");
  }
  return job;
}

Status Core::Impl::CheckIdle(const Job& job, const char* verb) const {
  if (job.op_id == 0) return OkStatus();
  const auto it = ops_.find(job.op_id);
  const std::string kind =
      it == ops_.end() ? "an operation" : std::string(OperationKindName(it->second.kind));
  const std::string id = std::to_string(job.op_id);
  const bool back = it != ops_.end() && CanWithdraw(it->second);
  return FailedPrecondition("cannot " + std::string(verb) + " " + job.spec.name + ": " + kind +
                            " (operation " + id + ") is in progress; wait for it, " +
                            (back ? "take it back with " + Verb("withdraw", id) + ", " : "") +
                            "or " + Verb("cancel", job.spec.name));
}

Status Core::Impl::CheckCanSuspend(const Job& job) const {
  for (const Method& method : job.methods) {
    if (method.name != "suspend") continue;
    if (method.yes) return OkStatus();
    return FailedPrecondition("job " + job.spec.name + " cannot be suspended: " + method.reason);
  }
  return FailedPrecondition("job " + job.spec.name +
                            " has not said that it can be suspended: its program has not called "
                            "`track` and `step` on every rank yet, or does not use libckpt");
}

// `job` may be null; it becomes part of the operation.
Operation& Core::Impl::NewOp(uint64_t op_id, OperationKind kind, Job* job, int64_t budget_ns) {
  if (op_id == 0) op_id = MintOpId();
  Operation& op = ops_[op_id];
  EditOp(op_id);
  op.op_id = op_id;
  op.kind = kind;
  op.started_ns = now_.boot_ns;
  op.budget_ns = budget_ns;
  op.deadline_ns = now_.boot_ns + budget_ns;
  running_ops_.insert(op_id);
  settle_ = true;
  if (job != nullptr) {
    op.job = job->spec.name;
    op.epoch = job->epoch;
    Edit(op.job).op_id = op_id;
  }
  return op;
}

Reply Core::Impl::Done(Operation& op, std::string message) {
  FinishOp(op, OperationState::kDone, Phase::kDone, std::move(message));
  return {OkStatus(), op.job, op.op_id};
}

// Grows with the bytes that the busiest node has to stage.
int64_t Core::Impl::DefaultBudgetNs(const Job& job) const {
  uint32_t most = 1;
  for (const Member& member : job.members) most = std::max(most, member.place.rank_count);
  const double bytes = static_cast<double>(BytesPerRank(job)) * most;
  const double seconds = bytes / kSlowestStagingBytesPerSecond + 2 * job.step_seconds;
  return kStopBudgetNs + static_cast<int64_t>(seconds * 1e9);
}

namespace {
// Ten years at most: what a person writes must not overflow.
int64_t BudgetOr(int64_t deadline_ms, int64_t fallback_ns) {
  constexpr int64_t kDeadlineMsMax = int64_t{10} * 365 * 86'400'000;
  return deadline_ms > 0 ? std::min(deadline_ms, kDeadlineMsMax) * 1'000'000 : fallback_ns;
}
}  // namespace

// ---- suspend, checkpoint, cancel, resume

Reply Core::Impl::On(const Suspend& request) {
  if (auto repeated = Repeated(request.op_id, OperationKind::kSuspend, request.job)) {
    return *repeated;
  }
  auto found = JobForRequest(request.job, request.epoch);
  if (!found.ok()) return Refuse(found.status());
  Job& job = **found;
  if (job.state == JobState::kSuspended && job.op_id == 0) {
    return Done(NewOp(request.op_id, OperationKind::kSuspend, &job, 0),
                "already suspended; " + FallbackOf(job));
  }
  if (job.stop == StopPurpose::kSuspend && FindOp(job.op_id) != nullptr) {
    return {OkStatus(), request.job, job.op_id};  // the one in progress
  }
  Status status = CheckIdle(job, "suspend");
  if (status.ok() && (job.state == JobState::kStarting || IsEnded(job.state) ||
                      job.state == JobState::kSuspending)) {
    status =
        FailedPrecondition("job " + request.job + " is " + std::string(JobStateName(job.state)) +
                           "; only one that runs or waits can be suspended");
  }
  if (status.ok() && !IsWaiting(job.state)) status = CheckCanSuspend(job);
  if (!status.ok()) return Refuse(std::move(status));
  if (IsWaiting(job.state)) {
    Operation& op = NewOp(request.op_id, OperationKind::kSuspend, &job, 0);
    job.state = JobState::kSuspended;
    job.reason = "suspended while it waited; " + FallbackOf(job);
    return Done(op, job.reason);
  }
  const int64_t budget_ns = BudgetOr(request.deadline_ms, DefaultBudgetNs(job));
  Operation& op = NewOp(request.op_id, OperationKind::kSuspend, &job, budget_ns);
  op.victims.push_back({job.spec.name, job.epoch, Phase::kNotified, {}, PlacementOf(job)});
  SetPhase(op, Phase::kNotified);
  op.message = TooShort(job, budget_ns);
  Emit("suspending", &job, "asked by an operator" + (op.message.empty() ? "" : "; " + op.message));
  BeginStop(job, StopPurpose::kSuspend, false, budget_ns);
  return {OkStatus(), request.job, op.op_id};
}

Reply Core::Impl::On(const Checkpoint& request) {
  if (auto repeated = Repeated(request.op_id, OperationKind::kCheckpoint, request.job)) {
    return *repeated;
  }
  auto found = JobForRequest(request.job, request.epoch);
  if (!found.ok()) return Refuse(found.status());
  Job& job = **found;
  Status status = CheckIdle(job, "checkpoint");
  if (status.ok() && job.state != JobState::kRunning) {
    status =
        FailedPrecondition("job " + request.job + " is " + std::string(JobStateName(job.state)) +
                           "; only one that runs can be asked for a checkpoint");
  }
  const std::string lost = OutOfReach(job);
  if (status.ok() && !lost.empty()) {
    status = Unavailable("job " + request.job + " runs on node " + lost +
                         ", which is out of reach; nothing was asked of it");
  }
  if (!status.ok()) return Refuse(std::move(status));
  const int64_t budget_ns = BudgetOr(request.deadline_ms, kCheckpointBudgetNs);
  Operation& op = NewOp(request.op_id, OperationKind::kCheckpoint, &job, budget_ns);
  op.command_op = MintOpId();
  const auto copies = MergedCopies(job);
  if (!copies.empty()) op.newest_before = copies.front().Key();
  SetPhase(op, Phase::kNotified);
  SendSave(op);
  return {OkStatus(), request.job, op.op_id};
}

Reply Core::Impl::On(const Cancel& request) {
  if (auto repeated = Repeated(request.op_id, OperationKind::kCancel, request.job)) {
    return *repeated;
  }
  auto found = JobForRequest(request.job, request.epoch);
  if (!found.ok()) return Refuse(found.status());
  Job& job = **found;
  if (job.stop == StopPurpose::kCancel && FindOp(job.op_id) != nullptr) {
    return {OkStatus(), request.job, job.op_id};
  }
  const int64_t budget_ns = BudgetOr(request.deadline_ms, kStopBudgetNs);
  Operation* other = FindOp(job.op_id);
  const bool is_victim =
      other != nullptr && other->kind == OperationKind::kPreempt && other->job != request.job;
  const uint64_t other_id = is_victim || other == nullptr ? 0 : other->op_id;
  Operation& op = NewOp(request.op_id, OperationKind::kCancel, &job, budget_ns);
  if (other_id != 0 && running_ops_.contains(other_id)) {
    Operation& overridden = EditOp(other_id);
    const std::string why = request.job + " is being cancelled";
    if (overridden.kind == OperationKind::kPreempt && overridden.phase < Phase::kGranted) {
      AbortPreempt(overridden, why);
    } else {
      FinishOp(overridden, OperationState::kFailed, Phase::kAborted, why);
    }
  }
  const bool drops = job.state == JobState::kFailed ||
                     (job.state == JobState::kFinished && Undrained(job).has_value());
  if (drops) {
    // Nothing stops any more, but what it keeps in RAM goes.
    EndJob(job, JobState::kCancelled, "cancelled after it " + std::string(JobStateName(job.state)));
    return Done(op, request.job + " is cancelled; its copies in RAM are dropped");
  }
  if (IsEnded(job.state)) {
    return Done(op, request.job + " is " + std::string(JobStateName(job.state)) + " already");
  }
  if (!IsLive(job.state)) {
    EndJob(job, JobState::kCancelled, "cancelled");
    return Done(op, request.job + " is cancelled");
  }
  SetPhase(op, Phase::kNotified);
  job.reason = "being cancelled";
  BeginStop(job, StopPurpose::kCancel, true, budget_ns);
  return {OkStatus(), request.job, op.op_id};
}

Reply Core::Impl::On(const Resume& request) {
  if (auto repeated = Repeated(request.op_id, OperationKind::kResume, request.job)) {
    return *repeated;
  }
  auto found = JobForRequest(request.job, 0);
  if (!found.ok()) return Refuse(found.status());
  Job& job = **found;
  if (job.state == JobState::kRunning || job.state == JobState::kStarting) {
    if (const Operation* op = FindOp(job.op_id); op && op->kind == OperationKind::kResume) {
      return {OkStatus(), request.job, job.op_id};
    }
    return Refuse(FailedPrecondition("job " + request.job + " is " +
                                     std::string(JobStateName(job.state)) +
                                     " already: there is nothing to resume"));
  }
  Status status = CheckIdle(job, "resume");
  if (status.ok() && (job.state == JobState::kFinished || job.state == JobState::kCancelled)) {
    status = FailedPrecondition("job " + request.job + " is " +
                                std::string(JobStateName(job.state)) + " and cannot be resumed");
  }
  if (status.ok() && IsLive(job.state)) {
    status = FailedPrecondition("job " + request.job +
                                " is still being stopped; resume it when it is suspended");
  }
  if (!status.ok()) return Refuse(std::move(status));
  Operation& op = NewOp(request.op_id, OperationKind::kResume, &job, kResumeBudgetNs);
  if (!request.nodes.empty()) {
    status = ResumeOn(job, request, op);
    if (!status.ok()) {
      running_ops_.erase(op.op_id);
      dirty_ops_.erase(op.op_id);
      ops_.erase(op.op_id);
      job.op_id = 0;
      return Refuse(std::move(status));
    }
    return {OkStatus(), request.job, op.op_id};
  }
  if (request.from_store) GiveUpCopies(job);
  if (job.state == JobState::kFailed) job.restart_count = 0;
  job.state = job.state == JobState::kPreempted ? job.state : JobState::kPending;
  job.waiting_since_wall_ns = now_.wall_ns;
  job.start_after_ns = 0;  // a person wants it now
  job.behind_count = 0;
  job.reason.clear();
  return {OkStatus(), request.job, op.op_id};
}

// What is newer than the newest durable one, or that one if nothing is. It is not asked for any
// more; what is found, in RAM or in the store, is still taken.
void Core::Impl::GiveUpCopies(Job& job) {
  const auto copies = MergedCopies(job);
  std::set<std::array<int64_t, 3>> given_up;
  for (const CopyState& copy : copies) {
    if (job.given_up.contains(copy.Key())) given_up.insert(copy.Key());
  }
  const CopyState* left = nullptr;
  for (const CopyState& copy : copies) {
    if (given_up.contains(copy.Key()) || (!copy.durable && !copy.staged_gang)) continue;
    if (copy.durable && left != nullptr) break;
    given_up.insert(copy.Key());
    if (left == nullptr) left = &copy;
    if (copy.durable) break;
  }
  if (left == nullptr) return;
  Edit(job.spec.name).given_up = std::move(given_up);
  Emit("copy_given_up", &job,
       "step " + std::to_string(left->step) + " is gone on without if it is not found");
}

// The operator has chosen the nodes: there and now, or a refusal.
Status Core::Impl::ResumeOn(Job& job, const Resume& request, Operation& op) {
  const std::vector<std::string>& nodes = request.nodes;
  std::vector<Room> rooms;
  for (const Room& room : Rooms(op.op_id)) {
    if (std::find(nodes.begin(), nodes.end(), room.node) != nodes.end()) rooms.push_back(room);
  }
  for (const std::string& node : nodes) {
    if (!Connected(node)) {
      return FailedPrecondition("node " + node + " is not connected; `ckptctl nodes` lists them");
    }
  }
  auto place = OldPlace(job, rooms);
  const bool lost = std::any_of(job.members.begin(), job.members.end(),
                                [&](const Member& m) { return !Connected(m.place.node); });
  const bool bound = !place && BoundToRam(job);
  if (bound && !lost && !request.from_store) {
    return FailedPrecondition("elsewhere its newest copy would be left behind: it " +
                              FallbackOf(job) + "; with --from-store it is");
  }
  if (!place) place = Place(job.spec.ranks, BytesPerRank(job), rooms);
  if (!place) return ResourceExhausted("on the nodes named: " + WhatIsShort(job, rooms));
  if (request.from_store || bound) GiveUpCopies(job);  // nothing is refused any more
  if (job.state == JobState::kFailed) job.restart_count = 0;
  LaunchAt(job, *place);
  return OkStatus();
}

// ---- migrate

Status Core::Impl::CheckMigrate(const Job& job, const Migrate& request) const {
  const auto source = std::find_if(job.members.begin(), job.members.end(), [&](const Member& m) {
    return m.place.node == request.from_node;
  });
  if (job.state != JobState::kRunning) {
    return FailedPrecondition("job " + request.job + " is " + std::string(JobStateName(job.state)) +
                              "; only one that runs can be migrated");
  }
  if (source == job.members.end()) {
    return InvalidArgument("job " + request.job + " has no rank on node " + request.from_node +
                           "; " + Verb("job", request.job) + " shows where it runs");
  }
  for (const Member& member : job.members) {
    if (member.place.node == request.to_node) {
      return InvalidArgument("node " + request.to_node + " runs ranks of " + request.job +
                             " already; choose one that runs none");
    }
    if (!Connected(member.place.node)) {
      return Unavailable("node " + member.place.node + " is out of reach");
    }
  }
  if (!Connected(request.to_node)) {
    return FailedPrecondition("no agent of a node " + request.to_node +
                              " is connected; `ckptctl nodes` lists them");
  }
  if (nodes_.at(request.from_node).info.data_address.empty()) {
    return FailedPrecondition("node " + request.from_node + " serves no copies to others");
  }
  CKPT_RETURN_IF_ERROR(CheckCanSuspend(job));
  for (const Room& room : Rooms()) {
    if (room.node != request.to_node) continue;
    const uint32_t ranks = source->place.rank_count;
    if (room.slots < ranks) {
      return ResourceExhausted("node " + room.node + " has " + Plural(room.slots, "free slot") +
                               "; the ranks on " + request.from_node + " need " +
                               std::to_string(ranks));
    }
    if (RanksThatFit(room, BytesPerRank(job)) < ranks) {
      return ResourceExhausted("node " + room.node + " has " + FormatBytes(room.staging_bytes) +
                               " of staging RAM free; the ranks on " + request.from_node +
                               " need " + FormatBytes(BytesPerRank(job) * ranks));
    }
  }
  return OkStatus();
}

Reply Core::Impl::On(const Migrate& request) {
  if (auto repeated = Repeated(request.op_id, OperationKind::kMigrate, request.job)) {
    return *repeated;
  }
  auto found = JobForRequest(request.job, 0);
  if (!found.ok()) return Refuse(found.status());
  Job& job = **found;
  Status status = CheckIdle(job, "migrate");
  if (status.ok()) status = CheckMigrate(job, request);
  if (!status.ok()) return Refuse(std::move(status));
  const int64_t budget_ns = BudgetOr(request.deadline_ms, DefaultBudgetNs(job));
  Operation& op = NewOp(request.op_id, OperationKind::kMigrate, &job, budget_ns);
  op.from_node = request.from_node;
  op.to_node = request.to_node;
  op.placement = PlacementOf(job);
  for (NodePlacement& place : op.placement) {
    if (place.node == request.from_node) place.node = request.to_node;
  }
  op.victims.push_back({job.spec.name, job.epoch, Phase::kNotified, {}, PlacementOf(job)});
  SetPhase(op, Phase::kNotified);
  Emit("migrating", &job, request.from_node + " -> " + request.to_node);
  Emit("suspending", &job, "to migrate");
  BeginStop(job, StopPurpose::kMigrate, false, budget_ns);
  return {OkStatus(), request.job, op.op_id};
}

// ---- quote and apply

Reply Core::Impl::On(const Quote& request) {
  auto found = JobForRequest(request.job, 0);
  if (!found.ok()) return Refuse(found.status());
  const Job& job = **found;
  const int64_t budget_ns = BudgetOr(request.deadline_ms, 0);
  if (!IsWaiting(job.state) || job.op_id != 0) {
    return Refuse(FailedPrecondition("job " + request.job + " is " +
                                     std::string(JobStateName(VisibleState(job))) +
                                     (job.op_id != 0 ? " with an operation in progress" : "") +
                                     " and waits for no capacity: there is nothing to quote"));
  }
  auto plan = MakePlan(job, budget_ns);
  if (!plan.ok()) return Refuse(std::move(plan).status());
  plans_.push_back({*plan, job.epoch, budget_ns});
  if (plans_.size() > options_.plans_max) plans_.pop_front();
  Reply reply;
  reply.job = request.job;
  reply.plan = std::move(plan).value();
  return reply;
}

Reply Core::Impl::On(const Apply& request) {
  if (auto repeated = Repeated(request.op_id, OperationKind::kPreempt, "")) return *repeated;
  const auto entry = std::find_if(plans_.begin(), plans_.end(),
                                  [&](const PlanEntry& e) { return e.plan.id == request.plan_id; });
  if (entry == plans_.end()) {
    return Refuse(NotFound("no plan " + request.plan_id +
                           " is known (plans do not outlive the coordinator): quote again"));
  }
  Plan plan;
  Status status = Revalidate(*entry, request.deadline_ms, &plan);
  if (!status.ok()) return Refuse(std::move(status));
  Job& newcomer = Edit(plan.job);
  int64_t budget_ns = kStopBudgetNs;
  for (const VictimQuote& victim : plan.victims) {
    budget_ns = std::max(budget_ns, DefaultBudgetNs(jobs_.at(victim.job)));
  }
  budget_ns = BudgetOr(request.deadline_ms, budget_ns);
  Operation& op = NewOp(request.op_id, OperationKind::kPreempt, &newcomer, budget_ns);
  op.placement = plan.placement;
  op.phase = Phase::kReserved;
  Emit("reserved", &newcomer, Plural(newcomer.spec.ranks, "slot") + " for " + plan.job);
  for (const VictimQuote& quoted : plan.victims) {
    Job& victim = Edit(quoted.job);
    victim.op_id = op.op_id;
    op.victims.push_back({quoted.job, victim.epoch, Phase::kNotified, {}, PlacementOf(victim)});
    const std::string warning = TooShort(victim, budget_ns);
    if (!warning.empty()) op.message += (op.message.empty() ? "" : "; ") + warning;
    Emit("suspending", &victim,
         "to make room for " + plan.job + (warning.empty() ? "" : "; " + warning));
    BeginStop(victim, StopPurpose::kPreempt, false, budget_ns);
  }
  if (!plan.victims.empty()) SetPhase(op, Phase::kNotified);
  return {OkStatus(), plan.job, op.op_id};
}

}  // namespace ckpt::core
