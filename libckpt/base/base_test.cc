#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>

#include <cerrno>

#include "libckpt/base/aligned_buffer.h"
#include "libckpt/base/bytes.h"
#include "libckpt/base/clock.h"
#include "libckpt/base/digest.h"
#include "libckpt/base/fault.h"
#include "libckpt/base/ids.h"
#include "libckpt/base/status.h"
#include "libckpt/base/word.h"

namespace ckpt {
namespace {

TEST(Status, CarriesCodeOutcomeAndContext) {
  Status status = NotFound("job 'a'").Annotate("opening the store").MaybeApplied();
  EXPECT_EQ(status.ToString(), "NOT_FOUND: opening the store: job 'a' (maybe applied)");
  const Status copy = status;
  EXPECT_EQ(copy.code(), Code::kNotFound);
  EXPECT_EQ(copy.outcome(), Outcome::kMaybeApplied);
  EXPECT_TRUE(OkStatus().Annotate("x").ok());
  EXPECT_EQ(ErrnoStatus(ENOSPC, "writing /x").ToString(),
            "RESOURCE_EXHAUSTED: writing /x: No space left on device (ENOSPC)");
}

TEST(AttemptId, PrintsAndParsesItsOwnFormOnly) {
  const AttemptId id{Epoch(3), Step(120), Attempt(7)};
  EXPECT_EQ(id.ToString(), "s120.e3.a7");
  EXPECT_EQ(AttemptId::Parse("s120.e3.a7").value(), id);
  EXPECT_EQ(AttemptId::Parse("s-1.e1.a1")->step, Step(-1));
  for (const char* bad : {"", "s1", "s1.e2", "s1.e2.a3.tmp", "s01.e2.a3", "s1.e2.a99999999999",
                          ".trash-3-s1.e2.a3", "s1.e-2.a3"}) {
    EXPECT_FALSE(AttemptId::Parse(bad).ok()) << bad;
  }
}

TEST(AttemptId, NewestIsByEpochThenStep) {
  // S12: an adopted drain of an abandoned branch (step 1000, epoch 5) is older than step 950 of
  // epoch 6.
  EXPECT_LT((AttemptId{Epoch(5), Step(1000), Attempt(9)}),
            (AttemptId{Epoch(6), Step(950), Attempt(1)}));
}

TEST(JobId, RoundTrips) {
  const JobId id = JobId::Random();
  EXPECT_FALSE(id.IsZero());
  EXPECT_EQ(JobId::Parse(id.ToString()).value(), id);
  EXPECT_FALSE(JobId::Parse("xyz").ok());
}

TEST(CheckName, RefusesWhatCouldLeaveADirectory) {
  EXPECT_TRUE(CheckName("job", "gpt-2_a.1").ok());
  for (const char* bad : {"", ".", "..", ".x", "a/b", "a b", "\xc3\xa9"})
    EXPECT_FALSE(CheckName("job", bad).ok()) << bad;
}

TEST(Bytes, ReaderNeverReadsBeyondTheEnd) {
  ByteWriter writer;
  writer.Put<uint32_t>(7).PutString("abc").Put<int64_t>(-2);
  const std::string all = writer.str();
  ByteReader good(all);
  EXPECT_EQ(good.Get<uint32_t>(), 7u);
  EXPECT_EQ(good.GetString(), "abc");
  EXPECT_EQ(good.Get<int64_t>(), -2);
  EXPECT_TRUE(good.Finish("x").ok());
  for (size_t size = 0; size < all.size(); ++size) {
    ByteReader cut(std::string_view(all).substr(0, size));
    cut.Get<uint32_t>();
    cut.GetString();
    cut.Get<int64_t>();
    EXPECT_FALSE(cut.Finish("x").ok()) << size;
  }
  ByteWriter huge;
  huge.Put<uint32_t>(0xffffffff);
  ByteReader reader(huge.str());
  EXPECT_TRUE(reader.GetArray<uint64_t>().empty());
  EXPECT_TRUE(reader.failed());
}

TEST(Word, CountsBoundariesWithoutTouchingCutAndState) {
  const Word word{0xffffffff, 5, WordState::kProposedStop};
  const Word next = Word::Unpack(word.Pack() + kBoundaryOne);  // G10: the carry falls off the top
  EXPECT_EQ(next, (Word{0, 5, WordState::kProposedStop}));
}

TEST(Word, CutIsComparedModulo2To28) {
  EXPECT_TRUE(IsAtCut(0x1000'0005u, 5));
  EXPECT_TRUE(AtOrPast(7, 7));  // G7: at the cut is past it
  EXPECT_TRUE(AtOrPast(8, 7));
  EXPECT_FALSE(AtOrPast(6, 7));
  EXPECT_TRUE(AtOrPast(0x1000'0001u, kCutMask));
  EXPECT_FALSE(AtOrPast(0x0fff'ffffu, 2));
}

TEST(Deadline, APointInTimeFarInThePastHasPassed) {
  for (const int64_t past : {INT64_MIN, INT64_MIN + 1, int64_t{-1}, int64_t{0}, int64_t{1}}) {
    EXPECT_TRUE(Deadline::At("x", past).Expired()) << past;
    EXPECT_EQ(Deadline::At("x", past).Left().count(), 0) << past;
  }
  EXPECT_FALSE(Deadline::At("x", INT64_MAX).Expired());
}

TEST(Deadline, NamesWhatWasAwaited) {
  const Deadline deadline("barrier B1", Nanos(0));
  EXPECT_TRUE(deadline.Expired());
  EXPECT_NE(deadline.Exceeded().message().find("barrier B1"), std::string::npos);
  EXPECT_GT(Deadline::Infinite("x").Left(), std::chrono::hours(1000));
}

TEST(Digest, StreamEqualsOneShotAndSeedMatters) {
  const std::string data(100'000, 'q');
  DigestStream stream(9);
  stream.Update(AsBytes(data).first(3));
  stream.Update(AsBytes(data).subspan(3));
  EXPECT_EQ(stream.Finish(), DigestOf(AsBytes(data), 9));
  EXPECT_NE(DigestOf(AsBytes(data), 9), DigestOf(AsBytes(data), 10));
  // The published test vector of XXH3-128 over no bytes, seed 0.
  EXPECT_EQ(DigestOf({}).ToString(), "99aa06d3014798d86001c324468d497f");
}

TEST(FaultDeathTest, TheEnvironmentArmsPointsOfAnotherProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  setenv("RANK", "1", 1);
  setenv("CKPT_FAULT_AT", "a@0=kill,b:2@1=kill,c=fail", 1);
  EXPECT_EXIT(
      {
        const bool others = PassFaultPoint("a").ok() && PassFaultPoint("b").ok() &&
                            !PassFaultPoint("c").ok() && PassFaultPoint("c").ok();
        if (others) PassFaultPoint("b").IgnoreError();
      },
      testing::KilledBySignal(SIGKILL), "fault point b: kill");
}

TEST(Fault, FiresAtTheNthPassage) {
  ArmedFault fault("p", Unavailable("planted"), 2);
  EXPECT_TRUE(PassFaultPoint("p").ok());
  EXPECT_TRUE(PassFaultPoint("other").ok());
  EXPECT_EQ(PassFaultPoint("p").code(), Code::kUnavailable);
  EXPECT_TRUE(PassFaultPoint("p").ok());
  EXPECT_TRUE(fault.fired());
}

TEST(Format, ReadsLikeAPersonWouldWrite) {
  EXPECT_EQ(FormatBytes(64 << 20), "64.0 MiB");
  EXPECT_EQ(FormatDuration(Nanos(1'500'000)), "1.5 ms");
}

TEST(AlignedBuffer, IsWholePagesAndGrowsWhenAsked) {
  AlignedBuffer buffer;
  EXPECT_EQ(buffer.size(), 0u);
  for (const size_t bytes : {size_t{1}, size_t{5000}, size_t{1} << 20, (size_t{2} << 20) + 1}) {
    buffer.Reserve(bytes);
    EXPECT_GE(buffer.size(), bytes);
    EXPECT_EQ(buffer.size() % kPageBytes, 0u);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % kPageBytes, 0u);
    buffer.span().front() = buffer.span().back() = std::byte{1};
    const std::byte* const before = buffer.data();
    buffer.Reserve(bytes / 2);
    EXPECT_EQ(buffer.data(), before) << "it is large enough";
  }
  const AlignedBuffer moved = std::move(buffer);
  EXPECT_EQ(moved.span().front(), std::byte{1});
  EXPECT_THROW(AlignedBuffer(size_t{1} << 60), std::bad_alloc);
}

}  // namespace
}  // namespace ckpt
