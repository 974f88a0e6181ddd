// The event orders that broke earlier texts of the protocol (G1 … G12), each played by hand.
#include <gtest/gtest.h>

#include "coordinator/gang/sim/table.h"

namespace ckpt::gang::sim {
namespace {

const Command kSuspend{1, Request::kSuspend, 0, false, "operator"};

Command Save(uint64_t operation) {
  return Command{operation, Request::kSave, 0, false, "operator"};
}
Command Suspend(uint64_t operation) {
  return Command{operation, Request::kSuspend, 0, false, "operator"};
}

// G1: barrier 2 has passed and member 0 takes communicators down; member 1, voted SEALED, reaches
// its deadline. It must not run into its next collective: it goes forward.
TEST(Flaws, G1_AVoteBindsAfterBarrier2) {
  Table table(2, 1);
  table.UntilSealed(kSuspend);
  while (table.ToLeader(0, MsgType::kVote) || table.ToLeader(1, MsgType::kVote)) {
  }
  ASSERT_TRUE(table.ToMember(0, MsgType::kDecision));
  EXPECT_EQ(table.Count<ReleaseBarrier>(0), 1u);
  table.Lose();  // member 1 never hears of it
  table.Passes(1000 * kSecond);
  table.Acts(1, Tick{});
  EXPECT_EQ(table.Count<TellRolledBack>(1), 0u);
  EXPECT_EQ(table.words[1].state, WordState::kStaging);
  EXPECT_EQ(table.Count<KillRanks>(1), 1u);
  // The leader learns it and ends the gang; the copy that all have sealed stands.
  table.DeliverAll();
  EXPECT_TRUE(table.leader->view().ended);
  ASSERT_NE(table.LastReport(OpPhase::kEnded), nullptr);
  EXPECT_EQ(table.LastReport(OpPhase::kEnded)->generation, 1u);
}

// G1: barrier 3 is stored and member 0 released; member 1's deadline passes before it hears. It
// goes forward instead of waiting for a rebuild that never comes.
TEST(Flaws, G1_NobodyGoesBackAfterBarrier3) {
  Table table(2, 1);
  table.UntilDown(kSuspend);
  while (table.ToLeader(0, MsgType::kVote) || table.ToLeader(1, MsgType::kVote)) {
  }
  while (table.ToMember(0, MsgType::kDecision)) {
  }
  ASSERT_EQ(table.Last<ReleaseBarrier>(0)->barrier, 3u);
  table.to_members.clear();
  table.Passes(1000 * kSecond);
  table.Acts(1, Tick{});
  EXPECT_EQ(table.Count<TellRolledBack>(1), 0u);
  EXPECT_EQ(table.Count<KillRanks>(1), 1u);
  table.Released();
  EXPECT_EQ(table.LastReport(OpPhase::kReleased)->operation, 1u);
  EXPECT_EQ(table.leader->view().decision, Decision::kRelease);
}

// G2: 1 drains, 2 is complete and drains; a third copy needs a slot. Save 1's slot is filled only
// after its attempt is aborted and its writers have stopped.
TEST(Flaws, G2_ASlotIsNotFilledWhileItsWritersRun) {
  Table table(2, 1);
  table.StepsTo(0, 1), table.StepsTo(1, 1);
  ASSERT_TRUE(table.ProgramSave());
  table.StepsTo(0, 2), table.StepsTo(1, 2);
  ASSERT_TRUE(table.ProgramSave());
  table.StepsTo(0, 3), table.StepsTo(1, 3);
  EXPECT_FALSE(table.ProgramSave()) << "both slots drain: a periodic save waits";
  table.UntilQuiesced(kSuspend);
  // All wait at the cut; the writers of attempt 1 were asked to stop, barrier 1 waits for them.
  EXPECT_EQ(table.leader->view().decision, Decision::kNone);
  ASSERT_NE(table.Last<StopWriters>(0), nullptr);
  EXPECT_EQ(table.Last<StopWriters>(0)->attempt, 1u);
  table.Written(0, 1, Cancelled("stopped"));
  table.DeliverAll();
  EXPECT_EQ(table.leader->view().decision, Decision::kNone) << "member 1 still writes";
  table.Written(1, 1, Cancelled("stopped"));
  table.DeliverAll();
  EXPECT_EQ(table.leader->view().decision, Decision::kStage);
  EXPECT_EQ(table.words[0].state, WordState::kStaging);
  EXPECT_EQ(table.orders[0].slot, 0u);
}

// G3: one slot that drains. The suspend waits for the drain, and when it cannot wait any longer
// gives the older save up only after barrier 1, saying which checkpoint is left.
TEST(Flaws, G3_OneSlotTheOlderSaveGoesOnUntilAllWait) {
  Table table(2, 1, [](LeaderConfig* config) { config->slots = 1; });
  table.StepsTo(0, 1), table.StepsTo(1, 1);
  ASSERT_TRUE(table.ProgramSave());
  table.Leads(kSuspend);
  table.DeliverAll();
  EXPECT_EQ(table.words[0].state, WordState::kIdle) << "training goes on while the save drains";
  table.Passes(31 * kSecond);
  table.TickAll();
  table.DeliverAll();
  EXPECT_EQ(table.words[0].state, WordState::kCommittedStop);
  EXPECT_EQ(table.Count<StopWriters>(0), 0u) << "not before all wait at the cut";
  table.ReachCut(0);
  table.DeliverAll();
  EXPECT_EQ(table.Count<StopWriters>(0), 0u);
  table.ReachCut(1);
  table.DeliverAll();
  EXPECT_EQ(table.Count<StopWriters>(0), 1u);
  const Report* gone = table.LastReport(OpPhase::kNotDurable);
  ASSERT_NE(gone, nullptr);
  EXPECT_NE(gone->status.message().find("what is left is"), std::string::npos);
}

TEST(Flaws, G3_OneSlotTheDrainThatEndsInTimeIsKept) {
  Table table(2, 1, [](LeaderConfig* config) { config->slots = 1; });
  table.StepsTo(0, 1), table.StepsTo(1, 1);
  ASSERT_TRUE(table.ProgramSave());
  table.Leads(kSuspend);
  table.DeliverAll();
  table.Written(0, 1);
  table.Written(1, 1);
  table.DeliverAll();
  EXPECT_EQ(table.LastReport(OpPhase::kDurable)->attempt, 1u);
  EXPECT_EQ(table.words[0].state, WordState::kCommittedStop) << "and the suspend goes on at once";
  EXPECT_EQ(table.LastReport(OpPhase::kNotDurable), nullptr);
}

// G4: the commit of round 1 is delayed; the leader restarts and proposes another cut; the old
// accept and the old commit arrive late. Neither counts.
TEST(Flaws, G4_LateAnswersOfAnEarlierRoundDoNotCount) {
  Table table(2, 1);
  table.Leads(kSuspend);
  table.ToMember(0, MsgType::kAsk), table.ToMember(1, MsgType::kAsk);
  table.ToLeader(0, MsgType::kPlaces), table.ToLeader(1, MsgType::kPlaces);
  table.ToMember(0, MsgType::kPropose), table.ToMember(1, MsgType::kPropose);
  table.ToLeader(0, MsgType::kVote, true), table.ToLeader(1, MsgType::kVote, true);
  ASSERT_EQ(table.CountToMember(0, MsgType::kCommit), 1u);
  const std::vector<Table::Letter> old_votes = table.to_leader;
  const std::vector<Table::Letter> old_commits = table.to_members;
  table.Lose();
  table.LeaderDies();
  table.LeaderReturns();
  table.StepsTo(0, 1), table.StepsTo(1, 1);
  while (table.ToMember(0, MsgType::kAsk) || table.ToMember(1, MsgType::kAsk)) {
  }
  while (table.ToLeader(0, MsgType::kPlaces) || table.ToLeader(1, MsgType::kPlaces)) {
  }
  ASSERT_TRUE(table.ToMember(0, MsgType::kPropose));
  EXPECT_EQ(table.words[0].cut, 2u);
  for (const auto& letter : old_votes) table.Leads(FromMember{letter.member, letter.msg});
  EXPECT_EQ(table.CountToMember(0, MsgType::kCommit), 0u) << "old accepts made a commit";
  for (const auto& letter : old_commits) table.Acts(letter.member, FromLeader{letter.msg});
  EXPECT_EQ(table.words[0].state, WordState::kProposedStop) << "an old commit counted";
}

// G5: every round has its own attempt number, also over a restart of the leader.
TEST(Flaws, G5_AnAttemptNumberIsNeverUsedTwice) {
  Table table(2, 1);
  table.Leads(Save(1));
  table.ToMember(0, MsgType::kAsk), table.ToMember(1, MsgType::kAsk);
  table.ToLeader(0, MsgType::kPlaces), table.ToLeader(1, MsgType::kPlaces);
  table.ToMember(0, MsgType::kPropose), table.ToMember(1, MsgType::kPropose);
  table.ToLeader(0, MsgType::kVote), table.ToLeader(1, MsgType::kVote);
  ASSERT_TRUE(table.ToMember(0, MsgType::kCommit));
  const uint32_t first = table.orders[0].attempt;
  table.ReachCut(0);
  table.Seals(0);  // rank 0 has staged attempt `first` at boundary 1
  table.Lose();
  table.LeaderDies();
  table.LeaderReturns();
  table.StepsTo(1, 2), table.StepsTo(0, 2);
  table.DeliverAll();
  table.Passes(kSecond);
  table.TickAll();
  table.DeliverAll();
  EXPECT_GT(table.orders[0].attempt, first);
  EXPECT_EQ(table.orders[0].attempt, table.orders[1].attempt);
  EXPECT_GT(table.words[0].cut, 2u);
  // The dropped attempt never becomes a copy of the gang.
  EXPECT_EQ(table.LastReport(OpPhase::kStaged), nullptr);
  table.AllReach();
  table.AllSeal();
  table.DeliverAll();
  ASSERT_NE(table.LastReport(OpPhase::kStaged), nullptr);
  EXPECT_EQ(table.LastReport(OpPhase::kStaged)->attempt, table.orders[0].attempt);
}

// G6: a rank that waits at a COMMITTED cut takes its promise back by itself; barrier 1, on its way,
// loses the race on exactly that rank and everyone runs on.
TEST(Flaws, G6_ARankAtACommittedCutHasItsOwnTimeout) {
  Table table(2, 2);
  table.Leads(kSuspend);
  table.DeliverAll();
  table.AllReach();
  while (table.ToLeader(0, MsgType::kVote) || table.ToLeader(1, MsgType::kVote)) {
  }
  EXPECT_GT(table.orders[0].deadline_ns, 0) << "the order line tells a rank how long to wait";
  ASSERT_EQ(table.leader->view().decision, Decision::kStage);
  table.words[1].state = WordState::kRefused;  // rank 1's CAS won
  table.DeliverAll();
  for (const Word& word : table.words) EXPECT_EQ(word.state, WordState::kIdle);
  EXPECT_EQ(table.leader->view().decision, Decision::kNone);
  const Report* back = table.LastReport(OpPhase::kRolledBack);
  ASSERT_NE(back, nullptr);
  EXPECT_EQ(back->status.code(), Code::kDeadlineExceeded);
  EXPECT_NE(back->status.message().find("rank 1"), std::string::npos);
}

// G7: a rank at the cut has left that boundary: it refuses, and the cut is raised.
TEST(Flaws, G7_ARankAtTheCutRefusesIt) {
  Table table(2, 1);
  table.Leads(kSuspend);
  table.ToMember(0, MsgType::kAsk), table.ToMember(1, MsgType::kAsk);
  table.ToLeader(0, MsgType::kPlaces), table.ToLeader(1, MsgType::kPlaces);
  table.StepsTo(0, 1);  // passes boundary 1 while the proposal of cut 1 travels
  ASSERT_TRUE(table.ToMember(0, MsgType::kPropose));
  EXPECT_EQ(table.words[0].state, WordState::kIdle);
  ASSERT_EQ(table.to_leader.back().msg.vote, Vote::kRefused);
  ASSERT_EQ(table.to_leader.back().msg.places.size(), 1u);
  EXPECT_EQ(table.to_leader.back().msg.places[0].boundary, 1u) << "it says where it is";
  table.DeliverAll();
  EXPECT_EQ(table.words[0].state, WordState::kCommittedStop);
  EXPECT_GT(table.words[0].cut, 1u);
  EXPECT_EQ(table.words[0].cut, table.words[1].cut);
}

// G8: a rank dies after barrier 2: forward, not back.
TEST(Flaws, G8_ADeadRankAfterBarrier2GoesForward) {
  Table table(2, 1);
  table.UntilSealed(kSuspend);
  table.DeliverAll();
  ASSERT_EQ(table.leader->view().decision, Decision::kCommsDown);
  table.CommsDown(0);
  table.Exits(1, 0, 9);
  table.DeliverAll();
  EXPECT_TRUE(table.leader->view().ended);
  EXPECT_EQ(table.Count<TellRolledBack>(0), 0u);
  EXPECT_EQ(table.Count<KillRanks>(0), 1u);
  const Report* ended = table.LastReport(OpPhase::kEnded);
  ASSERT_NE(ended, nullptr);
  EXPECT_EQ(ended->generation, 1u) << "the copy that all have sealed stands";
  // And it goes on draining.
  table.Written(0, 1);
  table.Written(1, 1);
  table.DeliverAll();
  EXPECT_EQ(table.LastReport(OpPhase::kDurable)->attempt, 1u);
}

// G8: a rebuild that misses its deadline goes forward on both sides.
TEST(Flaws, G8_ARebuildThatMissesItsDeadlineGoesForward) {
  Table table(2, 1);
  table.UntilSealed(kSuspend);
  table.DeliverAll();
  table.CommsDown(0);
  table.CommsDown(1, DeadlineExceeded("a communicator hangs"));
  table.DeliverAll();
  ASSERT_EQ(table.leader->view().decision, Decision::kBack);
  ASSERT_TRUE(table.Last<TellRolledBack>(0)->rebuild);
  EXPECT_EQ(table.Last<TellRolledBack>(0)->rebuild_id, table.Last<TellRolledBack>(1)->rebuild_id);
  table.CommsUp(0);  // rank 1 never joins
  table.DeliverAll();
  table.Passes(61 * kSecond);
  table.TickAll();
  table.DeliverAll();
  EXPECT_TRUE(table.leader->view().ended);
  const Report* ended = table.LastReport(OpPhase::kEnded);
  EXPECT_NE(ended->status.message().find("rank 1"), std::string::npos) << ended->status.ToString();
  EXPECT_EQ(ended->missing, std::vector<uint32_t>{1});
}

// G9: saves faster than the store: the first drain is left alone, the later saves are refused.
TEST(Flaws, G9_PeriodicSavesDoNotThrowADrainAway) {
  Table table(2, 1);
  uint32_t granted = 0;
  for (uint32_t boundary = 1; boundary <= 10; ++boundary) {
    table.StepsTo(0, boundary), table.StepsTo(1, boundary);
    granted += table.ProgramSave() ? 1 : 0;
  }
  EXPECT_EQ(granted, 2u);
  EXPECT_EQ(table.Count<StopWriters>(0), 0u);
  table.Written(0, 1);
  table.Written(1, 1);
  table.DeliverAll();
  EXPECT_EQ(table.LastReport(OpPhase::kDurable)->attempt, 1u);
  table.StepsTo(0, 11), table.StepsTo(1, 11);
  EXPECT_TRUE(table.ProgramSave()) << "durable: its slot is free";
}

// G10: the counter wraps at 2^32, the cut at 2^28; a stop across each is like any other.
TEST(Flaws, G10_CutsAcrossTheWrap) {
  for (const uint32_t start :
       {(uint32_t{1} << 28) - 1, (uint32_t{1} << 31) - 1, (uint32_t{1} << 31), UINT32_MAX}) {
    Table table(2, 1);
    table.StepsTo(0, start), table.StepsTo(1, start - 1);
    table.UntilDown(kSuspend);
    table.DeliverAll();
    EXPECT_EQ(table.leader->view().decision, Decision::kRelease) << start;
    EXPECT_EQ(table.words[0].boundary, start + 1) << start;
    EXPECT_EQ(table.words[1].boundary, start + 1) << start;
  }
}

// G11: a suspend meets an open save. The save's round stays a save; the suspend gets a later cut,
// an attempt and a slot of its own, after all ranks are through with the save.
TEST(Flaws, G11_ASuspendThatMeetsACommittedSaveGetsALaterCut) {
  Table table(2, 1);
  table.Leads(Save(1));
  table.DeliverAll();
  ASSERT_EQ(table.words[0].state, WordState::kCommittedSave);
  const uint32_t save_cut = table.words[0].cut, save_slot = table.orders[0].slot;
  table.Leads(Suspend(2));
  table.DeliverAll();
  EXPECT_EQ(table.words[0].state, WordState::kCommittedSave);
  EXPECT_EQ(table.words[0].cut, save_cut);
  table.AllReach();
  table.AllSeal();
  table.DeliverAll();
  EXPECT_EQ(table.LastReport(OpPhase::kStaged)->operation, 1u);
  EXPECT_EQ(table.words[0].state, WordState::kCommittedStop);
  EXPECT_GT(table.words[0].cut, save_cut);
  EXPECT_NE(table.orders[0].slot, save_slot);
}

TEST(Flaws, G11_ASuspendThatMeetsAProposedSaveReplacesIt) {
  Table table(2, 1);
  table.Leads(Save(1));
  table.ToMember(0, MsgType::kAsk), table.ToMember(1, MsgType::kAsk);
  table.ToLeader(0, MsgType::kPlaces), table.ToLeader(1, MsgType::kPlaces);
  table.ToMember(0, MsgType::kPropose);
  const uint32_t save_round = table.orders[0].round;
  table.Leads(Suspend(2));
  table.DeliverAll();
  EXPECT_EQ(table.LastReport(OpPhase::kRefused)->operation, 1u);
  EXPECT_EQ(table.words[0].state, WordState::kCommittedStop);
  EXPECT_GT(table.orders[0].round, save_round);
}

// G12: a rank that needs for the cut what its peer does after it never arrives. Nobody is stuck:
// the barrier names the rank, and all run on.
TEST(Flaws, G12_StepsOfMinutesReachTheCut) {
  Table table(2, 1);
  table.step_ns = 180 * kSecond;
  table.Leads(kSuspend);
  table.DeliverAll();
  table.ReachCut(0);
  table.DeliverAll();
  table.Passes(359 * kSecond);
  table.TickAll();
  table.DeliverAll();
  EXPECT_EQ(table.words[0].state, WordState::kCommittedStop) << "it waits for the other one";
  table.ReachCut(1);
  table.DeliverAll();
  EXPECT_EQ(table.leader->view().decision, Decision::kStage);
}

TEST(Flaws, G12_StepsOfMinutesReachTheCutOfASave) {
  Table table(2, 1);
  table.step_ns = 240 * kSecond;
  table.Leads(Command{1, Request::kSave, 0, false, "operator"});
  table.DeliverAll();
  table.ReachCut(0);
  table.Seals(0);
  table.DeliverAll();
  for (int i = 0; i < 8; ++i) {
    table.Passes(59 * kSecond);
    table.TickAll();
    table.DeliverAll();
  }
  EXPECT_EQ(table.LastReport(OpPhase::kRolledBack), nullptr) << "the other one is on its way";
  table.ReachCut(1);
  table.Seals(1);
  table.DeliverAll();
  EXPECT_NE(table.LastReport(OpPhase::kStaged), nullptr);
}

// Thirty seconds are for the way to the cut; copying has the time of a save.
TEST(Flaws, G12_ASaveThatAllRanksAreAtHasTheTimeOfItsCopy) {
  Table table(2, 1);
  table.Leads(Command{1, Request::kSave, 0, false, "operator"});
  table.DeliverAll();
  table.AllReach();
  for (int i = 0; i < 120; ++i) {
    table.Passes(kSecond);
    table.TickAll();
    table.DeliverAll();
  }
  EXPECT_EQ(table.LastReport(OpPhase::kRolledBack), nullptr) << "they copy";
  table.AllSeal();
  table.DeliverAll();
  EXPECT_NE(table.LastReport(OpPhase::kStaged), nullptr);
}

TEST(Flaws, G12_ASaveThatIsNeverStagedEndsWithItsReason) {
  Table table(2, 1);
  table.Leads(Command{1, Request::kSave, 0, false, "operator"});
  table.DeliverAll();
  table.AllReach();
  table.Seals(0);
  for (int i = 0; i < 360; ++i) {
    table.Passes(kSecond);
    table.TickAll();
    table.DeliverAll();
  }
  const Report* back = table.LastReport(OpPhase::kRolledBack);
  ASSERT_NE(back, nullptr);
  EXPECT_NE(back->status.message().find("was not staged by all ranks"), std::string::npos)
      << back->status.ToString();
}

TEST(Flaws, G12_ARankThatNeverReachesTheCutIsNamed) {
  Table table(2, 1);
  table.Leads(kSuspend);
  table.DeliverAll();
  table.ReachCut(0);
  table.DeliverAll();
  table.Passes(31 * kSecond);
  table.TickAll();
  table.DeliverAll();
  for (const Word& word : table.words) EXPECT_EQ(word.state, WordState::kIdle);
  const Report* back = table.LastReport(OpPhase::kRolledBack);
  ASSERT_NE(back, nullptr);
  EXPECT_NE(back->status.message().find("barrier 1; missing: rank 1"), std::string::npos)
      << back->status.ToString();
  EXPECT_FALSE(table.leader->view().ended);
}

}  // namespace
}  // namespace ckpt::gang::sim
