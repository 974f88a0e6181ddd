// Failures inside a running gang: rolled back or forward as the protocol says, and named.
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>

#include "libckpt/os/process.h"
#include "libckpt/os/socket.h"
#include "tests/e2e_run/harness.h"

namespace ckpt::e2e {
namespace {

const std::vector<std::string> kArgs = {"200", "5", "4096"};

std::vector<std::string> With(std::vector<std::string> more) {
  std::vector<std::string> args = kArgs;
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

#define EXPECT_SAID(run, text) \
  EXPECT_NE((run).Output().find(text), std::string::npos) << text << "\n" << (run).Output()

void ExpectGoesOn(Job* job) {
  job->SetEnv("CKPT_FAULT_AT", "");
  RunProcess again = job->Start({"--ranks", "2"}, kArgs);
  EXPECT_EQ(again.Wait(), 0) << again.Output();
  ExpectSameTrajectory(*job, 2, kArgs);
}

TEST(Failure, AStagingThatFailsIsTriedAgainAndNobodyIsStoppedByIt) {
  Job job;
  job.SetEnv("CKPT_FAULT_AT", "engine.capture.begin@1=fail");
  RunProcess run = job.Start({"--ranks", "2"}, kArgs);
  ASSERT_TRUE(job.WaitForStep(1, 20));
  run.Signal(SIGTERM);
  EXPECT_EQ(run.Wait(), 75) << run.Output();
  EXPECT_SAID(run, "rank 1 could not stage");
  EXPECT_SAID(run, "this try to stop failed");
  ASSERT_EQ(job.Durable().size(), 1u) << run.Output();
  ExpectGoesOn(&job);
}

TEST(Failure, AStoreThatDoesNotTakeTheMarkIsTriedAgain) {
  Job job;
  job.SetEnv("CKPT_FAULT_AT", "store.draining.after_mark=fail");
  RunProcess run = job.Start({"--ranks", "2"}, kArgs);
  ASSERT_TRUE(job.WaitForStep(1, 20));
  run.Signal(SIGTERM);
  EXPECT_EQ(run.Wait(), 75) << run.Output();
  EXPECT_SAID(run, "this try to stop failed");
  ExpectGoesOn(&job);
}

TEST(Failure, AStoreThatGoesAwayAfterTheReleaseIsWaitedFor) {
  Job job;
  job.SetEnv("CKPT_FAULT_AT", "engine.write.create=sleep1500");
  RunProcess run = job.Start({"--ranks", "1"}, kArgs);
  ASSERT_TRUE(job.WaitForStep(0, 20));
  run.Signal(SIGTERM);
  ASSERT_TRUE(run.WaitFor("all ranks are gone"));
  std::filesystem::rename(job.store(), job.store() + ".away");
  ASSERT_TRUE(run.WaitFor("the copy stays in RAM, try 2 of 10"));
  std::filesystem::rename(job.store() + ".away", job.store());
  EXPECT_EQ(run.Wait(), 75) << run.Output();
  EXPECT_EQ(job.Durable().size(), 1u);
}

TEST(Failure, ACallbackThatThrowsDropsTheSaveForAllAndTrainingGoesOn) {
  Job job;
  RunProcess run = job.Start({"--ranks", "2"}, With({"--throw", "30", "--save-at", "30"}));
  ASSERT_TRUE(run.WaitFor("[rank 0] not saved: "));
  ASSERT_TRUE(run.WaitFor("[rank 1] not saved: "));
  ASSERT_TRUE(job.WaitForStep(1, 40));
  run.Signal(SIGTERM);
  EXPECT_EQ(run.Wait(), 75) << run.Output();
  ASSERT_EQ(job.Durable().size(), 1u) << run.Output();
  ExpectGoesOn(&job);
}

TEST(Failure, ARestoreThatFailsConsumesNothing) {
  Job job;
  RunProcess first = job.Start({"--ranks", "2"}, kArgs);
  ASSERT_TRUE(job.WaitForStep(1, 20));
  first.Signal(SIGTERM);
  ASSERT_EQ(first.Wait(), 75) << first.Output();
  job.SetEnv("CKPT_FAULT_AT", "engine.load.begin@1=fail");
  RunProcess run = job.Start({"--ranks", "2"}, kArgs);
  EXPECT_EQ(run.Wait(), 1) << run.Output();
  EXPECT_SAID(run, "rank 1 could not restore");
  EXPECT_TRUE(LivingRanks(job.dir()).empty());
  EXPECT_EQ(job.Durable().size(), 1u);
  ExpectGoesOn(&job);
}

TEST(Failure, ALaunchThatAnotherHasFencedOffEndsInsteadOfTrainingForNothing) {
  Job job;
  RunProcess older = job.Start({"--ranks", "1"}, {"1000000", "5", "64"});
  ASSERT_TRUE(job.WaitForStep(0, 10));
  RunProcess newer = job.StartCommand({"--ranks", "1"}, {"sleep", "600"});
  ASSERT_TRUE(newer.WaitFor("epoch 2"));
  older.Signal(SIGUSR2);  // it would be noticed without a save too, a little later
  EXPECT_EQ(older.Wait(), 1) << older.Output();
  EXPECT_SAID(older, "it has claimed epoch 2");
  EXPECT_TRUE(LivingRanks(job.dir()).empty());
}

// A data loader holds copies of the rank's socket, pipes and memory, and outlives it.
TEST(Failure, ARankThatDiesUnderItsDataLoaderIsNoticedAtOnceAndTheLoaderEnds) {
  Job job;
  RunProcess run = job.Start({"--ranks", "2", "--restarts", "1"},
                             With({"--worker", "--save-at", "20", "--crash-at", "40"}));
  EXPECT_EQ(run.Wait(), 0) << run.Output();
  EXPECT_SAID(run, "rank 1 was killed by signal 9");
  EXPECT_SAID(run, "killing what the ranks left behind");
  EXPECT_TRUE(LivingRanks(job.dir()).empty());
  ExpectSameTrajectory(job, 2, kArgs);
}

TEST(Failure, ASuspendEndsDataLoadersToo) {
  Job job;
  RunProcess run = job.Start({"--ranks", "2"}, With({"--worker"}));
  ASSERT_TRUE(job.WaitForStep(1, 20));
  run.Signal(SIGTERM);
  EXPECT_EQ(run.Wait(), 75) << run.Output();
  EXPECT_TRUE(LivingRanks(job.dir()).empty());
}

TEST(Failure, AnotherTokenIsRefusedAtOnceAndGarbageOnThePortHarmsNobody) {
  Job job;
  const uint16_t port = os::PickFreePort("127.0.0.1").value();
  const std::string at = "127.0.0.1:" + std::to_string(port);
  const auto start = [&](int node) {
    return job.Start(
        {"--ranks", "1", "--nnodes", "2", "--node-rank", std::to_string(node), "--rendezvous", at},
        kArgs);
  };
  RunProcess leader = start(0);
  ASSERT_TRUE(leader.WaitFor("serving the gang at"));
  job.SetEnv("CKPT_GANG_TOKEN", "guessed");
  RunProcess stranger = start(1);
  EXPECT_EQ(stranger.Wait(), 1) << stranger.Output();
  EXPECT_SAID(stranger, "CKPT_GANG_TOKEN must be the same on all nodes");
  Result<os::UniqueFd> socket =
      os::ConnectTcp({"127.0.0.1", port}, Deadline("a test", std::chrono::seconds(10)));
  ASSERT_TRUE(socket.ok());
  const std::string garbage(size_t{8} << 20, '\xff');
  os::SendAll(socket->get(), AsBytes(garbage), Deadline("garbage", std::chrono::seconds(10)))
      .IgnoreError();  // it hangs up somewhere in it
  const Result<uint64_t> resident = os::ResidentBytes(leader.pid());
  ASSERT_TRUE(resident.ok());
  EXPECT_LT(*resident, uint64_t{256} << 20);
  job.SetEnv("CKPT_GANG_TOKEN", "");
  RunProcess member = start(1);
  EXPECT_EQ(leader.Wait(), 0) << leader.Output();
  EXPECT_EQ(member.Wait(), 0) << member.Output();
}

}  // namespace
}  // namespace ckpt::e2e
