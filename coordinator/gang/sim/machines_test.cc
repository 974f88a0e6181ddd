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

TEST(Gang, TwoSuspendsMergeToTheEarlierDeadline) {
  Table table(2, 1);
  const int64_t start = table.now;
  table.Leads(Suspend(1, start + 60 * kSecond));
  table.Leads(Suspend(2, start + 10 * kSecond));
  table.DeliverAll();
  table.Passes(11 * kSecond);
  table.TickAll();
  table.DeliverAll();
  EXPECT_EQ(table.words[0].state, WordState::kIdle) << "the earlier deadline counts";
  EXPECT_EQ(PhasesOf(table, 1).back(), OpPhase::kRolledBack);
  EXPECT_EQ(PhasesOf(table, 2).back(), OpPhase::kRolledBack);
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

// ---- saves
// ----------------------------------------------------------------------------------------
TEST(Saves, OneAnswerForAllRanksAtABoundary) {
  Table table(2, 2);
  for (uint32_t rank = 0; rank < 4; ++rank) table.StepsTo(rank, 5);
  table.Acts(0, RankWantsSave{Rank(0), 5, false, 0});
  table.DeliverAll();
  EXPECT_EQ(table.Count<GrantSave>(0), 1u) << "rank 1 has not asked yet";
  table.Acts(1, RankWantsSave{Rank(2), 5, false, 0});
  table.Acts(0, RankWantsSave{Rank(1), 5, false, 0});
  table.Acts(1, RankWantsSave{Rank(3), 5, false, 0});
  table.DeliverAll();
  ASSERT_EQ(table.Count<GrantSave>(0) + table.Count<GrantSave>(1), 4u);
  EXPECT_EQ(table.Last<GrantSave>(0)->attempt, table.Last<GrantSave>(1)->attempt);
}

TEST(Saves, ARefusalIsForTheWholeGang) {
  Table table(2, 1);
  for (uint32_t boundary = 1; boundary <= 2; ++boundary) {
    table.StepsTo(0, boundary), table.StepsTo(1, boundary);
    ASSERT_TRUE(table.ProgramSave());
  }
  table.StepsTo(0, 3), table.StepsTo(1, 3);
  table.Acts(0, RankWantsSave{Rank(0), 3, false, 0});
  table.DeliverAll();
  ASSERT_NE(table.Last<RefuseSave>(0), nullptr);
  EXPECT_EQ(table.Last<RefuseSave>(0)->status.code(), Code::kResourceExhausted);
  // A slot becomes free before rank 1 asks; the answer for this boundary stays.
  table.Written(0, 1), table.Written(1, 1);
  table.DeliverAll();
  table.Acts(1, RankWantsSave{Rank(1), 3, false, 0});
  table.DeliverAll();
  EXPECT_EQ(table.Last<RefuseSave>(1)->boundary, 3u);
}

TEST(Saves, AWaitingSaveIsGrantedWhenASlotIsFree) {
  Table table(2, 1);
  for (uint32_t boundary = 1; boundary <= 2; ++boundary) {
    table.StepsTo(0, boundary), table.StepsTo(1, boundary);
    ASSERT_TRUE(table.ProgramSave());
  }
  const uint32_t before = table.Count<GrantSave>(0);
  table.StepsTo(0, 3), table.StepsTo(1, 3);
  table.Acts(0, RankWantsSave{Rank(0), 3, true, table.now + 60 * kSecond});
  table.Acts(1, RankWantsSave{Rank(1), 3, true, table.now + 60 * kSecond});
  table.DeliverAll();
  EXPECT_EQ(table.Count<GrantSave>(0), before);
  table.Written(0, 1), table.Written(1, 1);
  table.DeliverAll();
  EXPECT_EQ(table.Count<GrantSave>(0), before + 1);
  EXPECT_EQ(table.Count<GrantSave>(1), before + 1);
}

TEST(Saves, ASecondSlotThatComesLaterIsUsed) {
  Table table(2, 1, [](LeaderConfig* config) { config->slots = 1; });
  table.StepsTo(0, 1), table.StepsTo(1, 1);
  ASSERT_TRUE(table.ProgramSave());
  table.StepsTo(0, 2), table.StepsTo(1, 2);
  const uint32_t before = table.Count<GrantSave>(0);
  table.Acts(0, RankWantsSave{Rank(0), 2, true, table.now + 60 * kSecond});
  table.DeliverAll();
  EXPECT_EQ(table.Count<GrantSave>(0), before);
  table.Leads(SlotsKnown{2});
  table.DeliverAll();
  ASSERT_EQ(table.Count<GrantSave>(0), before + 1);
  EXPECT_EQ(table.Last<GrantSave>(0)->slot, 1u);
}

TEST(Saves, ASuspendSendsWaitingSavesOn) {
  Table table(1, 1, [](LeaderConfig* config) { config->slots = 1; });
  table.StepsTo(0, 1);
  ASSERT_TRUE(table.ProgramSave());
  table.StepsTo(0, 2);
  table.Acts(0, RankWantsSave{Rank(0), 2, true, table.now + 60 * kSecond});
  table.DeliverAll();
  EXPECT_EQ(table.Count<RefuseSave>(0), 0u);
  table.Leads(Suspend(1));
  table.DeliverAll();
  ASSERT_EQ(table.Count<RefuseSave>(0), 1u) << "a rank that waits for a slot cannot reach a cut";
}

TEST(Saves, NoAnswerIsARefusalInTimeAndALateGrantIsDropped) {
  Table table(2, 1);
  table.StepsTo(0, 1), table.StepsTo(1, 1);
  table.Acts(0, RankWantsSave{Rank(0), 1, false, 0});
  table.Acts(1, RankWantsSave{Rank(1), 1, false, 0});
  table.ToLeader(0, MsgType::kFact);  // the leader grants, member 0 does not hear it
  table.Passes(11 * kSecond);
  table.Acts(0, Tick{});
  ASSERT_NE(table.Last<RefuseSave>(0), nullptr);
  EXPECT_EQ(table.Last<RefuseSave>(0)->status.code(), Code::kDeadlineExceeded);
  table.DeliverAll();
  EXPECT_EQ(table.Count<GrantSave>(0), 0u);
  ASSERT_EQ(table.Count<GrantSave>(1), 1u);
  const GrantSave grant = *table.Last<GrantSave>(1);
  table.Acts(1, RankSealed{Rank(1), grant.generation, grant.attempt, 1});
  table.DeliverAll();
  EXPECT_EQ(table.LastReport(OpPhase::kStaged), nullptr) << "half a save is no copy";
  EXPECT_EQ(table.Count<FreeSlot>(1), 1u);
  table.StepsTo(0, 2), table.StepsTo(1, 2);
  EXPECT_TRUE(table.ProgramSave());
}

TEST(Saves, AFailedStagingDropsTheAttemptEverywhere) {
  Table table(2, 1);
  table.StepsTo(0, 1), table.StepsTo(1, 1);
  table.Acts(0, RankWantsSave{Rank(0), 1, false, 0});
  table.Acts(1, RankWantsSave{Rank(1), 1, false, 0});
  table.DeliverAll();
  const GrantSave grant = *table.Last<GrantSave>(0);
  table.Acts(0, RankStageFailed{Rank(0), grant.generation, grant.attempt, Internal("a NaN")});
  table.DeliverAll();
  EXPECT_EQ(table.leader->view().generations.size(), 1u) << "rank 1 still fills its slot";
  table.Acts(1, RankSealed{Rank(1), grant.generation, grant.attempt, 1});
  table.DeliverAll();
  EXPECT_TRUE(table.leader->view().generations.empty());
  EXPECT_NE(table.LastReport(OpPhase::kRolledBack)->status.message().find("rank 0"),
            std::string::npos);
}

// Asks for the n-th save at the ranks' boundary, on two members of one rank each.
void BothAsk(Table* table, uint32_t sequence, bool wait = false) {
  for (uint32_t rank = 0; rank < 2; ++rank) {
    table->Acts(rank, RankWantsSave{Rank(rank), table->words[rank].boundary, wait,
                                    wait ? table->now + 60 * kSecond : 0, sequence});
  }
  table->DeliverAll();
}

TEST(Saves, ASecondSaveAtABoundaryIsAnotherOne) {
  Table table(2, 1);
  table.StepsTo(0, 4), table.StepsTo(1, 4);
  ASSERT_TRUE(table.ProgramSave());
  table.Written(0, 1), table.Written(1, 1);
  table.DeliverAll();
  ASSERT_NE(table.LastReport(OpPhase::kDurable), nullptr);
  BothAsk(&table, 2);
  for (uint32_t member = 0; member < 2; ++member) {
    ASSERT_EQ(table.Count<GrantSave>(member), 2u);
    EXPECT_EQ(table.Last<GrantSave>(member)->attempt, 2u);
    EXPECT_EQ(table.Last<GrantSave>(member)->generation, 2u);
    EXPECT_EQ(table.Last<GrantSave>(member)->sequence, 2u);
  }
}

TEST(Saves, ASecondSaveIsAnsweredOnceTheFirstIsFilled) {
  Table table(2, 1);
  table.StepsTo(0, 4), table.StepsTo(1, 4);
  BothAsk(&table, 1);
  const GrantSave first = *table.Last<GrantSave>(0);
  table.Acts(0, RankSealed{Rank(0), first.generation, first.attempt, 4});
  table.Acts(0, RankWantsSave{Rank(0), 4, false, 0, 2});
  table.DeliverAll();
  EXPECT_EQ(table.Count<GrantSave>(0), 1u);
  EXPECT_EQ(table.Count<RefuseSave>(0), 0u) << "how far rank 1 is decides nothing";
  table.Acts(1, RankSealed{Rank(1), first.generation, first.attempt, 4});
  table.Acts(1, RankWantsSave{Rank(1), 4, false, 0, 2});
  table.DeliverAll();
  for (uint32_t member = 0; member < 2; ++member) {
    ASSERT_EQ(table.Count<GrantSave>(member), 2u);
    EXPECT_EQ(table.Last<GrantSave>(member)->attempt, 2u);
    EXPECT_NE(table.Last<GrantSave>(member)->slot, first.slot);
  }
}

TEST(Saves, ARefusedOneCanAskAgainAtTheSameBoundary) {
  Table table(2, 1);
  for (uint32_t boundary = 1; boundary <= 2; ++boundary) {
    table.StepsTo(0, boundary), table.StepsTo(1, boundary);
    ASSERT_TRUE(table.ProgramSave());
  }
  table.StepsTo(0, 3), table.StepsTo(1, 3);
  BothAsk(&table, 1);
  ASSERT_EQ(table.Count<RefuseSave>(0), 1u);
  ASSERT_EQ(table.Count<RefuseSave>(1), 1u);
  const uint32_t before = table.Count<GrantSave>(0);
  BothAsk(&table, 2, true);
  EXPECT_EQ(table.Count<GrantSave>(0), before);
  EXPECT_EQ(table.Count<RefuseSave>(0), 1u);
  table.Written(0, 1), table.Written(1, 1);
  table.DeliverAll();
  EXPECT_EQ(table.Count<GrantSave>(0), before + 1);
  EXPECT_EQ(table.Count<GrantSave>(1), before + 1);
}

TEST(Saves, AStopWithAnEarlierDeadlineDropsASaveThatARankDoesNotFill) {
  Table table(2, 1);
  table.StepsTo(0, 1), table.StepsTo(1, 1);
  table.Acts(0, RankWantsSave{Rank(0), 1, false, 0});  // rank 1 never asks
  table.DeliverAll();
  const GrantSave grant = *table.Last<GrantSave>(0);
  table.Acts(0, RankSealed{Rank(0), grant.generation, grant.attempt, 1});
  table.DeliverAll();
  table.Leads(Suspend(1, table.now + 60 * kSecond));
  table.DeliverAll();
  EXPECT_EQ(table.leader->view().generations.size(), 1u) << "it may still be filled";
  table.Passes(31 * kSecond);
  table.Leads(LeaderTick{});
  table.DeliverAll();
  ASSERT_NE(table.LastReport(OpPhase::kRolledBack), nullptr);
  table.AllReach();
  table.DeliverAll();
  ASSERT_NE(table.LastReport(OpPhase::kQuiesced), nullptr);
  EXPECT_EQ(table.LastReport(OpPhase::kQuiesced)->operation, 1u);
}

TEST(Saves, RanksThatSaveDifferentStepsMakeNoCopy) {
  Table table(2, 1);
  table.StepsTo(0, 1), table.StepsTo(1, 1);
  table.Acts(0, RankWantsSave{Rank(0), 1, false, 0});
  table.Acts(1, RankWantsSave{Rank(1), 1, false, 0});
  table.DeliverAll();
  const GrantSave grant = *table.Last<GrantSave>(0);
  table.Acts(0, RankSealed{Rank(0), grant.generation, grant.attempt, 100});
  table.Acts(1, RankSealed{Rank(1), grant.generation, grant.attempt, 101});
  table.DeliverAll();
  EXPECT_EQ(table.LastReport(OpPhase::kStaged), nullptr);
  EXPECT_TRUE(table.leader->view().generations.empty());
}

TEST(Saves, AFailedDrainKeepsTheCopyUntilANewerOneIsWhole) {
  Table table(2, 1);
  table.StepsTo(0, 1), table.StepsTo(1, 1);
  ASSERT_TRUE(table.ProgramSave());
  table.Written(0, 1, ResourceExhausted("no space"));
  table.DeliverAll();
  EXPECT_EQ(table.LastReport(OpPhase::kNotDurable)->attempt, 1u);
  EXPECT_EQ(table.leader->view().generations.size(), 1u) << "in RAM it stands";
  table.Written(1, 1);
  table.DeliverAll();
  table.StepsTo(0, 2), table.StepsTo(1, 2);
  ASSERT_TRUE(table.ProgramSave());
  ASSERT_EQ(table.leader->view().generations.size(), 1u);
  EXPECT_EQ(table.leader->view().generations[0].generation, 2u);
}

TEST(Saves, ACommitThatMayHaveBeenAppliedIsTriedAgain) {
  Table table(1, 1);
  table.auto_commit = false;
  table.StepsTo(0, 1);
  ASSERT_TRUE(table.ProgramSave());
  table.Written(0, 1);
  table.DeliverAll();
  const auto commits = [&] {
    size_t count = 0;
    for (const LeaderAction& action : table.led) {
      count += std::holds_alternative<CommitAttempt>(action) ? 1 : 0;
    }
    return count;
  };
  EXPECT_EQ(commits(), 1u);
  table.Leads(AttemptCommitted{1, Unavailable("the rename").MaybeApplied()});
  EXPECT_EQ(table.LastReport(OpPhase::kNotDurable), nullptr);
  table.Passes(2 * kSecond);
  table.TickAll();
  EXPECT_EQ(commits(), 2u);
  table.Leads(AttemptCommitted{1, OkStatus()});
  EXPECT_EQ(table.LastReport(OpPhase::kDurable)->attempt, 1u);
}

TEST(Saves, ASaveFromOutsideStagesAtItsCutAndRunsOn) {
  Table table(2, 2);
  table.Leads(Command{9, Request::kSave, 0, false, "operator"});
  table.DeliverAll();
  for (const Word& word : table.words) EXPECT_EQ(word.state, WordState::kCommittedSave);
  table.AllReach();
  table.AllSeal();
  table.DeliverAll();
  EXPECT_EQ(table.Count<ReleaseBarrier>(0), 0u) << "no barriers";
  EXPECT_EQ(table.LastReport(OpPhase::kStaged)->operation, 9u);
  table.Written(0, table.orders[0].attempt);
  table.Written(1, table.orders[0].attempt);
  table.DeliverAll();
  EXPECT_EQ(table.LastReport(OpPhase::kDurable)->operation, 9u);
}

TEST(Saves, ARefusalOfOneRankDropsASaveFromOutside) {
  Table table(2, 1);
  table.Leads(Command{9, Request::kSave, 0, false, "operator"});
  table.DeliverAll();
  table.ReachCut(0);
  table.Seals(0);
  table.words[1].state = WordState::kRefused;
  table.Acts(1, RankPoke{Rank(1)});
  table.DeliverAll();
  EXPECT_EQ(table.LastReport(OpPhase::kRolledBack)->operation, 9u);
  EXPECT_TRUE(table.leader->view().generations.empty());
  EXPECT_EQ(table.words[1].state, WordState::kIdle);
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
