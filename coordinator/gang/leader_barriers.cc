// Barriers 2 and 3, back and forward; what members report of their ranks.
#include <algorithm>
#include <utility>

#include "coordinator/gang/leader_impl.h"

namespace ckpt::gang {
namespace {
constexpr int64_t kSigInt = 2, kSigTerm = 15;  // the numbers of Linux: this layer has no system
}  // namespace

void Leader::Impl::Decide(Decision decision, int64_t deadline_ns) {
  r_.decision = decision;
  SetStage(Stage::kDecided, deadline_ns);
  Broadcast();
}

void Leader::Impl::OnBarrierVote(MemberId member, const Msg& msg) {
  MemberState& state = members_.at(member);
  state.places = msg.places;
  const Status why(CodeOf(msg.code), msg.text);
  switch (r_.decision) {
    case Decision::kStage:
      if (msg.vote == Vote::kFailed || msg.vote == Vote::kRefused) return GoBack(why);
      if (msg.vote == Vote::kSealed) OnSealedVote(member, msg);
      return;
    case Decision::kCommsDown:
      if (msg.vote == Vote::kFailed) return GoBack(why);
      if (msg.vote != Vote::kCommsDown || state.voted) return;
      state.voted = true;
      if (AllVoted()) BeginMarking();
      return;
    case Decision::kRelease:
      if (msg.vote == Vote::kReleased) OnReleased(member);
      return;
    case Decision::kBack:
      return OnBackVote(member, msg);
    case Decision::kUp:
      if (msg.vote != Vote::kBack) return;
      state.voted = true;
      if (AllVoted()) BackDone();
      return;
    case Decision::kEnd:
      if (msg.vote == Vote::kForward || msg.vote == Vote::kReleased) state.voted = true;
      return;
    case Decision::kNone:
      return;
  }
}

void Leader::Impl::OnSealedVote(MemberId member, const Msg& msg) {
  Gen* gen = FindGeneration(r_.op_generation);
  if (gen == nullptr || msg.attempt != gen->attempt) return;
  if (gen->sealed.empty()) {
    gen->step = msg.step;
  } else if (gen->step != msg.step) {
    return GoBack(Internal("the ranks sealed different steps (" + std::to_string(gen->step) +
                           " and " + std::to_string(msg.step) + ") at one cut"));
  }
  gen->sealed.insert(member);
  members_.at(member).voted = true;
  const bool early =
      config_.mutations.comms_down_early && gen->sealed.size() + 1 >= members_.size();
  if (!AllVoted() && !early) return;
  r_.step = gen->step;
  Decide(Decision::kCommsDown, now_ + config_.comms_ns);
  Tell(OpPhase::kStaged, OkStatus());
  Complete(gen);
}

// All communicators are down. The mark in the store comes before anyone is told that the job is
// suspended: without it the next epoch would not adopt the attempt that drains.
void Leader::Impl::BeginMarking() {
  r_.stage = Stage::kMarking;
  Store();
  Emit(MarkDraining{r_.op_attempt, r_.op_generation, r_.step});
  if (config_.mutations.release_before_mark) {
    On(gang::MarkedDraining{r_.op_attempt, OkStatus()});
  }
}

void Leader::Impl::On(const MarkedDraining& event) {
  if (r_.stage != Stage::kMarking || event.attempt != r_.op_attempt) return;
  if (!event.status.ok()) {
    return GoBack(Status(event.status).Annotate("the DRAINING mark could not be set"));
  }
  Tell(OpPhase::kCommsDown, OkStatus());
  Decide(Decision::kRelease, now_ + config_.comms_ns);
  Tell(OpPhase::kReleasing, OkStatus());
}

void Leader::Impl::GoBack(Status why) {
  Gen* gen = FindGeneration(r_.op_generation);
  if (gen != nullptr && gen->state == Gen::State::kFilling) Drop(gen, why);
  const bool rebuild = r_.decision == Decision::kCommsDown;
  r_.op_rebuild = rebuild ? ++r_.rebuild : 0;
  r_.back_code = why.code();
  r_.back_text = why.message();
  back_missing_ = MissingRanks();
  Decide(Decision::kBack, rebuild ? now_ + config_.rebuild_ns : kNever);
}

void Leader::Impl::OnBackVote(MemberId member, const Msg& msg) {
  MemberState& state = members_.at(member);
  const bool rebuild = r_.op_rebuild != 0;
  if (rebuild && msg.vote == Vote::kFailed && msg.number == r_.op_rebuild) {
    return End(Status(CodeOf(msg.code), msg.text).Annotate("rebuilding communicators"));
  }
  if (msg.vote != (rebuild ? Vote::kCommsUp : Vote::kBack)) return;
  state.voted = true;
  if (!AllVoted()) return;
  if (!rebuild) return BackDone();
  Decide(Decision::kUp, kNever);
}

void Leader::Impl::BackDone() {
  const Status why(r_.back_code, r_.back_text);
  r_.decision = Decision::kNone;
  SetStage(Stage::kWaiting, now_ + config_.save_ns);
  r_.void_round = false;
  DropFailedDrains();
  if (TriesAgain()) {
    r_.cut_deadline_ns = kNever;
    wait_until_ns_ = now_ + PauseBeforeAgain();
    for (Command& command : std::exchange(r_.queued, {})) r_.commands.push_back(std::move(command));
    return Tell(OpPhase::kAgain, why, std::exchange(back_missing_, {}));
  }
  FinishOperation(OpPhase::kRolledBack, why, std::exchange(back_missing_, {}));
}

const LeaderGeneration* Leader::Impl::Standing() const {
  const Gen* newest = nullptr;
  for (const Gen& gen : r_.generations) {
    const bool whole = gen.state == Gen::State::kComplete || gen.state == Gen::State::kDurable;
    if (whole && (newest == nullptr || gen.generation > newest->generation)) newest = &gen;
  }
  return newest;
}

// Forward: the ranks end, the copies stay.
void Leader::Impl::End(Status why) {
  if (r_.ended || r_.decision == Decision::kRelease) return;
  r_.ended = true;
  r_.back_code = why.code();
  r_.back_text = why.message();
  const std::vector<uint32_t> missing = MissingRanks();
  std::vector<uint32_t> filling;
  for (const Gen& gen : r_.generations) {
    if (gen.state == Gen::State::kFilling) filling.push_back(gen.generation);
  }
  for (const uint32_t generation : filling) Drop(FindGeneration(generation), why);
  const Gen* standing = Standing();
  r_.op_attempt = standing != nullptr ? standing->attempt : 0;
  r_.op_generation = standing != nullptr ? standing->generation : 0;
  r_.step = standing != nullptr ? standing->step : 0;
  const bool waited = r_.decision == Decision::kCommsDown && standing != nullptr && standing->full;
  const bool trained = finished_ranks_.size() < WorldSize();
  if (trained) BookLoss(why, waited);
  if (r_.commands.empty()) r_.commands.push_back(Command{});  // of the gang itself
  Decide(Decision::kEnd, kNever);
  Tell(OpPhase::kEnded, why, missing);
  for (const Command& command : r_.commands) {
    if (command.operation != 0) RecordDone(command, OpPhase::kEnded, why);
  }
  for (const Command& command : r_.queued) RefuseCommand(command, why);
  r_.queued.clear();
  for (const auto& [save, waiting] : std::exchange(waiting_saves_, {})) {
    AnswerSave(save, static_cast<int32_t>(Code::kAborted), "the gang ends");
  }
}

void Leader::Impl::OnFact(MemberId member, const Msg& msg) {
  Msg ack{.type = MsgType::kAck};
  ack.numbers.push_back(msg.number);
  switch (msg.fact) {
    case FactKind::kExited:
      OnExit(msg);
      break;
    case FactKind::kFinished:
      OnRankFinished(msg.rank);
      break;
    case FactKind::kWantsSave:
      OnWantsSave(member, msg);
      break;
    case FactKind::kSealed:
      OnSealedFact(member, msg);
      break;
    case FactKind::kStageFailed:
      OnStageFailed(msg);
      break;
    case FactKind::kShards:
      OnShards(member, msg);
      break;
    case FactKind::kReleased:
      OnReleased(member);
      break;
    case FactKind::kPhase:
      OnPhase(msg);
      break;
    case FactKind::kLate:
      OnLate(member, msg);
      break;
    case FactKind::kNone:
      break;
  }
  Send(member, std::move(ack));
}

void Leader::Impl::OnExit(const Msg& msg) {
  if (!exited_ranks_.insert(msg.rank).second) return;
  const bool finished = msg.slot == 1;
  // After "finished" the library no longer catches what asks a process to end.
  const bool told_to_end = finished && (msg.step == kSigTerm || msg.step == kSigInt);
  const bool clean = (msg.code == 0 && msg.step == 0) || told_to_end;
  if (PastRelease() || r_.finished) return;
  const std::string who = "rank " + std::to_string(msg.rank);
  if (!clean) {
    const std::string how = msg.step != 0 ? "was killed by signal " + std::to_string(msg.step)
                                          : "ended with exit code " + std::to_string(msg.code);
    if (config_.mutations.back_after_crash && r_.decision == Decision::kCommsDown) {
      return GoBack(Aborted(who + " " + how));
    }
    return End(Aborted(who + " " + how));
  }
  if (!finished && OpenStop()) {
    return End(Aborted(who + " ended without having finished, after it was asked to stop"));
  }
  OnRankFinished(msg.rank);
  const uint32_t ranks = WorldSize();
  if (finished_ranks_.size() < ranks || exited_ranks_.size() < ranks || r_.ended) return;
  r_.finished = true;
  // What still waits, for a slot perhaps, has nobody left to wait for.
  if (open()) FinishOperation(OpPhase::kFinished, FailedPrecondition("the training has finished"));
  Report report;
  report.phase = OpPhase::kFinished;
  report.at_ns = now_;
  Emit(std::move(report));
  Store();
}

// "Finished" before barrier 3 wins over a stop.
void Leader::Impl::OnRankFinished(uint32_t rank) {
  if (!finished_ranks_.insert(rank).second || PastRelease() || !open()) return;
  const Status why = FailedPrecondition("rank " + std::to_string(rank) + " has finished");
  if (r_.decision == Decision::kNone && OpenStop()) {
    return WithdrawRound(OpPhase::kFinished, why);
  }
  if (r_.decision == Decision::kStage || r_.decision == Decision::kCommsDown) GoBack(why);
}

void Leader::Impl::OnReleased(MemberId member) {
  MemberState& state = members_.at(member);
  if (state.released) return;
  state.released = true;
  if (r_.decision == Decision::kRelease || r_.decision == Decision::kEnd) state.voted = true;
  const bool all = std::all_of(members_.begin(), members_.end(),
                               [](const auto& entry) { return entry.second.released; });
  if (!all) return;
  if (r_.decision == Decision::kRelease && !r_.released) {
    r_.released = true;
    Tell(OpPhase::kReleased, OkStatus());
    for (const Command& command : r_.commands) RecordDone(command, OpPhase::kReleased, OkStatus());
  } else if (r_.ended && !r_.released) {
    r_.released = true;
    Tell(OpPhase::kReleased, Status(r_.back_code, r_.back_text));
  }
  Store();
}

}  // namespace ckpt::gang
