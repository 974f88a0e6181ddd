#include "coordinator/gang/notices.h"

#include <gtest/gtest.h>

namespace ckpt::gang {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

NoticeRequest Notice(uint64_t id, int64_t deadline_ns, bool hard = false,
                     Request request = Request::kSuspend) {
  NoticeRequest notice;
  notice.id = id;
  notice.source = "source" + std::to_string(id);
  notice.request = request;
  notice.deadline_ns = deadline_ns;
  notice.hard = hard;
  return notice;
}

TEST(Notices, NothingIsAskedByAnEmptyBook) {
  EXPECT_EQ(NoticeBook().Compute(0, {}).request, Request::kNone);
}

TEST(Notices, TheEarliestDeadlineCountsAndIsRecomputed) {
  NoticeBook book;
  ASSERT_TRUE(book.Add(Notice(1, 0)).ok());
  EXPECT_EQ(book.Compute(0, {}).deadline_ns, 0) << "no deadline at all";
  ASSERT_TRUE(book.Add(Notice(2, 90 * kSecond)).ok());
  ASSERT_TRUE(book.Add(Notice(3, 30 * kSecond, true)).ok());
  Effective now = book.Compute(0, {});
  EXPECT_EQ(now.deadline_ns, 30 * kSecond);
  EXPECT_TRUE(now.hard);
  EXPECT_EQ(now.ids, (std::vector<uint64_t>{1, 2, 3}));
  EXPECT_EQ(now.sources, "source1, source2, source3");
  ASSERT_TRUE(book.Withdraw(3).ok());
  now = book.Compute(0, {});
  EXPECT_EQ(now.deadline_ns, 90 * kSecond);
  EXPECT_FALSE(now.hard);
  EXPECT_EQ(book.Withdraw(3).code(), Code::kNotFound);
}

TEST(Notices, ALaterHardDeadlineIsKeptBesideAnEarlierSoftOne) {
  NoticeBook book;
  ASSERT_TRUE(book.Add(Notice(1, 10 * kSecond)).ok());
  ASSERT_TRUE(book.Add(Notice(2, 60 * kSecond, true)).ok());
  const Effective now = book.Compute(0, {});
  EXPECT_EQ(now.deadline_ns, 10 * kSecond);
  EXPECT_FALSE(now.hard);
  EXPECT_EQ(now.kill_deadline_ns, 60 * kSecond);
}

TEST(Notices, RanksAreTheUnionAndNoneMeansAll) {
  NoticeBook book;
  NoticeRequest one = Notice(1, 0), two = Notice(2, 0);
  one.ranks = {3, 1};
  two.ranks = {1, 7};
  ASSERT_TRUE(book.Add(one).ok());
  ASSERT_TRUE(book.Add(two).ok());
  EXPECT_EQ(book.Compute(0, {}).ranks, (std::vector<uint32_t>{1, 3, 7}));
  ASSERT_TRUE(book.Add(Notice(3, 0)).ok());
  EXPECT_TRUE(book.Compute(0, {}).ranks.empty());
}

TEST(Notices, KillOverrides) {
  NoticeBook book;
  ASSERT_TRUE(book.Add(Notice(1, 10 * kSecond)).ok());
  ASSERT_TRUE(book.Add(Notice(2, 0, false, Request::kKill)).ok());
  book.SetPhase({0, "compile", 500 * kSecond});
  const Effective now = book.Compute(0, {kSecond, kSecond, kSecond});
  EXPECT_EQ(now.request, Request::kKill);
  EXPECT_EQ(now.answer, Answer::kAck) << "nothing is waited for";
}

TEST(Notices, APhaseDefersAndSaysUntilWhen) {
  NoticeBook book;
  ASSERT_TRUE(book.Add(Notice(1, 100 * kSecond)).ok());
  book.SetPhase({2, "evaluation", 20 * kSecond});
  Effective now = book.Compute(0, {kSecond, kSecond, kSecond});
  EXPECT_EQ(now.answer, Answer::kDefer);
  EXPECT_EQ(now.eta_ns, 20 * kSecond);
  EXPECT_NE(now.why.find("rank 2 is in evaluation"), std::string::npos);
  book.SetPhase({2, "", 0});
  now = book.Compute(0, {kSecond, kSecond, kSecond});
  EXPECT_EQ(now.answer, Answer::kAck);
}

TEST(Notices, AnArrivalThatIsTooLateIsSaidAtOnce) {
  NoticeBook book;
  ASSERT_TRUE(book.Add(Notice(1, 30 * kSecond, true)).ok());
  book.SetPhase({0, "compile", 25 * kSecond});
  const NoticeTimes times{kSecond, 4 * kSecond, 2 * kSecond};
  const Effective now = book.Compute(0, times);
  EXPECT_EQ(now.answer, Answer::kFallback);
  EXPECT_NE(now.why.find("falling back"), std::string::npos);
  // One second earlier it would have been in time: D - stage - kill is 24 s.
  book.SetPhase({0, "compile", 24 * kSecond});
  EXPECT_EQ(book.Compute(0, times).answer, Answer::kDefer);
}

TEST(Notices, BadOnesAreRefused) {
  NoticeBook book;
  EXPECT_EQ(book.Add(Notice(0, 0)).code(), Code::kInvalidArgument);
  EXPECT_EQ(book.Add(Notice(1, 0, false, Request::kNone)).code(), Code::kInvalidArgument);
  EXPECT_TRUE(book.empty());
}

}  // namespace
}  // namespace ckpt::gang
