// Saves that the program asks for, and those from outside, on a table.
#include <gtest/gtest.h>

#include "coordinator/gang/sim/table.h"

namespace ckpt::gang::sim {
namespace {

Command Suspend(uint64_t operation, int64_t deadline_ns = 0, bool hard = false) {
  return Command{operation, Request::kSuspend, deadline_ns, hard, "operator"};
}

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

TEST(Saves, BeforeAllRanksHaveTrackedASaveWaitsAndIsToldWhoHasNot) {
  Table table(1, 2, [](LeaderConfig* config) { config->slots = 0; });
  table.Leads(SlotsKnown{0, "rank 1 has not registered and called track yet"});
  table.StepsTo(0, 1);
  table.Acts(0, RankWantsSave{Rank(0), 1, false, 0});
  table.DeliverAll();
  EXPECT_EQ(table.Count<RefuseSave>(0), 0u);
  table.Passes(9500 * kSecond / 1000);
  table.Leads(LeaderTick{});
  table.DeliverAll();
  ASSERT_EQ(table.Count<RefuseSave>(0), 1u);
  EXPECT_NE(table.Last<RefuseSave>(0)->status.message().find("rank 1 has not registered"),
            std::string::npos);
  table.StepsTo(0, 2), table.StepsTo(1, 2);
  table.Acts(0, RankWantsSave{Rank(0), 2, false, 0});
  table.Acts(0, RankWantsSave{Rank(1), 2, false, 0});
  table.Leads(SlotsKnown{2});
  table.DeliverAll();
  EXPECT_EQ(table.Count<GrantSave>(0), 2u) << "and is granted once they have";
}

TEST(Saves, ASaveThatCanNeverBeIsRefusedAtOnceWithTheReason) {
  Table table(1, 1, [](LeaderConfig* config) { config->slots = 0; });
  table.Leads(SlotsKnown{0, "staging memory on node 0 takes too much", true});
  table.Acts(0, RankWantsSave{Rank(0), 1, false, 0});
  table.DeliverAll();
  ASSERT_EQ(table.Count<RefuseSave>(0), 1u);
  EXPECT_EQ(table.Last<RefuseSave>(0)->status.message(), "staging memory on node 0 takes too much");
}

TEST(Saves, ARankThatPassesTheBoundaryWithoutASaveIsNamedAndTheOthersHearItAtOnce) {
  Table table(2, 1);
  table.StepsTo(0, 1), table.StepsTo(1, 1);
  table.Acts(0, RankWantsSave{Rank(0), 1, false, 0});
  table.DeliverAll();
  const GrantSave grant = *table.Last<GrantSave>(0);
  table.Acts(0, RankSealed{Rank(0), grant.generation, grant.attempt, 1});
  table.Passes(kSecond);
  table.TickAll();
  table.DeliverAll();
  EXPECT_EQ(table.LastReport(OpPhase::kRolledBack), nullptr) << "it may still come";
  table.StepsTo(1, 2);
  table.Passes(kSecond);
  table.TickAll();
  table.DeliverAll();
  const Report* back = table.LastReport(OpPhase::kRolledBack);
  ASSERT_NE(back, nullptr);
  EXPECT_NE(back->status.message().find("rank 1 did not ask for the save at boundary 1"),
            std::string::npos)
      << back->status.ToString();
  EXPECT_NE(back->status.message().find("is at boundary 2"), std::string::npos);
  EXPECT_EQ(table.Last<MarkGeneration>(0)->mark, GenerationMark::kAborted) << "rank 0 is told";
  EXPECT_TRUE(table.leader->view().generations.empty()) << "its slot is free";
  table.StepsTo(0, 2);
  EXPECT_TRUE(table.ProgramSave()) << "and the next save is made";
}

TEST(Saves, ARankThatFinishesWithoutASaveThatOthersMakeIsNamed) {
  Table table(1, 2);
  table.StepsTo(0, 1), table.StepsTo(1, 1);
  table.Acts(0, RankWantsSave{Rank(0), 1, false, 0});
  table.DeliverAll();
  table.Acts(0, RankFinished{Rank(1)});
  table.TickAll();
  table.DeliverAll();
  const Report* back = table.LastReport(OpPhase::kRolledBack);
  ASSERT_NE(back, nullptr);
  EXPECT_NE(back->status.message().find("rank 1 did not ask for the save at boundary 1"),
            std::string::npos)
      << back->status.ToString();
}

TEST(Saves, ARankThatDoesNotComeToASaveIsNamedLongBeforeItIsGivenUp) {
  Table table(2, 2);
  for (uint32_t rank = 0; rank < 4; ++rank) table.StepsTo(rank, rank == 3 ? 4 : 5);
  for (uint32_t rank = 0; rank < 2; ++rank) table.Acts(0, RankWantsSave{Rank(rank), 5, false, 0});
  table.Acts(1, RankWantsSave{Rank(2), 5, false, 0});
  table.DeliverAll();
  table.Acts(1, RankInPhase{Rank(3), "evaluation", 0});
  table.DeliverAll();
  table.Passes(11 * kSecond);
  table.TickAll();
  table.DeliverAll();
  const Report* late = table.LastReport(OpPhase::kLate);
  ASSERT_NE(late, nullptr);
  const std::string said = late->status.message();
  EXPECT_NE(said.find("the save at boundary 5 is held up: "), std::string::npos) << said;
  EXPECT_NE(said.find("rank 3 is at boundary 4, rank 3 in evaluation"), std::string::npos) << said;
  EXPECT_NE(said.find("in 289.000 s it is given up"), std::string::npos) << said;
  const size_t reports = table.reports.size();
  table.Passes(11 * kSecond);
  table.TickAll();
  table.DeliverAll();
  EXPECT_EQ(table.reports.size(), reports) << "said once";
  table.Passes(300 * kSecond);
  table.TickAll();
  table.DeliverAll();
  const Report* back = table.LastReport(OpPhase::kRolledBack);
  ASSERT_NE(back, nullptr);
  EXPECT_NE(back->status.message().find("rank 3 is at boundary 4"), std::string::npos)
      << back->status.ToString();
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

// The store is full or read-only for a while after the ranks are gone: nothing newer will come.
TEST(Saves, RanksThatSavedDifferentStepsAreTold) {
  Table table(2, 1);
  table.Leads(Command{1, Request::kSave, 0, false, "operator"});
  table.DeliverAll();
  table.AllReach();
  for (const uint32_t rank : {0u, 1u}) {
    const RankOrder& order = table.orders[rank];
    table.words[rank].state = WordState::kIdle;
    table.Acts(rank, RankSealed{Rank(rank), order.generation, order.attempt, int64_t{10} + rank});
  }
  table.DeliverAll();
  const Report* back = table.LastReport(OpPhase::kRolledBack);
  ASSERT_NE(back, nullptr) << "at once, not at the deadline of the cut";
  EXPECT_NE(back->status.message().find("saved different steps"), std::string::npos)
      << back->status.ToString();
  table.Leads(Command{2, Request::kSuspend, 0, false, "operator"});
  table.DeliverAll();
  for (int i = 0; i < 5 && table.leader->view().decision == Decision::kNone; ++i) {
    table.AllReach();
    table.DeliverAll();
    table.Passes(kSecond);
    table.TickAll();
    table.DeliverAll();
  }
  EXPECT_EQ(table.leader->view().decision, Decision::kStage) << "nothing stands in its way";
}

TEST(Saves, ACommitThatFailsAfterTheReleaseIsTriedAgainAndThatIsSaid) {
  Table table(1, 1);
  table.auto_commit = false;
  table.UntilDown(Suspend(1));
  table.DeliverAll();
  table.Released();
  table.Written(0, table.orders[0].attempt);
  table.DeliverAll();
  for (int i = 0; i < 3; ++i) {
    table.Leads(AttemptCommitted{table.orders[0].attempt, ResourceExhausted("no space left")});
    EXPECT_EQ(table.LastReport(OpPhase::kNotDurable), nullptr);
    table.Passes(kSecond);
    table.TickAll();
  }
  ASSERT_NE(table.LastReport(OpPhase::kLate), nullptr);
  EXPECT_NE(
      table.LastReport(OpPhase::kLate)->status.message().find("no space left; the copy stays"),
      std::string::npos);
  table.Leads(AttemptCommitted{table.orders[0].attempt, OkStatus()});
  EXPECT_NE(table.LastReport(OpPhase::kDurable), nullptr);
}

TEST(Saves, AMemberKnowsThatTheCopyOfAStopThatKillsIsTheLastOne) {
  for (const bool hard : {true, false}) {
    Table table(1, 1);
    table.UntilSealed(Suspend(1, table.now + 60 * kSecond, hard));
    EXPECT_FALSE(table.members[0]->last_copy());
    table.DeliverAll();
    EXPECT_EQ(table.members[0]->last_copy(), hard);
    table.AllDown();
    table.DeliverAll();
    EXPECT_TRUE(table.members[0]->last_copy()) << "the ranks leave";
  }
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

}  // namespace
}  // namespace ckpt::gang::sim
