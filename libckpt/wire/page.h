// The control page: 4,096 bytes of sealed memfd that one rank shares with its ckpt-run; one writer
// for each cache line. Frozen as version 1; docs/protocol.md is normative. All integers are
// little-endian and naturally aligned.
//
// I1  A line has one writer, but for the word, which both change by read-modify-write only.
// I2  Everything that a rank writes is range-checked by its reader: a rank can harm only its own
// job. I3  The order line is a seqlock: odd while it changes; a reader retries.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "libckpt/base/status.h"
#include "libckpt/base/word.h"

namespace ckpt::wire {

inline constexpr uint64_t kPageMagic = 0x31454741'50504b43;  // "CKPPAGE1", first byte first
inline constexpr uint32_t kPageVersion = 1;

// What the order line asks of a rank, beside the word (which says stop or save).
enum class Request : uint32_t { kNone = 0, kSave = 1, kSuspend = 2, kPark = 3, kMigrate = 4 };
// The leader's stored outcome for (operation, round): a member that returns repeats it.
enum class PageOutcome : uint32_t {
  kNone = 0,
  kStaged = 1,
  kCommsDown = 2,
  kReleased = 3,
  kRolledBack = 4,
  kEnded = 5
};
// Where a rank is, for views and messages.
enum class RankPhase : uint32_t {
  kStarting = 0,
  kRestoring = 1,
  kRunning = 2,
  kAtCut = 3,
  kStaging = 4,
  kSealed = 5,
  kCommsDown = 6,
  kReleased = 7,
  kSetup = 8,
  kCompile = 9,
  kEvaluation = 10,
  kFinished = 11,
};

struct Order {  // a consistent copy of the order line
  uint64_t operation = 0;
  uint32_t round = 0;
  uint32_t attempt = 0;
  Request request = Request::kNone;
  PageOutcome outcome = PageOutcome::kNone;
  uint64_t notice_id = 0;
  int64_t deadline_boottime_ns = 0;
  uint32_t generation = 0;  // generation the next staging belongs to
  uint32_t slot = 0;        // and the staging slot it goes to
};

struct ControlPage {
  // 0: ckpt-run, once
  alignas(64) uint64_t magic;
  uint32_t version;
  uint32_t size;
  uint64_t epoch;
  uint32_t rank;
  uint32_t world;
  // 64: both, read-modify-write only
  alignas(64) std::atomic<uint64_t> word;
  // 128: ckpt-run, seqlock
  alignas(64) std::atomic<uint32_t> order_seq;
  std::atomic<uint32_t> round;
  std::atomic<uint64_t> operation;
  std::atomic<uint32_t> attempt;
  std::atomic<uint32_t> request;
  std::atomic<uint32_t> outcome;
  std::atomic<uint32_t> generation;
  std::atomic<uint64_t> notice_id;
  std::atomic<int64_t> deadline_boottime_ns;
  std::atomic<uint32_t> slot;
  // 192: rank, at step(): the one plain store
  alignas(64) std::atomic<int64_t> user_step;
  // 256: rank
  alignas(64) std::atomic<uint32_t> phase;
  std::atomic<uint32_t> error;  // Code of the last staging failure
  std::atomic<uint64_t> staged_bytes;
  std::atomic<uint64_t> total_bytes;
  std::atomic<uint32_t> signal;  // last signal caught, 0 none
  std::atomic<uint32_t> signal_count;
  // In a phase without boundaries (set-up, compile, evaluation): when the program expects its next
  // boundary; 0 unknown.
  std::atomic<int64_t> phase_until_boottime_ns;
  // 320: the rank's library thread, which samples the word
  alignas(64) std::atomic<int64_t> alive_boottime_ns;
  std::atomic<int64_t> progress_boottime_ns;
  std::atomic<int64_t> step_time_ns;
};
static_assert(offsetof(ControlPage, word) == 64 && offsetof(ControlPage, order_seq) == 128);
static_assert(offsetof(ControlPage, user_step) == 192 && offsetof(ControlPage, phase) == 256);
static_assert(offsetof(ControlPage, alive_boottime_ns) == 320 && sizeof(ControlPage) <= 4096);
static_assert(std::atomic<uint64_t>::is_always_lock_free);

// Fills a zeroed page. Called by ckpt-run once, before the rank sees it.
void InitPage(ControlPage* page, uint64_t epoch, uint32_t rank, uint32_t world);
// kFailedPrecondition if magic, version or size are not this library's; says both versions.
Status CheckPage(const ControlPage& page);

// ckpt-run's side of the order line; the rank's side retries until it has a consistent copy
// (bounded: kUnavailable).
void StoreOrder(ControlPage* page, const Order& order);
Result<Order> LoadOrder(const ControlPage& page);

inline Word LoadWord(const ControlPage& page) {
  return Word::Unpack(page.word.load(std::memory_order_seq_cst));
}
inline bool CasWord(ControlPage* page, Word expected, Word desired) {
  uint64_t bits = expected.Pack();
  return page->word.compare_exchange_strong(bits, desired.Pack(), std::memory_order_seq_cst);
}
// The low half (cut and state) as a futex sees it: little-endian, so it is at the word's own
// address.
inline const uint32_t* FutexOf(const ControlPage& page) {
  return reinterpret_cast<const uint32_t*>(&page.word);
}

}  // namespace ckpt::wire
