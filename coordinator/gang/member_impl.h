// What member.cc, member_cut.cc, member_barriers.cc and member_saves.cc share; nobody else includes
// it.
#pragma once

#include <functional>
#include <limits>
#include <set>

#include "coordinator/gang/member.h"

namespace ckpt::gang {

inline constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

class Member::Impl {
 public:
  Impl(const MemberConfig& config, Pages* pages);

  MemberActions Step(int64_t now_ns, const MemberEvent& event);
  int64_t next_deadline_ns() const;
  std::string phase() const;
  bool last_copy() const;

 private:
  // Where the member stands in (operation_, round_).
  enum class Phase {
    kRunning,     // nothing open
    kProposed,    // all ranks PROPOSED
    kRefused,     // a rank would not
    kCommitted,   // all ranks COMMITTED; a save: until all have sealed
    kQuiesced,    // a stop: all wait at the cut
    kStaging,     // a stop: told to stage, not all sealed yet
    kSealed,      // voted: bound to the leader's decision
    kDowning,     // told to take communicators down
    kDown,        // voted
    kReleasing,   // told to leave
    kReleased,    // measured: gone
    kFailed,      // went back by itself before its vote
    kBack,        // rolled back, runs on
    kRebuilding,  // rolled back, waits for communicators
    kRebuilt,     // voted
    kForward,     // no outcome in time: ranks end
    kEnding,      // told that the gang ends
  };
  struct RankState {
    bool finished = false, exited = false;
    std::set<uint32_t> filling;  // generations that it was told to stage and has not ended
    uint32_t sealed = 0;         // newest generation that it sealed
    int64_t step = 0;
    bool comms_down = false, comms_up = false;
    bool wants_save = false;
    SaveKey save{0, 0};  // that it asked for last
    int64_t save_deadline = 0;
  };
  struct Generation {
    Status why;  // not OK: its attempt was given up
    uint32_t attempt = 0, slot = 0;
    bool is_save = false;  // sealing it is a fact of its own, not a vote
    SaveKey save{0, 0};    // sequence 0: none that the program asked for
    int64_t granted_ns = 0;
    std::set<uint32_t> asked, sealed;  // ranks
    std::vector<uint32_t> late;        // of those that are spoken of
    bool skipped = false;              // a rank of this member will not stage it
    bool reported = false, complete = false, durable = false, dropping = false, dropped = false;
    bool writing = false, stopping = false;
  };
  struct Fact {
    Msg msg;
    bool acked = false;
    int64_t sent_ns = 0;
    int64_t until_ns = 0;  // of a phase
  };
  struct Answer {
    uint32_t code = 0, generation = 0, slot = 0, attempt = 0;
    std::string text;
    bool local = false;  // refused here, because the leader did not answer
  };

  // member.cc: events, facts, time
  void On(const FromLeader& event);
  void On(const Tick& event);
  void On(const RankPoke& event);
  void On(const RankSealed& event);
  void On(const RankStageFailed& event);
  void On(const RankCommsDown& event);
  void On(const RankCommsUp& event);
  void On(const RankFinished& event);
  void On(const RankExited& event);
  void On(const AllReleased& event);
  void On(const RankInPhase& event);
  void On(const RankWantsSave& event);
  void On(const ShardsWritten& event);
  void On(const LeaderLost& event);
  void On(const LeaderBack& event);
  void OnAck(const Msg& msg);
  void Send(Msg msg);
  void AddFact(Msg msg, int64_t until_ns = 0);
  void SendFact(Fact* fact);
  void ResendFacts();
  void ForgetFacts(const std::function<bool(const Msg&)>& which);
  void Say(std::string_view phase, std::string text = "");
  RankState* Find(Rank rank);
  template <typename Visit>
  void EachRank(Visit visit) {
    for (uint32_t i = 0; i < ranks_.size(); ++i) {
      visit(Rank(config_.first_rank.value() + i), ranks_[i]);
    }
  }
  bool bound() const;
  bool Ended() const;

  // member_cut.cc: ask, propose, commit, withdraw
  void OnAsk(const Msg& msg);
  void OnPropose(const Msg& msg);
  void OnCommit(const Msg& msg);
  void OnWithdraw(const Msg& msg);
  void TakeExtension(const Msg& msg);
  bool StaleRound(const Msg& msg) const;
  void AdoptRound(const Msg& msg);
  bool ProposeRank(Rank rank, const RankState& state);
  bool CommitRank(Rank rank);
  void VoidCut();
  void PollWords();
  void PollStop();
  void PollSave();
  RankOrder CurrentOrder(int64_t deadline_ns, uint32_t outcome) const;
  std::vector<Place> Places(bool only_missing);
  void SendVote();
  Vote CurrentVote() const;
  void SetPhase(Phase phase, int64_t deadline_ns);
  int64_t DeadlineOf(const Msg& msg) const;
  void FailBack(Status why);
  void CheckOwnDeadline();

  // member_barriers.cc: decisions
  void OnDecision(const Msg& msg);
  void OnStage(const Msg& msg);
  void OnCommsDown(const Msg& msg);
  void OnRelease(const Msg& msg);
  void HurryIfTold(const Msg& msg);
  void OnBack(const Msg& msg);
  void OnUp(const Msg& msg);
  void OnEnd(const Msg& msg);
  void GoForward(Status why);
  void SendRanksBack(bool rebuild, const std::string& why);
  bool StageRank(Rank rank);
  void CheckSealed();
  void CheckCommsUp();

  // member_saves.cc: generations and saves of the program
  void OnSaveAnswer(const Msg& msg);
  void OnGeneration(const Msg& msg);
  void OnDrop(const Msg& msg);
  void AnswerRank(Rank rank, RankState* state, const Answer& answer);
  void GrantLate(const SaveKey& save, const Answer& answer);
  void RefuseOverdueSaves();
  static bool Watched(const Generation& entry);
  void WatchSaves();
  void WatchSave(uint32_t generation, Generation* entry);
  void NoteSealed(Rank rank, RankState* state, const RankSealed& event);
  void FinishDrop(uint32_t generation);
  bool Touched(uint32_t generation, const Generation& entry);
  void Mark(uint32_t generation, const Generation& entry, GenerationMark mark);

  MemberConfig config_;
  Pages* pages_;
  MemberActions out_;
  int64_t now_ = 0;
  bool connected_ = false;
  std::vector<RankState> ranks_;

  uint64_t operation_ = 0;
  uint32_t round_ = 0, attempt_ = 0, generation_ = 0, slot_ = 0, cut_ = 0, extension_ = 0;
  Kind kind_ = Kind::kStop;
  Request request_ = Request::kNone;
  Phase phase_ = Phase::kRunning;
  int64_t deadline_ = kNever;  // of the phase
  int64_t op_deadline_ = 0;    // of the operation, for the ranks to know
  Status why_;                 // of kRefused, kFailed, kForward
  uint64_t rebuild_ = 0;
  int64_t crash_deadline_ = kNever;  // a rank died and the leader is out of reach
  bool kills_ = false;               // a deadline ends what is not released
  bool all_released_ = false, hurried_ = false;

  uint64_t next_fact_ = 1;
  std::map<uint64_t, Fact> facts_;
  std::map<SaveKey, Answer> answers_;
  std::map<uint32_t, Generation> generations_;
};

}  // namespace ckpt::gang
