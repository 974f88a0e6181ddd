#include "coordinator/run/node_host.h"

#include <signal.h>

#include <algorithm>
#include <iterator>

#include "libckpt/base/log.h"

namespace ckpt::run {
namespace {

constexpr Nanos kAgentPatience = std::chrono::seconds(5);
constexpr Nanos kLeaderAnswers = std::chrono::seconds(1);
constexpr int64_t kUnnoticedNs = 30'000'000'000;  // as long as keepalive may take

}  // namespace

NodeHost::NodeHost(Services* services, Host host) : services_(services), host_(std::move(host)) {}
NodeHost::~NodeHost() { *alive_ = false; }

void NodeHost::SendTo(uint32_t launch, GangBody body) {
  host_.to_leader(GangMessage{launch, std::move(body)});
}

std::vector<SlotPtr> NodeHost::AllSlots() const {
  std::vector<SlotPtr> all = held_;
  for (const auto& [number, launch] : launches_) {
    for (SlotPtr& slot : launch->slots()) {
      if (std::find(all.begin(), all.end(), slot) == all.end()) all.push_back(std::move(slot));
    }
  }
  return all;
}

std::vector<RamCopy> NodeHost::copies() const { return Inventory(AllSlots()); }

JoinMsg NodeHost::MakeJoin() const {
  const Options& options = services_->options;
  return JoinMsg{.job = options.job,
                 .node = os::HostName(),
                 .node_rank = options.node_rank,
                 .node_count = options.node_count,
                 .rank_count = options.rank_count,
                 .epoch = welcome_ ? welcome_->epoch : 0,
                 .ram = copies()};
}

void NodeHost::Join() { SendTo(launches_.empty() ? 0 : launches_.rbegin()->first, MakeJoin()); }

void NodeHost::OnLeader(const GangMessage& message) {
  if (const auto* welcome = std::get_if<WelcomeMsg>(&message.body)) {
    OnWelcome(*welcome);
  } else if (const auto* start = std::get_if<StartMsg>(&message.body)) {
    OnStart(message.launch, *start);
  } else if (std::holds_alternative<PrepareMsg>(message.body)) {
    OnPrepare(message.launch);
  } else if (const auto* outcome = std::get_if<OutcomeMsg>(&message.body)) {
    OnOutcome(*outcome);
  } else if (std::holds_alternative<NoticeMsg>(message.body)) {
    for (const auto& [number, launch] : launches_) {
      launch->SetNoticed();
      launch->Signal(SIGTERM);
    }
  } else if (const auto it = launches_.find(message.launch); it != launches_.end()) {
    it->second->OnLeader(message.body);
  }
}

void NodeHost::OnWelcome(const WelcomeMsg& m) {
  if (!m.error.empty()) return Abandon(1, "the gang's leader refused this node: " + m.error);
  const bool back = welcome_ && !connected_;
  welcome_ = m;
  connected_ = true;
  if (m.first_rank != services_->options.first_rank) {
    return Abandon(2, "this node has ranks from " + std::to_string(services_->options.first_rank) +
                          ", but in this gang they begin at " + std::to_string(m.first_rank) +
                          "; all nodes need the same --ranks, or fitting --first-rank");
  }
  if (!back) return;
  SayAgain();
}

void NodeHost::LeaderLost() {
  connected_ = false;
  lost_ns_ = BoottimeNs();
  for (const auto& [number, launch] : launches_) launch->SetConnected(false);
  MaybeLeave();
  if (left_) return;
  LookAgain(Patience());
}

// For a leader that is out of reach, as long as it gives us; but an agent holds the copy as well.
Nanos NodeHost::Patience() const {
  return services_->options.agent_socket.empty() ? services_->options.member_grace : kAgentPatience;
}

void NodeHost::LookAgain(Nanos after) {
  services_->loop->AddTimer(after, [this, alive = alive_] {
    if (*alive) MaybeLeave();
  });
}

bool NodeHost::Draining() const {
  return std::any_of(launches_.begin(), launches_.end(),
                     [](const auto& entry) { return entry.second->draining(); });
}

// Of a stop: what is here is the only copy until its leader has committed it.
bool NodeHost::OwesCopy() const {
  return std::any_of(launches_.begin(), launches_.end(), [](const auto& entry) {
    const std::vector<RamCopy> copies = entry.second->copies();
    return std::any_of(copies.begin(), copies.end(), [](const RamCopy& copy) {
      return copy.full && copy.gang_complete && !copy.durable;
    });
  });
}

void NodeHost::OnStart(uint32_t launch, const StartMsg& m) {
  if (!welcome_ || launches_.contains(launch) || left_) return;
  preparing_ = false;
  NodeLaunchConfig config{.launch = launch,
                          .epoch = m.epoch,
                          .job_id = welcome_->job_id,
                          .world = welcome_->world,
                          .first_rank = welcome_->first_rank,
                          .start = m,
                          .older = AllSlots()};
  auto made = std::make_unique<NodeLaunch>(
      services_, std::move(config),
      NodeLaunch::Host{
          .to_leader =
              [this, launch](GangBody body) {
                const auto* notice = std::get_if<NoticeMsg>(&body);  // a signal at one of the ranks
                if (notice != nullptr) last_notice_ = {*notice, BoottimeNs()};
                SendTo(launch, std::move(body));
              },
          .changed =
              [this] {
                GiveUpCopiesSoon();
                host_.changed();
              },
          .released = [this] { OnReleased(); },
          .written =
              [this](const AttemptId&, const Status&) {
                host_.changed();
                LookAgain(Nanos(0));
              },
          .slots_made =
              [this, launch](const std::vector<SlotPtr>& slots) {
                host_.slots_made(*launches_[launch], slots);
              },
      });
  NodeLaunch* started = made.get();
  launches_[launch] = std::move(made);
  const Status status = started->Start();
  host_.launched(*started);
  if (status.ok()) return;
  LogError(status.ToString());
  Notice(NoticeMsg{
      .request = static_cast<uint32_t>(gang::Request::kKill),
      .source = "node " + std::to_string(services_->options.node_rank) + ": " + status.message()});
}

void NodeHost::OnPrepare(uint32_t launch) {
  prepare_ = launch;
  preparing_ = true;
  if (launches_.empty() || launches_.rbegin()->second->released()) return OnReleased();
  launches_.rbegin()->second->Kill("the gang starts anew");
}

void NodeHost::OnReleased() {
  host_.changed();
  const bool gone = launches_.empty() || launches_.rbegin()->second->released();
  if (prepare_ && gone) {
    const uint32_t launch = *prepare_;
    prepare_.reset();
    held_ = AllSlots();
    SendTo(launch, MakeJoin());
  }
  MaybeLeave();
}

// Not from within a launch that may be given up itself.
void NodeHost::GiveUpCopiesSoon() {
  if (giving_up_ || (launches_.size() < 2 && held_.empty())) return;
  giving_up_ = true;
  services_->loop->Post([this, alive = alive_] {
    if (!*alive) return;
    giving_up_ = false;
    GiveUpCopies();
  });
}

// I2. Launches that have nothing left to write go, and so does their memory.
void NodeHost::GiveUpCopies() {
  if (launches_.size() < 2 && held_.empty()) return;
  NodeLaunch& now = *launches_.rbegin()->second;
  if (!now.status().all_restored && now.config().start.resume_kind != 0) return;
  const std::vector<RamCopy> fresh = now.copies();
  const bool newer = std::any_of(fresh.begin(), fresh.end(),
                                 [](const RamCopy& copy) { return copy.gang_complete; });
  const auto needed = [newer](const SlotPtr& slot) {
    const engine::GenerationState state = slot->region().state();
    return !newer && (state == engine::GenerationState::kSealed ||
                      state == engine::GenerationState::kGangComplete);
  };
  const size_t before = launches_.size() + held_.size();
  std::vector<SlotPtr> dropped;
  for (auto it = launches_.begin(); it->second.get() != &now;) {
    const std::vector<SlotPtr> slots = it->second->slots();
    const bool keep = it->second->draining() || std::any_of(slots.begin(), slots.end(), needed);
    if (!keep) dropped.insert(dropped.end(), slots.begin(), slots.end());
    it = keep ? std::next(it) : launches_.erase(it);
  }
  const auto given_up = std::stable_partition(held_.begin(), held_.end(), needed);
  std::move(given_up, held_.end(), std::back_inserter(dropped));
  held_.erase(given_up, held_.end());
  if (launches_.size() + held_.size() == before) return;
  now.ForgetOlder();
  // Gigabytes take a while to give back: off the loop, and before slots are made from the same
  // budget there.
  const Status queued =
      services_->prep->TrySubmit([slots = std::move(dropped)]() mutable { slots.clear(); });
  if (!queued.ok()) LogDebug("memory is given back here and now: " + queued.message());
  now.RetryStaging();
}

void NodeHost::Notice(const NoticeMsg& notice) {
  const auto request = static_cast<gang::Request>(notice.request);
  if (request == gang::Request::kNone && last_notice_ &&
      last_notice_->first.operation == notice.operation) {
    last_notice_.reset();
  }
  const bool stop = request != gang::Request::kSave && request != gang::Request::kNone;
  if (stop) last_notice_ = {notice, BoottimeNs()};
  if (stop && !welcome_) LeaveSoon(notice);
  if (stop && !launches_.empty()) launches_.rbegin()->second->SetNoticed();
  SendTo(launches_.empty() ? 0 : launches_.rbegin()->first, notice);
}

// Nothing runs here yet. A leader that has heard of this node ends the gang for all; one that is
// not there must not hold this process until --join-timeout.
void NodeHost::LeaveSoon(const NoticeMsg& notice) {
  services_->loop->AddTimer(kLeaderAnswers, [this, alive = alive_, source = notice.source] {
    if (!*alive || welcome_ || outcome_) return;
    Abandon(75, source + " came before node 0 of the gang was reached; nothing was changed");
  });
}

// The leader may have missed what was said while the stream was broken, or shortly before that was
// noticed. Said twice, it is the same.
void NodeHost::SayAgain() {
  for (const auto& [number, launch] : launches_) {
    launch->SetConnected(true);
    launch->SayAgain();
  }
  if (!last_notice_ || last_notice_->second < lost_ns_ - kUnnoticedNs || launches_.empty()) return;
  NoticeMsg notice = last_notice_->first;
  const int64_t since = BoottimeNs() - last_notice_->second;
  if (notice.left_ns > 0) notice.left_ns = std::max<int64_t>(1, notice.left_ns - since);
  SendTo(launches_.rbegin()->first, notice);
}

void NodeHost::OnOutcome(const OutcomeMsg& m) {
  if (outcome_) return;
  outcome_ = m;
  for (const auto& [number, launch] : launches_) {
    if (!launch->released()) launch->Kill(m.message);
  }
  MaybeLeave();
}

void NodeHost::KillHere(const std::string& why) {
  for (const auto& [number, launch] : launches_) {
    if (!launch->released()) launch->Kill(why);
  }
}

void NodeHost::Abandon(int exit_code, const std::string& why) {
  OnOutcome(OutcomeMsg{static_cast<uint32_t>(exit_code), why});
}

void NodeHost::MaybeLeave() {
  if (left_) return;
  const bool gone = std::all_of(launches_.begin(), launches_.end(),
                                [](const auto& entry) { return entry.second->released(); });
  if (!gone) return;
  if (!outcome_ && connected_) return;
  if (!outcome_) {
    // The leader is out of reach and nothing runs here any more: judge by what this node knows.
    if (launches_.empty()) return;
    const bool waits = BoottimeNs() < lost_ns_ + Patience().count();
    if ((Draining() && services_->options.agent_socket.empty()) || (OwesCopy() && waits)) return;
    const bool finished = launches_.rbegin()->second->status().all_finished;
    outcome_ = OutcomeMsg{finished ? 0u : 1u,
                          finished ? "all ranks of this node finished; the gang's leader is out of "
                                     "reach"
                                   : "the gang's leader is out of reach and the ranks are gone"};
  }
  left_ = true;
  host_.leave(static_cast<int>(outcome_->exit_code), outcome_->message);
}

}  // namespace ckpt::run
