// What fails inside a gang, one failure at a time: rolled back or forward, and what is said names
// the rank, the phase, the deadline and the way out.
#include <gtest/gtest.h>

#include <algorithm>

#include "coordinator/gang/sim/table.h"

namespace ckpt::gang::sim {
namespace {

const Command kSuspend{1, Request::kSuspend, 0, false, "operator"};

void ExpectSays(const Table& table, OpPhase phase, const std::vector<std::string>& parts) {
  const Report* report = table.LastReport(phase);
  ASSERT_NE(report, nullptr) << Name(phase);
  for (const std::string& part : parts) {
    EXPECT_NE(report->status.message().find(part), std::string::npos)
        << "'" << part << "' in: " << report->status.message();
  }
}

void ExpectAllRunOn(const Table& table) {
  EXPECT_FALSE(table.leader->view().ended);
  EXPECT_EQ(table.leader->view().request, Request::kNone);
  for (const Word& word : table.words) EXPECT_EQ(word.state, WordState::kIdle);
  for (uint32_t m = 0; m < table.members.size(); ++m) EXPECT_EQ(table.Count<KillRanks>(m), 0u);
}

TEST(Failures, ARankThatNeverCallsStepIsNamedAndAllRunOn) {
  Table table(2, 2);
  table.Leads(kSuspend);
  table.DeliverAll();
  for (const uint32_t rank : {0u, 1u, 2u}) table.ReachCut(rank);
  table.Passes(kSecond);
  table.TickAll();  // the leader asks again where they are
  table.DeliverAll();
  table.Passes(30 * kSecond);
  table.TickAll();
  table.DeliverAll();
  ExpectSays(table, OpPhase::kRolledBack,
             {"barrier 1; missing: rank 3 at boundary 1", "after 31.000 s", "step()", "phase()"});
  EXPECT_EQ(table.LastReport(OpPhase::kRolledBack)->missing, (std::vector<uint32_t>{3}));
  ExpectAllRunOn(table);
}

TEST(Failures, ARankThatStaysInItsPhaseIsNamedWithIt) {
  Table table(2, 1);
  table.Acts(1, RankInPhase{Rank(1), "evaluation", 10 * kSecond});
  table.DeliverAll();
  table.Leads(kSuspend);
  table.DeliverAll();
  table.ReachCut(0);
  table.DeliverAll();
  table.Passes(41 * kSecond);
  table.TickAll();
  table.DeliverAll();
  ExpectSays(table, OpPhase::kRolledBack, {"barrier 1; missing: rank 1 (in evaluation)"});
  ExpectAllRunOn(table);
}

TEST(Failures, NoMemoryForStagingLeavesTheTrainingAsItWas) {
  Table table(2, 1);
  table.UntilQuiesced(kSuspend);
  table.Seals(0);
  table.Acts(1, RankStageFailed{Rank(1), table.orders[1].generation, table.orders[1].attempt,
                                ResourceExhausted("no memory for 3 GiB of staging")});
  table.DeliverAll();
  ExpectSays(table, OpPhase::kRolledBack, {"rank 1", "no memory for 3 GiB of staging"});
  ExpectAllRunOn(table);
  EXPECT_EQ(table.Count<ReleaseBarrier>(0), 0u) << "no communicator was touched";
  EXPECT_EQ(table.Count<FreeSlot>(0), 1u) << "what the peer had staged is free again";
  // Nothing is left over: the next one goes through.
  table.UntilDown(Command{2, Request::kSuspend, 0, false, "operator"});
  table.DeliverAll();
  EXPECT_EQ(table.leader->view().decision, Decision::kRelease);
}

TEST(Failures, AStagingThatIsNotDoneInTimeIsRolledBack) {
  Table table(2, 1);
  table.UntilQuiesced(kSuspend);
  table.Seals(0);
  table.DeliverAll();
  table.Passes(121 * kSecond);
  table.Leads(LeaderTick{});
  table.DeliverAll();
  ExpectSays(table, OpPhase::kRolledBack, {"barrier 2; missing: rank 1", "after 121.000 s"});
  ExpectAllRunOn(table);
}

TEST(Failures, ACommunicatorThatDoesNotGoDownIsRebuilt) {
  Table table(2, 1);
  table.UntilSealed(kSuspend);
  table.DeliverAll();
  table.CommsDown(0);
  table.DeliverAll();
  table.Passes(31 * kSecond);
  table.Leads(LeaderTick{});
  table.DeliverAll();
  EXPECT_TRUE(table.Last<TellRolledBack>(0)->rebuild);
  table.CommsUp(0), table.CommsUp(1);
  table.DeliverAll();
  ExpectSays(table, OpPhase::kRolledBack, {"barrier 3; missing: rank 1", "after 31.000 s"});
  ExpectAllRunOn(table);
}

TEST(Failures, ARebuildThatFailsEndsTheGangAtItsNewestCopy) {
  Table table(2, 1);
  table.StepsTo(0, 6), table.StepsTo(1, 6);
  table.UntilSealed(kSuspend);
  table.DeliverAll();
  table.CommsDown(0, DeadlineExceeded("communicator 'world' hangs"));
  table.DeliverAll();
  ASSERT_EQ(table.leader->view().decision, Decision::kBack);
  table.CommsUp(0);
  table.CommsUp(1, Unavailable("peer 0 refused the connection"));
  table.DeliverAll();
  ExpectSays(table, OpPhase::kEnded, {"rebuilding communicators", "rank 1", "peer 0 refused"});
  EXPECT_EQ(table.LastReport(OpPhase::kEnded)->step, 7) << "the copy of the stop stands";
  for (uint32_t m = 0; m < 2; ++m) EXPECT_EQ(table.Count<KillRanks>(m), 1u);
}

TEST(Failures, ARebuildThatIsLateEndsTheGangAndSaysWhatItResumesFrom) {
  Table table(2, 1);
  table.UntilSealed(kSuspend);
  table.DeliverAll();
  table.CommsDown(0, DeadlineExceeded("communicator 'world' hangs"));
  table.DeliverAll();
  table.CommsUp(0);
  table.DeliverAll();
  table.Passes(61 * kSecond);
  table.Leads(LeaderTick{});
  table.DeliverAll();
  ExpectSays(table, OpPhase::kEnded,
             {"not rebuilt within 61.000 s", "missing: rank 1", "resume from the copy of step 1"});
}

TEST(Failures, AStoreThatDoesNotTakeTheMarkInTimeReleasesNobody) {
  Table table(2, 1);
  table.auto_mark = false;
  table.UntilDown(kSuspend);
  table.DeliverAll();
  table.Passes(31 * kSecond);
  table.Leads(LeaderTick{});
  table.DeliverAll();
  table.CommsUp(0), table.CommsUp(1);
  table.DeliverAll();
  ExpectSays(table, OpPhase::kRolledBack, {"DRAINING mark", "31.000 s", "nothing is released"});
  ExpectAllRunOn(table);
  table.Leads(MarkedDraining{table.orders[0].attempt, OkStatus()});  // it comes after all
  EXPECT_EQ(table.leader->view().decision, Decision::kNone);
}

TEST(Failures, AStoreThatFailsAfterReleaseLeavesTheCopyInRam) {
  Table table(2, 1);
  table.UntilDown(kSuspend);
  table.DeliverAll();
  table.Written(0, table.orders[0].attempt);
  table.Written(1, table.orders[1].attempt, ResourceExhausted("no space on the store"));
  table.DeliverAll();
  ExpectSays(table, OpPhase::kNotDurable, {"no space on the store"});
  EXPECT_EQ(table.leader->view().decision, Decision::kRelease) << "forward: it stays suspended";
  for (uint32_t m = 0; m < 2; ++m) EXPECT_EQ(table.Count<FreeSlot>(m), 0u);
}

TEST(Failures, ACrashWithinTheGraceIsACrash) {
  Table table(2, 1);
  table.Leads(Command{1, Request::kSuspend, table.now + 30 * kSecond, true, "SIGTERM"});
  table.DeliverAll();
  table.Passes(kSecond);
  table.Exits(1, 0, 11);
  table.DeliverAll();
  ExpectSays(table, OpPhase::kEnded, {"rank 1 was killed by signal 11"});
  EXPECT_EQ(table.LastReport(OpPhase::kReleased), nullptr);
  const auto booked = std::count_if(table.led.begin(), table.led.end(), [](const auto& action) {
    return std::holds_alternative<LossBooked>(action);
  });
  EXPECT_EQ(booked, 1);
}

// A member whose ckpt-run hangs after it was told: it votes no more, and the gang does not wait.
TEST(Failures, AMemberThatHangsAfterItWasToldIsWaitedForOnlyUntilTheDeadline) {
  Table table(2, 1);
  table.Leads(Command{1, Request::kSuspend, table.now + 20 * kSecond, true, "scheduler"});
  table.ToMember(0, MsgType::kAsk), table.ToMember(1, MsgType::kAsk);
  table.ToLeader(0, MsgType::kPlaces), table.ToLeader(1, MsgType::kPlaces);
  for (int second = 0; second < 19; ++second) {  // member 1 hears nothing any more
    table.Passes(kSecond);
    table.Leads(LeaderTick{});
    while (table.ToMember(0, MsgType::kPropose) || table.ToLeader(0, MsgType::kVote)) {
    }
  }
  ExpectSays(table, OpPhase::kEnded, {"the deadline is near and rank 1 had not been released"});
}

// Its copy is not waited for: who leads must come to an end, and says whose shards are missing.
TEST(Failures, ANodeThatGoesBeforeItsShardsAreWrittenIsNamed) {
  Table table(2, 1);
  table.UntilDown(Command{1, Request::kSuspend, 0, false, "operator"});
  table.Released();
  table.DeliverAll();
  table.Written(0, 1);
  table.DeliverAll();
  table.Leads(MemberLost{1});
  EXPECT_EQ(table.LastReport(OpPhase::kNotDurable), nullptr) << "it may come back";
  table.Leads(MemberGone{1});
  const Report* lost = table.LastReport(OpPhase::kNotDurable);
  ASSERT_NE(lost, nullptr);
  EXPECT_NE(lost->status.message().find("ranks 1 to 1"), std::string::npos);
  table.Leads(MemberJoined{0});
  table.Leads(MemberGone{0});
  EXPECT_EQ(lost, table.LastReport(OpPhase::kNotDurable)) << "connected, or has written";
}

}  // namespace
}  // namespace ckpt::gang::sim
