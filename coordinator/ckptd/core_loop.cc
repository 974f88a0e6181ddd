#include "coordinator/ckptd/core_loop.h"

#include <algorithm>

#include "coordinator/ckptd/convert.h"
#include "libckpt/base/clock.h"
#include "libckpt/base/fault.h"
#include "libckpt/base/log.h"

namespace ckpt::ckptd {
namespace {

constexpr auto kTickEvery = std::chrono::milliseconds(100);
constexpr int64_t kSilenceMinNs = 10'000'000'000;  // of a link, before its node counts as lost
constexpr int64_t kSilentHeartbeats = 10;
constexpr int64_t kLogWaitNs = 10'000'000'000;

core::Time Now() { return {BoottimeNs(), WallNs()}; }

core::Options CoreOptions(int64_t heartbeat_ms) {
  core::Options options;
  options.quiet_ns = std::max(options.quiet_ns, 4 * heartbeat_ms * 1'000'000);
  options.mint_token = [] { return JobId::Random().ToString(); };
  return options;
}

// An arrow of a transaction.
bool HasOperation(const std::vector<core::Write>& writes) {
  return std::any_of(writes.begin(), writes.end(),
                     [](const core::Write& write) { return write.key.starts_with("op/"); });
}

}  // namespace

CoreLoop::CoreLoop(Options options, std::unique_ptr<store::StateStore> store)
    : options_(std::move(options)),
      store_(std::move(store)),
      core_(CoreOptions(options_.heartbeat_ms)) {}

CoreLoop::~CoreLoop() { Stop(); }

Status CoreLoop::Start() {
  CKPT_ASSIGN_OR_RETURN(const std::vector<core::Record> records, store_->LoadAll());
  auto actions = core_.Recover(Now(), records, JobId::Random().ToString());
  if (!actions.ok()) return std::move(actions).status();
  CKPT_RETURN_IF_ERROR(store_->Commit(actions->writes));
  LogInfo("cluster " + core_.cluster_id() + ", term " + std::to_string(core_.term()) + ", " +
          std::to_string(core_.jobs().size()) + " jobs and " +
          std::to_string(core_.nodes().size()) + " nodes on record");
  thread_ = os::Thread("ckptd-core", [this] { Run(); });
  return OkStatus();
}

void CoreLoop::Stop() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.NotifyAll();
  thread_.Join();
}

Status CoreLoop::Post(std::function<void()> task) {
  {
    MutexLock lock(mutex_);
    if (stopping_) return Unavailable("ckptd is shutting down");
    if (queue_.size() >= kQueueMax) {
      return ResourceExhausted("ckptd has " + std::to_string(kQueueMax) +
                               " requests waiting: try again");
    }
    queue_.push_back(std::move(task));
  }
  changed_.NotifyOne();
  return OkStatus();
}

void CoreLoop::Run() {
  Deadline tick("tick of ckptd", kTickEvery);
  bool stop = false;
  while (!stop) {
    std::deque<std::function<void()>> tasks;
    {
      MutexLock lock(mutex_);
      while (queue_.empty() && !stopping_ && changed_.WaitUntil(mutex_, tick)) {
      }
      tasks.swap(queue_);
      stop = stopping_;
    }
    RunTasks(std::move(tasks));
    if (!tick.Expired()) continue;
    OnTick();
    tick = Deadline("tick of ckptd", kTickEvery);
  }
  ReleaseWaiters(true);
  for (auto& [node, link] : links_) link.link->Close(Unavailable("ckptd is shutting down"));
  links_.clear();
  for (auto& [id, request] : logs_) request.done(Unavailable("ckptd is shutting down"));
  logs_.clear();
  WakeWatchers();
  watchers_.clear();
}

void CoreLoop::RunTasks(std::deque<std::function<void()>> tasks) {
  for (auto& task : tasks) task();
}

void CoreLoop::OnTick() {
  DropSilentLinks();
  if (core_.NeedsTicks() || !waiters_.empty()) {
    Apply(core::Tick{}).status().IgnoreError();
  }
  ReleaseWaiters(false);
  const int64_t now_ns = BoottimeNs();
  for (auto it = logs_.begin(); it != logs_.end();) {
    if (it->second.until_ns > now_ns) {
      ++it;
      continue;
    }
    it->second.done(DeadlineExceeded("reading a log: the agent did not answer within " +
                                     FormatDuration(Nanos(kLogWaitNs))));
    it = logs_.erase(it);
  }
}

int64_t CoreLoop::SilenceNs() const {
  return std::max(kSilenceMinNs, kSilentHeartbeats * options_.heartbeat_ms * 1'000'000);
}

void CoreLoop::DropSilentLinks() {
  const int64_t allowed_ns = SilenceNs();
  const int64_t now_ns = BoottimeNs();
  std::vector<std::pair<std::string, std::shared_ptr<AgentLink>>> silent;
  for (const auto& [node, link] : links_) {
    if (now_ns - link.heard_ns > allowed_ns) silent.emplace_back(node, link.link);
  }
  for (const auto& [node, link] : silent) {
    const std::string why = "no heartbeat for " + FormatDuration(Nanos(allowed_ns));
    link->Close(DeadlineExceeded(why));
    Detach(node, link.get(), why);
  }
}

Result<core::Reply> CoreLoop::Apply(const core::Event& event) {
  CKPT_RETURN_IF_ERROR(CheckStored());
  core::Actions actions = core_.Step(Now(), event);
  Status stored = Commit(actions.writes);
  if (!stored.ok()) {
    Fatal(stored);
    return std::move(stored).Annotate("storing the outcome").MaybeApplied();
  }
  Publish(actions);
  if (!actions.reply) return core::Reply{};
  if (!actions.reply->status.ok()) return actions.reply->status;
  return std::move(*actions.reply);
}

Status CoreLoop::Commit(const std::vector<core::Write>& writes) {
  if (!HasOperation(writes)) return store_->Commit(writes);
  CKPT_FAULT("ckptd.operation.before_commit");
  CKPT_RETURN_IF_ERROR(store_->Commit(writes));
  CKPT_FAULT("ckptd.operation.after_commit");
  return OkStatus();
}

Status CoreLoop::CheckStored() const {
  if (!dead_) return OkStatus();
  return Unavailable("ckptd could not store its records and is ending: ask again when it is back")
      .MaybeApplied();
}

void CoreLoop::Publish(const core::Actions& actions) {
  for (const core::EventRecord& event : actions.events) {
    LogInfo(event.kind + (event.job.empty() ? "" : " job " + event.job) +
            (event.node.empty() ? "" : " node " + event.node) +
            (event.message.empty() ? "" : ": " + event.message));
  }
  for (const core::Send& send : actions.sends) {
    v1::CoordinatorMsg message;
    ToProto(send.command, core_.data_token(), &message);
    SendTo(send.node, std::move(message));
  }
  if (!actions.events.empty()) WakeWatchers();
  ReleaseWaiters(false);
}

void CoreLoop::SendTo(const std::string& node, v1::CoordinatorMsg message) {
  const auto it = links_.find(node);
  if (it == links_.end()) return;
  message.set_cluster_id(core_.cluster_id());
  message.set_term(core_.term());
  it->second.link->Send(std::move(message));
}

void CoreLoop::Fatal(Status status) {
  if (dead_) return;
  dead_ = true;
  LogError("cannot store: " + status.ToString() + "; ending, a restart goes on from the records");
  ReleaseWaiters(true);
  WakeWatchers();
  if (options_.on_fatal) options_.on_fatal(std::move(status));
}

Status CoreLoop::Attach(const core::NodeInfo& info, std::shared_ptr<AgentLink> link) {
  CKPT_RETURN_IF_ERROR(CheckStored());
  CKPT_RETURN_IF_ERROR(CheckName("node", info.name));
  if (!info.cluster_id.empty() && info.cluster_id != core_.cluster_id()) {
    return FailedPrecondition("node " + info.name + " belongs to cluster " + info.cluster_id +
                              ", this is " + core_.cluster_id() +
                              ": give the agent another --state-dir, or the right coordinator");
  }
  const auto it = links_.find(info.name);
  if (it != links_.end() && it->second.link != link) {
    const core::NodeInfo& first = it->second.info;
    if (first.boot_ns != info.boot_ns || first.data_address != info.data_address) {
      return AlreadyExists(
          "node " + info.name + " is already there: its agent's data address is " +
          first.data_address + ", it was heard " +
          FormatDuration(Nanos(BoottimeNs() - it->second.heard_ns)) +
          " ago. Give this agent another --name, or stop that one; if it is gone, this one is let "
          "in once that one has been silent for " +
          FormatDuration(Nanos(SilenceNs())));
    }
    it->second.link->Close(Aborted("the agent of node " + info.name + " connected again"));
    const std::string why = "its agent connected again";
    Detach(info.name, it->second.link.get(), why);
  }
  links_[info.name] = {link, BoottimeNs(), info};
  v1::CoordinatorMsg welcome;
  welcome.mutable_welcome()->set_heartbeat_ms(static_cast<uint64_t>(options_.heartbeat_ms));
  welcome.mutable_welcome()->set_data_token(core_.data_token());
  const uint64_t term = core_.term();
  if (info.term <= term) SendTo(info.name, welcome);
  auto applied = Apply(core::NodeConnected{info});
  // A term that was raised just now is told after it is stored.
  if (info.term > term) SendTo(info.name, welcome);
  return std::move(applied).status();
}

void CoreLoop::Detach(const std::string& node, const AgentLink* link, const std::string& why) {
  const auto it = links_.find(node);
  if (it == links_.end() || it->second.link.get() != link) return;
  links_.erase(it);
  Apply(core::NodeLost{node, why}).status().IgnoreError();
}

void CoreLoop::Heard(const std::string& node, const AgentLink* link) {
  const auto it = links_.find(node);
  if (it != links_.end() && it->second.link.get() == link) it->second.heard_ns = BoottimeNs();
}

void CoreLoop::TakeHealth(const std::string& node, const v1::NodeHealth& health) {
  health_[node] = {health, BoottimeNs(), health.wall_ns() - WallNs()};
}

void CoreLoop::AddHealth(const std::string& node, v1::Node* out) const {
  const auto it = health_.find(node);
  if (it == health_.end()) return;
  *out->mutable_health() = it->second.said;
  out->set_health_age_ms((BoottimeNs() - it->second.at_ns) / 1'000'000);
  out->set_clock_offset_ms(it->second.clock_offset_ns / 1'000'000);
}

void CoreLoop::WhenEnded(uint64_t op_id, int64_t wait_ms, std::function<void(Status)> done) {
  if (Status stored = CheckStored(); !stored.ok()) return done(std::move(stored));
  waiters_.push_back({op_id, BoottimeNs() + wait_ms * 1'000'000, std::move(done)});
  ReleaseWaiters(false);
}

void CoreLoop::ReleaseWaiters(bool all) {
  const int64_t now_ns = BoottimeNs();
  for (auto it = waiters_.begin(); it != waiters_.end();) {
    const core::Operation* op = core_.FindOperation(it->op_id);
    const bool ended = op == nullptr || op->state != core::OperationState::kRunning;
    if (!all && !ended && it->until_ns > now_ns) {
      ++it;
      continue;
    }
    const auto done = std::move(it->done);
    it = waiters_.erase(it);
    done(CheckStored());
  }
}

void CoreLoop::ReadLog(const std::string& node, v1::ReadLog request,
                       std::function<void(Result<v1::LogChunk>)> done) {
  if (!links_.contains(node)) {
    done(Unavailable("node " + node + " is not connected: its logs are out of reach"));
    return;
  }
  request.set_request(++log_counter_);
  logs_[log_counter_] = {BoottimeNs() + kLogWaitNs, std::move(done)};
  v1::CoordinatorMsg message;
  *message.mutable_read_log() = std::move(request);
  SendTo(node, std::move(message));
}

void CoreLoop::LogArrived(const v1::LogChunk& chunk) {
  const auto it = logs_.find(chunk.request());
  if (it == logs_.end()) return;
  const auto done = std::move(it->second.done);
  logs_.erase(it);
  done(chunk);
}

void CoreLoop::Watch(std::function<bool()> wake) {
  if (wake()) watchers_.push_back(std::move(wake));
}

void CoreLoop::WakeWatchers() {
  watchers_.remove_if([](const std::function<bool()>& wake) { return !wake(); });
}

}  // namespace ckpt::ckptd
