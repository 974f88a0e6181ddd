// Leader and members together, one behaviour at a time.
#include <gtest/gtest.h>

#include "coordinator/gang/sim/table.h"

namespace ckpt::gang::sim {
namespace {

Command Suspend(uint64_t operation, int64_t deadline_ns = 0, bool hard = false) {
  return Command{operation, Request::kSuspend, deadline_ns, hard, "operator"};
}

std::vector<OpPhase> PhasesOf(const Table& table, uint64_t operation) {
  std::vector<OpPhase> phases;
  for (const Report& report : table.reports) {
    if (report.operation == operation) phases.push_back(report.phase);
  }
  return phases;
}

TEST(Gang, ASuspendPassesAllBarriersInOrder) {
  for (const uint32_t members : {1u, 2u, 5u}) {
    Table table(members, 2);
    table.StepsTo(0, 41);
    table.UntilDown(Suspend(1));
    table.DeliverAll();
    table.Released();
    for (uint32_t m = 0; m < members; ++m) table.Written(m, table.orders[0].attempt);
    table.DeliverAll();
    EXPECT_EQ(PhasesOf(table, 1),
              (std::vector<OpPhase>{OpPhase::kQueued, OpPhase::kNotified, OpPhase::kQuiesced,
                                    OpPhase::kStaged, OpPhase::kCommsDown, OpPhase::kReleasing,
                                    OpPhase::kReleased, OpPhase::kDurable}));
    EXPECT_EQ(table.LastReport(OpPhase::kDurable)->step, 42);
    for (uint32_t m = 0; m < members; ++m) {
      EXPECT_EQ(table.Count<ReleaseBarrier>(m), 4u);
      EXPECT_EQ(table.Count<KillRanks>(m), 0u);
      EXPECT_EQ(table.Last<MarkGeneration>(m)->mark, GenerationMark::kDurable);
    }
  }
}

TEST(Gang, TheCutLeavesRoomForARoundTrip) {
  Table table(2, 1);
  table.Leads(Suspend(1));
  table.ToMember(0, MsgType::kAsk), table.ToMember(1, MsgType::kAsk);
  table.Passes(45'000'000);  // four and a half steps of 10 ms
  table.ToLeader(0, MsgType::kPlaces), table.ToLeader(1, MsgType::kPlaces);
  ASSERT_TRUE(table.ToMember(0, MsgType::kPropose));
  EXPECT_EQ(table.words[0].cut, 0u + 1 + 5);
}

TEST(Gang, NothingIsToldBeforeItIsStored) {
  Table table(2, 1);
  table.UntilSealed(Suspend(1));
  table.hold_persists = true;
  table.DeliverAll();
  EXPECT_EQ(table.Count<ReleaseBarrier>(0), 0u) << "barrier 2 was told, its outcome is not stored";
  EXPECT_EQ(table.LastReport(OpPhase::kStaged), nullptr);
}

TEST(Gang, AReturnedLeaderRepeatsItsStoredOutcome) {
  Table table(2, 1);
  table.UntilSealed(Suspend(1));
  table.DeliverAll();
  table.AllDown();
  while (table.ToLeader(0, MsgType::kVote) || table.ToLeader(1, MsgType::kVote)) {
  }
  ASSERT_EQ(table.leader->view().decision, Decision::kRelease);
  table.Lose();  // nobody heard of barrier 3
  table.LeaderDies();
  table.LeaderReturns();
  table.DeliverAll();
  EXPECT_EQ(table.Last<ReleaseBarrier>(0)->barrier, 3u);
  EXPECT_EQ(table.Last<ReleaseBarrier>(1)->barrier, 3u);
}

TEST(Gang, AReturnedLeaderCollectsTheVotesAgain) {
  Table table(2, 1);
  table.UntilSealed(Suspend(1));
  table.ToLeader(0, MsgType::kVote);
  table.Lose();
  table.LeaderDies();
  table.LeaderReturns();
  table.DeliverAll();
  EXPECT_EQ(table.leader->view().decision, Decision::kCommsDown);
}

TEST(Gang, BarrierThreeWaitsForTheMark) {
  Table table(2, 1);
  table.auto_mark = false;
  table.UntilDown(Suspend(1));
  table.DeliverAll();
  EXPECT_EQ(table.leader->view().decision, Decision::kCommsDown);
  EXPECT_EQ(table.leader->view().phase, OpPhase::kCommsDown);
  table.Leads(MarkedDraining{table.orders[0].attempt, Unavailable("the store is away")});
  table.DeliverAll();
  EXPECT_EQ(table.leader->view().decision, Decision::kBack) << "not acknowledged, so not released";
  table.CommsUp(0), table.CommsUp(1);
  table.DeliverAll();
  EXPECT_EQ(table.LastReport(OpPhase::kRolledBack)->status.code(), Code::kUnavailable);
  EXPECT_EQ(table.leader->view().decision, Decision::kNone);
}

TEST(Gang, ALossOfEveryFirstMessageIsMadeGood) {
  Table table(2, 1);
  table.Leads(Suspend(1));
  for (int round = 0; round < 12; ++round) {
    table.Lose();
    table.Passes(kSecond / 4);
    table.TickAll();
    table.DeliverAll();
    if (round == 3) table.AllReach();
    if (round == 6) table.AllSeal();
    if (round == 9) table.AllDown();
  }
  EXPECT_EQ(table.leader->view().decision, Decision::kRelease);
}

TEST(Gang, ARepeatedOperationReturnsItsStoredResult) {
  Table table(2, 1);
  table.UntilDown(Suspend(1));
  table.DeliverAll();
  table.Released();
  table.LeaderDies();
  table.LeaderReturns();
  const size_t before = table.reports.size();
  table.Leads(Suspend(1));
  ASSERT_EQ(table.reports.size(), before + 1);
  EXPECT_TRUE(table.reports.back().repeated);
  EXPECT_EQ(table.reports.back().phase, OpPhase::kReleased);
}

TEST(Gang, OfTwoSuspendsEachHasItsOwnDeadline) {
  Table table(2, 1);
  const int64_t start = table.now;
  table.Leads(Suspend(1, start + 60 * kSecond));
  table.Leads(Suspend(2, start + 10 * kSecond));
  table.DeliverAll();
  table.Passes(11 * kSecond);
  table.TickAll();
  table.DeliverAll();
  EXPECT_EQ(PhasesOf(table, 2).back(), OpPhase::kRefused) << "its 10 s are over";
  EXPECT_EQ(table.words[0].state, WordState::kCommittedStop) << "the other one stands";
  table.Passes(50 * kSecond);
  table.TickAll();
  table.DeliverAll();
  EXPECT_EQ(table.words[0].state, WordState::kIdle);
  EXPECT_EQ(PhasesOf(table, 1).back(), OpPhase::kRolledBack);
}

TEST(Gang, AWithdrawnNoticeGivesItsDeadlineBack) {
  Table table(2, 1);
  const int64_t start = table.now;
  table.Leads(Suspend(1));
  table.Leads(Suspend(2, start + 10 * kSecond, true));
  table.DeliverAll();
  table.Leads(Withdraw{2, "capacity was found elsewhere"});
  EXPECT_EQ(PhasesOf(table, 2).back(), OpPhase::kRefused);
  table.Passes(11 * kSecond);
  table.TickAll();
  table.DeliverAll();
  EXPECT_FALSE(table.leader->view().ended) << "a withdrawn deadline kills nobody";
}

TEST(Gang, BarrierTwoHasTheTimeThatItsBytesTake) {
  for (const bool large : {false, true}) {
    Table table(1, 2);
    table.Leads(SlotsKnown{.slots = 2, .stage_ns = (large ? 400 : 120) * kSecond});
    table.UntilQuiesced(Suspend(1));
    table.Seals(0);
    table.Passes(121 * kSecond);
    table.TickAll();
    table.DeliverAll();
    EXPECT_EQ(table.LastReport(OpPhase::kRolledBack) == nullptr, large);
    table.Seals(1);
    table.DeliverAll();
    EXPECT_EQ(table.LastReport(OpPhase::kStaged) != nullptr, large);
  }
}

TEST(Gang, AWithdrawalSetsTheRanksFree) {
  Table table(2, 1);
  table.UntilQuiesced(Suspend(1));
  ASSERT_EQ(table.leader->view().decision, Decision::kStage);
  table.Leads(Withdraw{1, ""});
  table.DeliverAll();
  EXPECT_EQ(table.words[0].state, WordState::kIdle);
  EXPECT_FALSE(table.Last<TellRolledBack>(0)->rebuild) << "no communicator was touched";
  EXPECT_EQ(table.LastReport(OpPhase::kRolledBack)->status.code(), Code::kCancelled);
}

TEST(Gang, AWithdrawalAfterBarrierThreeIsTooLate) {
  Table table(2, 1);
  table.UntilDown(Suspend(1));
  table.DeliverAll();
  table.Leads(Withdraw{1, ""});
  EXPECT_EQ(table.reports.back().status.code(), Code::kFailedPrecondition);
  EXPECT_EQ(table.leader->view().decision, Decision::kRelease);
}

TEST(Gang, AHardDeadlineKillsAndSaysWhatIsLeft) {
  Table table(2, 1);
  table.StepsTo(0, 1), table.StepsTo(1, 1);
  ASSERT_TRUE(table.ProgramSave());
  table.Leads(Suspend(1, table.now + 20 * kSecond, true));
  table.DeliverAll();
  table.ReachCut(0);
  table.DeliverAll();
  table.Passes(19 * kSecond);
  table.TickAll();
  table.DeliverAll();
  EXPECT_TRUE(table.leader->view().ended);
  EXPECT_EQ(table.Count<KillRanks>(0), 1u);
  EXPECT_EQ(table.Count<KillRanks>(1), 1u);
  const Report* ended = table.LastReport(OpPhase::kEnded);
  EXPECT_EQ(ended->operation, 1u);
  EXPECT_EQ(ended->attempt, 1u);
  EXPECT_EQ(ended->step, 1);
  EXPECT_NE(ended->status.message().find("rank 1"), std::string::npos) << "names who was missing";
  table.Exits(0, 0, 9), table.Exits(1, 0, 9);
  table.Acts(0, AllReleased{}), table.Acts(1, AllReleased{});
  table.DeliverAll();
  EXPECT_NE(table.LastReport(OpPhase::kReleased), nullptr);
}

TEST(Gang, AHardSuspendIsTriedAgainUntilItsDeadline) {
  Table table(2, 1);
  table.UntilQuiesced(Suspend(1, table.now + 300 * kSecond, true));
  table.Acts(0, RankStageFailed{Rank(0), table.orders[0].generation, table.orders[0].attempt,
                                ResourceExhausted("no pinned memory")});
  const uint32_t first = table.orders[0].attempt;
  table.DeliverAll();
  EXPECT_EQ(table.words[0].state, WordState::kIdle);
  // The peer's capture, which was under way, ends; only then is its slot free again.
  table.Acts(1, RankSealed{Rank(1), table.orders[1].generation, first, 1});
  table.DeliverAll();
  table.Passes(kSecond);
  table.TickAll();
  table.DeliverAll();
  EXPECT_EQ(table.words[0].state, WordState::kCommittedStop);
  EXPECT_GT(table.orders[0].attempt, first);
}

TEST(Gang, ASuspendDuringARollBackComesAfterIt) {
  Table table(2, 1);
  table.UntilSealed(Suspend(1));
  table.DeliverAll();
  table.CommsDown(0, DeadlineExceeded("a communicator hangs"));
  table.DeliverAll();
  ASSERT_EQ(table.leader->view().decision, Decision::kBack);
  table.Leads(Suspend(2));
  table.DeliverAll();
  EXPECT_EQ(table.leader->view().decision, Decision::kBack);
  table.CommsUp(0), table.CommsUp(1);
  table.DeliverAll();
  EXPECT_EQ(PhasesOf(table, 1).back(), OpPhase::kRolledBack);
  EXPECT_EQ(PhasesOf(table, 2).back(), OpPhase::kNotified);
  EXPECT_EQ(table.words[0].state, WordState::kCommittedStop);
}

TEST(Gang, ATryThatFailsBeforeAHardDeadlineIsNotTheEndOfTheOperation) {
  Table table(2, 1);
  table.UntilQuiesced(Suspend(1, table.now + 300 * kSecond, true));
  table.Acts(0, RankStageFailed{Rank(0), table.orders[0].generation, table.orders[0].attempt,
                                ResourceExhausted("no pinned memory")});
  table.DeliverAll();
  EXPECT_EQ(table.LastReport(OpPhase::kRolledBack), nullptr);
  EXPECT_EQ(table.reports.back().phase, OpPhase::kAgain);
  EXPECT_EQ(table.reports.back().status.code(), Code::kResourceExhausted);
}

TEST(Gang, KillOverridesEverythingBeforeBarrierThree) {
  Table table(2, 1);
  table.UntilSealed(Suspend(1));
  table.Leads(Command{2, Request::kKill, 0, false, "operator"});
  table.DeliverAll();
  EXPECT_EQ(table.Count<KillRanks>(0), 1u);
  EXPECT_EQ(PhasesOf(table, 1).back(), OpPhase::kEnded);
  EXPECT_EQ(PhasesOf(table, 2).back(), OpPhase::kEnded);
}

TEST(Gang, FinishedBeforeBarrierThreeWins) {
  Table table(2, 1);
  table.Leads(Suspend(1));
  table.DeliverAll();
  table.words[1].state = WordState::kFinished;  // at a boundary before the cut
  table.Acts(1, RankFinished{Rank(1)});
  table.DeliverAll();
  EXPECT_EQ(table.words[0].state, WordState::kIdle);
  EXPECT_EQ(table.LastReport(OpPhase::kFinished)->operation, 1u);
  table.words[0].state = WordState::kFinished;
  table.Acts(0, RankFinished{Rank(0)});
  table.Exits(0), table.Exits(1);
  table.DeliverAll();
  EXPECT_TRUE(table.leader->view().finished);
  EXPECT_EQ(table.reports.back().operation, 0u);
  EXPECT_EQ(table.reports.back().phase, OpPhase::kFinished);
}

TEST(Gang, ExitZeroAfterANoticeIsNotFinished) {
  Table table(2, 1);
  table.Leads(Suspend(1));
  table.DeliverAll();
  table.Exits(0, 0);
  table.DeliverAll();
  EXPECT_TRUE(table.leader->view().ended);
}

TEST(Gang, ExitZeroWithoutANoticeIsAnOrdinaryEnd) {
  Table table(1, 2);
  table.Exits(0, 0), table.Exits(1, 0);
  table.DeliverAll();
  EXPECT_TRUE(table.leader->view().finished);
  EXPECT_FALSE(table.leader->view().ended);
}

TEST(Gang, ACrashEndsTheGangAndTheNewestWholeCopyStands) {
  Table table(2, 1);
  table.StepsTo(0, 7), table.StepsTo(1, 7);
  ASSERT_TRUE(table.ProgramSave());
  table.Exits(1, 0, 11);
  table.DeliverAll();
  EXPECT_EQ(table.Count<KillRanks>(0), 1u);
  const Report* ended = table.LastReport(OpPhase::kEnded);
  ASSERT_NE(ended, nullptr);
  EXPECT_EQ(ended->operation, 0u);
  EXPECT_EQ(ended->generation, 1u);
  EXPECT_EQ(ended->step, 7);
  EXPECT_NE(ended->status.message().find("rank 1 was killed by signal 11"), std::string::npos);
}

TEST(Gang, ALostNodeEndsTheGangAfterItsGrace) {
  Table table(2, 1);
  table.Leads(MemberLost{1});
  table.Passes(59 * kSecond);
  table.TickAll();
  EXPECT_FALSE(table.leader->view().ended);
  table.Passes(2 * kSecond);
  table.TickAll();
  EXPECT_TRUE(table.leader->view().ended);
  table.DeliverAll();
  EXPECT_EQ(table.Count<KillRanks>(0), 1u);
}

TEST(Gang, ALostMemberThatComesBackIsToldWhereThingsStand) {
  Table table(2, 1);
  table.UntilQuiesced(Suspend(1));
  table.AllSeal();
  table.Leads(MemberLost{1});
  table.Acts(1, LeaderLost{});
  table.ToLeader(0, MsgType::kVote);
  table.Lose();
  table.Leads(MemberJoined{1});
  table.Acts(1, LeaderBack{});
  table.DeliverAll();
  EXPECT_EQ(table.leader->view().decision, Decision::kCommsDown);
}

TEST(Record, DamageIsNoticed) {
  Table table(2, 1);
  table.UntilSealed(Suspend(1));
  LeaderConfig config;
  config.members = {{0, Rank(0), 1}};
  EXPECT_TRUE(Leader::Create(config, table.page).ok());
  for (size_t size = 1; size < table.page.size(); ++size) {
    EXPECT_EQ(Leader::Create(config, table.page.substr(0, size)).status().code(), Code::kDataLoss);
  }
  EXPECT_FALSE(Leader::Create(LeaderConfig{}, "").ok());
}

}  // namespace
}  // namespace ckpt::gang::sim
