// How a gang ends while somebody waits for it: a drain that fails for good, a training that has
// finished but does not leave.
#include <gtest/gtest.h>

#include <algorithm>

#include "coordinator/gang/sim/table.h"

namespace ckpt::gang::sim {
namespace {

constexpr int64_t kSeconds = 1'000'000'000;

TEST(Ends, TheRanksHearAtOnceThatTheLastSaveWillNotBecomeDurable) {
  Table table(2, 1);
  table.StepsTo(0, 4), table.StepsTo(1, 4);
  ASSERT_TRUE(table.ProgramSave());
  table.Written(0, 1);
  table.Written(1, 1, ResourceExhausted("writing shard 1 of /data/x: No space left on device"));
  table.DeliverAll();
  for (uint32_t member = 0; member < 2; ++member) {
    const MarkGeneration* mark = table.Last<MarkGeneration>(member);
    ASSERT_NE(mark, nullptr);
    EXPECT_EQ(mark->mark, GenerationMark::kNotDurable);
    EXPECT_EQ(mark->why.code(), Code::kResourceExhausted);
    EXPECT_NE(mark->why.message().find("/data/x"), std::string::npos);
    EXPECT_EQ(table.Count<FreeSlot>(member), 0u) << "the copy in RAM stands";
  }
}

TEST(Ends, ADropSaysWhy) {
  Table table(2, 1);
  table.StepsTo(0, 4), table.StepsTo(1, 4);
  ASSERT_TRUE(table.ProgramSave());
  table.StepsTo(0, 5), table.StepsTo(1, 5);
  ASSERT_TRUE(table.ProgramSave());
  table.Written(0, 1, ResourceExhausted("no space"));  // of the older one: the newer one stands
  table.Written(1, 1);
  table.DeliverAll();
  ASSERT_EQ(table.Count<FreeSlot>(0), 1u);
  EXPECT_EQ(table.Last<MarkGeneration>(0)->mark, GenerationMark::kAborted);
  EXPECT_NE(table.Last<MarkGeneration>(0)->why.message().find("no space"), std::string::npos);
}

TEST(Ends, AStopOfAFinishedTrainingStillEndsAtItsHardDeadline) {
  Table table(2, 1);
  table.words[0].state = WordState::kFinished;
  table.Acts(0, RankFinished{Rank(0)});
  table.DeliverAll();
  table.Leads(Command{1, Request::kSuspend, table.now + 30 * kSeconds, true, "SIGTERM"});
  table.DeliverAll();
  EXPECT_NE(table.LastReport(OpPhase::kFinished), nullptr);
  EXPECT_FALSE(table.leader->view().ended);
  EXPECT_LE(table.leader->next_deadline_ns(), table.now + 30 * kSeconds);
  table.Passes(30 * kSeconds);  // rank 1 steps on and never leaves
  table.TickAll();
  table.DeliverAll();
  EXPECT_TRUE(table.leader->view().ended);
  EXPECT_EQ(table.Count<KillRanks>(1), 1u);
  const std::string said = table.LastReport(OpPhase::kEnded)->status.message();
  EXPECT_NE(said.find("had not left in time: rank 1"), std::string::npos) << said;
}

TEST(Ends, ASaveThatWaitsForASlotHasAResultWhenTheTrainingFinishes) {
  Table table(2, 1, [](LeaderConfig* config) { config->slots = 1; });
  table.StepsTo(0, 4), table.StepsTo(1, 4);
  ASSERT_TRUE(table.ProgramSave());  // it drains: its slot is taken
  table.Leads(Command{1, Request::kSave, 0, false, "operator"});
  for (const uint32_t rank : {0u, 1u}) {
    table.words[rank].state = WordState::kFinished;
    table.Acts(rank, RankFinished{Rank(rank)});
    table.Exits(rank, 0);
  }
  table.DeliverAll();
  EXPECT_TRUE(table.leader->view().finished);
  const auto result = std::find_if(table.reports.begin(), table.reports.end(), [](const Report& r) {
    return r.operation == 1 && r.phase == OpPhase::kFinished;
  });
  EXPECT_NE(result, table.reports.end());
}

TEST(Ends, AReturnedLeaderDoesNotWaitForEverForAMemberThatNeverComes) {
  Table table(2, 1);
  table.UntilQuiesced(Command{1, Request::kSuspend, 0, false, "operator"});
  ASSERT_EQ(table.leader->view().decision, Decision::kStage);
  table.LeaderDies();
  table.LeaderReturns(false);
  table.Leads(MemberJoined{0});
  for (int i = 0; i < 4; ++i) {
    table.Passes(61 * kSecond);
    table.TickAll();
  }
  EXPECT_TRUE(table.leader->view().ended);
  EXPECT_NE(table.LastReport(OpPhase::kEnded)->status.message().find("ranks 1 to 1"),
            std::string::npos)
      << table.LastReport(OpPhase::kEnded)->status.message();
}

TEST(Ends, TheStopsOwnCopyIsKeptWhenItsDrainFailsBeforeBarrierThree) {
  for (const bool hard : {false, true}) {
    Table table(2, 1, [](LeaderConfig* config) { config->slots = 1; });
    const int64_t deadline = hard ? table.now + 300 * kSeconds : 0;
    table.UntilSealed(Command{1, Request::kSuspend, deadline, hard, "operator"});
    table.DeliverAll();
    ASSERT_EQ(table.leader->view().decision, Decision::kCommsDown);
    table.Written(0, table.orders[0].attempt, ResourceExhausted("no space on the store"));
    table.DeliverAll();
    EXPECT_EQ(table.Count<FreeSlot>(0), 0u) << "the only copy of the stop is thrown away";
    EXPECT_EQ(table.leader->view().decision, hard ? Decision::kCommsDown : Decision::kBack);
    if (!hard) {
      table.CommsUp(0), table.CommsUp(1);
      table.DeliverAll();
      EXPECT_NE(table.LastReport(OpPhase::kRolledBack)->status.message().find("no space"),
                std::string::npos);
      EXPECT_EQ(table.Count<FreeSlot>(0), 1u) << "saves are possible again";
    }
  }
}

TEST(Ends, ASignalAfterFinishedIsNoCrash) {
  Table table(2, 1);
  for (const uint32_t rank : {0u, 1u}) {
    table.words[rank].state = WordState::kFinished;
    table.Acts(rank, RankFinished{Rank(rank)});
  }
  table.DeliverAll();
  table.Exits(0, 0, 15), table.Exits(1, 0);
  table.DeliverAll();
  EXPECT_TRUE(table.leader->view().finished);
  EXPECT_FALSE(table.leader->view().ended);
}

}  // namespace
}  // namespace ckpt::gang::sim
