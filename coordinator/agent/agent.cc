// The agent's side of ckptd's stream: membership, commands and their answers, logs.
#include "coordinator/agent/agent.h"

#include <algorithm>
#include <cstring>

#include "coordinator/agent/log_limit.h"
#include "libckpt/base/log.h"
#include "libckpt/os/file.h"
#include "libckpt/os/memfd.h"
#include "libckpt/os/memory_room.h"

namespace ckpt::agent {
namespace {

constexpr uint64_t kMeasureBytesMax = 128 << 20, kMeasureBytesMin = 4 << 20;
constexpr int kMeasureTries = 4;
constexpr size_t kResultsMax = 4096;  // answers kept to be given again
constexpr uint64_t kLogChunkBytes = 256 << 10;
constexpr size_t kKillThreads = 2, kKillQueueMax = 4096;
constexpr auto kHeartbeat = std::chrono::seconds(1);  // until ckptd says otherwise
constexpr auto kFetchReportEvery = std::chrono::milliseconds(250);
constexpr auto kHealthEvery = std::chrono::seconds(30);
constexpr auto kLogLimitEvery = std::chrono::seconds(1);
// ckpt-runs look for their agent a few times a second; one that is stopped is not waited for
// longer.
constexpr Nanos kReattachPoll = std::chrono::milliseconds(50);
constexpr Nanos kReattachMax = std::chrono::seconds(3);

}  // namespace

Result<double> MeasureMemcpyGbps() {
  const Result<os::MemoryRoom> room = os::AvailableMemory();
  const uint64_t bytes = std::clamp<uint64_t>(room.ok() ? room->bytes / 16 : kMeasureBytesMax,
                                              kMeasureBytesMin, kMeasureBytesMax);
  CKPT_ASSIGN_OR_RETURN(const os::Mapping from, os::Mapping::Anonymous(bytes, true));
  CKPT_ASSIGN_OR_RETURN(const os::Mapping to, os::Mapping::Anonymous(bytes, true));
  int64_t best_ns = INT64_MAX;
  for (int i = 0; i < kMeasureTries; ++i) {
    const int64_t begin_ns = BoottimeNs();
    std::memcpy(to.data(), from.data(), bytes);
    // Whoever reads the copy keeps it from being left out.
    if (to.data()[bytes - 1] != std::byte{0}) return Internal("a copy differs");
    best_ns = std::min(best_ns, BoottimeNs() - begin_ns);
  }
  return static_cast<double>(bytes) / static_cast<double>(std::max<int64_t>(best_ns, 1));
}

Result<std::unique_ptr<Agent>> Agent::Start(AgentOptions options, os::EventLoop* loop) {
  CKPT_ASSIGN_OR_RETURN(StateDir state, StateDir::Open(options.state_dir));
  std::unique_ptr<Agent> agent(new Agent(std::move(options), std::move(state), loop));
  CKPT_RETURN_IF_ERROR(agent->Init());
  return agent;
}

Agent::Agent(AgentOptions options, StateDir state, os::EventLoop* loop)
    : options_(std::move(options)),
      state_(std::move(state)),
      loop_(loop),
      boot_ns_(BoottimeNs()),
      ledger_(options_.staging_budget_bytes, &held_) {}

Status Agent::Init() {
  CKPT_ASSIGN_OR_RETURN(memcpy_gbps_, MeasureMemcpyGbps());
  CKPT_ASSIGN_OR_RETURN(membership_, state_.LoadMembership());
  pool_ = std::make_unique<os::WorkerPool>("ckpt-kill", kKillThreads, kKillQueueMax);
  CKPT_ASSIGN_OR_RETURN(data_, DataServer::Start(options_.address, &held_));
  RunServer::Handlers runs;
  runs.frame = [this](auto id, pid_t peer, wire::Incoming<wire::AgentFrame> frame) {
    return OnFrame(id, peer, std::move(frame));
  };
  runs.closed = [this](auto id) { OnRunClosed(id); };
  // The socket first: it is also the lock that keeps a second agent out of this directory.
  CKPT_ASSIGN_OR_RETURN(runs_, RunServer::Start(state_.socket_path(), loop_, std::move(runs)));
  CKPT_RETURN_IF_ERROR(Recover());

  CoordinatorLink::Handlers link;
  link.opened = [this](uint64_t session) { OnOpened(session); };
  link.message = [this](uint64_t session, const auto& message) { OnMessage(session, message); };
  link.closed = [this](uint64_t session, const std::string& why) { OnClosed(session, why); };
  CKPT_ASSIGN_OR_RETURN(const std::string target, GrpcTarget(options_.coordinator));
  heartbeat_timer_ = loop_->AddPeriodic(kHeartbeat, [this] { SendHeartbeat(); });
  fetch_timer_ = loop_->AddPeriodic(kFetchReportEvery, [this] { ReportRunningFetches(); });
  health_ = std::make_unique<HealthCheck>(loop_, [this](const v1::NodeHealth& health) {
    v1::AgentMsg message;
    *message.mutable_health() = health;
    Send(std::move(message));
  });
  health_timer_ = loop_->AddPeriodic(kHealthEvery, [this] { LookAtHealth(); });
  runs_timer_ = loop_->AddPeriodic(options_.run_silence / 10, [this] { LookAtRuns(); });
  log_timer_ = loop_->AddPeriodic(kLogLimitEvery, [this] { LimitLogs(); });
  ConnectWhenCopiesAreKnown(
      [this, target, link] {
        link_ = std::make_unique<CoordinatorLink>(
            target, CoordinatorLink::Backoff{options_.reconnect_min, options_.reconnect_max}, loop_,
            link);
      },
      kReattachMax);
  return OkStatus();
}

void Agent::ConnectWhenCopiesAreKnown(std::function<void()> connect, Nanos left) {
  const bool missing = std::any_of(jobs_.begin(), jobs_.end(), [](const auto& entry) {
    return entry.second.run.valid() && entry.second.connection == 0;
  });
  if (jobs_.empty() || left <= Nanos(0)) return connect();
  // Once more after the last has connected: it sends its copies right behind its name.
  const Nanos next = missing ? left - kReattachPoll : Nanos(0);
  connect_timer_ = loop_->AddTimer(kReattachPoll, [this, connect = std::move(connect), next] {
    ConnectWhenCopiesAreKnown(connect, next);
  });
}

Agent::~Agent() {
  link_.reset();
  for (auto& [op_id, fetch] : fetches_) fetch.progress->cancelled = true;
  for (auto& [op_id, fetch] : fetches_) fetch.thread.Join();
  pool_.reset();
  loop_->CancelTimer(heartbeat_timer_);
  loop_->CancelTimer(fetch_timer_);
  loop_->CancelTimer(health_timer_);
  loop_->CancelTimer(log_timer_);
  loop_->CancelTimer(runs_timer_);
  loop_->CancelTimer(connect_timer_);
  for (auto& [key, job] : jobs_) {
    loop_->CancelTimer(job.kill_timer);
    if (job.run.valid()) loop_->RemoveFd(job.run.fd());
  }
}

v1::NodeInfo Agent::Describe() const {
  v1::NodeInfo info;
  info.set_name(options_.name);
  info.set_address(options_.address);
  info.set_slots(options_.slots);
  info.set_staging_budget_bytes(options_.staging_budget_bytes);
  info.set_staging_used_bytes(held_.UsedBytes());
  info.set_data_address(data_->address().ToString());
  info.set_boot_ns(static_cast<uint64_t>(boot_ns_));
  info.set_memcpy_gbps(memcpy_gbps_);
  info.set_cluster_id(membership_.cluster_id);
  info.set_term(membership_.term);
  return info;
}

// ---- the session

void Agent::OnOpened(uint64_t session) {
  session_ = session;
  LogInfo("connected to the coordinator at " + options_.coordinator);
  v1::AgentMsg message;
  *message.mutable_node() = Describe();
  Send(message);
  for (const auto& [key, job] : jobs_) SendReport(job);
  for (const auto& [op_id, fetch] : fetches_) ReportFetch(fetch);
  LookAtHealth();
}

void Agent::OnClosed(uint64_t session, const std::string& why) {
  LogWarning("no coordinator: " + why + "; jobs go on, trying again");
  if (session == session_) session_ = 0;
}

void Agent::Send(v1::AgentMsg message) {
  if (session_ != 0) link_->Send(session_, std::move(message));
}

void Agent::SendHeartbeat() {
  v1::AgentMsg message;
  message.mutable_heartbeat()->set_staging_used_bytes(held_.UsedBytes());
  Send(std::move(message));
}

void Agent::LookAtHealth() {
  if (session_ == 0) return;
  health_->Look(
      {options_.state_dir, options_.store_root, options_.staging_budget_bytes, held_.UsedBytes()});
}

// I2
Status Agent::CheckSender(const v1::CoordinatorMsg& message) {
  if (message.cluster_id().empty()) return InvalidArgument("a command without a cluster id");
  if (!membership_.cluster_id.empty() && message.cluster_id() != membership_.cluster_id) {
    return FailedPrecondition("node " + options_.name + " belongs to cluster " +
                              membership_.cluster_id + ", the command comes from " +
                              message.cluster_id());
  }
  if (message.term() < membership_.term) {
    return FailedPrecondition("the command's term " + std::to_string(message.term()) +
                              " is over: term " + std::to_string(membership_.term) + " rules");
  }
  if (message.cluster_id() == membership_.cluster_id && message.term() == membership_.term) {
    return OkStatus();
  }
  const Membership newer{message.cluster_id(), message.term()};
  CKPT_RETURN_IF_ERROR(state_.SaveMembership(newer));
  membership_ = newer;
  return OkStatus();
}

void Agent::OnMessage(uint64_t session, const v1::CoordinatorMsg& message) {
  if (session != session_) return;
  const Status sender = CheckSender(message);
  if (sender.ok()) return Obey(message);
  LogError("a command was refused: " + sender.ToString());
  v1::CommandResult refusal;
  refusal.set_error(sender.message());
  switch (message.kind_case()) {
    case v1::CoordinatorMsg::kLaunch:
      refusal.set_op_id(message.launch().op_id());
      refusal.set_job(message.launch().job());
      refusal.set_epoch(message.launch().epoch());
      break;
    case v1::CoordinatorMsg::kStop:
      refusal.set_op_id(message.stop().op_id());
      refusal.set_job(message.stop().job());
      refusal.set_epoch(message.stop().epoch());
      break;
    case v1::CoordinatorMsg::kSave:
      refusal.set_op_id(message.save().op_id());
      refusal.set_job(message.save().job());
      refusal.set_epoch(message.save().epoch());
      break;
    case v1::CoordinatorMsg::kFetch:
      refusal.set_op_id(message.fetch().op_id());
      refusal.set_job(message.fetch().job());
      refusal.set_epoch(message.fetch().epoch());
      break;
    default:
      return link_->Drop(session);  // not even its greeting is good
  }
  Answer(refusal);
}

void Agent::Obey(const v1::CoordinatorMsg& message) {
  switch (message.kind_case()) {
    case v1::CoordinatorMsg::kWelcome:
      return OnWelcome(message.welcome());
    case v1::CoordinatorMsg::kLaunch:
      return OnLaunch(message.launch());
    case v1::CoordinatorMsg::kStop:
    case v1::CoordinatorMsg::kSave:
      return OnStop(message);
    case v1::CoordinatorMsg::kFetch:
      return OnFetch(message.fetch());
    case v1::CoordinatorMsg::kForget:
      return OnForget(message.forget());
    case v1::CoordinatorMsg::kReadLog:
      return OnReadLog(message.read_log());
    case v1::CoordinatorMsg::KIND_NOT_SET:
      return LogWarning("a command of a kind that this agent does not know: is it older?");
  }
}

void Agent::OnWelcome(const v1::Welcome& welcome) {
  data_->SetToken(welcome.data_token());
  if (welcome.heartbeat_ms() == 0) return;
  loop_->CancelTimer(heartbeat_timer_);
  heartbeat_timer_ = loop_->AddPeriodic(std::chrono::milliseconds(welcome.heartbeat_ms()),
                                        [this] { SendHeartbeat(); });
}

// ---- answers

void Agent::Answer(const v1::CommandResult& result) {
  v1::AgentMsg message;
  *message.mutable_result() = result;
  Send(std::move(message));
}

// I3
void Agent::AnswerCommand(uint64_t op_id, const std::string& job, uint64_t epoch,
                          const Status& status) {
  v1::CommandResult result;
  result.set_op_id(op_id);
  result.set_job(job);
  result.set_epoch(epoch);
  result.set_accepted(status.ok());
  if (!status.ok()) result.set_error(status.message());
  if (op_id != 0 && results_.emplace(op_id, result).second) {
    result_order_.push_back(op_id);
    if (result_order_.size() > kResultsMax) {
      results_.erase(result_order_.front());
      result_order_.pop_front();
    }
  }
  Answer(result);
}

bool Agent::AnswerAgain(uint64_t op_id) {
  const auto it = results_.find(op_id);
  if (op_id == 0 || it == results_.end()) return false;
  Answer(it->second);
  return true;
}

// ---- logs

void Agent::OnReadLog(const v1::ReadLog& request) {
  Result<v1::LogChunk> chunk = ReadLogChunk(request);
  v1::AgentMsg message;
  if (chunk.ok()) *message.mutable_log() = std::move(*chunk);
  message.mutable_log()->set_request(request.request());
  if (!chunk.ok()) {
    message.mutable_log()->set_next_offset(request.offset());
    message.mutable_log()->set_error(chunk.status().message());
  }
  Send(std::move(message));
}

Result<v1::LogChunk> Agent::ReadLogChunk(const v1::ReadLog& request) const {
  CKPT_RETURN_IF_ERROR(CheckName("job", request.job()));
  const std::string name =
      "e" + std::to_string(request.epoch()) + "/rank" + std::to_string(request.rank()) + ".log";
  CKPT_ASSIGN_OR_RETURN(const auto file,
                        os::PosixFileSystem().OpenBeneath(state_.log_dir(request.job()), name,
                                                          os::OpenOptions::Read()));
  CKPT_ASSIGN_OR_RETURN(const uint64_t begin, FirstKept(file->path(), request.offset()));
  std::string bytes(kLogChunkBytes, '\0');
  CKPT_ASSIGN_OR_RETURN(const size_t size,
                        file->PReadSome(begin, std::as_writable_bytes(std::span(bytes))));
  bytes.resize(size);
  v1::LogChunk chunk;
  chunk.set_next_offset(begin + size);
  if (begin > request.offset()) {
    bytes =
        "[" + FormatBytes(begin - request.offset()) + " of this log are no longer kept]\n" + bytes;
  }
  chunk.set_data(std::move(bytes));
  return chunk;
}

// Of what may still write.
void Agent::LimitLogs() const {
  for (const auto& [key, job] : jobs_) {
    if (job.ended) continue;
    const std::string dir = state_.log_dir(key.first);
    const std::string epoch = "e" + std::to_string(key.second);
    const auto limit = [&](const std::string& path) {
      const Status status = LimitLog(path, options_.log_bytes_max);
      if (!status.ok() && status.code() != Code::kNotFound) LogWarning(status.ToString());
    };
    limit(dir + "/run." + epoch + ".log");
    for (uint32_t i = 0; i < job.launch.rank_count(); ++i) {
      const uint32_t rank = job.launch.first_rank() + i;
      limit(dir + "/" + epoch + "/rank" + std::to_string(rank) + ".log");
    }
  }
}

}  // namespace ckpt::agent
