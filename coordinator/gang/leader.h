// The leader: the ckpt-run with rank 0 as a pure state machine. It decides the cut, counts votes,
// stores each outcome before it tells it, and owns the numbers: rounds, attempts, generations,
// slots.
//
// I1  Every outcome, round and attempt is stored (Persist → Persisted) before anyone hears of it;
// all
//     actions that follow a Persist wait for its Persisted, in order.
// I2  One cut at a time. A stop that meets an open save waits until all ranks are through with it
//     and gets a later cut and another slot.
// I3  Before the stored kRelease a failure that leaves all ranks alive goes back; a dead rank, a
//     missed rebuild and everything later goes forward: the gang ends, the newest generation that
//     all have sealed stands.
// I4  A generation that is complete and not durable is given up only by a stop, after barrier 1,
// and
//     (with two slots) only if a newer one is complete; a save waits or is refused.
// I5  Every barrier has a deadline, and what is said at it names the ranks that are missing.
// I6  Notices (commands that stop) merge: each has its own deadline and is refused by itself when
//     that passes, the earliest that kills kills; what a boundary that comes too late means is said
//     at once; kill overrides.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "coordinator/gang/messages.h"
#include "coordinator/gang/mutations.h"
#include "coordinator/gang/notices.h"
#include "libckpt/base/ids.h"
#include "libckpt/base/status.h"

namespace ckpt::gang {

struct MemberRanks {
  MemberId id = 0;
  Rank first_rank;
  uint32_t rank_count = 0;
};

struct LeaderConfig {
  std::vector<MemberRanks> members;  // all of the gang, its own included
  Epoch epoch;
  uint32_t slots = 2;  // staging slots of every rank: 1 or 2; 0: not known yet (SlotsKnown)
  int64_t retry_ns = 200'000'000;
  // From the proposal until all wait at the cut (barrier 1), besides two steps as measured.
  int64_t cut_ns = 30'000'000'000;
  int64_t stage_ns = 120'000'000'000;  // barrier 2
  int64_t comms_ns = 30'000'000'000;   // barrier 3, the DRAINING mark included
  int64_t rebuild_ns = 60'000'000'000;
  int64_t save_ns = 300'000'000'000;  // a save: from its grant or commit until all have sealed
  int64_t kill_ns = 2'000'000'000;  // what killing takes: a hard deadline acts this much before it
  int64_t member_grace_ns = 60'000'000'000;  // a member that is out of reach this long is lost
  int64_t drain_wait_ns =
      30'000'000'000;  // one slot: how long a stop waits for the save that drains
  int64_t stop_needs_ns = 5'000'000'000;  // what a stop itself takes, for that wait
  uint32_t rounds_max = 64;               // proposals of one operation, unless it kills
  int64_t again_ns_max = 5'000'000'000;   // between two tries of one that kills
  Mutations mutations;
};

// ---- events ------------------------------------------------------------------------------------
// A notice (suspend, park, migrate), a save from outside, a kill. Notices merge; each keeps its own
// operation, its own result and may be withdrawn by itself.
struct Command {
  uint64_t operation = 0;  // not 0; a repeated one is answered with what is known of it
  Request request = Request::kSuspend;
  int64_t deadline_ns = 0;  // absolute, of the leader's clock; 0 none
  bool hard = false;        // at the deadline what has not been released is killed; else it runs on
  std::string source;       // operator, scheduler, SIGTERM, slurm, preStop, metadata, hook:NAME
  std::vector<uint32_t> ranks = {};  // that it names; empty: all. A gang stops as a whole
  int64_t noticed_ns = 0;            // when it came; 0: now
};
// One notice does not stand any more. With others left the deadline is recomputed; the last one
// before barrier 3 sets the gang free. Answered by a Report of its operation.
struct Withdraw {
  uint64_t operation = 0;
  std::string why;
};
struct MemberJoined {
  MemberId member = 0;
};  // connected, for the first time or again
struct MemberLost {
  MemberId member = 0;
};
// It does not come back: after the release its shards are not waited for any more.
struct MemberGone {
  MemberId member = 0;
};
struct FromMember {
  MemberId member = 0;
  Msg msg;
};
struct LeaderTick {};
struct Persisted {
  uint64_t id = 0;
};  // the record with this id, and all before it, is stored
struct AttemptCommitted {
  uint32_t attempt = 0;
  Status status;
};
struct MarkedDraining {
  uint32_t attempt = 0;
  Status status;
};
// How many staging slots every rank really got: known once memory is laid out. 0: not all have
// theirs; notices are kept until they do, unless it can `never` be.
struct SlotsKnown {
  uint32_t slots = 2;
  std::string why = "";  // of 0, for people: who has not registered, what is missing
  bool never = false;
  int64_t stage_ns = 0;  // what barrier 2 is given for the bytes of that; 0: as configured
};
// What has been measured, or follows from bytes and bandwidth; 0: unknown, what was known stays.
struct Measured {
  NoticeTimes times;
};
using LeaderEvent =
    std::variant<Command, SlotsKnown, Withdraw, MemberJoined, MemberLost, MemberGone, FromMember,
                 LeaderTick, Persisted, AttemptCommitted, MarkedDraining, Measured>;

// ---- actions -----------------------------------------------------------------------------------
struct SendToMember {
  MemberId member = 0;
  Msg msg;
};  // dropped if out of reach: it is said again
struct Persist {
  uint64_t id = 0;
  std::string record;
};  // replaces the older record
// All shards are written: commit with these payloads, by member. Answer: AttemptCommitted.
struct CommitAttempt {
  uint32_t attempt = 0, generation = 0;
  int64_t step = 0;
  std::vector<std::pair<MemberId, std::string>> payloads;
};
struct MarkDraining {
  uint32_t attempt = 0, generation = 0;
  int64_t step = 0;
};  // → MarkedDraining
struct AbortAttempt {
  uint32_t attempt = 0, generation = 0;
  std::string why;
};

enum class OpPhase : uint8_t {
  kQueued = 0,       // accepted: waits for an open save, for a slot, for registration
  kNotified = 1,     // asking, proposing
  kQuiesced = 2,     // barrier 1
  kStaged = 3,       // barrier 2: staged(gang)
  kCommsDown = 4,    // all communicators are down, the DRAINING mark is set
  kReleasing = 5,    // barrier 3 is stored: the point of no return
  kReleased = 6,     // measured: no process of the gang is left
  kDurable = 7,      // the generation is committed in the store
  kRolledBack = 8,   // final: runs on; `status` says why
  kEnded = 9,        // the gang ended without a release: crash, kill, roll forward
  kRefused = 10,     // nothing was stopped; `status` says why
  kNotDurable = 12,  // the drain failed, `status` says why; the copy stays in RAM
  kFinished = 11,    // the training ended by itself
  kAgain = 13,       // this try failed, `status` says why; another one follows
  kTooLate = 14,     // of a withdrawal: the operation goes on, `status` says why
  kLate = 15,  // a copy is held up by ranks or by the store; `status` says who, and until when
};
std::string_view Name(OpPhase phase);

// What happened, as it happens. `operation` 0: of the gang itself, or of a save of the program.
struct Report {
  uint64_t operation = 0;
  Request request = Request::kNone;
  OpPhase phase = OpPhase::kQueued;
  Status status;         // why, for kRolledBack, kEnded, kRefused
  uint32_t attempt = 0;  // of the operation; for kEnded: of the copy that stands, 0 none
  uint32_t generation = 0;
  int64_t step = 0;
  uint32_t cut = 0;
  std::vector<uint32_t> missing;  // ranks that a deadline waited for
  int64_t at_ns = 0;
  int64_t noticed_ns = 0;  // when the first of the merged commands came
  bool repeated = false;   // the stored result of an operation that was commanded again
};
// How the gang takes what it was asked: at once when it comes, and again whenever that changes,
// until all wait at the cut. A notice that cannot be met and does not kill is refused by a Report.
struct NoticeAnswer {
  std::vector<uint64_t> operations;  // all that were merged
  Answer answer = Answer::kAck;
  int64_t eta_ns = 0;       // when all can be at a boundary; 0 unknown
  int64_t deadline_ns = 0;  // the earliest that stands; 0 none
  int64_t kill_at_ns = 0;   // what has not been released by then is killed; 0 never
  std::string why;          // one line for people
};
// The ranks end without a release: what is lost is what came after the copy that stands.
struct LossBooked {
  uint64_t operation = 0;                // 0: nothing had been asked
  uint32_t generation = 0, attempt = 0;  // the copy that stands; 0: what the launch began with
  int64_t step = 0;                      // of that copy
  uint32_t boundary = 0;                 // of that copy; boundaries of the page beyond it are lost
  int64_t lost_ns = 0;                   // run time since then, of each rank
  std::string why;
};
using LeaderAction = std::variant<SendToMember, Persist, CommitAttempt, MarkDraining, AbortAttempt,
                                  Report, NoticeAnswer, LossBooked>;
using LeaderActions = std::vector<LeaderAction>;

class Leader {
 public:
  // `record`: the last one stored by an earlier leader of this epoch, empty for the first. A
  // damaged record is kDataLoss.
  static Result<Leader> Create(const LeaderConfig& config, std::string_view record);
  ~Leader();
  Leader(Leader&&) noexcept;

  // Threads: one caller at a time. `now_ns` (CLOCK_BOOTTIME) never goes back.
  LeaderActions Step(int64_t now_ns, const LeaderEvent& event);
  int64_t next_deadline_ns() const;

  struct GenerationView {
    uint32_t generation = 0, attempt = 0, slot = 0;
    int64_t step = 0;
    bool complete = false, durable = false, full = false;
  };
  struct View {
    uint64_t operation = 0;
    Request request = Request::kNone;
    OpPhase phase = OpPhase::kQueued;
    Decision decision = Decision::kNone;
    uint32_t round = 0, attempt = 0, cut = 0;
    std::vector<uint32_t> missing;    // ranks that the present phase waits for
    int64_t deadline_ns = INT64_MAX;  // ... until then
    std::vector<GenerationView> generations;
    bool ended = false, finished = false;
  };
  View view() const;
  // What a stored record says, for views and tests.
  static Result<View> ViewOfRecord(std::string_view record);

 private:
  class Impl;
  explicit Leader(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ckpt::gang
