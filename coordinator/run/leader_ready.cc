// From registered ranks to a gang that can stop: layouts, plan, slots, notices, keys.
#include <algorithm>
#include <utility>

#include "coordinator/run/leader_launch.h"
#include "coordinator/run/memcpy_speed.h"
#include "libckpt/base/digest.h"
#include "libckpt/base/fault.h"
#include "libckpt/base/log.h"
#include "libckpt/plan/plan.h"

namespace ckpt::run {
namespace {

// Operations that the leader numbers itself; a coordinator's are below.
constexpr uint64_t kOwnOperations = uint64_t{1} << 63;
// Barrier 2: a floor, and what a slow machine needs for the bytes of a node; less than a rank
// waits.
constexpr int64_t kStageNsMin = 120'000'000'000, kStageNsMax = 480'000'000'000;
constexpr uint64_t kSlowBytesPerMs = uint64_t{256} << 10;
// How long after the first ranks have called track the others are named; half the grace, if that is
// less.
constexpr Nanos kLateRanks = std::chrono::seconds(15);
constexpr uint64_t kSampleBytes = uint64_t{32} << 20;
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
    if (!m.layouts[i].empty()) layout_bytes_[where->first_rank + i] = m.layouts[i];
  }
  if (layout_bytes_.size() < config_.world) return WaitForLayouts();
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
    std::vector<uint64_t> hashes;
    for (const auto& [rank, encoded] : bytes) {
      Result<format::RankLayout> layout = format::RankLayout::Decode(encoded);
      if (!layout.ok()) return Planned(std::move(layout).status());
      planned.layouts->push_back(std::move(layout).value());
      hashes.push_back(Hash64(AsBytes(encoded)));
    }
    Result<plan::GangPlan> plan = plan::MakePlan(*planned.layouts, node_of, hashes);
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

// Some ranks have called track and others have not: said while they can still be helped.
void LeaderLaunch::WaitForLayouts() {
  TellSlots();
  if (missing_timer_ != 0) return;
  missing_timer_ =
      services_->loop->AddTimer(std::min(kLateRanks, services_->options.grace / 2), [this] {
        if (layout_bytes_.size() == config_.world || end_ != LaunchEnd::kNone) return;
        said_missing_ = true;
        Say(WhoIsMissing() + ", others have: no save and no suspend is possible until they do");
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
  TellSlots();
}

void LeaderLaunch::OnReady(uint32_t node, const ReadyMsg& m) {
  NodeState& state = nodes_[node];
  state.any_ready = true;
  state.slots = m.slots;
  const bool news = std::exchange(state.error, m.error) != m.error;
  state.stage_bytes = m.stage_bytes;
  uint32_t slots = 2;
  stage_bytes_ = 0;
  for (const auto& [id, entry] : nodes_) {
    slots = std::min(slots, entry.slots);
    stage_bytes_ += entry.stage_bytes;
  }
  const bool was_ready = ready_;
  ready_ = slots > 0;
  slots_ = slots;
  if (news && !m.error.empty() && plan_error_.empty()) {
    LogError("no save or suspend is possible: " + m.error);
  }
  if (ready_ && !was_ready && std::exchange(said_missing_, false)) {
    Say("all ranks have called track: saves and suspends are possible");
  }
  if (ready_ && !was_ready) {
    MeasureStaging();
    LogDebug("staging memory is ready: " + FormatBytes(stage_bytes_) + " a generation, " +
             std::to_string(slots) + " slots");
  }
  TellSlots();
  host_.changed();
}

// How long a capture will take: bytes over the bandwidth of this machine right now, of a sample
// that the first steps hardly notice. A capture that was seen replaces it.
void LeaderLaunch::MeasureStaging() {
  uint64_t most = 0;
  uint32_t ranks = 1;
  for (const LaunchNode& node : config_.nodes) {
    if (nodes_[node.node].stage_bytes < most) continue;
    most = nodes_[node.node].stage_bytes;
    ranks = node.rank_count;
  }
  const uint64_t sample = std::min(most, kSampleBytes);
  if (sample == 0) return;
  services_->prep
      ->TrySubmit([this, alive = alive_, loop = services_->loop, most, sample, ranks] {
        const double took = static_cast<double>(TimeMemcpy(sample, ranks).count());
        const double stage_ns = took * static_cast<double>(most) / static_cast<double>(sample);
        loop->Post([this, alive, stage_ns = static_cast<int64_t>(stage_ns)] {
          if (!*alive || stage_seen_) return;
          Feed(gang::Measured{gang::NoticeTimes{.stage_ns = stage_ns}});
        });
      })
      .IgnoreError();
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

std::string LeaderLaunch::WhoIsMissing() const {
  std::string missing;
  for (uint32_t rank = 0; rank < config_.world; ++rank) {
    if (layout_bytes_.contains(rank)) continue;
    missing += (missing.empty() ? "" : ", ") + std::to_string(rank);
  }
  if (missing.empty()) return "staging memory is being laid out";
  const bool one = missing.find(',') == std::string::npos;
  return (one ? "rank " : "ranks ") + missing + (one ? " has" : " have") +
         " not registered and called track yet";
}

// What the machine may count on, each time that it changes.
void LeaderLaunch::TellSlots() {
  uint64_t most_bytes = 0;  // of one node
  for (const auto& [id, node] : nodes_) most_bytes = std::max(most_bytes, node.stage_bytes);
  const int64_t stage_ns = std::min(
      kStageNsMax, kStageNsMin + static_cast<int64_t>(most_bytes / kSlowBytesPerMs) * 1'000'000);
  if (ready_) return Feed(gang::SlotsKnown{.slots = slots_, .stage_ns = stage_ns});
  const std::string never = WhyNotReady();
  Feed(gang::SlotsKnown{0, never.empty() ? WhoIsMissing() : never, !never.empty()});
}

// ---- notices ------------------------------------------------------------------------------------

void LeaderLaunch::AddNotice(const NoticeMsg& notice) {
  const auto request = static_cast<gang::Request>(notice.request);
  if (request == gang::Request::kNone) {
    if (end_ != LaunchEnd::kNone) return;
    Say("notice withdrawn: " + notice.source);
    return Feed(gang::Withdraw{notice.operation, "withdrawn by " + notice.source});
  }
  // Also of a launch that has ended already: what is asked to stop is not started again.
  if (request != gang::Request::kSave) notice_seen_ = true;
  if (end_ != LaunchEnd::kNone) return;
  if (request == gang::Request::kSave) {
    return SaveNow(notice.operation, notice.left_ns, notice.source);
  }
  if (notice.operation != 0) {
    agent_stop_ = notice.operation;
    refusal_.clear();
  }
  if (request == gang::Request::kKill) return KillNow(notice.operation, notice.source);
  CKPT_PASS("run.leader.notice");
  if (sources_.insert(notice.source).second) {
    Say("notice: " + notice.source +
        (notice.left_ns > 0 ? ", " + FormatDuration(Nanos(notice.left_ns)) : ""));
  }
  ForwardLater();
  gang::Command command{.operation = NumberOf(notice.operation),
                        .request = request,
                        .hard = notice.hard,
                        .source = notice.source};
  if (notice.left_ns > 0) command.deadline_ns = BoottimeNs() + notice.left_ns;
  Feed(std::move(command));
}

uint64_t LeaderLaunch::NumberOf(uint64_t operation) {
  return operation != 0 ? operation : kOwnOperations | next_operation_++;
}

void LeaderLaunch::SaveNow(uint64_t operation, int64_t left_ns, const std::string& source) {
  gang::Command command{
      .operation = NumberOf(operation), .request = gang::Request::kSave, .source = source};
  if (left_ns > 0) command.deadline_ns = BoottimeNs() + left_ns;
  if (operation != 0) {
    agent_save_ = operation;
    save_refusal_.clear();
  }
  Feed(std::move(command));
}

void LeaderLaunch::KillNow(uint64_t operation, const std::string& why) {
  Feed(gang::Command{
      .operation = NumberOf(operation), .request = gang::Request::kKill, .source = why});
}

// Programs without libckpt know signals only.
void LeaderLaunch::ForwardLater() {
  if (forward_timer_ != 0 || forwarded_) return;
  const int64_t wait = std::min(kRegisterNsMax, services_->options.grace.count() / 2);
  forward_timer_ = services_->loop->AddTimer(Nanos(wait), [this] {
    forward_timer_ = 0;
    forwarded_ = true;
    if (!ready_ && layout_bytes_.empty()) host_.forward_signal();
  });
}

}  // namespace ckpt::run
