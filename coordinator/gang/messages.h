// What the leader and the members of a gang say to each other, and the words both sides share.
//
// One flat struct for all messages: a field that a type does not use is zero. Times travel as
// durations ("left"), because the clocks of two nodes have nothing in common; the receiver adds its
// own now.
//
// I1  Every message of an operation carries (operation, round); rounds grow for the life of the
//     gang, over restarts of the leader, and a member ignores lower ones.
// I2  Nothing depends on arrival: what was lost is said again, what comes twice changes nothing.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "libckpt/base/ids.h"
#include "libckpt/base/status.h"

namespace ckpt::gang {

using MemberId = uint32_t;  // a ckpt-run of the gang: its node rank

// The word's flavour: ranks stop at the cut, or stage there and run on.
enum class Kind : uint8_t { kStop = 0, kSave = 1 };

// What the operation is for; the first five have the numbers of wire::Request.
enum class Request : uint8_t {
  kNone = 0,
  kSave = 1,
  kSuspend = 2,
  kPark = 3,
  kMigrate = 4,
  kKill = 5
};

// The outcomes that the leader stores before it tells them, in the order they can follow each
// other.
enum class Decision : uint8_t {
  kNone = 0,
  kStage = 1,      // barrier 1 passed: all ranks wait at the same committed cut
  kCommsDown = 2,  // barrier 2 passed: all ranks sealed; take communicators down
  kRelease = 3,    // barrier 3 passed: the point of no return; ranks leave
  kBack = 4,       // run on; with a rebuild number, rebuild communicators first
  kUp = 5,         // the rebuild is complete
  kEnd = 6,        // the gang ends: ranks are killed, copies stay
};

enum class MsgType : uint8_t {
  // leader to member
  kAsk = 1,         // where are your ranks?
  kPropose = 2,     // cut, attempt, generation, slot, kind, left
  kCommit = 3,      // the cut of this round is committed
  kWithdraw = 4,    // the round is void: run on
  kDecision = 5,    // a stored outcome; kBack: `number` is the rebuild (0 none); code 1: kCommsDown
                    // before a deadline that kills, kRelease whose ranks are killed now
  kSaveAnswer = 6,  // boundary, sequence, code (0: generation, slot, attempt granted)
  kGeneration = 7,  // generation, attempt, slot: GANG_COMPLETE (code 1), DURABLE (2), complete but
                    // not to become durable (3; number: Code, text)
  kDrop = 8,        // attempt and generation are void; stop filling and writing, free the slot
  kAck = 9,         // facts with these `numbers` have been heard
  // member to leader
  kPlaces = 20,   // answer to kAsk: ranks and their boundaries; number: the longest step time, ns
  kVote = 21,     // where the member stands in (operation, round): `vote`
  kDropped = 22,  // answer to kDrop: nobody of this member touches the slot any more
  kFact = 23,     // something that happened; number: repeated until acknowledged
};

enum class Vote : uint8_t {
  kNone = 0,
  kAccepted = 1,  // every rank is proposed
  kRefused = 2,   // a rank is at or past the cut, or has finished, or took back its promise: places
                  // say where
  kQuiesced = 3,  // every rank waits at the committed cut
  kSealed = 4,    // binding: every rank has staged (kStop), or staged and runs on (kSave)
  kCommsDown = 5,
  kReleased = 6,  // measured: no process of this member's ranks is left
  kFailed = 7,    // went back by itself before it had voted kSealed; code and text say why
  kBack = 8,      // rolled back and running on, or waiting for the rebuild
  kCommsUp = 9,   // the rebuild is done on every rank of this member
  kForward = 10,  // could not learn the outcome in time: ranks end, copies stay
};

enum class FactKind : uint8_t {
  kNone = 0,
  kExited = 1,       // rank, code: exit code, step: signal; slot 1: it had finished
  kFinished = 2,     // rank
  kWantsSave = 3,    // boundary, sequence, slot 1: wait
  kSealed = 4,       // attempt, generation, step: all ranks of this member sealed it (saves)
  kStageFailed = 5,  // attempt, generation, rank, code, text
  kShards = 6,       // attempt; payload, or code and text
  kReleased = 7,     // measured: no process of this member's ranks is left
  kPhase = 8,        // rank, text: what its program says that it does ("": it trains), left
  kLate = 9,         // attempt, generation; places, text: who holds up a save of the program
};

struct Place {
  uint32_t rank = 0;
  uint32_t boundary = 0;
  bool finished = false;
  bool operator==(const Place&) const = default;
};

struct Msg {
  MsgType type = MsgType::kAck;
  MemberId from = 0;  // members to leader only
  uint64_t operation = 0;
  uint32_t round = 0;
  uint32_t attempt = 0;
  uint32_t generation = 0;
  uint32_t slot = 0;
  uint32_t cut = 0;
  uint32_t boundary = 0;
  uint32_t sequence = 0;  // of a save: the n-th that the program asks for at its boundary
  uint32_t rank = 0;
  uint32_t extension = 0;  // counts new deadlines within a round; only a higher one moves them
  Kind kind = Kind::kStop;
  Request request = Request::kNone;
  Decision decision = Decision::kNone;
  Vote vote = Vote::kNone;
  FactKind fact = FactKind::kNone;
  int64_t step = 0;
  int64_t left_ns = 0;   // until the deadline of what is asked; <= 0: none
  int64_t total_ns = 0;  // until the operation's own deadline; <= 0: none
  uint64_t number = 0;   // rebuild, fact or notice
  int32_t code = 0;      // ckpt::Code or an exit code
  std::string text;
  std::string payload;  // opaque: shard reports
  std::vector<Place> places;
  std::vector<uint64_t> numbers;
  bool operator==(const Msg&) const = default;
};

// 36 years: nothing is further away, so that adding it to any now does not overflow.
inline constexpr int64_t kLeftNsMax = int64_t{1} << 60;
inline constexpr size_t kMsgPayloadBytesMax = size_t{64} << 20;

// What is further away than kLeftNsMax is sent as that.
// Of what another member says: a code that this build does not know is kInternal.
Code CodeOf(int32_t code);

std::string Encode(const Msg& msg);
// kDataLoss for anything that is not exactly one known message.
Result<Msg> Decode(std::string_view bytes);

std::string_view Name(MsgType type);
std::string_view Name(Decision decision);
std::string_view Name(Vote vote);
std::string_view Name(FactKind fact);
std::string_view Name(Request request);
// One line for logs and histories.
std::string ToString(const Msg& msg);

// Which save of the program: boundary, and the n-th at it.
using SaveKey = std::pair<uint32_t, uint32_t>;

// a later than b, on the ring of 32-bit boundaries.
constexpr bool Later(uint32_t a, uint32_t b) { return static_cast<int32_t>(a - b) > 0; }

}  // namespace ckpt::gang
