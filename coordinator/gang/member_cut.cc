// The cut: words from IDLE to PROPOSED to COMMITTED and back.
#include <algorithm>

#include "coordinator/gang/member_impl.h"

namespace ckpt::gang {
namespace {

WordState ProposedOf(Kind kind) {
  return kind == Kind::kStop ? WordState::kProposedStop : WordState::kProposedSave;
}
WordState CommittedOf(Kind kind) {
  return kind == Kind::kStop ? WordState::kCommittedStop : WordState::kCommittedSave;
}
std::string RankName(Rank rank) { return "rank " + std::to_string(rank.value()); }

}  // namespace

bool Member::Impl::StaleRound(const Msg& msg) const {
  return msg.round < round_ && !config_.mutations.ignore_rounds;
}

// A higher round makes everything of the older ones void.
void Member::Impl::AdoptRound(const Msg& msg) {
  if (msg.round == round_ && msg.operation == operation_) return;
  VoidCut();
  operation_ = msg.operation;
  round_ = msg.round;
  attempt_ = generation_ = slot_ = cut_ = 0;
  why_ = OkStatus();
  SetPhase(Phase::kRunning, kNever);
}

void Member::Impl::SetPhase(Phase phase, int64_t deadline_ns) {
  phase_ = phase;
  deadline_ = deadline_ns;
}

// The member's own deadline: the leader's and some patience, so that the leader decides if it
// lives.
int64_t Member::Impl::DeadlineOf(const Msg& msg) const {
  if (msg.left_ns <= 0) return now_ + config_.patience_ns;
  return now_ + msg.left_ns + config_.patience_ns;
}

// More time, or less, within the round: a phase has been heard of, a notice was withdrawn. Ranks
// read their order anew when its time is up.
void Member::Impl::TakeExtension(const Msg& msg) {
  const bool timed = msg.type == MsgType::kPropose || msg.type == MsgType::kCommit ||
                     msg.type == MsgType::kDecision;
  if (!timed || msg.round != round_ || msg.extension <= extension_) return;
  extension_ = msg.extension;
  const bool waits =
      phase_ == Phase::kProposed || phase_ == Phase::kCommitted || phase_ == Phase::kQuiesced;
  const bool held = phase_ == Phase::kStaging || phase_ == Phase::kDowning ||
                    phase_ == Phase::kDown || (phase_ == Phase::kSealed && kind_ == Kind::kStop);
  if (!waits && !held) return;
  deadline_ = DeadlineOf(msg);
  op_deadline_ = msg.total_ns > 0 ? now_ + msg.total_ns : 0;
  const bool down = phase_ == Phase::kDowning || phase_ == Phase::kDown;
  const RankOrder order = waits ? CurrentOrder(now_ + std::max<int64_t>(msg.left_ns, 1), 0)
                                : CurrentOrder(op_deadline_, down ? 1 : 0);
  EachRank([&](Rank rank, const RankState&) { pages_->StoreOrder(rank, order); });
}

void Member::Impl::OnAsk(const Msg& msg) {
  if (StaleRound(msg) || bound() || Ended()) return SendVote();
  if (msg.round > round_) AdoptRound(msg);
  Msg reply{.type = MsgType::kPlaces};
  reply.operation = msg.operation;
  reply.round = msg.round;
  reply.places = Places(false);
  int64_t step_ns = 0;
  EachRank([&](Rank rank, const RankState& state) {
    if (!state.exited) step_ns = std::max(step_ns, pages_->StepNs(rank));
  });
  reply.number = static_cast<uint64_t>(std::max<int64_t>(0, step_ns));
  Send(std::move(reply));
}

void Member::Impl::OnPropose(const Msg& msg) {
  if (StaleRound(msg) || Ended()) return;
  if (bound()) return SendVote();
  if (msg.round == round_ && phase_ != Phase::kRunning) return SendVote();  // heard before
  const bool raise = phase_ == Phase::kProposed || phase_ == Phase::kRefused;
  if (!raise) AdoptRound(msg);
  operation_ = msg.operation;
  round_ = msg.round;
  attempt_ = msg.attempt;
  generation_ = msg.generation;
  slot_ = msg.slot;
  cut_ = msg.cut;
  kind_ = msg.kind;
  request_ = msg.request;
  extension_ = msg.extension;
  op_deadline_ = msg.total_ns > 0 ? now_ + msg.total_ns : 0;
  why_ = OkStatus();
  SetPhase(Phase::kProposed, DeadlineOf(msg));
  // The rank's own time-out is the leader's deadline without the patience.
  const RankOrder order = CurrentOrder(now_ + std::max<int64_t>(msg.left_ns, 1), 0);
  EachRank([&](Rank rank, RankState& state) {
    pages_->StoreOrder(rank, order);
    if (!ProposeRank(rank, state)) phase_ = Phase::kRefused;
  });
  SendVote();
}

// CAS to PROPOSED at cut_, unless the rank is at or past it, has finished, or still stages.
bool Member::Impl::ProposeRank(Rank rank, const RankState& state) {
  const bool gone = state.exited || (state.finished && !config_.mutations.forget_finished);
  for (;;) {
    const Word word = pages_->Load(rank);
    const bool passed = AtOrPast(word.boundary, cut_) &&
                        !(config_.mutations.passed_is_beyond && IsAtCut(word.boundary, cut_));
    const bool finished = word.state == WordState::kFinished && !config_.mutations.forget_finished;
    if (gone || passed || finished) {
      why_ = OutOfRange(RankName(rank) + " is at boundary " + std::to_string(word.boundary));
      return false;
    }
    if (word.state == WordState::kStaging) {
      why_ = Unavailable(RankName(rank) + " still stages an earlier save");
      return false;
    }
    const Word desired{word.boundary, cut_ & kCutMask, ProposedOf(kind_)};
    if (pages_->Cas(rank, word, desired)) {
      pages_->Wake(rank);  // it may wait at a lower cut that this one replaces
      return true;
    }
  }
}

void Member::Impl::OnCommit(const Msg& msg) {
  if (msg.round != round_ && !config_.mutations.ignore_rounds) return;
  if (config_.mutations.kind_from_latest && phase_ == Phase::kCommitted) {
    kind_ = msg.kind;
    EachRank([&](Rank rank, RankState&) {
      const Word word = pages_->Load(rank);
      if (word.state != WordState::kCommittedSave || kind_ != Kind::kStop) return;
      pages_->Cas(rank, word, Word{word.boundary, word.cut, WordState::kCommittedStop});
      pages_->Wake(rank);
    });
  }
  if (phase_ != Phase::kProposed) return SendVote();
  SetPhase(Phase::kCommitted, DeadlineOf(msg));
  if (kind_ == Kind::kSave) {
    Generation& entry = generations_[generation_];
    entry.attempt = attempt_;
    entry.slot = slot_;
    entry.is_save = true;
  }
  EachRank([&](Rank rank, RankState& state) {
    if (kind_ == Kind::kSave) state.filling.insert(generation_);  // it stages by itself
    if (CommitRank(rank)) return;
    state.filling.erase(generation_);
    phase_ = Phase::kRefused;
    why_ = DeadlineExceeded(RankName(rank) + " stopped waiting before the cut was committed");
  });
  if (phase_ == Phase::kRefused && kind_ == Kind::kStop) VoidCut();
  PollWords();
  SendVote();
}

bool Member::Impl::CommitRank(Rank rank) {
  for (;;) {
    const Word word = pages_->Load(rank);
    if (!IsProposed(word.state)) return false;
    if (pages_->Cas(rank, word, Word{word.boundary, word.cut, CommittedOf(kind_)})) {
      pages_->Wake(rank);
      return true;
    }
  }
}

// PROPOSED, COMMITTED, REFUSED → IDLE; what is staging goes on.
void Member::Impl::VoidCut() {
  EachRank([&](Rank rank, RankState& state) {
    for (;;) {
      const Word word = pages_->Load(rank);
      const bool open =
          IsProposed(word.state) || IsCommitted(word.state) || word.state == WordState::kRefused;
      if (!open) return;
      if (!pages_->Cas(rank, word, Word{word.boundary, word.cut, WordState::kIdle})) continue;
      if (kind_ == Kind::kSave) state.filling.erase(generation_);  // it will not stage it
      pages_->Wake(rank);
      return;
    }
  });
}

void Member::Impl::OnWithdraw(const Msg& msg) {
  if (StaleRound(msg) || Ended()) return;
  if (bound()) return SendVote();
  if (msg.round > round_ || phase_ != Phase::kBack) {
    AdoptRound(msg);
    VoidCut();
    SetPhase(Phase::kBack, kNever);
    Say("withdrawn", msg.text);
  }
  SendVote();
}

void Member::Impl::PollWords() {
  if (phase_ == Phase::kCommitted && kind_ == Kind::kStop) PollStop();
  if (phase_ == Phase::kCommitted && kind_ == Kind::kSave) PollSave();
  if (phase_ == Phase::kQuiesced) PollStop();
}

void Member::Impl::PollStop() {
  bool all = true, refused = false;
  EachRank([&](Rank rank, const RankState& state) {
    const Word word = pages_->Load(rank);
    if (state.exited || state.finished || !IsCommitted(word.state)) {
      refused = true;
      why_ = word.state == WordState::kRefused
                 ? DeadlineExceeded(RankName(rank) + " stopped waiting at the cut")
                 : OutOfRange(RankName(rank) + " has finished or ended");
    }
    all = all && IsAtCut(word.boundary, cut_);
  });
  if (refused) {
    SetPhase(Phase::kRefused, kNever);
    VoidCut();
    SendVote();
  } else if (all && phase_ == Phase::kCommitted) {
    phase_ = Phase::kQuiesced;  // the deadline stays
    SendVote();
  }
}

void Member::Impl::PollSave() {
  bool refused = false;
  EachRank([&](Rank rank, const RankState& state) {
    const Word word = pages_->Load(rank);
    const bool left = state.sealed != generation_ && word.state == WordState::kRefused;
    const bool gone = state.sealed != generation_ && (state.exited || state.finished);
    if (!left && !gone) return;
    refused = true;
    why_ = left ? DeadlineExceeded(RankName(rank) + " stopped waiting at the cut")
                : OutOfRange(RankName(rank) + " has finished or ended");
  });
  if (!refused) return;
  SetPhase(Phase::kRefused, kNever);
  SendVote();
}

RankOrder Member::Impl::CurrentOrder(int64_t deadline_ns, uint32_t outcome) const {
  return RankOrder{operation_, round_,   attempt_,    generation_,
                   slot_,      request_, deadline_ns, outcome};
}

// Where the ranks are; `only_missing`: those that the present phase waits for.
std::vector<Place> Member::Impl::Places(bool only_missing) {
  std::vector<Place> places;
  EachRank([&](Rank rank, const RankState& state) {
    const Word word = pages_->Load(rank);
    bool missing = true;
    if (phase_ == Phase::kCommitted) missing = !IsAtCut(word.boundary, cut_);
    if (phase_ == Phase::kCommitted && kind_ == Kind::kSave) missing = state.sealed != generation_;
    if (phase_ == Phase::kStaging) missing = state.sealed != generation_;
    if (phase_ == Phase::kDowning) missing = !state.comms_down;
    if (phase_ == Phase::kRebuilding) missing = !state.comms_up;
    if (phase_ == Phase::kReleasing) missing = !state.exited;
    if (only_missing && !missing) return;
    const bool finished = state.finished || state.exited || word.state == WordState::kFinished;
    places.push_back(Place{rank.value(), word.boundary, finished});
  });
  return places;
}

Vote Member::Impl::CurrentVote() const {
  switch (phase_) {
    case Phase::kRunning:
      return Vote::kNone;
    case Phase::kProposed:
    case Phase::kCommitted:
      return Vote::kAccepted;
    case Phase::kRefused:
      return Vote::kRefused;
    case Phase::kQuiesced:
    case Phase::kStaging:
      return Vote::kQuiesced;
    case Phase::kSealed:
    case Phase::kDowning:
      return why_.ok() ? Vote::kSealed : Vote::kFailed;
    case Phase::kDown:
    case Phase::kReleasing:
      return Vote::kCommsDown;
    case Phase::kReleased:
      return Vote::kReleased;
    case Phase::kFailed:
      return Vote::kFailed;
    case Phase::kBack:
      return Vote::kBack;
    case Phase::kRebuilding:
      return why_.ok() ? Vote::kBack : Vote::kFailed;
    case Phase::kRebuilt:
      return Vote::kCommsUp;
    case Phase::kForward:
    case Phase::kEnding:
      return Vote::kForward;
  }
  return Vote::kNone;
}

void Member::Impl::SendVote() {
  Msg msg{.type = MsgType::kVote};
  msg.vote = CurrentVote();
  msg.operation = operation_;
  msg.round = round_;
  msg.attempt = attempt_;
  msg.generation = generation_;
  msg.number = rebuild_;
  msg.extension = extension_;
  msg.step = ranks_.empty() ? 0 : ranks_[0].step;
  msg.code = static_cast<int32_t>(why_.code());
  msg.text = why_.message();
  msg.places = Places(msg.vote != Vote::kRefused);
  Send(std::move(msg));
}

// Before the vote that binds: back by itself, and say so.
void Member::Impl::FailBack(Status why) {
  why_ = std::move(why);
  const bool staging = phase_ == Phase::kStaging;
  SetPhase(Phase::kFailed, kNever);
  VoidCut();
  if (staging) SendRanksBack(false, why_.message());
  SendVote();
  Say("went back", why_.message());
}

void Member::Impl::CheckOwnDeadline() {
  if (now_ >= crash_deadline_) {
    crash_deadline_ = kNever;
    return GoForward(Unavailable("a rank died and the gang's leader is out of reach"));
  }
  if (now_ < deadline_) return;
  deadline_ = kNever;
  switch (phase_) {
    case Phase::kProposed:
    case Phase::kCommitted:
    case Phase::kQuiesced:
      return FailBack(DeadlineExceeded("barrier 1: no outcome by this member's deadline"));
    case Phase::kStaging:
      return FailBack(DeadlineExceeded("barrier 2: not all ranks of this member sealed in time"));
    case Phase::kSealed:
    case Phase::kDowning:
    case Phase::kDown:
    case Phase::kRebuilding:
      if (config_.mutations.back_after_sealed && phase_ != Phase::kRebuilding) {
        SendRanksBack(false, "deadline");
        SetPhase(Phase::kFailed, kNever);
        return SendVote();
      }
      if (config_.mutations.rebuild_waits && phase_ == Phase::kRebuilding) return;
      return GoForward(DeadlineExceeded("no outcome of the gang by this member's deadline"));
    case Phase::kReleasing:
      out_.push_back(KillRanks{"did not leave after barrier 3"});
      return;
    default:
      return;
  }
}

}  // namespace ckpt::gang
