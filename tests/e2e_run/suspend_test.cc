// Suspend and resume without an agent: whoever gets the signal, all ranks stop at one step, leave,
// and go on bit-identically.
#include <gtest/gtest.h>
#include <signal.h>

#include "libckpt/os/socket.h"
#include "tests/e2e_run/harness.h"

namespace ckpt::e2e {
namespace {

const std::vector<std::string>& kArgs = kTraining;

TEST(Suspend, SigtermToCkptRunThenAgain) {
  Job job;
  RunProcess run = job.Start({"--ranks", "2"}, kArgs);
  ASSERT_TRUE(job.WaitForStep(1, 20));
  run.Signal(SIGTERM);
  EXPECT_EQ(run.Wait(), 75) << run.Output();
  EXPECT_TRUE(LivingRanks(job.dir()).empty());
  EXPECT_EQ(LastStep(job, 0), LastStep(job, 1)) << "all stop at one step";
  const std::string output = run.Output();
  EXPECT_NE(output.find("all 2 ranks stopped at boundary"), std::string::npos) << output;
  EXPECT_NE(output.find("GPUs are free"), std::string::npos) << output;
  ASSERT_EQ(job.Durable().size(), 1u) << output;
  EXPECT_NE(output.find("durable: " + job.Durable()[0]), std::string::npos) << output;
  EXPECT_LT(output.find("staged"), output.find("durable: "));

  RunProcess again = job.Start({"--ranks", "2"}, kRest);
  EXPECT_EQ(again.Wait(), 0) << again.Output();
  EXPECT_NE(again.Output().find("resuming from " + job.store() + ", " + job.Durable()[0]),
            std::string::npos)
      << again.Output();
  ExpectSameTrajectory(job, 2, kArgs);
}

TEST(Suspend, OldCheckpointsGoAfterEachSaveAndTheJobGoesOnFromWhatIsLeft) {
  Job job;
  RunProcess run = job.Start({"--ranks", "2", "--save-every", "20", "--keep-last", "2"}, kArgs);
  ASSERT_TRUE(run.WaitFor("removed s"));
  ASSERT_TRUE(job.WaitForStep(1, 100));
  run.Signal(SIGTERM);
  EXPECT_EQ(run.Wait(), 75) << run.Output();
  EXPECT_EQ(job.Durable().size(), 2u) << run.Output();

  RunProcess again = job.Start({"--ranks", "2", "--keep-last", "2"}, kArgs);
  EXPECT_EQ(again.Wait(), 0) << again.Output();
  EXPECT_NE(again.Output().find("resuming from " + job.store()), std::string::npos);
  ExpectSameTrajectory(job, 2, kArgs);
}

TEST(Suspend, SigtermToOneRankStopsAll) {
  Job job;
  RunProcess run = job.Start({"--ranks", "2"}, kArgs);
  ASSERT_TRUE(job.WaitForStep(0, 10));
  ASSERT_TRUE(job.WaitForStep(1, 10));
  const std::vector<pid_t> ranks = LivingRanks(job.dir());
  ASSERT_EQ(ranks.size(), 2u);
  ::kill(ranks[1], SIGTERM);
  EXPECT_EQ(run.Wait(), 75) << run.Output();
  EXPECT_EQ(LastStep(job, 0), LastStep(job, 1));
  EXPECT_EQ(job.Durable().size(), 1u);
}

TEST(Suspend, SignalsToAllTwiceAreOneStop) {
  Job job;
  RunProcess run = job.Start({"--ranks", "2"}, kArgs);
  ASSERT_TRUE(job.WaitForStep(0, 10));
  ASSERT_TRUE(job.WaitForStep(1, 10));
  for (int i = 0; i < 2; ++i) {
    for (const pid_t pid : LivingRanks(job.dir())) ::kill(pid, SIGTERM);
    run.Signal(SIGTERM);
  }
  EXPECT_EQ(run.Wait(), 75) << run.Output();
  EXPECT_EQ(LastStep(job, 0), LastStep(job, 1));
  EXPECT_EQ(job.Durable().size(), 1u) << "one stop, one checkpoint: " << run.Output();
}

TEST(Suspend, AgainAndAgain) {
  Job job;
  for (int round = 1; round <= 3; ++round) {
    RunProcess run = job.Start({"--ranks", "3"}, kArgs);
    ASSERT_TRUE(run.WaitFor("epoch " + std::to_string(round)));  // it handles signals
    ASSERT_TRUE(job.WaitForStep(0, 40 * round));
    run.Signal(round == 2 ? SIGINT : SIGUSR1);
    ASSERT_EQ(run.Wait(), 75) << run.Output();
  }
  RunProcess last = job.Start({"--ranks", "3"}, kRest);
  EXPECT_EQ(last.Wait(), 0) << last.Output();
  ExpectSameTrajectory(job, 3, kArgs);
}

TEST(Suspend, TwoNodesOnLoopbackFormOneGang) {
  Job job;
  Result<uint16_t> port = os::PickFreePort("127.0.0.1");
  ASSERT_TRUE(port.ok());
  const std::string at = "127.0.0.1:" + std::to_string(*port);
  const auto start = [&](int node) {
    return job.Start(
        {"--ranks", "2", "--nnodes", "2", "--node-rank", std::to_string(node), "--rendezvous", at},
        kArgs);
  };
  {
    RunProcess second = start(1);  // out of order: it waits for the leader
    RunProcess first = start(0);
    ASSERT_TRUE(job.WaitForStep(0, 20));
    ASSERT_TRUE(job.WaitForStep(3, 20));
    second.Signal(SIGTERM);  // a notice at any node stops all
    EXPECT_EQ(first.Wait(), 75) << first.Output();
    EXPECT_EQ(second.Wait(), 75) << second.Output();
    EXPECT_NE(first.Output().find("all 4 ranks stopped"), std::string::npos) << first.Output();
    for (int rank = 1; rank < 4; ++rank) EXPECT_EQ(LastStep(job, 0), LastStep(job, rank));
  }
  RunProcess first = start(0);
  RunProcess second = start(1);
  EXPECT_EQ(first.Wait(), 0) << first.Output();
  EXPECT_EQ(second.Wait(), 0) << second.Output();
  ExpectSameTrajectory(job, 4, kArgs);
}

TEST(Suspend, SavesWhileTraining) {
  Job job;
  RunProcess run = job.Start({"--ranks", "2", "--save-every", "50"}, kArgs);
  ASSERT_TRUE(run.WaitFor("durable: s50.e1.a1"));
  run.Signal(SIGUSR2);  // and one from outside
  EXPECT_EQ(run.Wait(), 0) << run.Output();
  EXPECT_GE(job.Durable().size(), 2u) << run.Output();
  ExpectSameTrajectory(job, 2, kArgs);
}

TEST(Suspend, ASaveOfTheProgramIsDurableWhenItSaysSo) {
  Job job;
  std::vector<std::string> args = kArgs;
  args.insert(args.end(), {"--save-at", "30"});
  RunProcess run = job.Start({"--ranks", "2"}, args);
  ASSERT_TRUE(run.WaitFor("saved step 30"));
  const std::vector<std::string> durable = job.Durable();
  EXPECT_EQ(durable, std::vector<std::string>{"s30.e1.a1"});
  run.Signal(SIGTERM);
  EXPECT_EQ(run.Wait(), 75) << run.Output();
}

TEST(Suspend, WhatIsTrackedAnewWithAnotherLayoutIsWhatIsStaged) {
  Job job;
  std::vector<std::string> later = kArgs, wide = kArgs;
  later.push_back("--extra-later");
  wide.push_back("--extra");
  RunProcess run = job.Start({"--ranks", "2"}, later);
  ASSERT_TRUE(job.WaitForStep(0, 20));
  ASSERT_TRUE(job.WaitForStep(1, 20));
  run.Signal(SIGTERM);
  EXPECT_EQ(run.Wait(), 75) << run.Output();
  EXPECT_NE(run.Output().find("all 2 ranks stopped at boundary"), std::string::npos)
      << run.Output();
  ASSERT_EQ(job.Durable().size(), 1u) << run.Output();
  RunProcess again = job.Start({"--ranks", "2"}, wide);  // checks what the added tensor holds
  EXPECT_EQ(again.Wait(), 0) << again.Output();
  ExpectSameTrajectory(job, 2, kArgs);
}

TEST(Suspend, ANoticeDuringStartIsKept) {
  Job job;
  RunProcess run = job.Start({"--ranks", "2"}, kArgs);
  ASSERT_TRUE(run.WaitFor("epoch 1"));  // the ranks are being started
  run.Signal(SIGTERM);
  EXPECT_EQ(run.Wait(), 75) << run.Output();
  RunProcess again = job.Start({"--ranks", "2"}, kRest);
  EXPECT_EQ(again.Wait(), 0) << again.Output();
  ExpectSameTrajectory(job, 2, kArgs);
}

}  // namespace
}  // namespace ckpt::e2e
