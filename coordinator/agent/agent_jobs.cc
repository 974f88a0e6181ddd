// Launches: started, watched, stopped, killed to the last process, remembered.
#include <signal.h>

#include <algorithm>

#include "coordinator/agent/agent.h"
#include "coordinator/agent/launch_command.h"
#include "libckpt/base/log.h"
#include "libckpt/os/file.h"

namespace ckpt::agent {
namespace {

constexpr auto kLeftoverTime = std::chrono::seconds(30);
constexpr auto kLeftoverRetry = std::chrono::seconds(2);
constexpr uint64_t kLogTailBytes = 400;
// What a declared state takes in staging memory: two slots, and a little for headers.
constexpr double kStagingPerState = 2.2;

bool IsOver(v1::NodeJobState state) {
  return state == v1::NODE_JOB_RELEASED || state == v1::NODE_JOB_FINISHED ||
         state == v1::NODE_JOB_FAILED;
}

std::string Name(const v1::Launch& launch) {
  return "job " + launch.job() + " epoch " + std::to_string(launch.epoch());
}

uint64_t OpIdOf(const v1::CoordinatorMsg& command) {
  return command.has_stop() ? command.stop().op_id() : command.save().op_id();
}

std::string RunLogPath(const StateDir& state, const v1::Launch& launch) {
  return state.log_dir(launch.job()) + "/run.e" + std::to_string(launch.epoch()) + ".log";
}

// The end of ckpt-run's own log: what a person would look at first.
std::string LogTail(const std::string& path) {
  const auto file = os::PosixFileSystem().Open(path, os::OpenOptions::Read());
  if (!file.ok()) return "";
  const Result<uint64_t> size = (*file)->Size();
  if (!size.ok()) return "";
  const uint64_t begin = *size > kLogTailBytes ? *size - kLogTailBytes : 0;
  std::string tail(*size - begin, '\0');
  if (!(*file)->PRead(begin, std::as_writable_bytes(std::span(tail))).ok()) return "";
  while (!tail.empty() && tail.back() == '\n') tail.pop_back();
  return tail;
}

}  // namespace

// ---- an agent that comes back

Status Agent::Recover() {
  std::vector<std::string> problems;
  CKPT_ASSIGN_OR_RETURN(std::vector<StoredLaunch> launches, state_.LoadLaunches(&problems));
  for (const std::string& problem : problems) LogError(problem);
  for (StoredLaunch& stored : launches) RecoverOne(std::move(stored));
  return OkStatus();
}

void Agent::RecoverOne(StoredLaunch stored) {
  const JobKey key{stored.launch.job(), stored.launch.epoch()};
  LocalJob& job = jobs_[key];
  job.launch = std::move(stored.launch);
  job.report = std::move(stored.report);
  if (job.report.job().empty()) {
    job.report.set_job(key.first);
    job.report.set_epoch(key.second);
    job.report.set_node_rank(job.launch.node_rank());
    job.report.set_state(v1::NODE_JOB_STARTING);
    job.report.set_op_id(job.launch.op_id());
  }
  if (!stored.problem.empty()) {
    LogError(Name(job.launch) + ": " + stored.problem + "; what is left of it is ended");
    return EndLeftovers(key, "is not known any more: " + stored.problem);
  }
  Result<os::Pidfd> run = os::Pidfd::Open(static_cast<pid_t>(stored.process.pid));
  const Result<os::ProcessInfo> now = os::FindProcess(static_cast<pid_t>(stored.process.pid));
  const bool same = now.ok() && !now->ended && now->start_ticks == stored.process.start_ticks;
  if (stored.process.pid != 0 && run.ok() && same) {
    job.run = std::move(*run);
    LogInfo(Name(job.launch) + " still runs as process " + std::to_string(stored.process.pid));
    const bool takes = !IsOver(job.report.state()) && !job.launch.drain();
    if (takes) GrantFor(job.launch);  // it was promised that, and takes it when it needs it
    return WatchRun(key, &job);
  }
  constexpr const char* kAway = "ended while the agent was away";
  MarkLostCopies(&job, kAway);
  EndLeftovers(key, kAway);
}

// ---- launch

void Agent::OnLaunch(const v1::Launch& launch) {
  if (AnswerAgain(launch.op_id())) return;
  const LocalJob* known = FindJob(launch.job(), launch.epoch());
  const bool repeated = known != nullptr && known->launch.op_id() == launch.op_id();
  const Status status = launch.drain() ? Drain(launch) : repeated ? OkStatus() : Launch(launch);
  if (!status.ok()) LogError(Name(launch) + " is not launched: " + status.ToString());
  AnswerCommand(launch.op_id(), launch.job(), launch.epoch(), status);
  if (const LocalJob* job = FindJob(launch.job(), launch.epoch())) SendReport(*job);
}

Status Agent::Launch(const v1::Launch& launch) {
  CKPT_RETURN_IF_ERROR(CheckLaunch(launch, options_));
  for (const auto& [key, other] : jobs_) {
    if (key.first != launch.job()) continue;
    if (key.second >= launch.epoch()) {
      return FailedPrecondition("epoch " + std::to_string(key.second) + " of job " + key.first +
                                " is known here: a launch needs a higher one");
    }
    if (!other.ended && !IsOver(other.report.state())) {
      return FailedPrecondition("epoch " + std::to_string(key.second) + " of job " + key.first +
                                " still runs here");
    }
  }
  const JobKey key{launch.job(), launch.epoch()};
  LocalJob job;
  job.launch = launch;
  job.report.set_job(launch.job());
  job.report.set_epoch(launch.epoch());
  job.report.set_node_rank(launch.node_rank());
  job.report.set_state(v1::NODE_JOB_STARTING);
  job.report.set_op_id(launch.op_id());
  CKPT_RETURN_IF_ERROR(state_.SaveLaunch(launch));  // I5
  const Status started = StartRun(&job);
  if (!started.ok()) {
    state_.RemoveLaunch(launch.job(), launch.epoch()).IgnoreError();
    ledger_.EndGrant(key);
    return started;
  }
  LogInfo(Name(launch) + " runs as process " + std::to_string(job.run.pid()));
  LocalJob& kept = jobs_[key] = std::move(job);
  WatchRun(key, &kept);
  return OkStatus();
}

Status Agent::StartRun(LocalJob* job) {
  const v1::Launch& launch = job->launch;
  const LaunchPaths paths{state_.socket_path(), state_.log_dir(launch.job()),
                          state_.result_path(launch.job(), launch.epoch())};
  os::FileSystem& fs = os::PosixFileSystem();
  CKPT_RETURN_IF_ERROR(fs.MakeDirs(paths.log_dir));
  // A drain takes no memory: it gets what is held.
  const uint64_t budget =
      launch.drain() ? std::max<uint64_t>(held_.UsedBytes(launch.job()), 1) : GrantFor(launch);
  os::SpawnOptions spawn = LaunchCommand(launch, options_, paths, budget);
  CKPT_ASSIGN_OR_RETURN(const os::UniqueFd log, os::OpenAppend(RunLogPath(state_, launch)));
  spawn.stdout_fd = log.get();
  spawn.stderr_fd = log.get();
  CKPT_ASSIGN_OR_RETURN(job->run, os::Spawn(spawn));
  const Result<os::ProcessInfo> info = os::FindProcess(job->run.pid());
  if (!info.ok()) return OkStatus();  // it has ended already: its pidfd tells
  const Status saved = state_.SaveProcess(launch.job(), launch.epoch(),
                                          {.pid = info->pid, .start_ticks = info->start_ticks});
  if (saved.ok()) return saved;
  job->run.Signal(SIGKILL).IgnoreError();
  job->run.Reap(Deadline("ending a ckpt-run", kLeftoverTime)).status().IgnoreError();
  return saved;
}

// A job may take the share of the budget that its slots are of the node's, or twice what it says
// its state is; never what is held, or was promised, for others.
uint64_t Agent::GrantFor(const v1::Launch& launch) {
  const double share =
      static_cast<double>(options_.staging_budget_bytes) * launch.rank_count() / options_.slots;
  const double declared = static_cast<double>(launch.spec().state_bytes_per_rank()) *
                          launch.rank_count() * kStagingPerState;
  const auto wanted = static_cast<uint64_t>(std::max(share, declared));
  return std::max<uint64_t>(ledger_.Grant({launch.job(), launch.epoch()}, wanted),
                            1);  // 0 would mean "choose yourself"
}

// ---- a ckpt-run that starts no rank: it writes what one before it did not live to write

Status Agent::Drain(const v1::Launch& launch) {
  CKPT_RETURN_IF_ERROR(CheckLaunch(launch, options_));
  const JobKey key{launch.job(), launch.epoch()};
  LocalJob* job = FindJob(key.first, key.second);
  if (job != nullptr && job->report.drain_op() == launch.op_id()) return OkStatus();
  if (job != nullptr && !IsOver(job->report.state())) {
    return FailedPrecondition(Name(launch) + " still runs here");
  }
  CKPT_RETURN_IF_ERROR(CheckHolds(launch));
  if (job == nullptr || job->ended) return StartDrain(key, launch);
  // What it writes is begun again; what it holds is held here.
  LogWarning(Name(launch) + ": its ckpt-run makes no progress and is ended, another one writes");
  job->next_drain = std::make_unique<v1::Launch>(launch);
  job->report.set_drain_op(launch.op_id());
  job->report.clear_run_silent();
  if (job->run.valid()) job->run.Signal(SIGKILL).IgnoreError();
  return OkStatus();
}

Status Agent::CheckHolds(const v1::Launch& launch) const {
  for (const HeldCopies::Whole& whole : CopiesFor(launch)) {
    const AttemptId& id = whole.info.id;
    if (id.epoch.value() != launch.epoch()) continue;
    if (HoldsAll(launch, id.epoch.value(), id.attempt.value())) return OkStatus();
  }
  return FailedPrecondition("node " + options_.name + " holds no complete copy of epoch " +
                            std::to_string(launch.epoch()) + " of job " + launch.job());
}

Status Agent::StartDrain(const JobKey& key, const v1::Launch& launch) {
  const auto [entry, fresh] = jobs_.try_emplace(key);
  LocalJob& job = entry->second;
  job.launch = launch;
  if (fresh) {
    job.report.set_job(launch.job());
    job.report.set_epoch(launch.epoch());
    job.report.set_node_rank(launch.node_rank());
    job.report.set_state(v1::NODE_JOB_RELEASED);
  }
  job.kill_reason.clear();
  job.drain_words.clear();
  job.said.clear();
  job.report.set_drain_op(launch.op_id());
  job.report.set_run_ended(false);
  job.report.clear_run_silent();
  job.report.clear_held_up();
  job.report.clear_gang_address();
  Status started = state_.SaveLaunch(launch);  // I5
  if (started.ok()) started = state_.RemoveResult(key.first, key.second);
  if (started.ok()) started = state_.SaveReport(job.report);
  if (started.ok()) started = StartRun(&job);
  job.ended = !started.ok();
  job.report.set_run_ended(job.ended);
  if (!started.ok()) return started;
  LogInfo(Name(launch) + " is written by process " + std::to_string(job.run.pid()));
  WatchRun(key, &job);
  return OkStatus();
}

void Agent::WatchRun(const JobKey& key, LocalJob* job) {
  job->heard_ns = BoottimeNs();
  const Status status =
      loop_->AddFd(job->run.fd(), EPOLLIN, [this, key](uint32_t) { OnRunEnded(key); });
  if (!status.ok()) LogError(Name(job->launch) + " cannot be watched: " + status.ToString());
}

// ---- the end of a ckpt-run

void Agent::OnRunEnded(const JobKey& key) {
  LocalJob& job = jobs_.at(key);
  loop_->RemoveFd(job.run.fd());
  runs_->Drain(job.connection);  // its last words
  const Result<std::optional<os::ExitStatus>> status = job.run.TryReap();
  // Not our child if the agent was restarted meanwhile: its code went to init.
  const std::string how = status.ok() && *status ? (*status)->ToString() : "ended";
  job.run = os::Pidfd();
  loop_->CancelTimer(job.kill_timer);
  LogInfo(Name(job.launch) + ": ckpt-run " + how);
  EndLeftovers(key, how);
}

// Ranks that are still there die with their ckpt-run: nobody else would stop them.
void Agent::EndLeftovers(const JobKey& key, const std::string& how) {
  LocalJob& job = jobs_.at(key);
  for (const auto& [rank, pidfd] : job.ranks) pidfd.Signal(SIGKILL).IgnoreError();
  const std::string mark = LaunchMark(key.first, key.second, state_.socket_path());
  const Status queued = pool_->TrySubmit([this, key, how, mark] {
    Status status = os::KillProcessesWithEnv(mark, Deadline("ending ranks", kLeftoverTime));
    loop_->Post([this, key, how, status] { OnLeftoversEnded(key, how, status); });
  });
  if (!queued.ok()) OnLeftoversEnded(key, how, queued);
}

void Agent::OnLeftoversEnded(const JobKey& key, const std::string& how, const Status& status) {
  const auto it = jobs_.find(key);
  if (it == jobs_.end()) return;
  LocalJob& job = it->second;
  bool alive = !status.ok();
  for (const auto& [rank, pidfd] : job.ranks) {  // those that cleared their environment
    const Result<bool> ended = pidfd.HasEnded();
    alive = alive || !ended.ok() || !*ended;
  }
  if (alive) {  // I4
    job.report.set_state(v1::NODE_JOB_STOPPING);
    job.report.set_message("ckpt-run " + how + ", but not all ranks have ended yet" +
                           (status.ok() ? "" : ": " + status.message()));
    SendReport(job);
    loop_->AddTimer(kLeftoverRetry, [this, key, how] {
      if (jobs_.contains(key)) EndLeftovers(key, how);
    });
    return;
  }
  job.ended = true;
  ledger_.EndGrant(key);
  job.ranks.clear();
  if (job.next_drain != nullptr && !job.forget) {
    const std::unique_ptr<v1::Launch> drain = std::move(job.next_drain);
    const Status started = StartDrain(key, *drain);
    if (started.ok()) return SendReport(job);
    job.drain_words = started.message();
  }
  CloseReport(&job, how);
  if (job.forget) Erase(key);
}

// The last report of a launch: what its ckpt-run said, completed by what is known without it.
void Agent::CloseReport(LocalJob* job, const std::string& how) {
  const JobKey key = KeyOf(*job);
  // Its last words may not have come by the socket: this agent was away.
  Result<v1::JobReport> result = state_.LoadResult(key.first, key.second);
  if (result.ok()) TakeJobReport(job, std::move(*result));
  v1::JobReport& report = job->report;
  AddHeldCopies(job);
  MarkLostCopies(job, how);
  report.set_run_ended(true);
  report.clear_held_up();
  report.clear_run_silent();
  report.clear_rank_pids();
  const std::string log = RunLogPath(state_, job->launch);
  if (!IsOver(report.state())) {
    report.set_state(v1::NODE_JOB_FAILED);
    const std::string tail = LogTail(log);
    report.set_message(job->kill_reason.empty()
                           ? "ckpt-run " + how + "; see " + log + (tail.empty() ? "" : ": " + tail)
                           : "killed: " + job->kill_reason);
    if (report.times().released_ns() == 0) {
      report.mutable_times()->set_released_ns(BoottimeNs());
    }
  }
  for (v1::CopyState& copy : *report.mutable_copies()) {
    if (!copy.durable() && copy.failure().empty()) {
      copy.set_failure("ckpt-run " + how + " before it was durable" +
                       (job->drain_words.empty() ? "" : ": " + job->drain_words));
    }
  }
  for (const auto& [op_id, command] : std::exchange(job->unanswered, {})) {
    AnswerCommand(op_id, report.job(), report.epoch(), Unavailable("ckpt-run " + how));
  }
  for (const v1::CoordinatorMsg& command : std::exchange(job->waiting, {})) {
    AnswerCommand(OpIdOf(command), report.job(), report.epoch(), Unavailable("ckpt-run " + how));
  }
  const Status saved = state_.SaveReport(report);
  if (!saved.ok()) LogError("storing a report: " + saved.ToString());
  SendReport(*job);
}

// ---- stop, save, kill

void Agent::OnStop(const v1::CoordinatorMsg& message) {
  const bool stop = message.has_stop();
  const uint64_t op_id = OpIdOf(message);
  const std::string& name = stop ? message.stop().job() : message.save().job();
  const uint64_t epoch = stop ? message.stop().epoch() : message.save().epoch();
  LocalJob* job = FindJob(name, epoch);
  if (stop && message.stop().kind() == v1::STOP_WITHDRAW) return OnWithdraw(job, message);
  if (AnswerAgain(op_id)) return;
  if (job == nullptr || job->ended) {
    return AnswerCommand(op_id, name, epoch,
                         NotFound("job " + name + " epoch " + std::to_string(epoch) +
                                  (job == nullptr ? " is not known here" : " has ended here")));
  }
  if (stop && message.stop().kind() == v1::STOP_KILL) return OnKill(job, message);
  if (job->unanswered.contains(op_id)) return;  // its ckpt-run has it
  Forward(job, message);
}

// ckpt-run ends its ranks itself if it can, so that it goes on writing what it holds; if it does
// not within the grace, or is not there, everything of the launch is killed.
void Agent::OnKill(LocalJob* job, const v1::CoordinatorMsg& message) {
  const JobKey key = KeyOf(*job);
  const v1::Stop& stop = message.stop();
  job->kill_reason = "ordered by " + (stop.source().empty() ? "the coordinator" : stop.source());
  AnswerCommand(stop.op_id(), key.first, key.second, OkStatus());
  const bool writes = job->next_drain != nullptr || job->launch.drain();
  job->next_drain.reset();
  if (writes) return KillRun(key);
  if (IsOver(job->report.state())) return;  // only its writers are left
  if (job->connection == 0) return KillRun(key);
  Forward(job, message);
  const Nanos asked = std::chrono::milliseconds(std::max<int64_t>(stop.deadline_ms(), 0));
  loop_->CancelTimer(job->kill_timer);
  job->kill_timer = loop_->AddTimer(std::min(asked, options_.kill_grace), [this, key] {
    const LocalJob* late = FindJob(key.first, key.second);
    if (late != nullptr && !IsOver(late->report.state())) KillRun(key);
  });
}

// Of an order that has not left this agent nothing more is heard; a gang that has it decides.
void Agent::OnWithdraw(LocalJob* job, const v1::CoordinatorMsg& message) {
  const v1::Stop& stop = message.stop();
  if (job == nullptr || job->ended) return;
  const size_t waiting =
      std::erase_if(job->waiting, [&](const auto& other) { return OpIdOf(other) == stop.op_id(); });
  const bool told = job->unanswered.contains(stop.op_id()) || results_.contains(stop.op_id());
  if (waiting != 0 || !told) {
    return AnswerCommand(stop.op_id(), stop.job(), stop.epoch(),
                         Cancelled("withdrawn before it was passed on"));
  }
  if (job->connection == 0) return job->waiting.push_back(message);
  const wire::Command command{message.SerializeAsString()};
  const Status sent =
      runs_->Send(job->connection, {static_cast<uint32_t>(next_request_++), command});
  if (!sent.ok()) LogWarning(Name(job->launch) + ": " + sent.ToString());
}

void Agent::KillRun(const JobKey& key) {
  LocalJob& job = jobs_.at(key);
  LogWarning(Name(job.launch) + " is killed, " + job.kill_reason);
  if (!job.run.valid()) return;  // its leftovers are being ended
  for (const auto& [rank, pidfd] : job.ranks) pidfd.Signal(SIGKILL).IgnoreError();
  job.run.Signal(SIGKILL).IgnoreError();
}

void Agent::Forward(LocalJob* job, const v1::CoordinatorMsg& message) {
  const uint64_t op_id = OpIdOf(message);
  if (job->connection == 0) {
    const bool known = std::any_of(job->waiting.begin(), job->waiting.end(),
                                   [&](const auto& other) { return OpIdOf(other) == op_id; });
    if (!known) job->waiting.push_back(message);  // until it has connected
    return;
  }
  const bool withdraws = message.has_stop() && message.stop().kind() == v1::STOP_WITHDRAW;
  if (!results_.contains(op_id) && !withdraws) job->unanswered[op_id] = message;
  const auto request = static_cast<uint32_t>(next_request_++);
  const Status sent =
      runs_->Send(job->connection, {request, wire::Command{message.SerializeAsString()}});
  if (!sent.ok()) LogWarning(Name(job->launch) + ": " + sent.ToString());
}

// ---- forget

void Agent::OnForget(const v1::Forget& forget) {
  if (forget.drop_copies()) {
    const uint64_t freed = held_.DropEpoch(forget.job(), forget.epoch());
    LogInfo("copies of job " + forget.job() + " epoch " + std::to_string(forget.epoch()) +
            " are dropped: " + FormatBytes(freed) + " free");
    SendHeartbeat();
  }
  LocalJob* job = FindJob(forget.job(), forget.epoch());
  if (job == nullptr) return;
  if (job->ended) return Erase(KeyOf(*job));
  job->forget = true;
  if (!job->launch.drain()) return;
  job->kill_reason = "what it writes is not wanted any more";
  KillRun(KeyOf(*job));
}

void Agent::Erase(const JobKey& key) {
  const auto it = jobs_.find(key);
  if (it == jobs_.end()) return;
  runs_->Drop(it->second.connection);
  jobs_.erase(it);
  const Status removed = state_.RemoveLaunch(key.first, key.second);
  if (!removed.ok()) LogWarning("forgetting a launch: " + removed.ToString());
}

// ---- small

void Agent::SendReport(const LocalJob& job) {
  v1::AgentMsg message;
  *message.mutable_job() = job.report;
  Send(std::move(message));
}

Agent::LocalJob* Agent::FindJob(const std::string& job, uint64_t epoch) {
  const auto it = jobs_.find({job, epoch});
  return it == jobs_.end() ? nullptr : &it->second;
}

}  // namespace ckpt::agent
