#include "coordinator/run/gang_leader.h"

#include <algorithm>

#include "coordinator/run/its_store.h"
#include "libckpt/base/log.h"
#include "libckpt/os/socket.h"

namespace ckpt::run {
namespace {

constexpr Nanos kDrainLook = std::chrono::milliseconds(100);

struct Claimed {
  Claimed() = default;
  explicit Claimed(Status s) : status(std::move(s)) {}
  Status status;
  JobId job_id;
  uint64_t epoch = 0;
  std::vector<storage::CheckpointInfo> checkpoints;
  bool elsewhere = false;  // this cannot be the store of the copy that is expected
};

// `known`: a copy of this job that somebody has seen; nothing is made in a store that is not its.
Claimed ClaimInStore(storage::Store* store, const JobId& expected, uint64_t at_least,
                     const std::vector<AttemptId>& adopt, const std::optional<AttemptId>& known) {
  Claimed claimed;
  if (known) {
    claimed.status = NeedsItsStore(store, *known);
    claimed.elsewhere = claimed.status.code() == Code::kFailedPrecondition;
    if (!claimed.status.ok()) return claimed;
  }
  Result<JobId> job = store->OpenJob(expected);
  if (!job.ok()) return Claimed(std::move(job).status());
  claimed.job_id = *job;
  Result<storage::EpochClaim> claim =
      store->ClaimEpoch(Epoch(std::max<uint64_t>(1, at_least)), adopt, {});
  if (!claim.ok()) return Claimed(std::move(claim).status().Annotate("claiming an epoch"));
  claimed.epoch = claim->epoch.value();
  Result<std::vector<storage::CheckpointInfo>> list = store->List();
  if (!list.ok()) return Claimed(std::move(list).status());
  claimed.checkpoints = std::move(list).value();
  return claimed;
}

}  // namespace

GangLeader::GangLeader(Services* services, Host host)
    : services_(services), host_(std::move(host)), epoch_at_least_(services->options.epoch) {}

GangLeader::~GangLeader() {
  *alive_ = false;
  services_->loop->CancelTimer(join_timer_);
  services_->loop->CancelTimer(wait_timer_);
}

void GangLeader::Start() {
  const Nanos timeout = services_->options.join_timeout;
  join_timer_ = services_->loop->AddTimer(timeout, [this, timeout] {
    if (stage_ != Stage::kJoining) return;
    End(1, "waited " + FormatDuration(timeout) + " for the gang; missing: " + MissingNodes() +
               "; start ckpt-run there with the same --rendezvous, or raise --join-timeout");
  });
}

std::string GangLeader::MissingNodes() const {
  std::string missing;
  for (uint32_t i = 0; i < services_->options.node_count; ++i) {
    const auto it = nodes_.find(i);
    if (it != nodes_.end() && it->second.joined) continue;
    missing += (missing.empty() ? "node " : ", ") + std::to_string(i);
  }
  return missing;
}

void GangLeader::SendTo(uint32_t node, GangBody body) {
  const Node& entry = nodes_[node];
  if (entry.connected) host_.send(entry.peer, GangMessage{launch_, std::move(body)});
}

void GangLeader::SendAll(const GangBody& body) {
  for (const auto& [id, node] : nodes_) SendTo(id, body);
}

void GangLeader::OnMessage(Peer peer, const GangMessage& message) {
  if (const auto* join = std::get_if<JoinMsg>(&message.body)) return OnJoin(peer, message, *join);
  const auto from = std::find_if(nodes_.begin(), nodes_.end(), [peer](const auto& entry) {
    return entry.second.connected && entry.second.peer == peer;
  });
  if (from == nodes_.end()) return host_.close(peer);  // JOIN comes first
  if (const auto* notice = std::get_if<NoticeMsg>(&message.body)) return OnNotice(*notice);
  const auto launch = launches_.find(message.launch);
  if (launch != launches_.end()) launch->second->OnMessage(from->first, message.body);
}

void GangLeader::OnClosed(Peer peer) {
  for (auto& [id, node] : nodes_) {
    if (!node.connected || node.peer != peer) continue;
    node.connected = false;
    for (const auto& [number, launch] : launches_) launch->SetConnected(id, false);
    if (stage_ == Stage::kOver) return;
    Say("lost the ckpt-run of node " + std::to_string(id));
    if (stage_ != Stage::kRunning) node.joined = false;
    // It comes back or the machine gives it up; between launches there is no machine.
    if (stage_ == Stage::kClaiming || stage_ == Stage::kDeciding) {
      End(1, "node " + std::to_string(id) + " left the gang before it started");
    }
    return;
  }
}

Status GangLeader::CheckJoin(Peer peer, const JoinMsg& join) const {
  CKPT_RETURN_IF_ERROR(CheckJoinOptions(services_->options, join));
  const auto it = nodes_.find(join.node_rank);
  if (it != nodes_.end() && it->second.connected && it->second.peer != peer) {
    return AlreadyExists("node " + std::to_string(join.node_rank) +
                         " has joined already; --node-rank must differ");
  }
  if (stage_ == Stage::kOver) return Unavailable("this gang has ended");
  return OkStatus();
}

void GangLeader::OnJoin(Peer peer, const GangMessage& message, const JoinMsg& join) {
  if (const Status ok = CheckJoin(peer, join); !ok.ok()) {
    Say("refused a node: " + ok.message());
    host_.send(peer, GangMessage{message.launch, WelcomeMsg{.error = ok.message()}});
    return host_.close(peer);
  }
  Node& node = nodes_[join.node_rank];
  const bool back = node.known && !node.connected;
  node.peer = peer;
  node.connected = true;
  node.known = true;
  if (stage_ == Stage::kRunning) {
    if (back && join.epoch == epoch_) return Rejoined(join.node_rank, peer);
    nodes_[join.node_rank].connected = false;
    host_.send(peer, GangMessage{message.launch, WelcomeMsg{.error = "the gang runs already"}});
    return host_.close(peer);
  }
  if (message.launch != launch_ && message.launch != 0) {  // it does not know of this launch yet
    return host_.send(peer, GangMessage{launch_, PrepareMsg{}});
  }
  node.joined = true;
  node.rank_count = join.rank_count;
  node.ram = join.ram;
  const bool all = nodes_.size() == services_->options.node_count &&
                   std::all_of(nodes_.begin(), nodes_.end(),
                               [](const auto& entry) { return entry.second.joined; });
  if (all && stage_ == Stage::kJoining) Claim();
}

void GangLeader::Rejoined(uint32_t node, Peer peer) {
  const WelcomeMsg welcome{epoch_, job_id_, world_, nodes_[node].first_rank, ""};
  host_.send(peer, GangMessage{launch_, welcome});
  Say("node " + std::to_string(node) + " is back");
  for (const auto& [number, launch] : launches_) launch->SetConnected(node, true);
}

void GangLeader::Claim() {
  services_->loop->CancelTimer(join_timer_);
  stage_ = Stage::kClaiming;
  world_ = 0;
  std::vector<NodeCopies> copies;
  for (auto& [id, node] : nodes_) {
    node.first_rank = world_;
    world_ += node.rank_count;
    copies.push_back({{}, node.ram});
    for (uint32_t i = 0; i < node.rank_count; ++i)
      copies.back().ranks.push_back(node.first_rank + i);
  }
  if (world_ > kRanksMax) return End(2, "a world of " + std::to_string(world_) + " ranks");
  const bool again = epoch_ != 0 && epoch_at_least_ <= epoch_;  // a second try in the same epoch
  const auto work = [store = services_->store, expected = services_->options.job_id, again,
                     job = job_id_, epoch = epoch_, at_least = epoch_at_least_,
                     adopt = AdoptableAttempts(copies),
                     known = services_->options.expect]() -> Claimed {
    if (!again) return ClaimInStore(store.get(), expected, at_least, adopt, known);
    Claimed same;
    same.job_id = job;
    same.epoch = epoch;
    Result<std::vector<storage::CheckpointInfo>> list = store->List();
    same.status = list.status();
    if (list.ok()) same.checkpoints = std::move(list).value();
    return same;
  };
  const Status queued =
      services_->store_calls->TrySubmit([this, work, alive = alive_, loop = services_->loop] {
        loop->Post([this, alive, claimed = work()] {
          if (!*alive || stage_ != Stage::kClaiming) return;
          behind_ = claimed.elsewhere;
          if (behind_) {
            return End(1, "job " + services_->options.job +
                              " is not started: " + claimed.status.message());
          }
          if (!claimed.status.ok()) return End(1, claimed.status.message());
          job_id_ = claimed.job_id;
          epoch_ = claimed.epoch;
          checkpoints_ = claimed.checkpoints;
          stage_ = Stage::kDeciding;
          wait_until_ns_.reset();
          Decide();
        });
      });
  if (!queued.ok()) End(1, queued.message());
}

void GangLeader::Decide() {
  if (stage_ != Stage::kDeciding) return;
  ResumeInput input{.checkpoints = checkpoints_, .damaged = damaged_};
  input.expect = services_->options.expect;
  for (const auto& [id, node] : nodes_) {
    NodeCopies copies{{}, node.ram};
    for (uint32_t i = 0; i < node.rank_count; ++i) copies.ranks.push_back(node.first_rank + i);
    input.nodes.push_back(std::move(copies));
  }
  input.may_wait = !wait_until_ns_ || BoottimeNs() < *wait_until_ns_;
  const ResumeDecision decision = DecideResume(input);
  if (decision.kind == ResumeDecision::Kind::kBehind) {
    behind_ = true;
    return End(1, "job " + services_->options.job + " is not started: " + decision.message + " (" +
                      services_->store->Describe() + ")");
  }
  if (decision.kind != ResumeDecision::Kind::kWait) return Launch(decision);
  if (!wait_until_ns_) {
    wait_until_ns_ = BoottimeNs() + WaitNs(input, decision);
    Say(decision.copy.id.ToString() +
        " is newer than what is durable and may still be on its way to " +
        services_->store->Describe() + "; waiting for it, " +
        FormatDuration(Nanos(*wait_until_ns_ - BoottimeNs())) + " at most");
  }
  wait_timer_ = services_->loop->AddTimer(kDrainLook, [this] {
    const Status queued = services_->store_calls->TrySubmit(
        [this, alive = alive_, loop = services_->loop, store = services_->store] {
          loop->Post([this, alive, list = store->List()] {
            if (!*alive) return;
            if (list.ok()) checkpoints_ = *list;
            Decide();
          });
        });
    if (!queued.ok()) Decide();
  });
}

std::string GangLeader::DescribeSource(const ResumeDecision& decision) const {
  switch (decision.kind) {
    case ResumeDecision::Kind::kRam:
      return "resuming from RAM, " + decision.copy.id.ToString();
    case ResumeDecision::Kind::kStore:
      return "resuming from " + services_->store->Describe() + ", " + decision.copy.id.ToString();
    default:
      return "starting from the beginning";
  }
}

void GangLeader::Launch(const ResumeDecision& decision) {
  using Kind = ResumeDecision::Kind;
  if (decision.kind == Kind::kFresh && !damaged_.empty()) {
    return End(1,
               "checkpoints exist in " + services_->store->Describe() +
                   ", but none of them is whole; not starting from the beginning by itself: move "
                   "them away or name another --store to do that");
  }
  if (!decision.message.empty()) Say(decision.message);
  Say("job " + services_->options.job + ", epoch " + std::to_string(epoch_) + ": " +
      std::to_string(world_) + (world_ == 1 ? " rank" : " ranks") +
      (nodes_.size() > 1 ? " on " + std::to_string(nodes_.size()) + " nodes" : "") + ", " +
      DescribeSource(decision));
  StartMsg start{.epoch = epoch_, .master_addr = "127.0.0.1"};
  if (decision.kind == Kind::kRam) start.resume_kind = 1;
  if (decision.kind == Kind::kStore) start.resume_kind = 2;
  resumed_from_ = start.resume_kind == 0
                      ? ""
                      : (start.resume_kind == 1 ? "ram " : "store ") + decision.copy.id.ToString();
  start.resume_from = decision.copy;
  const std::string& rendezvous = services_->options.rendezvous;
  if (const auto at = os::ParseHostPort(rendezvous); !rendezvous.empty() && at.ok()) {
    start.master_addr = at->host;
  } else if (!services_->options.listen_host.empty()) {
    start.master_addr = services_->options.listen_host;
  }
  const Result<uint16_t> port = os::PickFreePort(start.master_addr);
  if (!port.ok()) return End(1, port.status().message());
  start.master_port = *port;

  LeaderLaunchConfig config{.launch = launch_, .epoch = epoch_, .job_id = job_id_, .world = world_};
  if (start.resume_kind != 0) config.resumed_from = decision.copy.id;
  for (const auto& [id, node] : nodes_) {
    config.nodes.push_back({id, node.first_rank, node.rank_count});
    SendTo(id, WelcomeMsg{epoch_, job_id_, world_, node.first_rank, ""});
  }
  SendAll(start);
  auto launch = std::make_unique<LeaderLaunch>(
      services_, config,
      LeaderLaunch::Host{
          .to_node =
              [this, number = launch_](uint32_t node, GangBody body) {
                const Node& entry = nodes_[node];
                if (entry.connected) host_.send(entry.peer, GangMessage{number, std::move(body)});
              },
          .changed = [this] { Evaluate(); },
          .damaged = [this](const RestoredMsg& restored) { OnDamaged(restored); },
          .forward_signal =
              [this] {
                Say("no rank has registered with libckpt: passing SIGTERM on to the ranks");
                SendAll(NoticeMsg{.source = "SIGTERM"});
              },
          .step = host_.step,
      });
  LeaderLaunch* started = launch.get();
  launches_[launch_] = std::move(launch);
  stage_ = Stage::kRunning;
  if (const Status status = started->Start(); !status.ok()) End(1, status.message());
  host_.changed();
}

void GangLeader::OnDamaged(const RestoredMsg& restored) {
  if (stage_ != Stage::kRunning) return;
  const AttemptId id = current()->config().resumed_from;
  damaged_.insert(id);
  services_->retention->FoundDamaged(id);
  Say("rank " + std::to_string(restored.rank) + " could not load " + id.ToString() + " of job " +
      services_->options.job + ": " + restored.message + "; falling back to an older copy");
  Relaunch(false, id.ToString() + " is damaged");
}

void GangLeader::Relaunch(bool new_epoch, const std::string&) {
  stage_ = Stage::kJoining;
  ++launch_;
  if (new_epoch) epoch_at_least_ = epoch_ + 1;
  if (!new_epoch) epoch_at_least_ = epoch_;
  for (auto& [id, node] : nodes_) node.joined = false;
  Start();
  SendAll(PrepareMsg{});
}

// Outside of a launch: a save is not possible, a stop means that no rank is started (again). What
// an older launch still writes is waited for.
void GangLeader::OnNotice(const NoticeMsg& notice) {
  if (stage_ == Stage::kOver) return;
  if (stage_ == Stage::kRunning) return launches_.rbegin()->second->AddNotice(notice);
  const auto request = static_cast<gang::Request>(notice.request);
  if (request == gang::Request::kNone) return;  // nothing was stopped
  if (request == gang::Request::kSave) {
    return Say("no save for " + notice.source + ": the ranks are not running yet");
  }
  if (request == gang::Request::kKill) {
    return End(1, notice.source + " came before the ranks were started");
  }
  if (launches_.empty()) {
    return End(75, notice.source + " came before the ranks were started; nothing was changed");
  }
  if (stage_ == Stage::kStopping) return;
  stage_ = Stage::kStopping;
  services_->loop->CancelTimer(join_timer_);
  services_->loop->CancelTimer(wait_timer_);
  Say(notice.source + " came before the ranks were started again: they are not; waiting for what " +
      "is on its way to " + services_->store->Describe() + ", " +
      FormatDuration(Nanos(kDrainWaitNs)) + " at most");
  wait_timer_ = services_->loop->AddTimer(Nanos(kDrainWaitNs), [this] { EndStopped(); });
  Evaluate();
}

bool GangLeader::AllSettled() const {
  return std::all_of(launches_.begin(), launches_.end(),
                     [](const auto& entry) { return entry.second->settled(); });
}

// Stopped between two launches: the newest copy of all launches decides.
void GangLeader::EndStopped() {
  std::optional<LeaderLaunch::Copy> newest;
  for (const auto& [number, launch] : launches_) {
    const std::optional<LeaderLaunch::Copy> copy = launch->NewestCopy();
    if (copy && (!newest || newest->id < copy->id)) newest = copy;
  }
  const LeaderLaunch& last = *launches_.rbegin()->second;
  if (!newest && damaged_.contains(last.config().resumed_from)) {
    return End(75, "stopped before an older copy than " + last.config().resumed_from.ToString() +
                       " was tried; nothing was changed");
  }
  if (!newest && last.config().resumed_from.epoch.value() == 0) {
    return End(1, "stopped before a restart (" + last.end_reason() + "); nothing had been saved");
  }
  if (newest && !newest->durable) {
    return End(76, "stopped before a restart; " + newest->id.ToString() + " is NOT durable (" +
                       (newest->failure.empty() ? "it was not written in time" : newest->failure) +
                       "): " +
                       (services_->options.agent_socket.empty() ? "this copy goes with ckpt-run"
                                                                : "in RAM of the agents only"));
  }
  End(75, "stopped before a restart at " +
              (newest ? newest->id : last.config().resumed_from).ToString() +
              ", durable; run it again to go on");
}

void GangLeader::Evaluate() {
  if (evaluating_) return;
  evaluating_ = true;
  services_->loop->Post([this, alive = alive_] {
    if (!*alive) return;
    evaluating_ = false;
    host_.changed();
    if (stage_ == Stage::kStopping && AllSettled()) return EndStopped();
    if (stage_ != Stage::kRunning) return;
    LeaderLaunch& launch = *launches_.rbegin()->second;
    if (!launch.over()) return;
    const Options& options = services_->options;
    const bool whole = std::all_of(nodes_.begin(), nodes_.end(),
                                   [](const auto& entry) { return entry.second.connected; });
    if (launch.end() == LaunchEnd::kFailed && restarts_ < options.restarts_max && whole &&
        options.agent_socket.empty() && !launch.notice_seen()) {
      ++restarts_;
      Say(launch.end_reason() + "; restarting (" + std::to_string(restarts_) + " of " +
          std::to_string(options.restarts_max) + ")");
      return Relaunch(true, launch.end_reason());
    }
    if (AllSettled()) EndLaunch(launch);
  });
}

void GangLeader::EndLaunch(const LeaderLaunch& launch) {
  switch (launch.end()) {
    case LaunchEnd::kFinished:
      if (launch.notice_seen() && !launch.all_finished()) {
        return End(1, "the ranks ended after the notice without having finished");
      }
      return End(0, "finished");
    case LaunchEnd::kSuspended:
      if (launch.durable()) {
        return End(
            75, "suspended at " + launch.stop_id().ToString() + ", durable; run it again to go on");
      }
      return End(76, "suspended at " + launch.stop_id().ToString() + ", NOT durable (" +
                         launch.not_durable_reason() + "): " +
                         (services_->options.agent_socket.empty() ? "this copy goes with ckpt-run"
                                                                  : "in RAM of the agents only"));
    case LaunchEnd::kKilled:
    case LaunchEnd::kFailed:
    case LaunchEnd::kNone:
      break;
  }
  // A kill says itself who asked for it: "killed by operator".
  End(1, (launch.end() == LaunchEnd::kKilled ? "" : "failed: ") + launch.end_reason());
}

void GangLeader::End(int exit_code, const std::string& message) {
  if (stage_ == Stage::kOver) return;
  stage_ = Stage::kOver;
  SendAll(OutcomeMsg{static_cast<uint32_t>(exit_code), message});
  host_.outcome(exit_code, message);
}

}  // namespace ckpt::run
