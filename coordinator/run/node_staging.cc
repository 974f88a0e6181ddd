// Plan, staging slots and generations of a launch.
#include <algorithm>
#include <utility>

#include "coordinator/run/node_launch.h"
#include "libckpt/base/clock.h"
#include "libckpt/base/fault.h"
#include "libckpt/base/log.h"

namespace ckpt::run {
namespace {

// When what some ranks have tracked is passed on without the others'; a quarter of the grace, if
// that is less.
constexpr Nanos kLateLayout = std::chrono::seconds(10);
constexpr Nanos kShareAgain = std::chrono::seconds(2);
constexpr Nanos kDrainReportEvery = std::chrono::milliseconds(200);

}  // namespace

// All that this node's ranks have tracked, once all have; after a while also without the others, so
// that these can be named.
void NodeLaunch::SendLayouts() {
  LayoutsMsg layouts{.first_rank = config_.first_rank};
  size_t known = 0;
  for (const RankState& rank : ranks_) {
    known += rank.layout ? 1 : 0;
    layouts.layouts.push_back(rank.layout_bytes);
  }
  const Nanos patience = std::min(kLateLayout, services_->options.grace / 4);
  const bool late = first_layout_ns_ != 0 && BoottimeNs() - first_layout_ns_ >= patience.count();
  if (known == ranks_.size()) services_->loop->CancelTimer(layout_timer_);
  if (known == ranks_.size() || (known > 0 && late)) return host_.to_leader(std::move(layouts));
  if (known == 0 || first_layout_ns_ != 0) return;
  first_layout_ns_ = BoottimeNs();
  layout_timer_ = services_->loop->AddTimer(patience, [this] {
    if (!released_) SendLayouts();
  });
}

void NodeLaunch::SayAgain() {
  if (released_) return;
  SendLayouts();
  if (!staging_error_.ok()) return host_.to_leader(ReadyMsg{.error = staging_error_.message()});
  if (slots_.empty()) return;
  host_.to_leader(ReadyMsg{.slots = static_cast<uint32_t>(slots_.size()),
                           .stage_bytes = this->status().stage_bytes});
}

void NodeLaunch::OnPlan(const PlanMsg& m) {
  if (!m.error.empty()) return SetStagingError(InvalidArgument(m.error));
  if (m.hash == plan_hash_ && !slots_.empty()) {  // the same state, tracked again
    return ShareSlots();
  }
  std::vector<plan::RankPlan> plans;
  std::vector<format::RankLayout> layouts;
  for (size_t i = 0; i < m.plans.size() && i < ranks_.size(); ++i) {
    if (!ranks_[i].layout) return;
    Result<plan::RankPlan> plan = plan::RankPlan::Decode(m.plans[i], *ranks_[i].layout);
    if (!plan.ok()) {  // the layout changed meanwhile: a newer plan is under way
      return LogDebug("dropped a plan of older layouts: " + plan.status().ToString());
    }
    plans.push_back(std::move(plan).value());
    layouts.push_back(*ranks_[i].layout);
  }
  if (plans.size() != ranks_.size()) return SetStagingError(Internal("a plan without all ranks"));
  plans_ = std::move(plans);
  plan_layouts_ = std::move(layouts);
  plan_hash_ = m.hash;
  ++plan_number_;
  RetireSlots();
  MakeSlots();
}

void NodeLaunch::RetryStaging() {
  if (!plans_.empty() && slots_.size() < kStagingSlotsMax && !released_) MakeSlots();
}

// Memory of older layouts stays for as long as something in it is needed.
void NodeLaunch::RetireSlots() {
  std::move(slots_.begin(), slots_.end(), std::back_inserter(retired_));
  slots_.clear();
  DropRetired();
}

void NodeLaunch::DropRetired() {
  using State = engine::GenerationState;
  const size_t before = retired_.size();
  std::erase_if(retired_, [](const SlotSet& set) {
    return std::none_of(set.begin(), set.end(), [](const SlotPtr& slot) {
      const State state = slot->region().state();
      return state == State::kFilling || state == State::kSealed || state == State::kGangComplete;
    });
  });
  if (retired_.size() != before) RetryStaging();
}

// Two slots where the budget allows, else one; laid out on a worker thread. The first is handed out
// while the second is made: with it the gang can save and stop.
void NodeLaunch::MakeSlots() {
  if (making_slots_) {
    make_again_ = true;  // memory was given up meanwhile
    return;
  }
  making_slots_ = true;
  std::vector<engine::StagingIdentity> identities;
  for (size_t i = 0; i < ranks_.size(); ++i) {
    identities.push_back({config_.job_id, Rank(RankAt(i)), config_.world, plan_hash_});
  }
  const auto work = [this, alive = alive_, loop = services_->loop, budget = services_->budget,
                     number = plan_number_, slot = static_cast<uint32_t>(slots_.size()),
                     identities = std::move(identities), layouts = plan_layouts_, plans = plans_] {
    SlotSet set;
    Status status;
    for (size_t i = 0; i < layouts.size() && status.ok(); ++i) {
      Result<SlotPtr> made = StagingSlot::Create(budget, identities[i], slot, layouts[i], plans[i]);
      status = Status(made.status()).Annotate("rank " + std::to_string(identities[i].rank.value()));
      if (made.ok()) set.push_back(std::move(made).value());
    }
    if (!status.ok()) set.clear();
    loop->Post([this, alive, number, set = std::move(set), status] {
      if (*alive) OnSlots(number, set, status);
    });
  };
  const Status queued = services_->prep->TrySubmit(work);
  if (!queued.ok()) OnSlots(plan_number_, {}, queued);
}

void NodeLaunch::OnSlots(uint64_t plan_number, SlotSet set, const Status& status) {
  making_slots_ = false;
  if (released_) return;
  if (plan_number != plan_number_) {  // the state was tracked anew meanwhile
    set.clear();
    return MakeSlots();
  }
  if (std::exchange(make_again_, false) && !status.ok()) return MakeSlots();
  if (!set.empty()) slots_.push_back(std::move(set));
  if (slots_.empty()) {
    uint64_t needed = 0;
    for (size_t i = 0; i < ranks_.size(); ++i) needed += SlotBytes(plan_layouts_[i], plans_[i]);
    return SetStagingError(ResourceExhausted(
        "staging memory on node " + std::to_string(services_->options.node_rank) + " for " +
        std::to_string(ranks_.size()) + " ranks takes " + FormatBytes(needed) + " (" +
        std::to_string(needed) + " bytes): " + status.message()));
  }
  if (!status.ok()) return;  // for one slot only: a save waits for the one before it
  CKPT_PASS("run.node.slots");
  staging_error_ = OkStatus();
  host_.slots_made(slots());
  ShareSlots();
  if (slots_.size() < kStagingSlotsMax) MakeSlots();
}

// To all ranks; only then may the gang count on them. Without a descriptor to send it is tried
// again: one may be had later.
void NodeLaunch::ShareSlots() {
  services_->loop->CancelTimer(share_timer_);
  share_timer_ = 0;
  if (slots_.empty() || released_) return;
  Status shared;
  for (size_t i = 0; i < ranks_.size() && shared.ok(); ++i) shared = SendSlots(RankAt(i));
  if (!shared.ok()) {
    // Who asks for a save or a stop meanwhile hears why there is none.
    host_.to_leader(ReadyMsg{.error = "staging memory of node " +
                                      std::to_string(services_->options.node_rank) +
                                      " cannot be handed out: " + shared.message() +
                                      "; it is tried again every " + FormatDuration(kShareAgain)});
    share_timer_ = services_->loop->AddTimer(kShareAgain, [this] { ShareSlots(); });
    return;
  }
  host_.to_leader(ReadyMsg{.slots = static_cast<uint32_t>(slots_.size()),
                           .stage_bytes = this->status().stage_bytes});
  host_.changed();
}

void NodeLaunch::SetStagingError(const Status& why) {
  staging_error_ = why;
  for (size_t i = 0; i < ranks_.size(); ++i) {
    if (ranks_[i].layout_request != 0) Fail(RankAt(i), ranks_[i].layout_request, why);
    ranks_[i].layout_request = 0;
  }
  host_.to_leader(ReadyMsg{.slots = 0, .error = why.message()});
  host_.changed();
}

Status NodeLaunch::SendSlots(uint32_t rank) {
  const size_t index = rank - config_.first_rank;
  for (const SlotSet& set : slots_) {
    Result<os::Memfd> memfd = set[index]->memfd().Dup();
    if (!memfd.ok()) return Status(memfd.status()).Annotate("rank " + std::to_string(rank));
    std::vector<os::UniqueFd> fds;
    fds.push_back(std::move(*memfd).TakeFd());
    Reply(rank, 0, wire::Staging{.slot = set[index]->slot(), .bytes = set[index]->bytes()},
          std::move(fds));
  }
  ranks_[index].layout_request = 0;
  return OkStatus();
}

StagingSlot* NodeLaunch::SlotOf(uint32_t rank, uint32_t slot) {
  return slot < slots_.size() ? slots_[slot][rank - config_.first_rank].get() : nullptr;
}

bool NodeLaunch::Holds(StagingSlot& slot, uint32_t index, uint32_t generation) const {
  const engine::GenerationInfo info = slot.region().info();
  return slot.slot() == index && info.generation == generation &&
         info.id.epoch.value() == config_.epoch;
}

StagingSlot* NodeLaunch::SlotHolding(uint32_t rank, uint32_t slot, uint32_t generation) {
  for (const SlotPtr& entry : slots()) {
    if (entry->rank() == rank && Holds(*entry, slot, generation)) return entry.get();
  }
  return nullptr;
}

// The slots of one generation; empty if any of them holds another.
SlotSet NodeLaunch::GenerationSlots(uint32_t slot, uint32_t generation) {
  SlotSet set;
  for (size_t i = 0; i < ranks_.size(); ++i) {
    for (const SlotPtr& entry : slots()) {
      if (entry->rank() == RankAt(i) && Holds(*entry, slot, generation)) set.push_back(entry);
    }
  }
  return set.size() == ranks_.size() ? set : SlotSet();
}

void NodeLaunch::Act(const gang::GrantSave& action) {
  const RankState& state = Of(action.rank.value());
  const StagingSlot* slot = SlotOf(action.rank.value(), action.slot);
  if (slot == nullptr || state.save_boundary != action.boundary ||
      state.save_sequence != action.sequence) {
    const Status why = Unavailable("the staging slot of this save is not there yet");
    Fail(action.rank.value(), state.save_request, why);
    return Feed(gang::RankStageFailed{action.rank, action.generation, action.attempt, why});
  }
  CKPT_PASS("run.node.grant");
  Reply(action.rank.value(), state.save_request,
        wire::Staging{action.slot, action.generation, action.attempt, slot->bytes()});
}

void NodeLaunch::Act(const gang::WriteShards& action) {
  const SlotSet set = GenerationSlots(action.slot, action.generation);
  if (set.empty()) {
    return Feed(gang::ShardsWritten{
        action.attempt,
        Internal("generation " + std::to_string(action.generation) + " is not in its staging slot"),
        ""});
  }
  CKPT_PASS("run.node.write");
  const AttemptId id = set[0]->region().info().id;
  writing_[action.attempt] = id;
  writers_.Start(id, set);
  // The pages are not sampled once the ranks are gone; the drain goes on.
  if (drain_timer_ == 0) {
    drain_timer_ = services_->loop->AddPeriodic(kDrainReportEvery, [this] { host_.changed(); });
  }
  host_.changed();
}

void NodeLaunch::OnWritten(uint32_t attempt, Status status, std::string payload) {
  if (!status.ok()) LogWarning(status.ToString());
  host_.written(writing_[attempt], status);
  writing_.erase(attempt);
  if (writing_.empty()) {
    services_->loop->CancelTimer(drain_timer_);
    drain_timer_ = 0;
  }
  Feed(gang::ShardsWritten{attempt, std::move(status), std::move(payload)});
  host_.changed();
}

void NodeLaunch::Act(const gang::MarkGeneration& action) {
  using State = engine::GenerationState;
  for (const SlotPtr& slot : slots()) {
    if (!Holds(*slot, action.slot, action.generation)) continue;
    engine::StagingRegion& region = slot->region();
    const State state = region.state();
    const bool sealed = state == State::kSealed || state == State::kGangComplete;
    if (action.mark == gang::GenerationMark::kGangComplete && sealed) {
      region.set_state(State::kGangComplete);
    } else if (action.mark == gang::GenerationMark::kDurable && sealed) {
      region.set_state(State::kDurable);
    } else if (action.mark == gang::GenerationMark::kAborted && state != State::kDurable) {
      region.set_state(State::kAborted);
    }
  }
  DropRetired();
  wire::SaveState state{.attempt = action.attempt};
  if (action.mark == gang::GenerationMark::kSealed) state.level = 1;
  if (action.mark == gang::GenerationMark::kGangComplete) state.level = 2;
  if (action.mark == gang::GenerationMark::kDurable) state.level = 3;
  if (!action.why.ok()) {
    const bool dropped = action.mark == gang::GenerationMark::kAborted;
    state.level = dropped ? 0 : 2;
    state.code = static_cast<uint32_t>(action.why.code());
    state.message =
        action.why.message() + (dropped ? "; this save was dropped, an older copy stands"
                                        : "; its copy stays in RAM only");
  }
  TellSaveState(action.attempt, state);
  host_.changed();
}

void NodeLaunch::TellSaveState(uint32_t attempt, const wire::SaveState& state) {
  saves_[attempt] = state;
  while (saves_.size() > 64) saves_.erase(saves_.begin());
  for (size_t i = 0; i < ranks_.size(); ++i) Reply(RankAt(i), 0, state);
}

}  // namespace ckpt::run
