#include "coordinator/gang/leader.h"

#include <algorithm>

#include "coordinator/gang/leader_impl.h"

namespace ckpt::gang {

Result<Leader> Leader::Create(const LeaderConfig& config, std::string_view record) {
  if (config.members.empty()) return InvalidArgument("a gang needs at least one member");
  if (config.slots > 2) {
    return InvalidArgument("a gang has at most two staging slots, not " +
                           std::to_string(config.slots));
  }
  LeaderRecord restored;
  if (!record.empty()) {
    CKPT_ASSIGN_OR_RETURN(restored, LeaderRecord::Decode(record));
  }
  return Leader(std::make_unique<Impl>(config, std::move(restored), !record.empty()));
}

Leader::Leader(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Leader::~Leader() = default;
Leader::Leader(Leader&&) noexcept = default;

LeaderActions Leader::Step(int64_t now_ns, const LeaderEvent& event) {
  return impl_->Step(now_ns, event);
}
int64_t Leader::next_deadline_ns() const { return impl_->next_deadline_ns(); }
Leader::View Leader::view() const { return impl_->view(); }

std::string_view Name(OpPhase phase) {
  switch (phase) {
    case OpPhase::kQueued:
      return "queued";
    case OpPhase::kNotified:
      return "notified";
    case OpPhase::kQuiesced:
      return "quiesced";
    case OpPhase::kStaged:
      return "staged";
    case OpPhase::kCommsDown:
      return "communicators down";
    case OpPhase::kReleasing:
      return "releasing";
    case OpPhase::kReleased:
      return "released";
    case OpPhase::kDurable:
      return "durable";
    case OpPhase::kRolledBack:
      return "rolled back";
    case OpPhase::kEnded:
      return "ended";
    case OpPhase::kRefused:
      return "refused";
    case OpPhase::kNotDurable:
      return "not durable";
    case OpPhase::kFinished:
      return "finished";
    case OpPhase::kAgain:
      return "tried again";
    case OpPhase::kTooLate:
      return "too late to withdraw";
    case OpPhase::kLate:
      return "held up";
  }
  return "?";
}

Leader::Impl::Impl(const LeaderConfig& config, LeaderRecord record, bool returned)
    : config_(config), r_(std::move(record)), returned_(returned) {
  for (const MemberRanks& member : config.members) {
    MemberState& state = members_[member.id];
    state.first_rank = member.first_rank;
    state.rank_count = member.rank_count;
  }
}

void Leader::Impl::Begin() {
  begun_ = true;
  stage_ns_ = now_;
  if (r_.started_ns == 0) r_.started_ns = now_;
  for (auto& [id, member] : members_) member.lost_ns = now_;  // until it joins, this once or again
}

// One Persist for each step at most, and everything that the step says waits for it.
LeaderActions Leader::Impl::Step(int64_t now_ns, const LeaderEvent& event) {
  now_ = std::max(now_, now_ns);
  out_.clear();
  if (!begun_) Begin();
  if (returned_) Resume();
  if (open() && now_ >= KillAt()) CheckDeadlines();  // nothing that is heard now is in time
  std::visit([this](const auto& e) { On(e); }, event);
  AnswerNotices();
  LeaderActions told = std::move(out_);
  LeaderActions actions;
  if (dirty_) actions.push_back(Persist{++persist_id_, r_.Encode()});
  dirty_ = false;
  if (config_.mutations.tell_before_store) {
    std::move(told.begin(), told.end(), std::back_inserter(actions));
    return actions;
  }
  for (LeaderAction& action : told) held_.push_back(Held{persist_id_, std::move(action)});
  size_t free = 0;
  while (free < held_.size() && held_[free].after <= persisted_) {
    actions.push_back(std::move(held_[free++].action));
  }
  held_.erase(held_.begin(), held_.begin() + static_cast<ptrdiff_t>(free));
  return actions;
}

void Leader::Impl::Emit(LeaderAction action) { out_.push_back(std::move(action)); }
void Leader::Impl::Store() { dirty_ = true; }

void Leader::Impl::Send(MemberId member, Msg msg) {
  const auto it = members_.find(member);
  if (it != members_.end() && it->second.connected) Emit(SendToMember{member, std::move(msg)});
}

// After a restart. A cut that was not decided is void: its round, its attempt, what it staged.
void Leader::Impl::Resume() {
  returned_ = false;
  ++r_.incarnation;
  ++r_.round;
  const bool decided = r_.stage == Stage::kDecided || r_.stage == Stage::kMarking;
  if (decided) {
    --r_.round;  // an outcome is repeated in its own round
    r_.stage = Stage::kDecided;
  } else if (open()) {
    Gen* gen = r_.kind == Kind::kSave ? FindGeneration(r_.op_generation) : nullptr;
    if (gen != nullptr && gen->state == Gen::State::kFilling) {
      Drop(gen, Unavailable("the gang's leader restarted"));
    }
    r_.void_round = true;
    r_.stage = Stage::kWaiting;
    r_.deadline_ns = now_ + config_.save_ns;
    r_.cut_deadline_ns = kNever;
    drain_until_ns_ = now_;
  } else {
    r_.void_round = true;
  }
  for (Gen& gen : r_.generations) {
    for (const auto& [id, member] : members_) gen.pending.insert(id);
    // It may have died with this stored and not done.
    if (gen.aborted) {
      Emit(AbortAttempt{gen.attempt, gen.generation, "given up before the leader restarted"});
    }
  }
  Store();
  TryStart();
}

void Leader::Impl::SetStage(Stage stage, int64_t deadline_ns) {
  if (stage == Stage::kAsking || stage >= Stage::kCommitted) stage_ns_ = now_;
  r_.stage = stage;
  r_.deadline_ns = deadline_ns;
  for (auto& [id, member] : members_) {
    member.voted = member.placed = false;
    member.places.clear();
  }
  sent_ns_ = now_;
  Store();
}

bool Leader::Impl::HasCurrent() const {
  switch (r_.stage) {
    case Stage::kIdle:
    case Stage::kWaiting:
      return r_.void_round;
    default:
      return true;
  }
}

// What a member that has not answered the present stage must hear.
Msg Leader::Impl::CurrentMsg() const {
  Msg msg;
  msg.operation = r_.operation;
  msg.round = r_.round;
  const int64_t deadline = StageDeadline();
  if (deadline != kNever) msg.left_ns = std::max<int64_t>(1, deadline - now_);
  const int64_t op_deadline = std::min(OpDeadline(), KillAt());
  if (op_deadline != kNever) msg.total_ns = std::max<int64_t>(1, op_deadline - now_);
  msg.attempt = r_.op_attempt;
  msg.generation = r_.op_generation;
  msg.slot = r_.op_slot;
  msg.cut = r_.cut;
  msg.kind = r_.kind;
  msg.request = OpRequest();
  msg.extension = r_.extension;
  switch (r_.stage) {
    case Stage::kIdle:
    case Stage::kWaiting:
      msg.type = MsgType::kWithdraw;
      msg.text = r_.back_text;
      break;
    case Stage::kAsking:
      msg.type = MsgType::kAsk;
      break;
    case Stage::kProposed:
      msg.type = MsgType::kPropose;
      break;
    case Stage::kCommitted:
    case Stage::kSuperseding:
      msg.type = MsgType::kCommit;
      break;
    case Stage::kDecided:
    case Stage::kMarking:
      msg.type = MsgType::kDecision;
      msg.decision = r_.decision;
      msg.number = r_.decision >= Decision::kBack ? r_.op_rebuild : 0;
      if (r_.decision >= Decision::kBack) msg.text = r_.back_text;
      if (r_.decision == Decision::kRelease && r_.hurry) msg.code = 1;
      if (r_.decision == Decision::kCommsDown && KillAt() != kNever) msg.code = 1;
      break;
  }
  return msg;
}

void Leader::Impl::Broadcast() {
  if (!HasCurrent()) return;
  sent_ns_ = now_;
  const Msg msg = CurrentMsg();
  for (const auto& [id, member] : members_) {
    if (Behind(member)) Send(id, msg);
  }
}

void Leader::Impl::SendCurrent(MemberId member) {
  if (HasCurrent()) Send(member, CurrentMsg());
  for (Gen& gen : r_.generations) SendMark(member, &gen);
}

// Has not answered the present stage, or not taken its newest deadline.
bool Leader::Impl::Behind(const MemberState& member) const {
  const bool timed = r_.stage >= Stage::kProposed && r_.decision < Decision::kRelease;
  return !member.voted || (timed && member.extension < r_.extension);
}

bool Leader::Impl::AnyBehind() const {
  return std::any_of(members_.begin(), members_.end(),
                     [this](const auto& entry) { return Behind(entry.second); });
}

bool Leader::Impl::AllVoted() const {
  return std::all_of(members_.begin(), members_.end(),
                     [](const auto& entry) { return entry.second.voted; });
}

std::vector<uint32_t> Leader::Impl::MissingRanks() const {
  std::vector<uint32_t> missing;
  for (const auto& [id, member] : members_) {
    if (member.voted) continue;
    for (const Place& place : member.places) missing.push_back(place.rank);
    if (!member.places.empty()) continue;
    for (uint32_t i = 0; i < member.rank_count; ++i) {
      missing.push_back(member.first_rank.value() + i);
    }
  }
  return missing;
}

uint32_t Leader::Impl::WorldSize() const {
  uint32_t ranks = 0;
  for (const auto& [id, member] : members_) ranks += member.rank_count;
  return ranks;
}

std::string Leader::Impl::MissingText() const {
  std::string text;
  for (const uint32_t rank : MissingRanks()) {
    text += (text.empty() ? "rank " : ", ") + std::to_string(rank);
    const auto phase = phases_.find(rank);
    if (phase != phases_.end()) text += " (in " + phase->second.kind + ")";
  }
  return text.empty() ? "nobody" : text;
}

void Leader::Impl::Tell(OpPhase phase, Status status, std::vector<uint32_t> missing) {
  Report report;
  report.phase = phase;
  report.status = std::move(status);
  report.attempt = r_.op_attempt;
  report.generation = r_.op_generation;
  report.step = r_.step;
  report.cut = r_.cut;
  report.missing = std::move(missing);
  report.at_ns = now_;
  report.noticed_ns = r_.noticed_ns;
  for (const Command& command : r_.commands) {
    report.operation = command.operation;
    report.request = command.request;
    Emit(report);
  }
}

void Leader::Impl::On(const SlotsKnown& event) {
  const bool first = config_.slots == 0 && event.slots != 0;
  config_.slots = std::min<uint32_t>(event.slots, 2);
  not_ready_why_ = event.why;
  never_ready_ = event.slots == 0 && event.never;
  if (event.stage_ns > 0) config_.stage_ns = event.stage_ns;
  if (first && open() && r_.stage == Stage::kWaiting) WaitForSlot();
  SlotsChanged();
}

void Leader::Impl::On(const MemberJoined& event) {
  const auto it = members_.find(event.member);
  if (it == members_.end()) return;
  it->second.connected = true;
  it->second.lost_ns = kNever;
  SendCurrent(event.member);
}

void Leader::Impl::On(const MemberLost& event) {
  const auto it = members_.find(event.member);
  if (it == members_.end() || !it->second.connected) return;
  it->second.connected = false;
  if (config_.mutations.lost_is_settled) it->second.voted = true;
  it->second.lost_ns = now_;
}

// Before the release its ranks are missed, and barriers have deadlines.
void Leader::Impl::On(const MemberGone& event) {
  const auto it = members_.find(event.member);
  if (it == members_.end() || it->second.connected || r_.decision != Decision::kRelease) return;
  const uint32_t first = it->second.first_rank.value();
  for (size_t i = 0; i < r_.generations.size(); ++i) {
    Gen& gen = r_.generations[i];
    const bool owes =
        gen.state == Gen::State::kComplete && !gen.aborted && !gen.payloads.contains(event.member);
    if (!owes) continue;
    Abort(&gen, Unavailable("the ckpt-run of ranks " + std::to_string(first) + " to " +
                            std::to_string(first + it->second.rank_count - 1) +
                            " went before their shards were written"));
  }
}

void Leader::Impl::On(const FromMember& event) {
  if (!members_.contains(event.member)) return;
  const Msg& msg = event.msg;
  switch (msg.type) {
    case MsgType::kPlaces:
      return OnPlaces(event.member, msg);
    case MsgType::kVote:
      return OnVote(event.member, msg);
    case MsgType::kDropped:
      return OnDropped(event.member, msg);
    case MsgType::kFact:
      return OnFact(event.member, msg);
    case MsgType::kAck:
      return OnMarkHeard(event.member, msg);
    default:
      return;  // a member never says these
  }
}

void Leader::Impl::On(const Persisted& event) { persisted_ = std::max(persisted_, event.id); }

void Leader::Impl::On(const LeaderTick&) {
  CheckDeadlines();
  CheckGenerationDeadlines();
  TryStart();
  if (HasCurrent() && AnyBehind() && now_ - sent_ns_ >= config_.retry_ns) Broadcast();
}

int64_t Leader::Impl::next_deadline_ns() const {
  int64_t next = kNever;
  const bool over = r_.ended || r_.released || r_.finished;
  if (open() && !PastRelease()) {
    next = std::min({next, StageDeadline(), KillAt()});
    for (const auto* commands : {&r_.commands, &r_.queued}) {
      for (const Command& command : *commands) {
        const bool counts = command.deadline_ns != 0 && r_.decision < Decision::kRelease;
        if (counts) next = std::min(next, command.deadline_ns);
      }
    }
    const int64_t fallback = FallbackAt();
    const bool foresees = r_.decision == Decision::kNone && said_ && fallback != kNever &&
                          !config_.mutations.late_is_not_said;
    if (foresees && said_->answer != Answer::kFallback) next = std::min(next, fallback + 1);
    if (r_.stage == Stage::kWaiting && wait_until_ns_ > now_) next = std::min(next, wait_until_ns_);
    if (r_.stage == Stage::kWaiting && drain_until_ns_ > now_) {
      next = std::min(next, drain_until_ns_);
    }
  }
  if (!over && !PastRelease()) next = std::min(next, leave_by_ns_);
  if (HasCurrent() && AnyBehind()) next = std::min(next, sent_ns_ + config_.retry_ns);
  for (const auto& [id, member] : members_) {
    if (!over && !PastRelease() && member.lost_ns != kNever) {
      next = std::min(next, member.lost_ns + config_.member_grace_ns);
    }
  }
  for (const Gen& gen : r_.generations) {
    if (gen.state == Gen::State::kFilling) next = std::min(next, gen.fill_deadline_ns);
    if (gen.commit_at_ns != kNever) next = std::min(next, gen.commit_at_ns);
    const bool marks = gen.state != Gen::State::kFilling && !gen.pending.empty();
    if (marks) next = std::min(next, gen.sent_ns + config_.retry_ns);
  }
  for (const auto& [save, waiting] : waiting_saves_) next = std::min(next, waiting.deadline_ns);
  return next;
}

Leader::View Leader::Impl::view() const {
  View view;
  view.operation = r_.operation;
  view.request = OpRequest();
  view.decision = r_.decision;
  view.round = r_.round;
  view.attempt = r_.attempt;
  view.cut = r_.cut;
  view.ended = r_.ended;
  view.finished = r_.finished;
  switch (r_.decision) {
    case Decision::kNone:
      view.phase = r_.stage <= Stage::kWaiting ? OpPhase::kQueued : OpPhase::kNotified;
      break;
    case Decision::kStage:
      view.phase = OpPhase::kQuiesced;
      break;
    case Decision::kCommsDown:
      view.phase = r_.stage == Stage::kMarking ? OpPhase::kCommsDown : OpPhase::kStaged;
      break;
    case Decision::kRelease:
      view.phase = r_.released ? OpPhase::kReleased : OpPhase::kReleasing;
      break;
    case Decision::kBack:
    case Decision::kUp:
      view.phase = OpPhase::kRolledBack;
      break;
    case Decision::kEnd:
      view.phase = OpPhase::kEnded;
      break;
  }
  if (HasCurrent()) view.missing = MissingRanks();
  view.deadline_ns = StageDeadline();
  for (const Gen& gen : r_.generations) {
    view.generations.push_back(
        GenerationView{gen.generation, gen.attempt, gen.slot, gen.step,
                       gen.state == Gen::State::kComplete || gen.state == Gen::State::kDurable,
                       gen.state == Gen::State::kDurable, gen.full});
  }
  return view;
}

Result<Leader::View> Leader::ViewOfRecord(std::string_view record) {
  CKPT_ASSIGN_OR_RETURN(LeaderRecord restored, LeaderRecord::Decode(record));
  return Impl(LeaderConfig{}, std::move(restored), false).view();
}

}  // namespace ckpt::gang
