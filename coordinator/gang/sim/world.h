// The inside of the simulator; sim.h is its face.
#pragma once

#include <array>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <queue>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "coordinator/gang/leader.h"
#include "coordinator/gang/member.h"
#include "coordinator/gang/sim/sim.h"

namespace ckpt::gang::sim {

inline constexpr int64_t kMs = 1'000'000;
inline constexpr uint32_t kChunks = 2;

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15u + 0x1234567) {}
  uint64_t Next() {  // splitmix64
    uint64_t z = (state_ += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  int64_t Range(int64_t low, int64_t high) {  // both included
    return low + static_cast<int64_t>(Next() % static_cast<uint64_t>(high - low + 1));
  }
  bool Chance(double p) { return static_cast<double>(Next() >> 11) * 0x1.0p-53 < p; }

 private:
  uint64_t state_;
};

// How hostile this schedule is; drawn from the seed.
struct Weather {
  uint32_t members = 2, ranks_each = 2, slots = 2;
  uint32_t length = 0;      // boundaries until the training finishes; 0: it does not
  uint32_t save_every = 0;  // boundaries between saves of the program
  bool save_waits = false;
  int64_t step_ns = 10 * kMs;
  int64_t message_ns = kMs;  // typical delay
  double loss = 0, twice = 0, slow = 0;
  double stage_fails = 0, comms_fail = 0, rebuild_hangs = 0, drain_fails = 0, commit_fails = 0;
  double interleave = 0;  // a rank moves between a member's load and its compare-and-swap
  double phases = 0;      // a rank begins a phase without boundaries instead of a step
  double skips = 0;       // a rank leaves out a save that the others make
  uint32_t faults = 0, notices = 1;
  int64_t write_ns = 5 * kMs;
  int64_t quiet_ns = 800 * kMs;  // from here on nothing new goes wrong
  int64_t horizon_ns = 2400 * kMs;
};

enum class Pc : uint8_t {
  kRunning,     // between two collectives
  kCollective,  // has entered that of the next step
  kLeaving,     // the collective is complete, step() comes
  kAtCut,
  kAsksSave,
  kCapture,
  kSealed,
  kDowning,
  kDown,
  kRebuilding,
  kFinished,
  kExited,
};

enum class Why : uint8_t { kProgram, kCutSave, kStop };  // of a capture

struct SlotState {
  uint32_t generation = 0;
  std::array<uint32_t, kChunks> chunks{};  // generation each chunk was copied for
  bool sealed = false;
  uint32_t readers = 0;
};

struct SimRank {
  uint32_t index = 0, member = 0;
  Word word;
  RankOrder order;
  Pc pc = Pc::kRunning;
  uint32_t entered = 0;  // boundary of the collective it has entered
  uint64_t version = 0;  // events of an older one are void
  bool comms_down = false;
  std::array<SlotState, 2> slots;
  Why why = Why::kProgram;
  uint32_t capture_generation = 0, capture_slot = 0, capture_attempt = 0, capture_chunk = 0;
  bool back_pending = false, back_rebuild = false;
  uint64_t rebuild = 0;
  uint32_t asked_at = 0;  // boundary of its last wish for a save
  bool gone = false;      // exited without having finished
  bool failing = false;   // its collective is failing
  bool stuck = false;     // does not leave after barrier 3 by itself
  bool released = false;  // told to leave by barrier 3
  int64_t progress_ns = 0;
  int64_t stopped_until_ns = 0;  // SIGSTOP
  bool in_phase = false;
  int64_t to_member_ns = 0, to_rank_ns = 0;  // frames keep their order
};

struct Writer {
  uint32_t generation = 0, slot = 0, attempt = 0;
  uint32_t left = 0;  // chunks
  bool stopping = false, active = false;
};

struct SimMember {
  std::unique_ptr<Member> machine;
  bool alive = true;
  bool linked = false;
  int64_t tick_ns = INT64_MAX;
  int restless = 0;                    // ticks in a row that left a deadline behind
  std::map<uint32_t, Writer> writers;  // by attempt
  int64_t clock_ns = 0;                // how far its node's clock has leapt ahead
  bool stopped = false;                // SIGSTOP
  int64_t continued_ns = 0;
  std::deque<MemberEvent> backlog;  // what came meanwhile
  bool cut_off = false;             // on the other side of a partition than the leader
  int crash_after_sends = 0;        // dies after that many; 0: not
  uint32_t sealed_round = 0;        // newest round in which it voted SEALED for a stop
};

// How and when the leader dies: counted from now.
struct LeaderCrash {
  enum class Point : uint8_t { kNone, kBeforePersist, kAfterPersist, kAfterSend };
  Point point = Point::kNone;
  int countdown = 0;
  bool returns = true;
};

// A gang without ranks, after the leader has gone for good.
struct Drain {
  uint64_t life = 0;
  uint32_t generation = 0, attempt = 0, left = 0, troubles = 0;
  bool over = false;
};

class World : public Pages {
 public:
  explicit World(const SimOptions& options);
  SimResult Run();

  // Pages
  Word Load(Rank rank) override;
  bool Cas(Rank rank, Word expected, Word desired) override;
  void StoreOrder(Rank rank, const RankOrder& order) override;
  void Wake(Rank rank) override;
  int64_t StepNs(Rank rank) override;

 private:
  struct Entry {
    int64_t at_ns;
    uint64_t seq;
    uint32_t node;
    bool operator>(const Entry& other) const {
      return at_ns != other.at_ns ? at_ns > other.at_ns : seq > other.seq;
    }
  };

  // world.cc: time, messages, machines
  void DrawWeather();
  void StartGang();
  void At(int64_t at_ns, std::function<void()> what);
  void After(int64_t delay_ns, std::function<void()> what) { At(now_ + delay_ns, std::move(what)); }
  int64_t Delay();
  template <typename... Parts>
  void Say(const Parts&... parts);
  void Mix(uint64_t value) { trace_ = (trace_ ^ value) * 0x100000001B3u; }
  void StepMember(uint32_t member, const MemberEvent& event);
  void Orphaned(uint32_t index);
  void StepLeader(const LeaderEvent& event);
  void CheckRests(int64_t next_ns, int64_t clock_ns, int* restless);
  void ArmMember(uint32_t member);
  void ArmLeader();
  void DoMember(uint32_t member, const MemberAction& action);
  void DoLeader(const LeaderAction& action);
  void ToMember(uint32_t member, Msg msg);
  void ToLeader(uint32_t member, Msg msg);
  void StartLeader();
  void KillLeader(bool returns);
  void KillMember(uint32_t member);
  void Link(uint32_t member, bool up);
  int64_t Clock(uint32_t node) const { return now_ + members_[node].clock_ns; }
  bool Quiet() const { return now_ >= weather_.quiet_ns; }

  // faults.cc: what goes wrong
  void PlanFaults();
  void PlanFault(int64_t at_ns, uint32_t rank);
  void ArmCrash(LeaderCrash::Point point);
  bool CrashesHere(LeaderCrash::Point point);
  void Partition(int64_t for_ns);
  void StopMember(uint32_t member, int64_t for_ns);
  void ContinueMember(uint32_t member);
  void StopLeader(int64_t for_ns);
  void Leap(uint32_t node, int64_t by_ns);
  void ReturnMember(uint32_t member);

  // plan.cc: what is asked of the gang
  void PlanCommands();
  Command DrawCommand(int64_t at_ns);
  void Deliver(const Command& command);
  bool EnterPhase(SimRank& rank);

  // drain.cc: gangs without ranks
  void PlanDrain();
  uint32_t PickDrained() const;
  void StartDrain(uint32_t which);
  void RestartDrain(uint32_t which, uint64_t life, const char* why);
  void WriteDrained(uint32_t which, uint32_t rank);
  void CommitDrained(Drain* drain);

  // ranks.cc
  void Frame(uint32_t rank, MemberEvent event);  // rank → its member
  void ToRank(uint32_t rank, std::function<void(SimRank&)> what);
  void Go(uint32_t rank);
  void GoAfter(uint32_t rank, int64_t delay_ns);
  void EnterCollective(SimRank& rank);
  void CompleteCollectives();
  void LeaveCollective(SimRank& rank);
  void LookAtCut(uint32_t rank);
  void ArmTimeout(SimRank& rank);
  void RunOn(SimRank& rank);
  void BeginCapture(SimRank& rank, Why why, uint32_t generation, uint32_t slot, uint32_t attempt);
  void CaptureChunk(SimRank& rank);
  void EndCapture(SimRank& rank, bool ok);
  void AskSave(SimRank& rank);
  void AwaitAnswer(SimRank& rank);
  void TakeCommsDown(SimRank& rank);
  void GoBack(SimRank& rank, bool rebuild, uint64_t id);
  void JoinRebuild(SimRank& rank);
  void Finish(SimRank& rank);
  void Exit(SimRank& rank, int code, int signal);
  void DoomPeers();
  void StartWriters(uint32_t member, const WriteShards& action);
  void WriteChunk(uint32_t member, uint32_t attempt, uint32_t rank, uint32_t chunk);
  void EndWriter(uint32_t member, Writer* writer, Status status);

  // checks.cc
  void Fail(std::string_view name, std::string detail);
  void CheckRounds(const Msg& msg);
  void CheckOutcome(const Msg& msg);
  void CheckBatch(const LeaderActions& actions);
  void CheckHeard(const LeaderEvent& event, Decision before);
  void CheckAnswer(const NoticeAnswer& answer);
  void CheckGaveUp(const SimRank& rank);
  void CheckSentBack(uint32_t member, const TellRolledBack& action);
  void CheckNotices();
  void CheckReleased(uint32_t generation);
  void CheckContent(const CommitAttempt& action);
  void NoteResult(const Report& report);
  void CheckDrained();
  void CheckTransition(const SimRank& rank, Word from, Word to);
  void CheckTold(const Msg& msg);
  void CheckRestorable();
  void CheckStaged(uint32_t generation);
  void CheckAborted(const AbortAttempt& action);
  void CheckCommit(const CommitAttempt& action);
  void CheckFreed(uint32_t member, const FreeSlot& action);
  void CheckEnd();
  void NoteCapture(const SimRank& rank, uint32_t attempt);
  void NoteGrant(const GrantSave& grant);
  void NoteRefusal(const RefuseSave& refusal);
  void NoteReport(const Report& report);
  bool HoldsWhole(const SimRank& rank, uint32_t generation) const;

  SimOptions options_;
  Random random_;
  Weather weather_;
  SimResult result_;
  uint64_t trace_ = 0xCBF29CE484222325u;
  int64_t now_ = 0;
  uint64_t seq_ = 0;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue_;
  std::vector<std::function<void()>> nodes_;
  std::vector<uint32_t> free_nodes_;

  std::vector<SimRank> ranks_;
  std::vector<SimMember> members_;
  std::unique_ptr<Leader> leader_;
  LeaderConfig leader_config_;
  std::vector<MemberConfig> member_configs_;
  uint64_t leader_life_ = 0;
  bool leader_gone_ = false;  // for good
  int64_t leader_tick_ns_ = INT64_MAX;
  int leader_restless_ = 0;  // ticks in a row that left a deadline behind
  std::string record_;       // the leader's page
  Leader::View stored_;      // what it says
  LeaderCrash crash_;
  bool leader_stopped_ = false;
  std::deque<LeaderEvent> leader_backlog_;
  uint32_t partitions_ = 0;  // open now; collectives stand still
  int64_t trouble_ns_ = 0;   // of the newest fault: what is late soon after proves nothing
  std::array<Drain, 2> drains_;
  int64_t persist_ns_ = 0;
  uint32_t delivering_round_ = 0;  // of the commit that a member is handling
  bool delivering_commit_ = false;

  // what the checks remember
  struct AttemptNote {
    uint32_t boundary = 0;
    Why why = Why::kProgram;
  };
  std::map<uint32_t, AttemptNote> attempts_;
  std::map<uint32_t, Kind> round_kinds_;
  std::map<SaveKey, uint32_t> grants_;  // save → attempt (0: refused)
  std::map<uint32_t, uint32_t> generation_attempt_;
  std::set<uint32_t> complete_, given_up_, marked_, committed_, store_failed_;
  std::map<std::array<uint32_t, 3>, uint32_t> disk_;  // attempt, rank, chunk → generation
  std::map<uint32_t, std::set<uint32_t>> quiesced_;   // by round
  uint64_t stop_open_ = 0;                            // stops that a leader has heard of
  uint64_t next_operation_ = 1;
  struct NoticeNote {
    Command command;
    int64_t heard_ns = 0;  // by a leader that lived, last
    bool withdrawn = false, fallback = false, over = false;
    OpPhase result = OpPhase::kQueued;
  };
  std::map<uint64_t, NoticeNote> notices_;
  struct RoundNote {
    uint32_t cut = 0, attempt = 0, slot = 0;
    Kind kind = Kind::kStop;
    bool operator==(const RoundNote&) const = default;
  };
  std::map<uint32_t, RoundNote> proposed_;  // by round
  std::map<uint32_t, Decision> outcomes_;   // release, back and end exclude each other
  std::set<uint32_t> aborted_, finished_heard_;
  std::set<std::pair<uint32_t, uint32_t>> freed_;  // member, generation
  uint32_t extension_ = 0;
  int64_t extended_ns_ = 0;
  Decision decided_before_end_ = Decision::kNone;
};

template <typename... Parts>
void World::Say(const Parts&... parts) {
  if (!options_.history) return;
  std::ostringstream line;
  line.precision(3);
  line << std::fixed << static_cast<double>(now_) / static_cast<double>(kMs) << " ms  ";
  (line << ... << parts);
  result_.history.push_back(line.str());
}

}  // namespace ckpt::gang::sim
