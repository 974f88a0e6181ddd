// Notices: answered at once, merged, withdrawn, overridden; phases; what is lost.
#include <gtest/gtest.h>

#include "coordinator/gang/sim/table.h"

namespace ckpt::gang::sim {
namespace {

Command Suspend(uint64_t operation, int64_t deadline_ns = 0, bool hard = false) {
  return Command{operation, Request::kSuspend, deadline_ns, hard, "operator"};
}

void InPhase(Table* table, uint32_t rank, const std::string& kind, int64_t seconds) {
  table->Acts(table->MemberOf(rank), RankInPhase{Rank(rank), kind, seconds * kSecond});
  table->DeliverAll();
}

template <typename Action>
std::vector<Action> AllOf(const Table& table) {
  std::vector<Action> all;
  for (const LeaderAction& action : table.led) {
    if (const Action* one = std::get_if<Action>(&action)) all.push_back(*one);
  }
  return all;
}

TEST(NoticeAnswers, ANoticeIsAcknowledgedAtOnce) {
  Table table(2, 1);
  table.Leads(Suspend(1, table.now + 30 * kSecond, true));
  const auto answers = AllOf<NoticeAnswer>(table);
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].answer, Answer::kAck);
  EXPECT_EQ(answers[0].operations, (std::vector<uint64_t>{1}));
  EXPECT_EQ(answers[0].deadline_ns, table.now + 30 * kSecond);
  EXPECT_EQ(answers[0].kill_at_ns, table.now + 28 * kSecond);
}

TEST(NoticeAnswers, APhaseDefersItAndGivesTheCutItsTime) {
  Table table(2, 1);
  InPhase(&table, 1, "evaluation", 180);
  table.Leads(Suspend(1));
  table.DeliverAll();
  const auto answers = AllOf<NoticeAnswer>(table);
  ASSERT_FALSE(answers.empty());
  EXPECT_EQ(answers.back().answer, Answer::kDefer);
  EXPECT_EQ(answers.back().eta_ns, table.now + 180 * kSecond);
  EXPECT_NE(answers.back().why.find("rank 1 is in evaluation for another 180.000 s"),
            std::string::npos)
      << answers.back().why;
  table.ReachCut(0);
  table.Passes(179 * kSecond);
  table.TickAll();
  table.DeliverAll();
  EXPECT_EQ(table.words[0].state, WordState::kCommittedStop) << "the cut waits for the phase";
  InPhase(&table, 1, "", 0);
  table.ReachCut(1);
  table.DeliverAll();
  EXPECT_EQ(table.leader->view().decision, Decision::kStage);
}

TEST(NoticeAnswers, APhaseThatIsHeardOfAtAnOpenCutMovesEveryDeadline) {
  Table table(2, 1);
  table.Leads(Suspend(1));
  table.DeliverAll();
  const int64_t before = table.orders[0].deadline_ns;
  InPhase(&table, 1, "compile", 300);
  EXPECT_GE(table.orders[0].deadline_ns, before + 299 * kSecond);
  EXPECT_EQ(AllOf<NoticeAnswer>(table).back().answer, Answer::kDefer);
  table.ReachCut(0);
  table.Passes(200 * kSecond);
  table.TickAll();
  table.DeliverAll();
  EXPECT_EQ(table.words[1].state, WordState::kCommittedStop);
}

TEST(NoticeAnswers, AnOldWordOfAPhaseDoesNotUndoANewerOne) {
  Table table(2, 1);
  table.Acts(1, RankInPhase{Rank(1), "evaluation", 60 * kSecond});
  ASSERT_TRUE(table.ToLeader(1, MsgType::kFact, true));
  table.Acts(1, RankInPhase{Rank(1), "", 0});
  while (table.to_leader.size() > 1) {  // the newer one first
    const Table::Letter letter = table.to_leader.back();
    table.to_leader.pop_back();
    table.Leads(FromMember{letter.member, letter.msg});
  }
  table.DeliverAll();
  table.Leads(Suspend(1));
  EXPECT_EQ(AllOf<NoticeAnswer>(table).back().answer, Answer::kAck);
}

TEST(NoticeAnswers, ADeadlineThatASoftNoticeCannotMeetIsRefusedAtOnce) {
  Table table(2, 1);
  InPhase(&table, 0, "evaluation", 60);
  table.Leads(Suspend(1, table.now + 20 * kSecond));
  const Report* refused = table.LastReport(OpPhase::kRefused);
  ASSERT_NE(refused, nullptr);
  EXPECT_EQ(refused->operation, 1u);
  EXPECT_EQ(refused->status.code(), Code::kDeadlineExceeded);
  for (const char* part : {"rank 0", "evaluation", "60.000 s", "20.000 s", "later deadline"}) {
    EXPECT_NE(refused->status.message().find(part), std::string::npos)
        << part << " in: " << refused->status.message();
  }
  table.DeliverAll();
  EXPECT_EQ(table.words[0].state, WordState::kIdle);
}

TEST(NoticeAnswers, AGraceThatIsTooShortIsSaidAtOnceAndTheLossIsBooked) {
  Table table(2, 1);
  table.StepsTo(0, 8), table.StepsTo(1, 8);
  ASSERT_TRUE(table.ProgramSave());
  table.Passes(5 * kSecond);
  InPhase(&table, 1, "compile", 60);
  table.Leads(Suspend(1, table.now + 30 * kSecond, true));
  const NoticeAnswer answer = AllOf<NoticeAnswer>(table).back();
  EXPECT_EQ(answer.answer, Answer::kFallback);
  for (const char* part : {"rank 1", "compile", "killed in 28.000 s", "step 8 (attempt 1)"}) {
    EXPECT_NE(answer.why.find(part), std::string::npos) << part << " in: " << answer.why;
  }
  table.DeliverAll();
  table.Passes(28 * kSecond);
  table.TickAll();
  table.DeliverAll();
  EXPECT_TRUE(table.leader->view().ended);
  const auto losses = AllOf<LossBooked>(table);
  ASSERT_EQ(losses.size(), 1u);
  EXPECT_EQ(losses[0].operation, 1u);
  EXPECT_EQ(losses[0].attempt, 1u);
  EXPECT_EQ(losses[0].step, 8);
  EXPECT_EQ(losses[0].boundary, 8u);
  EXPECT_EQ(losses[0].lost_ns, 33 * kSecond);
}

TEST(NoticeAnswers, AFallbackThatABoundaryOvertakesIsNoLoss) {
  Table table(2, 1);
  InPhase(&table, 1, "compile", 60);
  table.Leads(Suspend(1, table.now + 30 * kSecond, true));
  table.DeliverAll();
  table.AllReach();
  table.DeliverAll();
  table.AllSeal();
  table.DeliverAll();
  table.AllDown();
  table.DeliverAll();
  table.Released();
  EXPECT_NE(table.LastReport(OpPhase::kReleased), nullptr);
  EXPECT_TRUE(AllOf<LossBooked>(table).empty());
}

TEST(NoticeAnswers, AHardNoticeThatNobodyComesToIsCalledAFallbackBeforeItsKill) {
  Table table(2, 1);
  table.Leads(Measured{{.stage_ns = 4 * kSecond}});
  table.Leads(Suspend(1, table.now + 30 * kSecond, true));
  table.DeliverAll();
  EXPECT_LE(table.leader->next_deadline_ns(), table.now + 24 * kSecond);
  table.Passes(25 * kSecond);
  table.TickAll();
  EXPECT_EQ(AllOf<NoticeAnswer>(table).back().answer, Answer::kFallback);
  EXPECT_FALSE(table.leader->view().ended);
}

TEST(NoticeAnswers, AWithdrawnDeadlineGivesItsTimeBackWithinTheStage) {
  Table table(2, 1);
  table.Leads(Suspend(1));
  table.Leads(Suspend(2, table.now + 5 * kSecond));
  table.DeliverAll();
  table.ReachCut(0);
  table.Passes(4 * kSecond);
  table.Leads(Withdraw{2, "capacity was found elsewhere"});
  table.DeliverAll();
  table.Passes(10 * kSecond);
  table.TickAll();
  table.DeliverAll();
  EXPECT_EQ(table.words[0].state, WordState::kCommittedStop) << "5 s do not count any more";
  EXPECT_GT(table.orders[0].deadline_ns, table.now) << "the rank's wait was extended too";
  table.ReachCut(1);
  table.DeliverAll();
  EXPECT_EQ(table.leader->view().decision, Decision::kStage);
}

// An operator's soft deadline passes; SIGTERM's grace has not. What kills must still be obeyed.
TEST(NoticeAnswers, ADeadlineThatPassesRefusesOnlyItsOwnNotice) {
  for (const bool waits : {false, true}) {  // for a slot; at the cut
    Table table(2, 1, [&](LeaderConfig* config) { config->slots = waits ? 0 : config->slots; });
    table.Leads(Suspend(1, table.now + 5 * kSecond));
    table.Leads(Suspend(2, table.now + 90 * kSecond, true));
    table.DeliverAll();
    if (!waits) table.ReachCut(0);
    table.Passes(6 * kSecond);
    table.TickAll();
    table.DeliverAll();
    const auto reports = AllOf<Report>(table);
    ASSERT_EQ(reports.back().operation, 1u) << waits;
    EXPECT_EQ(reports.back().phase, OpPhase::kRefused);
    EXPECT_EQ(reports.back().status.code(), Code::kDeadlineExceeded);
    EXPECT_EQ(table.leader->view().request, Request::kSuspend) << waits;
    EXPECT_GT(table.leader->next_deadline_ns(), table.now);
    if (waits) continue;
    table.Passes(10 * kSecond);
    table.TickAll();
    table.ReachCut(1);
    table.DeliverAll();
    EXPECT_EQ(table.leader->view().decision, Decision::kStage) << "the other one is obeyed";
  }
}

// A rank copies on for a save that was dropped: what kills waits for it, as long as there is time.
TEST(NoticeAnswers, WhatKillsIsTriedUntilItsDeadline) {
  Table table(2, 1);
  table.words[1].state = WordState::kStaging;
  table.Leads(Suspend(1, table.now + 90 * kSecond, true));
  const auto go_on = [&table](int seconds) {
    for (int i = 0; i < 10 * seconds; ++i) {
      table.DeliverAll();
      table.Passes(kSecond / 10);
      table.TickAll();
    }
  };
  go_on(60);
  EXPECT_EQ(table.LastReport(OpPhase::kRefused), nullptr);
  table.words[1].state = WordState::kIdle;
  go_on(10);
  table.AllReach();
  table.DeliverAll();
  EXPECT_EQ(table.leader->view().decision, Decision::kStage);
}

TEST(NoticeAnswers, AWithdrawalInEveryStageBeforeBarrierThreeSetsTheGangFree) {
  for (int stage = 0; stage < 4; ++stage) {
    Table table(2, 1);
    table.auto_mark = false;
    table.Leads(Suspend(1, table.now + 60 * kSecond, true));
    if (stage >= 1) table.DeliverAll();
    if (stage >= 2) table.AllReach(), table.DeliverAll();
    if (stage >= 3) table.AllSeal(), table.DeliverAll(), table.AllDown(), table.DeliverAll();
    table.Leads(Withdraw{1, "the urgent job is gone"});
    table.DeliverAll();
    if (stage >= 3) table.CommsUp(0), table.CommsUp(1), table.DeliverAll();
    table.Passes(70 * kSecond);
    table.TickAll();
    table.DeliverAll();
    EXPECT_FALSE(table.leader->view().ended) << stage;
    EXPECT_EQ(table.leader->view().request, Request::kNone) << stage;
    for (const Word& word : table.words) EXPECT_EQ(word.state, WordState::kIdle) << stage;
    EXPECT_TRUE(AllOf<LossBooked>(table).empty()) << stage;
  }
}

TEST(NoticeAnswers, AWithdrawalOfWhatIsOverReturnsItsResult) {
  Table table(2, 1);
  table.UntilDown(Suspend(1));
  table.DeliverAll();
  table.Leads(Withdraw{1, ""});
  EXPECT_EQ(table.reports.back().phase, OpPhase::kTooLate);
  table.Released();
  table.Leads(Withdraw{7, ""});
  EXPECT_EQ(table.reports.back().operation, 7u);
  EXPECT_EQ(table.reports.back().status.code(), Code::kNotFound);
}

TEST(NoticeAnswers, ARollBackEndsOnlyTheNoticesOfItsOperation) {
  Table table(2, 1);
  table.UntilSealed(Suspend(1));
  table.DeliverAll();
  table.CommsDown(0, DeadlineExceeded("a communicator hangs"));
  table.DeliverAll();
  table.Leads(Suspend(2, table.now + 200 * kSecond, true));
  table.CommsUp(0), table.CommsUp(1);
  table.DeliverAll();
  EXPECT_EQ(table.leader->view().operation, 2u);
  EXPECT_EQ(AllOf<NoticeAnswer>(table).back().operations, (std::vector<uint64_t>{2}));
}

TEST(NoticeAnswers, ARetryDoesNotMoveTheTimeOfTheNotice) {
  Table table(2, 1);
  const int64_t start = table.now;
  table.UntilQuiesced(Suspend(1, table.now + 300 * kSecond, true));
  table.Passes(3 * kSecond);
  table.Acts(0, RankStageFailed{Rank(0), table.orders[0].generation, table.orders[0].attempt,
                                ResourceExhausted("no pinned memory")});
  table.DeliverAll();
  const Report* again = table.LastReport(OpPhase::kAgain);
  ASSERT_NE(again, nullptr);
  EXPECT_EQ(again->noticed_ns, start);
  EXPECT_EQ(again->at_ns, start + 3 * kSecond);
}

TEST(NoticeAnswers, ANoticeBeforeTheRanksHaveRegisteredIsKept) {
  Table table(2, 1, [](LeaderConfig* config) { config->slots = 0; });
  table.Leads(SlotsKnown{0, "rank 1 has not registered yet"});
  table.Leads(Suspend(1));
  EXPECT_EQ(AllOf<NoticeAnswer>(table).back().answer, Answer::kDefer);
  EXPECT_NE(AllOf<NoticeAnswer>(table).back().why.find("rank 1"), std::string::npos);
  table.Passes(3600 * kSecond);
  table.TickAll();
  table.DeliverAll();
  EXPECT_EQ(table.words[0].state, WordState::kIdle);
  table.Leads(SlotsKnown{2});
  table.DeliverAll();
  EXPECT_EQ(table.words[0].state, WordState::kCommittedStop);
  EXPECT_EQ(AllOf<NoticeAnswer>(table).back().answer, Answer::kAck);
}

TEST(NoticeAnswers, AHardNoticeBeforeRegistrationStillEndsAtItsDeadline) {
  Table table(2, 1, [](LeaderConfig* config) { config->slots = 0; });
  table.Leads(SlotsKnown{0, "rank 1: no memory for staging", true});
  table.Leads(Suspend(1, table.now + 30 * kSecond, true));
  EXPECT_EQ(AllOf<NoticeAnswer>(table).back().answer, Answer::kFallback);
  table.Leads(Suspend(2));
  EXPECT_EQ(table.LastReport(OpPhase::kRefused)->operation, 2u);
  EXPECT_NE(table.LastReport(OpPhase::kRefused)->status.message().find("no memory for staging"),
            std::string::npos);
  table.Passes(28 * kSecond);
  table.TickAll();
  table.DeliverAll();
  EXPECT_TRUE(table.leader->view().ended);
  EXPECT_EQ(AllOf<LossBooked>(table).size(), 1u);
}

TEST(NoticeAnswers, ANoticeToOneRankStopsTheGangAndAWrongRankIsRefused) {
  Table table(2, 1);
  Command wrong = Suspend(1);
  wrong.ranks = {2};
  table.Leads(wrong);
  EXPECT_EQ(table.LastReport(OpPhase::kRefused)->status.code(), Code::kInvalidArgument);
  Command one = Suspend(2);
  one.ranks = {1};
  table.UntilQuiesced(one);
  EXPECT_EQ(table.leader->view().decision, Decision::kStage);
  EXPECT_EQ(table.words[0].state, WordState::kStaging);
  EXPECT_EQ(table.words[1].state, WordState::kStaging);
}

TEST(NoticeAnswers, KillOverridesEveryStage) {
  for (int stage = 0; stage < 6; ++stage) {
    Table table(2, 1);
    table.StepsTo(0, 3), table.StepsTo(1, 3);
    if (stage == 5) {  // one that waits for a drain
      table.Leads(SlotsKnown{1});
      ASSERT_TRUE(table.ProgramSave());
    }
    if (stage >= 1) table.Leads(Suspend(1, table.now + 600 * kSecond));
    if (stage >= 2) table.DeliverAll();
    if (stage == 3 || stage == 4) table.AllReach(), table.DeliverAll();
    if (stage == 4) table.AllSeal(), table.DeliverAll();
    table.Leads(Command{9, Request::kKill, 0, false, "operator"});
    table.DeliverAll();
    EXPECT_EQ(table.Count<KillRanks>(0), 1u) << stage;
    EXPECT_EQ(table.Count<KillRanks>(1), 1u) << stage;
    EXPECT_EQ(table.LastReport(OpPhase::kEnded)->operation, 9u) << stage;
    EXPECT_EQ(table.LastReport(OpPhase::kEnded)->status.message(), "killed by operator");
    EXPECT_EQ(AllOf<LossBooked>(table).size(), 1u) << stage;
  }
}

TEST(NoticeAnswers, AKillAfterBarrierThreeWaitsForNobodyAndLosesNothing) {
  Table table(2, 1);
  table.UntilDown(Suspend(1));
  table.DeliverAll();
  ASSERT_EQ(table.Count<KillRanks>(1), 0u);
  table.Leads(Command{9, Request::kKill, 0, false, "operator"});
  table.DeliverAll();
  EXPECT_EQ(table.Count<KillRanks>(0), 1u);
  EXPECT_EQ(table.Count<KillRanks>(1), 1u);
  table.Exits(0, 0, 9), table.Exits(1, 0, 9);
  for (uint32_t m = 0; m < 2; ++m) table.Acts(m, AllReleased{});
  table.DeliverAll();
  EXPECT_TRUE(table.LastReport(OpPhase::kReleased)->status.ok()) << "it is suspended";
  EXPECT_TRUE(AllOf<LossBooked>(table).empty());
}

}  // namespace
}  // namespace ckpt::gang::sim
