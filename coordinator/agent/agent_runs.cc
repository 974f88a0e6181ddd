// What ckpt-runs say to their agent, the memory they hand over, and copies from other nodes.
#include <algorithm>
#include <set>

#include "coordinator/agent/agent.h"
#include "libckpt/base/log.h"

namespace ckpt::agent {
namespace {

constexpr size_t kFetchesMax = 4;         // under way
constexpr size_t kFetchResultsMax = 256;  // kept to be told again
constexpr size_t kCopiesMax = 8;          // in a report

std::string Name(const std::pair<std::string, uint64_t>& key) {
  return "job " + key.first + " epoch " + std::to_string(key.second);
}

}  // namespace

bool Agent::OnFrame(RunServer::ConnectionId id, pid_t peer,
                    wire::Incoming<wire::AgentFrame> incoming) {
  wire::AgentBody& body = incoming.frame.body;
  if (auto* attach = std::get_if<wire::Attach>(&body)) {
    return OnAttach(id, peer, *attach, std::move(incoming.fds));
  }
  const auto known = connections_.find(id);
  if (known == connections_.end()) return false;  // who is this?
  LocalJob* job = FindJob(known->second.first, known->second.second);
  if (job == nullptr) return false;
  job->heard_ns = BoottimeNs();
  if (!job->report.run_silent().empty()) SetRunSilent(job, "");
  if (auto* report = std::get_if<wire::Report>(&body)) return OnReport(job, *report);
  if (auto* detach = std::get_if<wire::Detach>(&body)) {
    held_.Drop({known->second.first, known->second.second, detach->rank, detach->slot});
    return true;
  }
  return false;  // COMMAND and ADOPT are ours to send
}

// ---- attach

bool Agent::OnAttach(RunServer::ConnectionId id, pid_t peer, const wire::Attach& attach,
                     std::vector<os::UniqueFd> fds) {
  if (!connections_.contains(id) && !Introduce(id, peer, attach)) return false;
  const JobKey& key = connections_.at(id);
  LocalJob* job = FindJob(key.first, key.second);
  if (job == nullptr || key.first != attach.job) return false;
  for (size_t i = 0; i < fds.size(); ++i) {
    if (!Keep(job, attach.fds[i], std::move(fds[i]))) return false;
  }
  return true;
}

// The process that was started for the launch is known by its number, which is its own as long as
// its pidfd is held. Another one (behind a wrapper, or started by an agent that could not write the
// number down) needs the launch's token.
Agent::LocalJob* Agent::WhoIs(pid_t peer, const wire::Attach& attach) {
  for (auto& [key, job] : jobs_) {
    if (job.run.valid() && job.run.pid() == peer && key.first == attach.job) return &job;
  }
  LocalJob* job = FindJob(attach.job, attach.epoch);
  const bool named = job != nullptr && !job->ended && !job->launch.token().empty() &&
                     job->launch.token() == attach.token;
  return named ? job : nullptr;
}

bool Agent::Introduce(RunServer::ConnectionId id, pid_t peer, const wire::Attach& attach) {
  LocalJob* job = WhoIs(peer, attach);
  if (job == nullptr) {
    LogWarning("process " + std::to_string(peer) + " says that it is the ckpt-run of " +
               Name({attach.job, attach.epoch}) + " and is refused: it is of no launch of ours");
    return false;
  }
  const JobKey key = KeyOf(*job);
  if (job->connection != 0) runs_->Drop(job->connection);
  job->connection = id;
  connections_[id] = key;
  if (!job->run.valid()) {
    Result<os::Pidfd> run = os::Pidfd::Open(peer);
    if (run.ok()) job->run = std::move(*run);
    if (job->run.valid()) WatchRun(key, job);
  }
  LogInfo(Name(key) + ": ckpt-run is connected");
  const Status adopted = SendAdopt(*job);
  if (!adopted.ok()) LogError(Name(key) + ": handing over copies: " + adopted.ToString());
  for (const auto& [op_id, command] : std::exchange(job->unanswered, {})) Forward(job, command);
  for (const v1::CoordinatorMsg& command : std::exchange(job->waiting, {})) Forward(job, command);
  return true;
}

bool Agent::Keep(LocalJob* job, const wire::AttachedFd& attached, os::UniqueFd fd) {
  const JobKey key = KeyOf(*job);
  if (attached.kind == wire::AttachedKind::kPage) return true;  // nothing to do with it
  if (attached.kind == wire::AttachedKind::kRankPidfd) {
    Result<os::Pidfd> pidfd = os::Pidfd::FromFd(std::move(fd));
    if (!pidfd.ok()) LogWarning(Name(key) + ": " + pidfd.status().ToString());
    if (!pidfd.ok()) return false;
    job->ranks[attached.rank] = std::move(*pidfd);
    return true;
  }
  Result<os::Memfd> memory = os::Memfd::FromFd(std::move(fd), attached.bytes);
  if (!memory.ok()) {
    LogWarning(Name(key) + ": a staging region is refused: " + memory.status().ToString());
    return false;
  }
  held_.Put({{key.first, key.second, attached.rank, attached.slot}, std::move(*memory), false});
  return true;
}

// The newest first; a slot that is being filled is none. Names are given again (a job that was
// removed and submitted anew, another store): a launch that knows its job's id gets no other's.
std::vector<HeldCopies::Whole> Agent::CopiesFor(const v1::Launch& launch) const {
  std::vector<HeldCopies::Whole> copies = held_.WholeOf(launch.job());
  if (launch.job_id().empty()) return copies;
  std::erase_if(copies, [&](const HeldCopies::Whole& copy) {
    return !std::ranges::equal(copy.info.job_id.bytes, launch.job_id(), [](auto a, auto b) {
      return static_cast<uint8_t>(a) == static_cast<uint8_t>(b);
    });
  });
  return copies;
}

Status Agent::SendAdopt(const LocalJob& job) {
  std::vector<HeldCopies::Whole> whole = CopiesFor(job.launch);
  size_t next = 0;
  do {
    wire::Adopt adopt{.job = job.launch.job()};
    std::vector<os::UniqueFd> fds;
    for (; next < whole.size() && adopt.fds.size() < kFrameFdsMax; ++next) {
      HeldCopies::Whole& copy = whole[next];
      adopt.fds.push_back({copy.info.rank, copy.key.slot, copy.memory.bytes(), copy.info.id});
      fds.push_back(std::move(copy.memory).TakeFd());
    }
    adopt.last = next == whole.size();
    CKPT_RETURN_IF_ERROR(runs_->Send(job.connection, {0, std::move(adopt)}, std::move(fds)));
  } while (next < whole.size());
  return OkStatus();
}

void Agent::OnRunClosed(RunServer::ConnectionId id) {
  const auto it = connections_.find(id);
  if (it == connections_.end()) return;
  LocalJob* job = FindJob(it->second.first, it->second.second);
  if (job != nullptr && job->connection == id) job->connection = 0;
  connections_.erase(it);
}

// ---- silence

// A ckpt-run says something every few seconds. One that does not is stopped, or stuck: its ranks
// train on, but it neither stops them nor writes what they leave.
void Agent::LookAtRuns() {
  const int64_t now_ns = BoottimeNs();
  const int64_t slept_ns = now_ns - std::exchange(looked_ns_, now_ns);
  for (auto& [key, job] : jobs_) {
    if (slept_ns > options_.run_silence.count() / 2) job.heard_ns = now_ns;  // it was this agent
    const bool silent = job.run.valid() && now_ns - job.heard_ns > options_.run_silence.count();
    if (!silent || !job.report.run_silent().empty() || job.next_drain != nullptr) continue;
    const Result<os::ProcessInfo> process = os::FindProcess(job.run.pid());
    const bool stopped = process.ok() && (process->state == 'T' || process->state == 't');
    const std::string pid = std::to_string(job.run.pid());
    SetRunSilent(&job, "its ckpt-run (process " + pid + ") has not answered for " +
                           FormatDuration(options_.run_silence) +
                           (stopped ? ": it is stopped, `kill -CONT " + pid + "` lets it go on"
                                    : ": it is stuck"));
  }
}

void Agent::SetRunSilent(LocalJob* job, const std::string& words) {
  job->report.set_run_silent(words);
  LogWarning(Name(KeyOf(*job)) + ": " + (words.empty() ? "its ckpt-run answers again" : words));
  SendReport(*job);
}

// ---- reports

bool Agent::OnReport(LocalJob* job, const wire::Report& report) {
  if (report.message == job->said) return true;  // that it lives
  v1::AgentMsg message;
  if (!message.ParseFromString(report.message)) return false;
  if (message.has_job()) {
    job->said = report.message;
    TakeJobReport(job, std::move(*message.mutable_job()));
    return true;
  }
  if (!message.has_result()) return false;
  const v1::CommandResult& result = message.result();
  if (job->unanswered.erase(result.op_id()) != 0) {
    AnswerCommand(result.op_id(), job->launch.job(), job->launch.epoch(),
                  result.accepted() ? OkStatus() : FailedPrecondition(result.error()));
  }
  return true;
}

// A ckpt-run speaks for its own launch only, whatever it writes.
void Agent::TakeJobReport(LocalJob* job, v1::JobReport report) {
  if (job->launch.drain()) return TakeDrainReport(job, report);
  report.set_job(job->launch.job());
  report.set_epoch(job->launch.epoch());
  report.set_node_rank(job->launch.node_rank());
  for (v1::CopyState& copy : *report.mutable_copies()) {
    if (copy.staged_gang() && copy.ram_nodes().empty()) copy.add_ram_nodes(options_.name);
  }
  report.clear_run_silent();
  const bool news =
      report.state() != job->report.state() || report.copies_size() != job->report.copies_size();
  job->report = std::move(report);
  const v1::NodeJobState state = job->report.state();
  if (state == v1::NODE_JOB_RELEASED || state == v1::NODE_JOB_FINISHED ||
      state == v1::NODE_JOB_FAILED) {
    ledger_.EndGrant(KeyOf(*job));  // it takes no more memory
  }
  if (news) {
    const Status saved = state_.SaveReport(job->report);
    if (!saved.ok()) LogError("storing a report: " + saved.ToString());
  }
  SendReport(*job);
}

// A drain tells of copies and of where its gang meets; how the launch ended is known already.
void Agent::TakeDrainReport(LocalJob* job, const v1::JobReport& report) {
  job->report.set_gang_address(report.gang_address());
  job->drain_words = report.message();
  job->report.set_held_up(report.held_up());
  bool news = false;
  for (const v1::CopyState& said : report.copies()) {
    auto& copies = *job->report.mutable_copies();
    auto known = std::find_if(copies.begin(), copies.end(), [&](const v1::CopyState& copy) {
      return copy.epoch() == said.epoch() && copy.attempt() == said.attempt();
    });
    if (known == copies.end()) {
      if (copies.size() >= static_cast<int>(kCopiesMax)) continue;
      copies.Add();
      known = std::prev(copies.end());
    }
    news = news || known->durable() != said.durable();
    *known = said;
    if (known->staged_gang() && known->ram_nodes().empty()) known->add_ram_nodes(options_.name);
  }
  if (news) {
    const Status saved = state_.SaveReport(job->report);
    if (!saved.ok()) LogError("storing a report: " + saved.ToString());
  }
  SendReport(*job);
}

// Of all ranks that the launch has here.
bool Agent::HoldsAll(const v1::Launch& launch, uint64_t epoch, uint32_t attempt) const {
  std::set<uint32_t> ranks;
  for (const HeldCopies::Whole& whole : CopiesFor(launch)) {
    const bool same =
        whole.info.id.epoch.value() == epoch && whole.info.id.attempt.value() == attempt;
    const uint32_t rank = whole.info.rank;
    const bool here =
        rank >= launch.first_rank() && rank - launch.first_rank() < launch.rank_count();
    if (same && here) ranks.insert(rank);
  }
  return ranks.size() == launch.rank_count();
}

std::string Agent::HeldAlone() const {
  std::set<std::string> shared;  // a ckpt-run that lives was given every copy of its job
  for (const auto& [key, job] : jobs_) {
    if (job.run.valid()) shared.insert(key.first);
  }
  std::string alone;
  for (const auto& [key, job] : jobs_) {
    if (shared.contains(key.first)) continue;
    int64_t durable_step = -1;
    for (const v1::CopyState& copy : job.report.copies()) {
      if (copy.durable()) durable_step = std::max(durable_step, copy.step());
    }
    for (const v1::CopyState& copy : job.report.copies()) {
      if (copy.durable() || !copy.staged_gang() || copy.step() <= durable_step) continue;
      if (!HoldsAll(job.launch, copy.epoch(), copy.attempt())) continue;
      alone += (alone.empty() ? "" : ", ") + Name(key) + " step " + std::to_string(copy.step());
    }
  }
  return alone;
}

// What reports of an agent before this one called "in RAM" went with it, unless a ckpt-run brought
// it again.
void Agent::MarkLostCopies(LocalJob* job, const std::string& how) {
  for (v1::CopyState& copy : *job->report.mutable_copies()) {
    if (!copy.staged_gang() || HoldsAll(job->launch, copy.epoch(), copy.attempt())) continue;
    copy.set_staged_gang(false);
    copy.clear_ram_nodes();
    if (copy.durable()) continue;
    copy.set_lost(true);
    copy.set_failure("no longer in RAM of node " + options_.name + ": ckpt-run " + how);
    LogError(Name(KeyOf(*job)) + ": step " + std::to_string(copy.step()) +
             " is lost: " + copy.failure());
  }
}

// A copy that is complete in RAM here but in no report: its ckpt-run died before it could say so.
void Agent::AddHeldCopies(LocalJob* job) {
  std::map<AttemptId, uint64_t> bytes;
  for (const HeldCopies::Whole& whole : CopiesFor(job->launch)) {
    const bool complete = whole.info.state == engine::GenerationState::kGangComplete;
    if (complete && whole.key.epoch == job->launch.epoch()) {
      bytes[whole.info.id] += whole.info.staged_bytes;
    }
  }
  for (auto it = bytes.rbegin(); it != bytes.rend(); ++it) {
    const auto& [id, size] = *it;
    const auto& copies = job->report.copies();
    const bool known = std::any_of(copies.begin(), copies.end(), [&](const v1::CopyState& copy) {
      return copy.epoch() == id.epoch.value() && copy.attempt() == id.attempt.value();
    });
    if (known || static_cast<size_t>(copies.size()) >= kCopiesMax) continue;
    v1::CopyState* copy = job->report.add_copies();
    copy->set_epoch(id.epoch.value());
    copy->set_attempt(id.attempt.value());
    copy->set_step(id.step.value());
    copy->set_staged_gang(true);
    copy->add_ram_nodes(options_.name);
    copy->set_bytes(size);
  }
}

// ---- copies from other nodes

void Agent::OnFetch(const v1::Fetch& fetch) {
  const auto known = fetches_.find(fetch.op_id());
  if (known != fetches_.end()) return ReportFetch(known->second);
  const Status status = StartFetch(fetch);
  AnswerCommand(fetch.op_id(), fetch.job(), fetch.epoch(), status);
}

Status Agent::StartFetch(const v1::Fetch& fetch) {
  CKPT_RETURN_IF_ERROR(CheckName("job", fetch.job()));
  size_t running = 0;
  for (const auto& [op_id, other] : fetches_) running += other.thread.joinable() ? 1 : 0;
  if (running >= kFetchesMax) {
    return ResourceExhausted("node " + options_.name + " fetches " + std::to_string(running) +
                             " generations already");
  }
  FetchPlan plan;
  plan.from = fetch.from_data_address();
  plan.token = fetch.token();
  plan.job = fetch.job();
  plan.epoch = fetch.epoch();
  plan.attempt = fetch.attempt();
  plan.ranks.assign(fetch.ranks().begin(), fetch.ranks().end());
  plan.reserve = [this, op_id = fetch.op_id()](uint64_t bytes) {
    return ledger_.Reserve(op_id, bytes);
  };
  CKPT_ASSIGN_OR_RETURN(const os::HostPort from, os::ParseHostPort(plan.from));
  if (!os::IsLoopbackHost(from.host)) {
    return Unimplemented("fetching from " + plan.from +
                         ": connections between machines need TLS, which this version does not "
                         "have");
  }
  LocalFetch& local = fetches_[fetch.op_id()];
  local.report.set_job(fetch.job());
  local.report.set_op_id(fetch.op_id());
  local.report.set_started_ns(BoottimeNs());
  local.progress = std::make_shared<FetchProgress>();
  local.thread =
      os::Thread("ckpt-fetch", [this, plan, op_id = fetch.op_id(), progress = local.progress] {
        auto regions = std::make_shared<Result<std::vector<HeldRegion>>>(
            FetchGeneration(plan, progress.get()));
        loop_->Post([this, op_id, regions] { OnFetched(op_id, std::move(*regions)); });
      });
  LogInfo("fetching job " + plan.job + " from " + fetch.from_node() + " at " + plan.from);
  return OkStatus();
}

void Agent::OnFetched(uint64_t op_id, Result<std::vector<HeldRegion>> regions) {
  LocalFetch& fetch = fetches_.at(op_id);
  fetch.thread.Join();
  v1::FetchReport& report = fetch.report;
  report.set_bytes_done(fetch.progress->bytes_done);
  report.set_bytes_total(fetch.progress->bytes_total);
  report.set_done_ns(BoottimeNs());
  if (regions.ok()) {
    for (HeldRegion& region : *regions) held_.Put(std::move(region));
    report.set_done(true);
    SendHeartbeat();
    LogInfo("fetched job " + report.job() + ": " + FormatBytes(report.bytes_done()) + " in " +
            FormatDuration(Nanos(report.done_ns() - report.started_ns())));
  } else {
    report.set_error(regions.status().message());
    LogError("fetching job " + report.job() + ": " + regions.status().ToString());
  }
  ledger_.Release(op_id);  // now that it is held
  ReportFetch(fetch);
  for (auto it = fetches_.begin(); fetches_.size() > kFetchResultsMax && it != fetches_.end();) {
    it = it->second.thread.joinable() || it->first == op_id ? std::next(it) : fetches_.erase(it);
  }
}

void Agent::ReportFetch(const LocalFetch& fetch) {
  v1::AgentMsg message;
  *message.mutable_fetch() = fetch.report;
  if (fetch.thread.joinable()) {
    message.mutable_fetch()->set_bytes_done(fetch.progress->bytes_done);
    message.mutable_fetch()->set_bytes_total(fetch.progress->bytes_total);
  }
  Send(std::move(message));
}

void Agent::ReportRunningFetches() {
  for (const auto& [op_id, fetch] : fetches_) {
    if (fetch.thread.joinable()) ReportFetch(fetch);
  }
}

}  // namespace ckpt::agent
