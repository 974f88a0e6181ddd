#include "libckpt/wire/page.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <thread>

#include "libckpt/base/limits.h"
#include "libckpt/os/futex.h"
#include "libckpt/os/memfd.h"
#include "libckpt/os/thread.h"

namespace ckpt::wire {
namespace {

class PageTest : public testing::Test {
 protected:
  void SetUp() override {
    memory_ = os::Memfd::Create("page", kPageBytes).value();
    ours_ = memory_.Map().value();
    theirs_ = memory_.Map().value();
    run_ = reinterpret_cast<ControlPage*>(ours_.data());
    rank_ = reinterpret_cast<ControlPage*>(theirs_.data());
    InitPage(run_, 7, 2, 4);
  }
  os::Memfd memory_;
  os::Mapping ours_, theirs_;
  ControlPage* run_ = nullptr;   // ckpt-run's mapping
  ControlPage* rank_ = nullptr;  // the rank's mapping of the same page
};

TEST_F(PageTest, IsCheckedBeforeUse) {
  EXPECT_TRUE(CheckPage(*rank_).ok());
  EXPECT_EQ(LoadWord(*rank_), Word{});
  EXPECT_EQ(std::memcmp(theirs_.data(), "CKPPAGE1", 8), 0);
  run_->version = 2;
  const Status version = CheckPage(*rank_);
  EXPECT_EQ(version.code(), Code::kFailedPrecondition);
  EXPECT_NE(version.message().find("version 2"), std::string::npos);
  InitPage(run_, 7, 2, 4);
  run_->size = 8192;
  EXPECT_FALSE(CheckPage(*rank_).ok());
  InitPage(run_, 7, 4, 4);
  EXPECT_FALSE(CheckPage(*rank_).ok()) << "rank 4 of 4";
  InitPage(run_, 7, 0, 0);
  EXPECT_FALSE(CheckPage(*rank_).ok());
  InitPage(run_, 7, 2, 4);
  run_->magic = 0;
  EXPECT_FALSE(CheckPage(*rank_).ok());
}

// The byte offsets of docs/protocol.md.
TEST_F(PageTest, LinesAreWhereTheProtocolSays) {
  StoreOrder(run_, {.operation = 0x1111,
                    .round = 2,
                    .attempt = 3,
                    .request = Request::kSuspend,
                    .outcome = PageOutcome::kReleased,
                    .notice_id = 6,
                    .deadline_boottime_ns = -7,
                    .generation = 8,
                    .slot = 1});
  rank_->user_step = 99;
  const auto u32 = [&](size_t at) {
    uint32_t value;
    std::memcpy(&value, theirs_.data() + at, sizeof value);
    return value;
  };
  EXPECT_EQ(u32(8), 1u);        // version
  EXPECT_EQ(u32(12), 4096u);    // size
  EXPECT_EQ(u32(16), 7u);       // epoch
  EXPECT_EQ(u32(24), 2u);       // rank
  EXPECT_EQ(u32(28), 4u);       // world
  EXPECT_EQ(u32(128) % 2, 0u);  // order_seq
  EXPECT_EQ(u32(132), 2u);      // round
  EXPECT_EQ(u32(136), 0x1111u);
  EXPECT_EQ(u32(144), 3u);  // attempt
  EXPECT_EQ(u32(148), 2u);  // request
  EXPECT_EQ(u32(152), 3u);  // outcome
  EXPECT_EQ(u32(156), 8u);  // generation
  EXPECT_EQ(u32(160), 6u);  // notice id
  EXPECT_EQ(static_cast<int32_t>(u32(168)), -7);
  EXPECT_EQ(u32(176), 1u);   // slot
  EXPECT_EQ(u32(192), 99u);  // user step
}

TEST_F(PageTest, OrdersAreReadWhole) {  // I3
  constexpr uint32_t kRounds = 200'000;
  os::Thread writer("writer", [&] {
    for (uint32_t i = 1; i <= kRounds; ++i) {
      StoreOrder(run_, {.operation = i,
                        .round = i,
                        .attempt = i,
                        .notice_id = i,
                        .deadline_boottime_ns = i,
                        .generation = i,
                        .slot = i % 2});
    }
  });
  uint32_t last = 0, torn = 0;
  while (last < kRounds) {
    const Result<Order> order = LoadOrder(*rank_);
    if (!order.ok()) std::this_thread::yield();
    if (!order.ok()) continue;  // a writer that was descheduled in the middle
    const uint32_t i = order->round;
    EXPECT_GE(i, last);
    last = i;
    if (order->operation != i || order->attempt != i || order->notice_id != i ||
        order->deadline_boottime_ns != i || order->generation != i || order->slot != i % 2) {
      ++torn;
    }
  }
  writer.Join();
  EXPECT_EQ(torn, 0u);
}

TEST_F(PageTest, AWriterThatDiedLeavesTheLineReadableAgain) {
  StoreOrder(run_, {.operation = 1});
  run_->order_seq.fetch_add(1);  // died in the middle
  EXPECT_EQ(LoadOrder(*rank_).status().code(), Code::kUnavailable);
  StoreOrder(run_, {.operation = 2});  // its successor
  EXPECT_EQ(LoadOrder(*rank_)->operation, 2u);
}

// The heart of the protocol: fetch_add against CAS. Whatever the interleaving, either the proposer
// learns that the rank is past the cut, or the rank sees the cut when it arrives there.
TEST_F(PageTest, NoCutIsMissed) {
  constexpr int kCuts = 2000;
  std::atomic<int> seen{0};
  os::Thread rank("rank", [&] {
    for (;;) {
      std::this_thread::yield();  // "computes", so that proposals get in between
      const Word word =
          Word::Unpack(rank_->word.fetch_add(kBoundaryOne, std::memory_order_seq_cst));
      const uint32_t boundary = word.boundary + 1;
      if (word.state == WordState::kFinished) return;
      if (!IsProposed(word.state) || !IsAtCut(boundary, word.cut)) continue;
      ++seen;
      // It goes on if the cut is withdrawn or raised.
      for (Word now = word; IsProposed(now.state) && IsAtCut(boundary, now.cut);
           now = LoadWord(*rank_)) {
        os::FutexWait(FutexOf(*rank_), static_cast<uint32_t>(now.Pack()),
                      Deadline("withdrawal", std::chrono::milliseconds(50)))
            .IgnoreError();
      }
    }
  });
  int accepted = 0;
  for (int i = 0; i < kCuts; ++i) {
    Word now = LoadWord(*run_);
    const uint32_t cut = (now.boundary + 3) & kCutMask;
    bool set = false;
    while (!AtOrPast(now.boundary, cut)) {
      if ((set = CasWord(run_, now, Word{now.boundary, cut, WordState::kProposedStop}))) break;
      now = LoadWord(*run_);
    }
    if (!set) continue;  // refused: it is past
    ++accepted;
    const Deadline deadline("the rank at its cut", std::chrono::seconds(60));
    while (seen < accepted && !deadline.Expired()) std::this_thread::yield();
    EXPECT_EQ(seen, accepted) << "a cut was missed";
    if (seen != accepted) break;
    now = LoadWord(*run_);
    EXPECT_TRUE(IsAtCut(now.boundary, cut)) << "it waits at the cut and nowhere else";
    while (!CasWord(run_, now, Word{now.boundary, now.cut, WordState::kIdle})) {
      now = LoadWord(*run_);
    }
    os::FutexWakeAll(FutexOf(*run_));
  }
  Word now = LoadWord(*run_);
  while (!CasWord(run_, now, Word{now.boundary, 0, WordState::kFinished})) now = LoadWord(*run_);
  rank.Join();
  EXPECT_GT(accepted, 0);
}

// Commit and time-out: exactly one of two CAS wins.
TEST_F(PageTest, ExactlyOneOfCommitAndRefusalWins) {
  int commits = 0;
  for (int i = 0; i < 300; ++i) {
    const Word proposed{static_cast<uint32_t>(i), static_cast<uint32_t>(i),
                        WordState::kProposedStop};
    run_->word = proposed.Pack();
    std::atomic<bool> go{false};
    bool refused = false;
    os::Thread rank("rank", [&] {
      while (!go) std::this_thread::yield();
      refused =
          CasWord(rank_, proposed, Word{proposed.boundary, proposed.cut, WordState::kRefused});
    });
    go = true;
    const bool committed =
        CasWord(run_, proposed, Word{proposed.boundary, proposed.cut, WordState::kCommittedStop});
    rank.Join();
    ASSERT_NE(committed, refused);
    EXPECT_EQ(LoadWord(*run_).state, committed ? WordState::kCommittedStop : WordState::kRefused);
    commits += committed;
  }
  RecordProperty("commits", commits);
}

TEST_F(PageTest, TheBoundaryWrapsWithoutTouchingTheRest) {
  run_->word = Word{0xffffffff, 5, WordState::kProposedSave}.Pack();
  rank_->word.fetch_add(kBoundaryOne);
  EXPECT_EQ(LoadWord(*run_), (Word{0, 5, WordState::kProposedSave}));
}

}  // namespace
}  // namespace ckpt::wire
