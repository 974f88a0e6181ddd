// What leader*.cc share; nobody else includes it.
#pragma once

#include <functional>
#include <limits>
#include <map>
#include <set>

#include "coordinator/gang/leader.h"

namespace ckpt::gang {

inline constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

// One gang-wide copy, as the leader keeps it.
struct LeaderGeneration {
  enum class State : uint8_t { kFilling = 0, kComplete = 1, kDurable = 2, kDropping = 3 };
  uint32_t generation = 0, attempt = 0, slot = 0;
  uint64_t operation = 0;
  Request request = Request::kSave;
  int64_t step = 0;
  State state = State::kFilling;
  bool full = false;      // a suspend's
  bool aborted = false;   // complete, but its attempt will not be committed: the copy in RAM stands
  uint32_t boundary = 0;  // where it is captured
  int64_t captured_ns = 0;  // when
  int64_t fill_deadline_ns = kNever;
  // not stored: learned again
  Status why;  // of an aborted one
  std::set<MemberId> sealed;
  std::map<MemberId, std::string> late;  // whom the others wait for, as their members say
  std::map<MemberId, std::string> payloads;
  std::set<MemberId> pending;  // members that have not answered the newest mark or drop
  int64_t sent_ns = 0;
  bool committing = false;
  uint32_t commit_tries = 0;
  int64_t commit_at_ns = kNever;
};

// An answer to the program's wish for a save, the same for the gang.
struct SaveAnswer {
  SaveKey save{0, 0};
  uint32_t generation = 0, slot = 0, attempt = 0;
  int32_t code = 0;
  std::string text;
};

struct DoneOperation {
  uint64_t operation = 0;
  Request request = Request::kNone;
  OpPhase phase = OpPhase::kRefused;
  int32_t code = 0;
  std::string text;
  uint32_t attempt = 0, generation = 0;
  int64_t step = 0;
};

enum class Stage : uint8_t {  // of the operation that is open
  kIdle = 0,
  kWaiting = 1,  // for an open save, a slot, or a back-off
  kAsking = 2,
  kProposed = 3,
  kCommitted = 4,
  kSuperseding = 5,  // all wait at the cut; an older save's writers are being stopped
  kDecided = 6,      // by `decision`
  kMarking = 7,      // all communicators are down; the DRAINING mark is being set
};

// All that a leader stores. Everything else is learned again from the members.
struct LeaderRecord {
  uint32_t incarnation = 0, round = 0, attempt = 0, generation = 0;
  uint64_t rebuild = 0;
  // the open operation
  uint64_t operation = 0;         // its number in messages: the first command's
  std::vector<Command> commands;  // merged; empty: none is open
  Stage stage = Stage::kIdle;
  Decision decision = Decision::kNone;
  Kind kind = Kind::kStop;
  uint32_t op_attempt = 0, op_generation = 0, op_slot = 0, cut = 0, rounds = 0;
  uint64_t op_rebuild = 0;
  int64_t step = 0;
  int64_t deadline_ns = kNever;  // of the stage itself; StageDeadline() is what counts
  int64_t cut_deadline_ns = kNever;
  Code back_code = Code::kOk;  // why it goes back or ends
  std::string back_text;
  bool void_round = false;      // the newest round was withdrawn: repeated until all know
  std::vector<Command> queued;  // a stop that waits for a committed save
  std::vector<LeaderGeneration> generations;
  std::vector<SaveAnswer> answers;
  std::vector<DoneOperation> done;
  bool ended = false, released = false, finished = false;
  bool hurry = false;      // killed while it was being released: nobody waits for the ranks
  int64_t started_ns = 0;  // of the launch
  uint32_t extension = 0;  // of deadlines, within the life of the gang
  int64_t noticed_ns = 0;  // of the open operation

  std::string Encode() const;
  static Result<LeaderRecord> Decode(std::string_view bytes);
};

class Leader::Impl {
 public:
  Impl(const LeaderConfig& config, LeaderRecord record, bool returned);

  LeaderActions Step(int64_t now_ns, const LeaderEvent& event);
  int64_t next_deadline_ns() const;
  View view() const;

 private:
  using Gen = LeaderGeneration;
  struct MemberState {
    Rank first_rank;
    uint32_t rank_count = 0;
    bool connected = false;
    int64_t lost_ns = kNever;
    bool voted = false;         // what the present stage waits for
    uint32_t extension = 0;     // newest that it has taken
    std::vector<Place> places;  // answer to kAsk; later: the ranks it waits for
    bool placed = false;        // of a commit: has said where its ranks are
    bool released = false;
  };
  struct WaitingSave {
    bool for_slot = false;  // else only until the ranks have filled the save before it
    int64_t deadline_ns = kNever;
  };
  struct Held {
    uint64_t after = 0;  // the Persist that it waits for
    LeaderAction action;
  };

  // leader.cc: events, members, sending
  void On(const Command& event);
  void On(const SlotsKnown& event);
  void On(const gang::Withdraw& event);
  void On(const MemberJoined& event);
  void On(const MemberLost& event);
  void On(const MemberGone& event);
  void On(const FromMember& event);
  void On(const LeaderTick& event);
  void On(const Persisted& event);
  void On(const AttemptCommitted& event);
  void On(const MarkedDraining& event);
  void On(const Measured& event);
  void Begin();
  void Resume();
  void Emit(LeaderAction action);
  void Store();
  void Send(MemberId member, Msg msg);
  void Broadcast();  // the present stage's message to all that have not answered it
  void SendCurrent(MemberId member);
  bool HasCurrent() const;
  Msg CurrentMsg() const;
  void SetStage(Stage stage, int64_t deadline_ns);
  void Tell(OpPhase phase, Status status, std::vector<uint32_t> missing = {});
  bool AllVoted() const;
  bool Behind(const MemberState& member) const;
  bool AnyBehind() const;
  std::vector<uint32_t> MissingRanks() const;
  std::string MissingText() const;
  uint32_t WorldSize() const;

  // leader_ops.cc: commands, their merging and their end
  bool open() const { return !r_.commands.empty(); }
  bool OpenStop() const { return open() && r_.kind == Kind::kStop; }
  bool PastRelease() const { return r_.ended || r_.released || r_.decision == Decision::kRelease; }
  Request OpRequest() const;
  int64_t StageDeadline() const;
  void Kill(const Command& command);
  void RefuseCommand(const Command& command, Status why);
  bool AnswerKnown(const Command& command);
  void StartOperation(std::vector<Command> commands);
  void FinishOperation(OpPhase phase, Status status, std::vector<uint32_t> missing = {});
  void StartQueued();
  void WaitForSlot();
  int64_t FirstDeadline() const;
  int64_t OpDeadline() const;
  int64_t KillAt() const;
  int64_t Bounded(int64_t deadline_ns) const;
  bool TriesAgain() const;
  void RecordDone(const Command& command, OpPhase phase, const Status& status);
  void CheckDeadlines();
  void ExpireCommands();
  void OnStageDeadline();
  bool AllAtCut() const;
  void WaitForSeals();
  int64_t PauseBeforeAgain() const;
  std::string WaitText() const;
  std::string StayingText() const;
  std::string Took() const;

  // leader_notices.cc: what a notice is answered, phases, what is lost
  void OnPhase(const Msg& msg);
  const PhaseHint* Slowest() const;
  int64_t CutDeadlineFromNow() const;
  void Extend();
  void WithdrawOne(uint64_t operation, const Status& why);
  void RefuseHopeless();
  void AnswerNotices();
  Answer Foresee(std::string* why) const;
  int64_t FallbackAt() const;
  int64_t StepGuess() const;
  std::string StandingText() const;
  void BookLoss(const Status& why, bool waited);

  // leader_cut.cc: waiting for a slot, asking, proposing, committing
  void TryStart();
  void DropOverdueFill();
  void BeginRound();
  void OnPlaces(MemberId member, const Msg& msg);
  void Propose(uint32_t lead);
  void OnVote(MemberId member, const Msg& msg);
  void OnCutVote(MemberId member, const Msg& msg);
  void OnRefusal(MemberId member, const Msg& msg);
  void OnQuiesced();
  void PassBarrierOne();
  void WithdrawRound(OpPhase phase, Status status, std::vector<uint32_t> missing = {});
  uint32_t LeadNow() const;

  // leader_barriers.cc: decisions
  void Decide(Decision decision, int64_t deadline_ns);
  void OnBarrierVote(MemberId member, const Msg& msg);
  void OnSealedVote(MemberId member, const Msg& msg);
  void OnBackVote(MemberId member, const Msg& msg);
  void BeginMarking();
  void GoBack(Status why);
  void BackDone();
  void End(Status why);
  void OnFact(MemberId member, const Msg& msg);
  void OnExit(const Msg& msg);
  void OnRankFinished(uint32_t rank);
  void OnReleased(MemberId member);
  const Gen* Standing() const;

  // leader_saves.cc: generations, slots, saves of the program
  Gen* FindGeneration(uint32_t generation);
  Gen* FindAttempt(uint32_t attempt);
  bool Filling() const;
  bool PickSlot(bool stop, uint32_t* out_slot, uint32_t* out_supersede) const;
  void AddGeneration(uint32_t generation, uint32_t attempt, uint32_t slot, bool full,
                     int64_t fill_deadline_ns, uint32_t boundary);
  bool PastDrainWait() const;
  void OnWantsSave(MemberId member, const Msg& msg);
  void AnswerSave(const SaveKey& save, int32_t code, std::string text);
  void RefuseForSlot(const SaveKey& save);
  void GrantSaveAt(const SaveKey& save, uint32_t slot);
  void SendAnswer(MemberId member, const SaveAnswer& answer);
  void RefuseWaitingSaves(Code code, const std::string& why);
  void ServeWaitingSaves();
  void OnSealedFact(MemberId member, const Msg& msg);
  void OnStageFailed(const Msg& msg);
  // Of the open operation or of the program: it will not be complete, and its ranks hear why.
  void GiveUpFilling(Gen* gen, const Status& why);
  void OnLate(MemberId member, const Msg& msg);
  std::string LateText(const Gen& gen) const;
  void OnShards(MemberId member, const Msg& msg);
  void OnDropped(MemberId member, const Msg& msg);
  void OnMarkHeard(MemberId member, const Msg& msg);
  void Complete(Gen* gen);
  void Abort(Gen* gen, const Status& why);
  void DropFailedDrains();
  void Drop(Gen* gen, const Status& why);
  void TryCommit(Gen* gen);
  void SendMarks(Gen* gen, bool all);
  void SendMark(MemberId member, Gen* gen);
  static int32_t MarkCode(const Gen& gen);
  void SlotsChanged();
  void TellGeneration(const Gen& gen, OpPhase phase, Status status);
  void CheckGenerationDeadlines();

  LeaderConfig config_;
  LeaderRecord r_;
  bool returned_ = false, begun_ = false;
  LeaderActions out_;
  std::vector<Held> held_;
  uint64_t persist_id_ = 0, persisted_ = 0;
  bool dirty_ = false;  // this step changed the record
  int64_t now_ = 0;
  std::map<MemberId, MemberState> members_;
  int64_t sent_ns_ = 0;   // when the present stage's message was last sent
  int64_t stage_ns_ = 0;  // when the present stage began
  int64_t rtt_ns_ = 0, step_ns_ = 0, round_step_ns_ = 0;
  uint32_t lead_ = 0;                   // boundaries beyond max + 1; grows with each raise
  std::vector<uint32_t> back_missing_;  // whom the barrier that failed waited for
  int64_t wait_until_ns_ = 0;           // kWaiting: not before this
  int64_t drain_until_ns_ = 0;          // one slot: until then a stop waits for the drain
  uint32_t supersede_ = 0;              // generation that gives its slot to the open stop
  int64_t leave_by_ns_ = kNever;        // ranks of a finished training are killed then
  MemberId asker_ = 0;                  // who asked for the save that is being answered
  std::set<uint32_t> finished_ranks_, exited_ranks_;
  std::string not_ready_why_;
  bool never_ready_ = false;
  NoticeTimes times_;
  std::map<uint32_t, PhaseHint> phases_;        // of ranks that said so
  std::map<uint32_t, uint64_t> phase_numbers_;  // newest fact heard of each
  struct Said {
    Answer answer = Answer::kAck;
    uint32_t rank = 0;
    int64_t until_ns = 0, deadline_ns = 0, kill_at_ns = 0;
    size_t operations = 0;
    bool ready = false;
    bool operator==(const Said&) const = default;
  };
  std::optional<Said> said_;  // the newest answer
  std::map<SaveKey, WaitingSave> waiting_saves_;
};

}  // namespace ckpt::gang
