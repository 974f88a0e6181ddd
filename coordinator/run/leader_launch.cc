#include "coordinator/run/leader_launch.h"

#include <algorithm>

#include "coordinator/run/shard_writers.h"
#include "libckpt/base/fault.h"
#include "libckpt/base/log.h"
#include "libckpt/format/manifest.h"

namespace ckpt::run {
namespace {

constexpr Nanos kFenceLook = std::chrono::seconds(10);
constexpr Nanos kCommitTimeout = std::chrono::seconds(60);
constexpr int64_t kKillNsMax = 2'000'000'000;

}  // namespace

LeaderLaunch::LeaderLaunch(Services* services, LeaderLaunchConfig config, Host host)
    : services_(services), config_(std::move(config)), host_(std::move(host)) {
  for (const LaunchNode& node : config_.nodes) nodes_[node.node] = NodeState();
}

LeaderLaunch::~LeaderLaunch() {
  *alive_ = false;
  for (const auto timer : {machine_timer_, forward_timer_, fence_timer_, missing_timer_}) {
    services_->loop->CancelTimer(timer);
  }
}

Status LeaderLaunch::Start() {
  gang::LeaderConfig config{.epoch = Epoch(config_.epoch), .slots = 0};
  // Killing takes a part of the grace, if that is short.
  config.kill_ns = std::min<int64_t>(kKillNsMax, services_->options.grace.count() / 4);
  config.member_grace_ns = services_->options.member_grace.count();
  for (const LaunchNode& node : config_.nodes) {
    config.members.push_back({node.node, Rank(node.first_rank), node.rank_count});
  }
  CKPT_ASSIGN_OR_RETURN(gang::Leader leader, gang::Leader::Create(config, ""));
  leader_ = std::make_unique<gang::Leader>(std::move(leader));
  started_ns_ = BoottimeNs();
  for (const auto& [node, state] : nodes_) Feed(gang::MemberJoined{node});
  TellSlots();
  fence_timer_ = services_->loop->AddPeriodic(kFenceLook, [this] { LookForNewerEpoch(); });
  return OkStatus();
}

// Whoever launched the job again has fenced this launch off: what it computes from here on can
// never be saved.
void LeaderLaunch::LookForNewerEpoch() {
  if (end_ != LaunchEnd::kNone || looking_ || released()) return;
  looking_ = true;
  CallStore([store = services_->store] { return store->HighestEpoch(); },
            [this](const Result<Epoch>& highest) {
              looking_ = false;
              OnHighestEpoch(highest);
            });
}

void LeaderLaunch::OnHighestEpoch(const Result<Epoch>& highest) {
  const bool newer = highest.ok() && highest->value() > config_.epoch;
  if (!newer || end_ != LaunchEnd::kNone) return;
  KillNow(0, "another launch of job " + services_->options.job + ": it has claimed epoch " +
                 std::to_string(highest->value()) + " in " + services_->store->Describe() +
                 ", so that nothing of this one, epoch " + std::to_string(config_.epoch) +
                 ", can be saved any more; end that one before this is launched again, or let it "
                 "go on");
}

void LeaderLaunch::SetConnected(uint32_t node, bool connected) {
  NodeState& state = nodes_[node];
  if (state.connected == connected) return;
  state.connected = connected;
  if (!connected) kv_.ForgetPeer(node);
  if (connected) {
    Feed(gang::MemberJoined{node});
  } else {
    state.lost_ns = BoottimeNs();
    Feed(gang::MemberLost{node});
    services_->loop->AddTimer(services_->options.member_grace, [this, alive = alive_] {
      if (*alive) OnGivenUp();
    });
  }
}

bool LeaderLaunch::Gone(uint32_t node) const {
  const NodeState& state = nodes_.at(node);
  return !state.connected &&
         BoottimeNs() - state.lost_ns >= services_->options.member_grace.count();
}

bool LeaderLaunch::GivenUp(uint32_t node) const { return Gone(node) && !released_.contains(node); }

// What a node would have measured, or written, is not waited for any more; its agent ends its ranks
// and keeps its copies. The machine itself gives a member up only before the release.
void LeaderLaunch::OnGivenUp() {
  for (const auto& [node, state] : nodes_) {
    if (Gone(node)) Feed(gang::MemberGone{node});
  }
  if (view().decision == gang::Decision::kRelease && NoneAwaited()) {
    SetEnd(LaunchEnd::kSuspended, "");
  }
  host_.changed();
}

bool LeaderLaunch::NoneAwaited() const {
  return std::all_of(nodes_.begin(), nodes_.end(), [this](const auto& entry) {
    return released_.contains(entry.first) || GivenUp(entry.first);
  });
}

bool LeaderLaunch::over() const { return end_ != LaunchEnd::kNone && NoneAwaited(); }

void LeaderLaunch::OnMessage(uint32_t node, const GangBody& body) {
  if (!nodes_.contains(node)) return;
  if (const auto* machine = std::get_if<MachineMsg>(&body)) {
    OnMachine(node, *machine);
  } else if (const auto* layouts = std::get_if<LayoutsMsg>(&body)) {
    OnLayouts(node, *layouts);
  } else if (const auto* ready = std::get_if<ReadyMsg>(&body)) {
    OnReady(node, *ready);
  } else if (const auto* restored = std::get_if<RestoredMsg>(&body)) {
    OnRestored(*restored);
  } else if (const auto* set = std::get_if<KvSetMsg>(&body)) {
    OnKvSet(node, *set);
  } else if (const auto* wait = std::get_if<KvWaitMsg>(&body)) {
    OnKvWait(node, *wait);
  } else if (const auto* notice = std::get_if<NoticeMsg>(&body)) {
    AddNotice(*notice);
  }
}

void LeaderLaunch::OnMachine(uint32_t node, const MachineMsg& m) {
  Result<gang::Msg> msg = gang::Decode(m.bytes);
  if (!msg.ok())
    return LogWarning("from node " + std::to_string(node) + ": " + msg.status().ToString());
  const bool fact = msg->type == gang::MsgType::kFact;
  if (fact && msg->fact == gang::FactKind::kFinished) finished_.insert(msg->rank);
  const bool released = fact && msg->fact == gang::FactKind::kReleased;
  Feed(gang::FromMember{node, std::move(msg).value()});
  if (released && released_.insert(node).second) host_.changed();
}

void LeaderLaunch::Feed(gang::LeaderEvent event) {
  events_.push_back(std::move(event));
  if (stepping_) return;
  stepping_ = true;
  while (!events_.empty()) {
    const gang::LeaderEvent next = std::move(events_.front());
    events_.pop_front();
    for (const gang::LeaderAction& action : leader_->Step(BoottimeNs(), next)) Act(action);
  }
  stepping_ = false;
  ArmTimer();
}

void LeaderLaunch::ArmTimer() {
  services_->loop->CancelTimer(machine_timer_);
  machine_timer_ = 0;
  const int64_t next = leader_->next_deadline_ns();
  if (next == INT64_MAX) return;
  machine_timer_ = services_->loop->AddTimer(Nanos(std::max<int64_t>(0, next - BoottimeNs())),
                                             [this] { Feed(gang::LeaderTick{}); });
}

void LeaderLaunch::Act(const gang::LeaderAction& action) {
  if (const auto* send = std::get_if<gang::SendToMember>(&action)) {
    // The first word of an attempt is its grant or its committed cut: what is tracked now is what
    // it holds, whatever is tracked by the time of the commit.
    if (send->msg.attempt != 0) layouts_of_.try_emplace(send->msg.attempt, layouts_);
    host_.to_node(send->member, MachineMsg{gang::Encode(send->msg)});
    CKPT_PASS(send->msg.operation != 0 ? "run.leader.operation" : "run.leader.other");
  } else if (const auto* persist = std::get_if<gang::Persist>(&action)) {
    // Nobody succeeds a leading ckpt-run within its epoch: the record is not kept.
    CKPT_PASS("run.leader.outcome");
    Feed(gang::Persisted{persist->id});
  } else if (const auto* commit = std::get_if<gang::CommitAttempt>(&action)) {
    Commit(*commit);
  } else if (const auto* mark = std::get_if<gang::MarkDraining>(&action)) {
    Mark(*mark);
  } else if (const auto* abort = std::get_if<gang::AbortAttempt>(&action)) {
    Abort(*abort);
  } else if (const auto* report = std::get_if<gang::Report>(&action)) {
    OnReport(*report);
  } else if (const auto* answer = std::get_if<gang::NoticeAnswer>(&action)) {
    OnAnswer(*answer);
  } else if (const auto* loss = std::get_if<gang::LossBooked>(&action)) {
    OnLoss(*loss);
  }
}

AttemptId LeaderLaunch::IdOf(uint32_t attempt, int64_t step) const {
  return AttemptId{Epoch(config_.epoch), Step(step), Attempt(attempt)};
}

void LeaderLaunch::Commit(const gang::CommitAttempt& action) {
  const AttemptId id = IdOf(action.attempt, action.step);
  steps_[action.attempt] = action.step;
  const auto work = [id, payloads = action.payloads, layouts = layouts_of_[action.attempt],
                     job = config_.job_id, store = services_->store]() -> Status {
    std::vector<engine::ShardReport> shards;
    for (const auto& [node, payload] : payloads) {
      CKPT_ASSIGN_OR_RETURN(std::vector<engine::ShardReport> reports, DecodeShardReports(payload));
      std::move(reports.begin(), reports.end(), std::back_inserter(shards));
    }
    std::sort(shards.begin(), shards.end(),
              [](const auto& a, const auto& b) { return a.rank < b.rank; });
    if (!layouts) return Internal("nothing was tracked when " + id.ToString() + " was begun");
    CKPT_ASSIGN_OR_RETURN(const std::string manifest,
                          engine::BuildManifest(job, id, *layouts, shards, false));
    const storage::CommitRecord record{format::ManifestDigest(manifest), id.epoch, ""};
    return store->Commit(id, manifest, record, Deadline("commit", kCommitTimeout));
  };
  CallStore(work, [this, attempt = action.attempt, id](Status status) {
    if (status.ok()) layouts_of_.erase(attempt);
    const bool durable = status.ok();
    Feed(gang::AttemptCommitted{attempt, std::move(status)});
    if (durable) RemoveOld(id);
  });
}

// After the word that it is durable, and before this launch counts as settled.
void LeaderLaunch::RemoveOld(const AttemptId& committed) {
  CallStore(
      [committed, store = services_->store, retention = services_->retention] {
        retention->AfterCommit(committed);
        return OkStatus();
      },
      [](const Status&) {});
}

void LeaderLaunch::Mark(const gang::MarkDraining& action) {
  const AttemptId id = IdOf(action.attempt, action.step);
  steps_[action.attempt] = action.step;
  const auto work = [id, store = services_->store]() -> Status {
    // The first writer may have made it already.
    const Status begun = store->BeginAttempt(id);
    if (!begun.ok() && begun.code() != Code::kAlreadyExists) return begun;
    return store->MarkDraining(id);
  };
  CallStore(work, [this, attempt = action.attempt](Status status) {
    Feed(gang::MarkedDraining{attempt, std::move(status)});
  });
}

void LeaderLaunch::Abort(const gang::AbortAttempt& action) {
  layouts_of_.erase(action.attempt);
  const std::optional<int64_t> step = StepOf(action.attempt);
  if (!step) return;  // nothing was begun
  const AttemptId id = IdOf(action.attempt, *step);
  CallStore([id, store = services_->store]() -> Status { return store->Abort(id); },
            [id](Status status) {
              if (!status.ok() && status.code() != Code::kNotFound) {
                LogWarning("removing " + id.ToString() + ": " + status.ToString());
              }
            });
}

std::optional<int64_t> LeaderLaunch::StepOf(uint32_t attempt) const {
  if (const auto it = steps_.find(attempt); it != steps_.end()) return it->second;
  for (const auto& generation : leader_->view().generations) {
    if (generation.attempt == attempt && generation.complete) return generation.step;
  }
  return std::nullopt;
}

bool LeaderLaunch::settled() const {
  if (!NoneAwaited() || store_calls_ > 0) return false;
  if (!released()) return true;  // the shards of a node that was given up will not come
  const gang::Leader::View view = leader_->view();
  return std::none_of(view.generations.begin(), view.generations.end(), [this](const auto& g) {
    return g.complete && !g.durable && !not_durable_.contains(g.attempt);
  });
}

std::optional<LeaderLaunch::Copy> LeaderLaunch::NewestCopy() const {
  std::optional<Copy> newest;
  for (const auto& generation : leader_->view().generations) {
    if (!generation.complete) continue;
    Copy copy{IdOf(generation.attempt, generation.step), generation.durable, ""};
    const auto failed = not_durable_.find(generation.attempt);
    if (failed != not_durable_.end()) copy.failure = failed->second;
    if (!newest || newest->id < copy.id) newest = std::move(copy);
  }
  return newest;
}

AttemptId LeaderLaunch::stop_id() const {
  return IdOf(stop_attempt_, StepOf(stop_attempt_).value_or(0));
}

std::string LeaderLaunch::newest_durable() const {
  if (durable_.empty()) return "";
  const uint32_t attempt = *durable_.rbegin();
  return IdOf(attempt, StepOf(attempt).value_or(0)).ToString();
}

std::string LeaderLaunch::not_durable_reason() const {
  const auto it = not_durable_.find(stop_attempt_);
  if (it != not_durable_.end()) return it->second;
  return released() ? "" : "a ckpt-run of this gang is out of reach";
}

}  // namespace ckpt::run
