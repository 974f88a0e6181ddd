// One common cut: waiting for a slot, asking, proposing, raising, committing; barrier 1.
#include <algorithm>

#include "coordinator/gang/leader_impl.h"

namespace ckpt::gang {
namespace {

constexpr uint32_t kLeadMax = 1 << 20;
constexpr uint64_t kStepNsMax = 3'600'000'000'000;  // what a member says is not believed beyond

bool AnyFinished(const std::vector<Place>& places) {
  return std::any_of(places.begin(), places.end(), [](const Place& p) { return p.finished; });
}

}  // namespace

bool Leader::Impl::PastDrainWait() const { return now_ >= drain_until_ns_; }

void Leader::Impl::TryStart() {
  if (!open() || r_.stage != Stage::kWaiting || now_ < wait_until_ns_) return;
  if (Filling()) return DropOverdueFill();
  uint32_t slot = 0, supersede = 0;
  if (!PickSlot(OpenStop(), &slot, &supersede)) return;
  r_.op_slot = slot;
  supersede_ = supersede;
  if (config_.mutations.cancel_early && supersede != 0) {
    Drop(FindGeneration(supersede), Aborted("superseded"));
    supersede_ = 0;
  }
  if (r_.cut_deadline_ns == kNever) {
    r_.cut_deadline_ns = CutDeadlineFromNow();
    Tell(OpPhase::kNotified, OkStatus());
  }
  BeginRound();
}

// A save that some rank does not come to fill holds up a stop no longer than a drain may, if the
// stop has to be over before that save has to be filled.
void Leader::Impl::DropOverdueFill() {
  if (!OpenStop() || !PastDrainWait()) return;
  for (Gen& gen : r_.generations) {
    if (gen.state != Gen::State::kFilling || gen.fill_deadline_ns <= Bounded(kNever)) continue;
    const Status why =
        Aborted("the save at boundary " + std::to_string(gen.boundary) +
                " was not staged by all ranks when a stop had to begin; missing: " + LateText(gen));
    TellGeneration(gen, OpPhase::kRolledBack, why);
    return Drop(&gen, why);
  }
}

void Leader::Impl::BeginRound() {
  ++r_.round;
  ++r_.rounds;
  r_.void_round = false;
  SetStage(Stage::kAsking, r_.cut_deadline_ns);
  rtt_ns_ = round_step_ns_ = 0;
  Broadcast();
}

void Leader::Impl::OnPlaces(MemberId member, const Msg& msg) {
  if (r_.stage != Stage::kAsking || msg.round != r_.round) return;
  MemberState& state = members_.at(member);
  state.voted = true;
  state.places = msg.places;
  rtt_ns_ = std::max(rtt_ns_, now_ - sent_ns_);
  const uint64_t step_ns = std::min<uint64_t>(msg.number, kStepNsMax);
  round_step_ns_ = std::max(round_step_ns_, static_cast<int64_t>(step_ns));
  if (AnyFinished(msg.places)) {
    return WithdrawRound(OpPhase::kFinished, FailedPrecondition("the training is finishing"));
  }
  if (!AllVoted()) return;
  if (round_step_ns_ > 0) step_ns_ = round_step_ns_;
  r_.cut_deadline_ns = std::max(r_.cut_deadline_ns, CutDeadlineFromNow());  // a step is known now
  bool first = true;
  for (const auto& [id, other] : members_) {
    for (const Place& place : other.places) {
      if (first || Later(place.boundary, r_.cut)) r_.cut = place.boundary;
      first = false;
    }
  }
  Propose(LeadNow());
}

// Boundaries that pass while a proposal travels.
uint32_t Leader::Impl::LeadNow() const {
  if (step_ns_ <= 0 || rtt_ns_ * 2 <= step_ns_) return 0;
  const int64_t lead = (rtt_ns_ + step_ns_ - 1) / step_ns_;
  return static_cast<uint32_t>(std::min<int64_t>(lead, kLeadMax));
}

// r_.cut holds the highest boundary known; the proposal goes beyond it.
void Leader::Impl::Propose(uint32_t lead) {
  r_.cut += 1 + lead;
  ++r_.attempt;
  if (config_.mutations.reuse_attempt) r_.attempt = 1;
  r_.op_attempt = r_.attempt;
  r_.op_generation = ++r_.generation;
  SetStage(Stage::kProposed, r_.cut_deadline_ns);
  Broadcast();
}

void Leader::Impl::OnVote(MemberId member, const Msg& msg) {
  if (msg.vote == Vote::kForward && r_.decision != Decision::kEnd) {
    if (r_.decision == Decision::kRelease) return;  // its ranks leave either way
    return End(Status(CodeOf(msg.code), msg.text));
  }
  if (msg.round != r_.round && !config_.mutations.ignore_rounds) {
    if (msg.vote != Vote::kForward) return;
  }
  MemberState& state = members_.at(member);
  state.extension = std::max(state.extension, msg.extension);
  switch (r_.stage) {
    case Stage::kIdle:
    case Stage::kWaiting:
      if (msg.vote == Vote::kBack) members_.at(member).voted = true;
      return;
    case Stage::kAsking:
      return;
    case Stage::kProposed:
    case Stage::kCommitted:
    case Stage::kSuperseding:
      return OnCutVote(member, msg);
    case Stage::kDecided:
    case Stage::kMarking:
      return OnBarrierVote(member, msg);
  }
}

void Leader::Impl::OnCutVote(MemberId member, const Msg& msg) {
  MemberState& state = members_.at(member);
  if (msg.vote == Vote::kRefused) return OnRefusal(member, msg);
  if (msg.vote == Vote::kFailed) {
    return WithdrawRound(OpPhase::kRolledBack, Status(CodeOf(msg.code), msg.text));
  }
  if (r_.stage == Stage::kProposed) {
    if (msg.vote != Vote::kAccepted) return;
    state.voted = true;
    if (!AllVoted()) return;
    if (r_.kind == Kind::kSave) {
      AddGeneration(r_.op_generation, r_.op_attempt, r_.op_slot, false,
                    Bounded(r_.cut_deadline_ns + config_.save_ns), r_.cut);
    }
    SetStage(Stage::kCommitted, r_.cut_deadline_ns);
    return Broadcast();
  }
  state.places = msg.places;  // who has not reached the cut, or not sealed
  state.placed = true;
  if (r_.stage != Stage::kCommitted) return;
  const Vote wanted = r_.kind == Kind::kSave ? Vote::kSealed : Vote::kQuiesced;
  if (msg.vote != wanted || r_.kind == Kind::kSave) return;  // a save's seals come as facts
  state.voted = true;
  if (AllVoted()) OnQuiesced();
}

// A rank is at or past the cut (raise it), took its promise back (all run on), or has finished.
void Leader::Impl::OnRefusal(MemberId member, const Msg& msg) {
  const Status why(CodeOf(msg.code), msg.text);
  if (AnyFinished(msg.places) && why.code() != Code::kUnavailable) {
    return WithdrawRound(OpPhase::kFinished, why);
  }
  if (r_.stage != Stage::kProposed) {
    members_.at(member).places = msg.places;
    return WithdrawRound(OpPhase::kRolledBack, why, MissingRanks());
  }
  if (why.code() == Code::kUnavailable) {  // still stages something that was dropped: a bit later
    --r_.rounds;
    wait_until_ns_ = now_ + config_.retry_ns;
    return SetStage(Stage::kWaiting, r_.cut_deadline_ns);
  }
  if (r_.rounds >= config_.rounds_max && !TriesAgain()) {
    return WithdrawRound(OpPhase::kRefused, why);
  }
  for (const Place& place : msg.places) {
    if (Later(place.boundary, r_.cut)) r_.cut = place.boundary;
  }
  lead_ = std::min(kLeadMax, std::max<uint32_t>(1, lead_ * 2));
  ++r_.round;
  ++r_.rounds;
  Propose(std::max(LeadNow(), lead_));
}

// Everyone waits at the cut. An older save that must give up its slot does so now.
void Leader::Impl::OnQuiesced() {
  Gen* older = supersede_ != 0 ? FindGeneration(supersede_) : nullptr;
  if (older == nullptr || older->state == Gen::State::kDurable) return PassBarrierOne();
  if (older->state != Gen::State::kDropping) {
    const std::string left =
        config_.slots == 1 ? "a checkpoint of the store only" : "the newer copy in the other slot";
    Drop(older, Aborted("superseded by a suspend; if a rank dies now, what is left is " + left));
  }
  r_.stage = Stage::kSuperseding;
  Store();
}

void Leader::Impl::PassBarrierOne() {
  AddGeneration(r_.op_generation, r_.op_attempt, r_.op_slot, true, kNever, r_.cut);
  Decide(Decision::kStage, now_ + config_.stage_ns);
  Tell(OpPhase::kQuiesced, OkStatus());
}

// The round is void and everyone runs on. Nothing was staged for a stop; a save's attempt is
// dropped.
void Leader::Impl::WithdrawRound(OpPhase phase, Status status, std::vector<uint32_t> missing) {
  Gen* gen = FindGeneration(r_.op_generation);
  if (r_.kind == Kind::kSave && gen != nullptr && gen->state == Gen::State::kFilling) {
    Drop(gen, status);
  }
  ++r_.round;
  r_.void_round = true;
  r_.back_text = status.message();
  const bool failed = phase == OpPhase::kRolledBack || phase == OpPhase::kRefused;
  const bool again = failed && TriesAgain();
  SetStage(Stage::kWaiting, now_ + config_.save_ns);
  Broadcast();
  if (!again) return FinishOperation(phase, std::move(status), std::move(missing));
  Tell(OpPhase::kAgain, std::move(status), std::move(missing));
  r_.cut_deadline_ns = kNever;
  wait_until_ns_ = now_ + PauseBeforeAgain();
}

// Longer each time, and never so long that the kill comes first.
int64_t Leader::Impl::PauseBeforeAgain() const {
  const int64_t longest = std::min(config_.again_ns_max, (KillAt() - now_) / 4);
  return std::max(config_.retry_ns, std::min(config_.retry_ns * r_.rounds, longest));
}

}  // namespace ckpt::gang
