// The member: the ckpt-run of one node as a pure state machine. It turns the leader's messages into
// compare-and-swaps on its ranks' words, and what its ranks do into votes and facts.
//
// The tempting alternative, one barrier message per step, costs every step a round trip; here a
// step costs one fetch_add, and only an operation costs messages.
//
// I1  A rank's word goes PROPOSED → COMMITTED → STAGING by compare-and-swap, so exactly one of
//     "commit" and the rank's time-out wins, and exactly one of "stage" and the rank's time-out.
// I2  Until it votes SEALED a member may go back by itself; afterwards only on a stored outcome,
// and
//     when none comes by its deadline it goes forward: its ranks end, its copies stay.
// I3  Lower rounds are ignored. A message that comes twice is answered again and changes nothing.
// I4  A slot is free for the leader only after no rank fills it and no writer reads it.
//
// What a rank does (libckpt/session), so that the other side of I1 is written down in one place:
//   step():  b = ++boundary (fetch_add of kBoundaryOne). If the word is PROPOSED or COMMITTED and
//            IsAtCut(b, cut), the rank waits on the low half of the word. At the order's deadline
//            it does CAS → REFUSED and runs on.
//     COMMITTED_SAVE: CAS → STAGING, load the order, stage (generation, slot, attempt), CAS →
//            IDLE, SEALED, run on.
//     STAGING (a stop): load the order, stage, SEALED; wait for a barrier frame. BARRIER_RELEASED
//     2:
//            communicators down, COMMS_DOWN. BARRIER_RELEASED 3: leave. ROLLED_BACK: rebuild
//            communicators if it says so, COMMS_UP, run on.
//     anything else: run on.
//   finish(): CAS → FINISHED from every state but STAGING.
// Every rank that was told to stage ends that with SEALED, STAGE_FAILED or its death.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "coordinator/gang/messages.h"
#include "coordinator/gang/mutations.h"
#include "libckpt/base/ids.h"
#include "libckpt/base/status.h"
#include "libckpt/base/word.h"

namespace ckpt::gang {

// What the member stores in a rank's order line; `outcome` has the numbers of wire::PageOutcome.
struct RankOrder {
  uint64_t operation = 0;
  uint32_t round = 0;
  uint32_t attempt = 0;
  uint32_t generation = 0;
  uint32_t slot = 0;
  Request request = Request::kNone;
  int64_t deadline_ns = 0;  // PROPOSED, COMMITTED: of the rank's wait; later: of the operation
  uint32_t outcome = 0;     // 0 none 1 staged 2 comms down 3 released 4 rolled back 5 ended
};

// The control pages of this member's ranks: atomics and a futex in ckpt-run, simulated pages in
// tests. Nothing here blocks.
class Pages {
 public:
  virtual ~Pages() = default;
  virtual Word Load(Rank rank) = 0;
  virtual bool Cas(Rank rank, Word expected, Word desired) = 0;
  virtual void StoreOrder(Rank rank, const RankOrder& order) = 0;
  virtual void Wake(Rank rank) = 0;       // futex wake on the low half
  virtual int64_t StepNs(Rank rank) = 0;  // how long a step takes lately; 0 unknown
};

struct MemberConfig {
  MemberId id = 0;
  Rank first_rank;
  uint32_t rank_count = 0;
  Epoch epoch;
  int64_t poll_ns = 2'000'000;             // how often words are read while a cut is open
  int64_t retry_ns = 200'000'000;          // repeats what was not acknowledged
  int64_t patience_ns = 2'000'000'000;     // how much later than the leader's its own deadlines are
  int64_t kill_after_ns = 10'000'000'000;  // after barrier 3: ranks that have not left are killed
  int64_t save_answer_ns = 10'000'000'000;  // a save that the leader does not answer is refused
  int64_t late_ns = 10'000'000'000;  // a save that some ranks have not staged by then is spoken of
  Mutations mutations;
};

// ---- events ------------------------------------------------------------------------------------
struct FromLeader {
  Msg msg;
};
struct Tick {};
struct RankPoke {
  Rank rank;
};  // look at this rank's word now
struct RankSealed {
  Rank rank;
  uint32_t generation = 0;
  uint32_t attempt = 0;
  int64_t step = 0;
};
struct RankStageFailed {
  Rank rank;
  uint32_t generation = 0;
  uint32_t attempt = 0;
  Status status;
};
struct RankCommsDown {
  Rank rank;
  uint64_t operation = 0;
  uint32_t round = 0;
  Status status;
};
struct RankCommsUp {
  Rank rank;
  uint64_t rebuild = 0;
  Status status;
};
struct RankFinished {
  Rank rank;
};
// What its program says that it does: no boundary for that long. An empty kind: it trains again.
struct RankInPhase {
  Rank rank;
  std::string kind;
  int64_t expected_ns = 0;  // from now; 0: it did not say
};
struct RankExited {
  Rank rank;
  int exit_code = 0;
  int signal = 0;
};
struct AllReleased {};  // measured: no process of these ranks is left
struct RankWantsSave {
  Rank rank;
  uint32_t boundary = 0;
  bool wait = false;
  int64_t deadline_ns = 0;  // absolute: refused by then; 0: MemberConfig::save_answer_ns from now
  uint32_t sequence = 1;    // the n-th save that the rank asks for at this boundary
};
// The writers of this attempt have ended, in any case, also after StopWriters.
struct ShardsWritten {
  uint32_t attempt = 0;
  Status status;
  std::string payload;
};
struct LeaderLost {};
struct LeaderBack {};  // connected, for the first time or again
using MemberEvent = std::variant<FromLeader, Tick, RankPoke, RankSealed, RankStageFailed,
                                 RankCommsDown, RankCommsUp, RankFinished, RankExited, AllReleased,
                                 RankWantsSave, ShardsWritten, LeaderLost, LeaderBack, RankInPhase>;

// ---- actions -----------------------------------------------------------------------------------
struct SendToLeader {
  Msg msg;
};  // dropped if there is no connection: it is said again
struct ReleaseBarrier {
  Rank rank;
  uint64_t operation = 0;
  uint32_t round = 0;
  uint32_t barrier = 0;
};
struct TellRolledBack {
  Rank rank;
  uint64_t operation = 0;
  uint32_t round = 0;
  bool rebuild = false;
  uint64_t rebuild_id = 0;
  std::string why;
};
struct WriteShards {
  uint32_t generation = 0, slot = 0, attempt = 0;
};
struct StopWriters {
  uint32_t attempt = 0;
};  // answered by ShardsWritten
struct GrantSave {
  Rank rank;
  uint32_t boundary = 0, generation = 0, slot = 0, attempt = 0;
  uint32_t sequence = 1;
};
struct RefuseSave {
  Rank rank;
  uint32_t boundary = 0;
  Status status;
  uint32_t sequence = 1;
};
struct FreeSlot {
  uint32_t slot = 0, generation = 0;
};  // nobody uses it any more: next may be filled
enum class GenerationMark : uint32_t {
  kSealed = 2,
  kGangComplete = 3,
  kDurable = 4,
  kAborted = 5,
  kNotDurable = 6  // its attempt failed; the copy stays in RAM until a newer one is complete
};
struct MarkGeneration {
  uint32_t generation = 0, slot = 0, attempt = 0;
  GenerationMark mark = GenerationMark::kSealed;
  Status why;  // of kAborted and kNotDurable
};
struct KillRanks {
  std::string why;
};  // all of this member's; then AllReleased when measured
struct MemberReport {
  std::string phase;
  uint64_t operation = 0;
  uint32_t round = 0;
  std::string text;
};
using MemberAction =
    std::variant<SendToLeader, ReleaseBarrier, TellRolledBack, WriteShards, StopWriters, GrantSave,
                 RefuseSave, FreeSlot, MarkGeneration, KillRanks, MemberReport>;
using MemberActions = std::vector<MemberAction>;

class Member {
 public:
  // `pages` outlives the member.
  Member(const MemberConfig& config, Pages* pages);
  ~Member();
  Member(Member&&) noexcept;

  // Threads: one caller at a time. `now_ns` (CLOCK_BOOTTIME) never goes back.
  MemberActions Step(int64_t now_ns, const MemberEvent& event);
  // When the next Tick is due; INT64_MAX if none.
  int64_t next_deadline_ns() const;
  // For views: "running", "at cut", "staging", "sealed", "comms down", "released", …
  std::string phase() const;
  // The ranks leave, or are killed if they cannot: the copy of this stop is the last one.
  bool last_copy() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ckpt::gang
