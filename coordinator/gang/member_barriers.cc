// Barriers: what a member does on each stored outcome, and what it does when none comes.
#include <algorithm>

#include "coordinator/gang/member_impl.h"

namespace ckpt::gang {

void Member::Impl::OnDecision(const Msg& msg) {
  if (msg.round < round_ && !config_.mutations.ignore_rounds) return;
  if (msg.total_ns > 0) op_deadline_ = now_ + msg.total_ns;
  switch (msg.decision) {
    case Decision::kNone:
      return;
    case Decision::kStage:
      return OnStage(msg);
    case Decision::kCommsDown:
      return OnCommsDown(msg);
    case Decision::kRelease:
      return OnRelease(msg);
    case Decision::kBack:
      return OnBack(msg);
    case Decision::kUp:
      return OnUp(msg);
    case Decision::kEnd:
      return OnEnd(msg);
  }
}

void Member::Impl::OnStage(const Msg& msg) {
  if (msg.round != round_ || phase_ != Phase::kQuiesced) return SendVote();
  Generation& entry = generations_[generation_];
  entry.attempt = attempt_;
  entry.slot = slot_;
  SetPhase(Phase::kStaging, DeadlineOf(msg));
  const RankOrder order = CurrentOrder(op_deadline_, 0);
  bool all = true;
  EachRank([&](Rank rank, RankState& state) {
    pages_->StoreOrder(rank, order);
    if (StageRank(rank)) {
      state.filling.insert(generation_);
      state.comms_down = state.comms_up = false;
      return;
    }
    all = false;
    why_ = DeadlineExceeded("rank " + std::to_string(rank.value()) +
                            " stopped waiting before barrier 1 reached it");
  });
  if (!all) return FailBack(why_);
  Say("staging");
}

// CAS COMMITTED → STAGING; the rank's time-out may have won.
bool Member::Impl::StageRank(Rank rank) {
  for (;;) {
    const Word word = pages_->Load(rank);
    if (word.state != WordState::kCommittedStop || !IsAtCut(word.boundary, cut_)) return false;
    if (pages_->Cas(rank, word, Word{word.boundary, word.cut, WordState::kStaging})) {
      pages_->Wake(rank);
      return true;
    }
  }
}

// All ranks of this member have sealed the stop's generation: the vote that binds.
void Member::Impl::CheckSealed() {
  if (phase_ != Phase::kStaging) return;
  bool all = true, same = true;
  EachRank([&](Rank, const RankState& state) {
    all = all && state.sealed == generation_;
    same = same && state.step == ranks_[0].step;
  });
  if (!all) return;
  if (!same) return FailBack(Internal("ranks of this member sealed different steps at one cut"));
  phase_ = Phase::kSealed;  // the deadline stays: it now sends forward
  SendVote();
  Say("sealed");
}

void Member::Impl::OnCommsDown(const Msg& msg) {
  if (msg.round != round_ || phase_ != Phase::kSealed || kind_ != Kind::kStop) return SendVote();
  SetPhase(Phase::kDowning, DeadlineOf(msg));
  kills_ = msg.code == 1;
  const RankOrder order = CurrentOrder(op_deadline_, 1);
  EachRank([&](Rank rank, RankState& state) {
    pages_->StoreOrder(rank, order);
    if (!state.exited) out_.push_back(ReleaseBarrier{rank, operation_, round_, 2});
  });
  Say("taking communicators down");
}

void Member::Impl::On(const RankCommsDown& event) {
  RankState* state = Find(event.rank);
  if (state == nullptr || phase_ != Phase::kDowning) return;
  if (event.operation != operation_ || event.round != round_) return;
  if (!event.status.ok()) {
    why_ = Status(event.status).Annotate("rank " + std::to_string(event.rank.value()));
    return SendVote();  // bound: it can only say so
  }
  state->comms_down = true;
  bool all = true;
  EachRank([&](Rank, const RankState& other) { all = all && other.comms_down; });
  if (!all) return;
  phase_ = Phase::kDown;
  SendVote();
  Say("communicators down");
}

// A kill came after barrier 3: the ranks leave anyway, now they do not leave by themselves.
void Member::Impl::HurryIfTold(const Msg& msg) {
  if (msg.code == 0 || hurried_ || all_released_) return;
  hurried_ = true;
  out_.push_back(KillRanks{"a kill came while they left"});
}

void Member::Impl::OnRelease(const Msg& msg) {
  if (msg.round == round_ && phase_ == Phase::kReleasing) HurryIfTold(msg);
  if (msg.round != round_ || phase_ != Phase::kDown) return SendVote();
  SetPhase(Phase::kReleasing, now_ + config_.kill_after_ns);
  const RankOrder order = CurrentOrder(op_deadline_, 3);
  EachRank([&](Rank rank, RankState& state) {
    pages_->StoreOrder(rank, order);
    if (!state.exited) out_.push_back(ReleaseBarrier{rank, operation_, round_, 3});
  });
  Say("releasing");
  HurryIfTold(msg);
  if (all_released_) {
    SetPhase(Phase::kReleased, kNever);
    SendVote();
  }
}

// Words back to IDLE, and the ranks that wait at a barrier told to run on.
void Member::Impl::SendRanksBack(bool rebuild, const std::string& why) {
  const RankOrder order = CurrentOrder(op_deadline_, 4);
  EachRank([&](Rank rank, RankState& state) {
    if (state.exited) return;
    for (;;) {
      const Word word = pages_->Load(rank);
      if (word.state != WordState::kStaging) break;
      pages_->StoreOrder(rank, order);
      if (pages_->Cas(rank, word, Word{word.boundary, word.cut, WordState::kIdle})) {
        pages_->Wake(rank);
        out_.push_back(TellRolledBack{rank, operation_, round_, rebuild, rebuild_, why});
        break;
      }
    }
    state.comms_down = state.comms_up = false;
  });
}

void Member::Impl::OnBack(const Msg& msg) {
  if (Ended()) return SendVote();
  const bool done =
      phase_ == Phase::kBack || phase_ == Phase::kRebuilding || phase_ == Phase::kRebuilt;
  if (done && msg.round == round_) return SendVote();
  if (msg.round > round_) AdoptRound(msg);
  rebuild_ = msg.number;
  why_ = OkStatus();
  const bool was_bound = bound() || phase_ == Phase::kStaging;
  VoidCut();
  if (!was_bound || rebuild_ == 0) {
    rebuild_ = 0;
    SendRanksBack(false, msg.text);
    SetPhase(Phase::kBack, kNever);
  } else {
    SetPhase(Phase::kRebuilding, DeadlineOf(msg));
    SendRanksBack(true, msg.text);
  }
  SendVote();
  Say("rolled back", msg.text);
}

void Member::Impl::On(const RankCommsUp& event) {
  RankState* state = Find(event.rank);
  if (state == nullptr || phase_ != Phase::kRebuilding || event.rebuild != rebuild_) return;
  if (!event.status.ok()) {
    why_ = Status(event.status).Annotate("rank " + std::to_string(event.rank.value()));
    return SendVote();
  }
  state->comms_up = true;
  CheckCommsUp();
}

void Member::Impl::CheckCommsUp() {
  bool all = true;
  EachRank([&](Rank, const RankState& state) { all = all && state.comms_up; });
  if (!all) return;
  SetPhase(Phase::kRebuilt, kNever);  // a rebuild is collective: all have joined, all run on
  SendVote();
}

void Member::Impl::OnUp(const Msg& msg) {
  if (msg.round != round_ || phase_ != Phase::kRebuilt) return SendVote();
  SetPhase(Phase::kBack, kNever);
  SendVote();
  Say("running");
}

void Member::Impl::OnEnd(const Msg& msg) {
  if (phase_ == Phase::kEnding || phase_ == Phase::kReleased) return SendVote();
  if (msg.round > round_) {
    operation_ = msg.operation;
    round_ = msg.round;
  }
  why_ = Aborted(msg.text);
  SetPhase(Phase::kEnding, kNever);
  const RankOrder order = CurrentOrder(op_deadline_, 5);
  EachRank([&](Rank rank, RankState&) { pages_->StoreOrder(rank, order); });
  if (!all_released_) out_.push_back(KillRanks{msg.text});
  SendVote();
  Say("ending", msg.text);
}

// Bound, and no outcome: the ranks end, the copies stay.
void Member::Impl::GoForward(Status why) {
  why_ = std::move(why);
  SetPhase(Phase::kForward, kNever);
  if (!all_released_) out_.push_back(KillRanks{why_.message()});
  SendVote();
  Say("rolling forward", why_.message());
}

}  // namespace ckpt::gang
