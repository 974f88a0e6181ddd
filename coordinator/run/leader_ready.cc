// From registered ranks to a gang that can stop: layouts, plan, slots, notices, keys.
#include <algorithm>
#include <utility>

#include "coordinator/run/leader_launch.h"
#include "libckpt/base/log.h"
#include "libckpt/plan/plan.h"

namespace ckpt::run {
namespace {

// Operations that the leader numbers itself; a coordinator's are below.
constexpr uint64_t kOwnOperations = uint64_t{1} << 63;
// How long after a notice the ranks may still register before the signal is passed on to them.
constexpr int64_t kRegisterNsMax = 5'000'000'000;

}  // namespace

const LaunchNode* LeaderLaunch::NodeOf(uint32_t node) const {
  const auto it = std::find_if(config_.nodes.begin(), config_.nodes.end(),
                               [node](const LaunchNode& n) { return n.node == node; });
  return it == config_.nodes.end() ? nullptr : &*it;
}

void LeaderLaunch::OnLayouts(uint32_t node, const LayoutsMsg& m) {
  const LaunchNode* where = NodeOf(node);
  if (m.first_rank != where->first_rank || m.layouts.size() != where->rank_count) {
    return LogWarning("node " + std::to_string(node) + " sent layouts of ranks it has not");
  }
  for (uint32_t i = 0; i < where->rank_count; ++i) {
    layout_bytes_[where->first_rank + i] = m.layouts[i];
  }
  if (layout_bytes_.size() < config_.world) return;
  std::vector<uint32_t> node_of(config_.world);
  for (const LaunchNode& entry : config_.nodes) {
    std::fill_n(node_of.begin() + entry.first_rank, entry.rank_count, entry.node);
  }
  struct Planned {
    Planned() = default;
    explicit Planned(Status s) : status(std::move(s)) {}
    Status status;
    std::shared_ptr<std::vector<format::RankLayout>> layouts;
    std::vector<std::string> plans;
    uint64_t hash = 0;
  };
  const auto work = [bytes = layout_bytes_, node_of]() -> Planned {
    Planned planned;
    planned.layouts = std::make_shared<std::vector<format::RankLayout>>();
    for (const auto& [rank, encoded] : bytes) {
      Result<format::RankLayout> layout = format::RankLayout::Decode(encoded);
      if (!layout.ok()) return Planned(std::move(layout).status());
      planned.layouts->push_back(std::move(layout).value());
    }
    Result<plan::GangPlan> plan = plan::MakePlan(*planned.layouts, node_of);
    if (!plan.ok()) return Planned(std::move(plan).status());
    for (const plan::RankPlan& rank : plan->ranks) planned.plans.push_back(rank.Encode());
    planned.hash = plan->hash;
    return planned;
  };
  CallStore(work, [this, number = ++plan_number_](Planned planned) {
    if (number != plan_number_) return;  // tracked anew meanwhile
    if (planned.status.ok()) layouts_ = planned.layouts;
    OnPlanned(number, planned.status, std::move(planned.plans), planned.hash);
  });
}

void LeaderLaunch::OnPlanned(uint64_t, const Status& status, std::vector<std::string> plans,
                             uint64_t hash) {
  plan_error_ = status.message();
  if (!status.ok()) LogError("no save or suspend is possible: " + status.ToString());
  if (status.ok() && hash != plan_hash_) {  // tracked anew: the nodes make other slots
    plan_hash_ = hash;
    ready_ = false;
    for (auto& [id, node] : nodes_) node.slots = 0;
  }
  for (const LaunchNode& node : config_.nodes) {
    PlanMsg plan{.hash = hash, .first_rank = node.first_rank, .error = plan_error_};
    if (status.ok()) {
      const auto first = plans.begin() + node.first_rank;
      plan.plans.assign(first, first + node.rank_count);
    }
    host_.to_node(node.node, plan);
  }
  ConsiderNotices();
}

void LeaderLaunch::OnReady(uint32_t node, const ReadyMsg& m) {
  NodeState& state = nodes_[node];
  state.any_ready = true;
  state.slots = m.slots;
  state.error = m.error;
  state.stage_bytes = m.stage_bytes;
  uint32_t slots = 2;
  stage_bytes_ = 0;
  for (const auto& [id, entry] : nodes_) {
    slots = std::min(slots, entry.slots);
    stage_bytes_ += entry.stage_bytes;
  }
  const bool was_ready = ready_;
  ready_ = slots > 0;
  if (ready_) Feed(gang::SlotsKnown{slots});
  if (!m.error.empty() && plan_error_.empty()) {
    LogError("no save or suspend is possible: " + m.error);
  }
  if (ready_ && !was_ready) {
    LogDebug("staging memory is ready: " + FormatBytes(stage_bytes_) + " a generation, " +
             std::to_string(slots) + " slots");
  }
  ConsiderNotices();
  host_.changed();
}

void LeaderLaunch::OnRestored(const RestoredMsg& m) {
  if (m.code == static_cast<uint32_t>(Code::kDataLoss)) return host_.damaged(m);
  if (m.code != 0) {
    return LogError("rank " + std::to_string(m.rank) + " could not restore: " + m.message);
  }
  restored_.insert(m.rank);
  if (restored_.size() != config_.world) return;
  Say("all " + std::to_string(config_.world) + " ranks have restored step " +
      std::to_string(m.step) + ", " + FormatDuration(Nanos(BoottimeNs() - started_ns_)) +
      " after the start");
}

void LeaderLaunch::OnKvSet(uint32_t, const KvSetMsg& m) {
  Result<std::vector<KvStore::Waiter>> told = kv_.Set(m.scope, m.key, m.value);
  if (!told.ok()) return LogWarning("key-value channel: " + told.status().ToString());
  for (const auto& [node, id] : *told) {
    host_.to_node(static_cast<uint32_t>(node), KvValueMsg{id, m.value});
  }
}

void LeaderLaunch::OnKvWait(uint32_t node, const KvWaitMsg& m) {
  const std::optional<std::string> value = kv_.Wait(m.scope, m.key, {node, m.id});
  if (value) host_.to_node(node, KvValueMsg{m.id, *value});
}

std::string LeaderLaunch::WhyNotReady() const {
  if (!plan_error_.empty()) return plan_error_;
  for (const auto& [node, state] : nodes_) {
    if (!state.error.empty()) return state.error;
  }
  return "";
}

// ---- notices ------------------------------------------------------------------------------------

void LeaderLaunch::AddNotice(const NoticeMsg& notice) {
  const auto request = static_cast<gang::Request>(notice.request);
  if (request == gang::Request::kNone) return WithdrawNotice(notice);
  // Also of a launch that has ended already: what is asked to stop is not started again.
  if (request != gang::Request::kSave) notice_seen_ = true;
  if (end_ != LaunchEnd::kNone) return;
  if (request == gang::Request::kKill) return KillNow(notice.source);
  if (request == gang::Request::kSave) {
    return SaveNow(notice.operation, notice.left_ns, notice.source);
  }
  gang::NoticeRequest entry{
      .id = next_notice_++, .source = notice.source, .request = request, .hard = notice.hard};
  if (notice.left_ns > 0) entry.deadline_ns = BoottimeNs() + notice.left_ns;
  if (notices_.empty()) Say("notice: " + notice.source);
  if (const Status added = notices_.Add(entry); !added.ok()) {
    return LogWarning("notice of " + notice.source + ": " + added.ToString());
  }
  if (notice.operation != 0) agent_operation_ = pending_operation_ = notice.operation;
  refusal_.clear();
  ConsiderNotices();
}

void LeaderLaunch::WithdrawNotice(const NoticeMsg& notice) {
  const uint64_t operation = notice.operation;
  if (end_ != LaunchEnd::kNone || operation == 0) return;
  const std::string why = "withdrawn by " + notice.source;
  if (operation_ == operation) return Feed(gang::Withdraw{operation, why});
  if (agent_operation_ != operation) return;
  pending_operation_ = 0;
  notices_ = gang::NoticeBook();
  ArmNoticeTimers(gang::Effective());
  RefuseNotice(why);
}

void LeaderLaunch::SaveNow(uint64_t operation, int64_t left_ns, const std::string& source) {
  if (!ready_) {
    const std::string why = WhyNotReady();
    refusal_ = why.empty() ? "not all ranks have called track yet" : why;
    return Say("no save for " + source + ": " + refusal_);
  }
  gang::Command command{.operation = operation != 0 ? operation : kOwnOperations | next_notice_++,
                        .request = gang::Request::kSave,
                        .source = source};
  if (left_ns > 0) command.deadline_ns = BoottimeNs() + left_ns;
  Feed(command);
}

void LeaderLaunch::ConsiderNotices() {
  if (notices_.empty() || end_ != LaunchEnd::kNone) return;
  const gang::Effective effective = notices_.Compute(BoottimeNs(), gang::NoticeTimes());
  ArmNoticeTimers(effective);
  if (!ready_) {
    if (const std::string why = WhyNotReady(); !why.empty()) return RefuseNotice(why);
    if (!kept_said_) {
      kept_said_ = true;
      Say("not all ranks have registered and called track yet: the notice is kept until they have");
    }
    return;
  }
  if (operation_ != 0 && pending_operation_ == 0 && told_deadline_ns_ == effective.deadline_ns) {
    return;
  }
  // The machine merges commands; an earlier deadline is one more command.
  operation_ = pending_operation_ != 0 ? std::exchange(pending_operation_, 0)
                                       : kOwnOperations | next_notice_++;
  told_deadline_ns_ = effective.deadline_ns;
  Feed(gang::Command{.operation = operation_,
                     .request = effective.request,
                     .deadline_ns = effective.deadline_ns,
                     .hard = effective.hard,
                     .source = effective.sources});
}

void LeaderLaunch::RefuseNotice(const std::string& why) {
  if (!refusal_.empty()) return;
  refusal_ = why;
  Say("cannot suspend: " + why + "; the ranks run on" +
      (kill_timer_ != 0 ? " until the deadline" : "") + ", what is durable already stays");
  host_.changed();
}

void LeaderLaunch::ArmNoticeTimers(const gang::Effective& effective) {
  os::EventLoop* loop = services_->loop;
  const int64_t now = BoottimeNs();
  loop->CancelTimer(kill_timer_);
  kill_timer_ = 0;
  const int64_t kill_ns = std::min<int64_t>(2'000'000'000, services_->options.grace.count() / 4);
  if (effective.hard && effective.deadline_ns != 0) {
    const int64_t left = std::max<int64_t>(0, effective.deadline_ns - kill_ns - now);
    kill_timer_ = loop->AddTimer(Nanos(left), [this] {
      kill_timer_ = 0;
      if (operation_ == 0) KillNow("the deadline of the notice; the gang could not be suspended");
    });
  }
  if (forward_timer_ != 0 || forwarded_) return;
  const int64_t wait = std::min(kRegisterNsMax, services_->options.grace.count() / 2);
  forward_timer_ = loop->AddTimer(Nanos(wait), [this] {
    forward_timer_ = 0;
    forwarded_ = true;
    if (!ready_ && layout_bytes_.empty()) host_.forward_signal();
  });
}

void LeaderLaunch::KillNow(const std::string& why) {
  Feed(gang::Command{.operation = kOwnOperations | next_notice_++,
                     .request = gang::Request::kKill,
                     .source = why});
}

}  // namespace ckpt::run
