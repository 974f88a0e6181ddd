// Failures inside a running gang: rolled back or forward as the protocol says, and named.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "libckpt/os/process.h"
#include "libckpt/os/socket.h"
#include "tests/e2e_run/harness.h"

namespace ckpt::e2e {
namespace {

void ExpectGoesOn(Job* job) {
  job->SetEnv("CKPT_FAULT_AT", "");
  RunProcess again = job->Start({"--ranks", "2"}, kRest);
  EXPECT_EQ(again.Wait(), 0) << again.Output();
  ExpectSameTrajectory(*job, 2, kTraining);
}

TEST(Failure, AStagingThatFailsIsTriedAgainAndNobodyIsStoppedByIt) {
  Job job;
  job.SetEnv("CKPT_FAULT_AT", "engine.capture.begin@1=fail");
  RunProcess run = job.Start({"--ranks", "2"}, kTraining);
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
  RunProcess run = job.Start({"--ranks", "2"}, kTraining);
  ASSERT_TRUE(job.WaitForStep(1, 20));
  run.Signal(SIGTERM);
  EXPECT_EQ(run.Wait(), 75) << run.Output();
  EXPECT_SAID(run, "this try to stop failed");
  ExpectGoesOn(&job);
}

TEST(Failure, AStoreThatGoesAwayAfterTheReleaseIsWaitedFor) {
  Job job;
  job.HoldAt("engine.write.create");
  RunProcess run = job.Start({"--ranks", "1"}, kTraining);
  ASSERT_TRUE(job.WaitForStep(0, 20));
  run.Signal(SIGTERM);
  ASSERT_TRUE(run.WaitFor("all ranks are gone"));
  std::filesystem::rename(job.store(), job.store() + ".away");
  job.LetGo();
  ASSERT_TRUE(run.WaitFor("the copy stays in RAM, try 2 of 10"));
  std::filesystem::rename(job.store() + ".away", job.store());
  EXPECT_EQ(run.Wait(), 75) << run.Output();
  EXPECT_EQ(job.Durable().size(), 1u);
}

// A store of its own, which the test can fill and make read-only under a ckpt-run.
class SmallStore : public testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "mounting a file system needs root";
    std::filesystem::create_directories(job_.store());
    if (::mount("none", job_.store().c_str(), "tmpfs", 0, "size=16m") != 0) {
      GTEST_SKIP() << "no file system can be mounted here";
    }
    mounted_ = true;
    job_.HoldAt("engine.write.create");
  }
  void TearDown() override {
    if (!mounted_) return;
    EXPECT_EQ(::umount2(job_.store().c_str(), MNT_DETACH), 0);
  }
  // The ranks are gone, nothing is written until LetGo().
  RunProcess Released() {
    RunProcess run = job_.Start({"--ranks", "2"}, kTraining);
    EXPECT_TRUE(job_.WaitForStep(1, 20));
    run.Signal(SIGTERM);
    EXPECT_TRUE(run.WaitFor("all ranks are gone"));
    return run;
  }
  void ExpectDurable(RunProcess* run) {
    EXPECT_EQ(run->Wait(), 75) << run->Output();
    EXPECT_EQ(job_.Durable().size(), 1u) << run->Output();
    ExpectGoesOn(&job_);
  }
  bool Remount(unsigned long flags) {
    return ::mount("none", job_.store().c_str(), "tmpfs", MS_REMOUNT | flags, "size=16m") == 0;
  }

  Job job_;
  bool mounted_ = false;
};

TEST_F(SmallStore, FullAfterTheReleaseTheCopyStaysInRamAndIsWrittenWhenThereIsRoom) {
  RunProcess run = Released();
  const std::string filler = job_.store() + "/filler";
  {
    std::ofstream out(filler);
    const std::string megabyte(size_t{1} << 20, 'x');
    while (out.write(megabyte.data(), static_cast<std::streamsize>(megabyte.size())).flush()) {
    }
  }
  job_.LetGo();
  ASSERT_TRUE(run.WaitFor("the copy stays in RAM, try 2 of 10"));
  EXPECT_SAID(run, "No space left on device");
  std::filesystem::remove(filler);
  ExpectDurable(&run);
}

TEST_F(SmallStore, ReadOnlyAfterTheReleaseTheCopyStaysInRamAndIsWrittenWhenItIsBack) {
  RunProcess run = Released();
  ASSERT_TRUE(Remount(MS_RDONLY));
  job_.LetGo();
  ASSERT_TRUE(run.WaitFor("the copy stays in RAM, try 2 of 10"));
  EXPECT_SAID(run, "Read-only file system");
  ASSERT_TRUE(Remount(0));
  ExpectDurable(&run);
}

// The first block of the first shard fails; the ranks are not even told to leave by then.
TEST(Failure, AStoreThatFailsBeforeTheReleaseOfAStopThatKillsIsTriedAgain) {
  Job job;
  job.SetEnv("CKPT_FAULT_AT", "engine.write.block=fail");
  RunProcess run = job.Start({"--ranks", "2"}, kTraining);
  ASSERT_TRUE(job.WaitForStep(1, 20));
  run.Signal(SIGTERM);
  EXPECT_EQ(run.Wait(), 75) << run.Output();
  EXPECT_SAID(run, "the copy stays in RAM, try 2 of 10");
  EXPECT_EQ(job.Durable().size(), 1u);
  ExpectGoesOn(&job);
}

// Nothing can be opened any more; what is open stays so.
void LimitDescriptors(pid_t pid, rlim_t most) {
  rlimit limit{};
  ASSERT_EQ(::prlimit(pid, RLIMIT_NOFILE, nullptr, &limit), 0);
  limit.rlim_cur = most != 0 ? most : limit.rlim_max;
  ASSERT_EQ(::prlimit(pid, RLIMIT_NOFILE, &limit, nullptr), 0);
}

// ckpt-run has no descriptor left when it has to write.
TEST(Failure, WithoutDescriptorsTheCopyStaysInRamAndIsWrittenWhenThereAreSome) {
  Job job;
  job.HoldAt("engine.write.create");
  RunProcess run = job.Start({"--ranks", "2"}, kTraining);
  ASSERT_TRUE(job.WaitForStep(1, 20));
  run.Signal(SIGTERM);
  ASSERT_TRUE(run.WaitFor("all ranks are gone"));
  LimitDescriptors(run.pid(), 3);
  job.LetGo();
  ASSERT_TRUE(run.WaitFor("the copy stays in RAM, try 2 of 10"));
  EXPECT_SAID(run, "Too many open files");
  LimitDescriptors(run.pid(), 0);
  EXPECT_EQ(run.Wait(), 75) << run.Output();
  EXPECT_EQ(job.Durable().size(), 1u) << run.Output();
  ExpectGoesOn(&job);
}

TEST(Failure, WithoutDescriptorsStagingMemoryIsHandedOutWhenThereAreSome) {
  Job job;
  job.HoldAt("run.node.slots");
  RunProcess run = job.Start({"--ranks", "2"}, {"100000", "5", "4096"});
  ASSERT_TRUE(run.WaitFor("fault point run.node.slots"));
  LimitDescriptors(run.pid(), 3);
  job.LetGo();
  ASSERT_TRUE(
      run.WaitFor("no save or suspend is possible: staging memory of node 0 cannot be "
                  "handed out: rank 0: "));
  EXPECT_SAID(run, "it is tried again every 2.000 s");
  run.Signal(SIGUSR2);
  ASSERT_TRUE(run.WaitFor("save refused: staging memory of node 0 cannot be handed out"));
  LimitDescriptors(run.pid(), 0);
  run.Signal(SIGTERM);
  EXPECT_EQ(run.Wait(), 75) << run.Output();
  EXPECT_EQ(job.Durable().size(), 1u) << run.Output();
}

// A rank that has none left is stopped and staged all the same: all that takes is mapped by then.
TEST(Failure, ARankWithoutDescriptorsIsStoppedLikeTheOthers) {
  Job job;
  RunProcess run = job.Start({"--ranks", "2"}, With({"--save-at", "10"}));
  ASSERT_TRUE(run.WaitFor("durable: s10.e1.a1"));
  for (const pid_t pid : LivingRanks(job.dir())) {
    LimitDescriptors(pid, 3);
  }
  run.Signal(SIGTERM);
  EXPECT_EQ(run.Wait(), 75) << run.Output();
  EXPECT_EQ(job.Durable().size(), 2u) << run.Output();
  ExpectGoesOn(&job);
}

TEST(Failure, ALaunchWhoseRanksHaveTooFewDescriptorsSaysSoAndConsumesNothing) {
  Job job;
  RunProcess first = job.Start({"--ranks", "2"}, kTraining);
  ASSERT_TRUE(job.WaitForStep(1, 20));
  first.Signal(SIGTERM);
  ASSERT_EQ(first.Wait(), 75) << first.Output();
  std::string command = "ulimit -n 8; exec " CKPT_RANK_PROGRAM " " + job.dir();
  for (const std::string& arg : kTraining) command += " " + arg;
  RunProcess run = job.StartCommand({"--ranks", "2"}, {"bash", "-c", command});
  EXPECT_EQ(run.Wait(), 1) << run.Output();
  EXPECT_SAID(run, "Too many open files");
  EXPECT_TRUE(LivingRanks(job.dir()).empty());
  EXPECT_EQ(job.Durable().size(), 1u);
  ExpectGoesOn(&job);
}

TEST(Failure, WithoutMemoryForStagingTheNumbersAreSaidAndNobodyIsStopped) {
  Job job;
  job.SetEnv("CKPT_FAULT_AT", "os.memory.reserve=fail");
  RunProcess run = job.Start({"--ranks", "2", "--grace", "4"}, {"100000", "5", "4096"});
  ASSERT_TRUE(run.WaitFor("no save or suspend is possible: staging memory on node 0 for 2 ranks"));
  EXPECT_SAID(run, " bytes): rank 0: ");
  EXPECT_SAID(run, " are left of ");
  EXPECT_SAID(run, "; raise that, track less, or run fewer ranks on this node");
  run.Signal(SIGTERM);
  ASSERT_TRUE(run.WaitFor("cannot suspend: staging memory on node 0"));
  EXPECT_EQ(run.Wait(), 1) << run.Output();
  EXPECT_SAID(run, "the gang ends: the deadline is near and staging memory on node 0 for 2 ranks");
}

// Others save, one does not: they hear it as soon as that is certain, and train on.
TEST(Failure, ARankThatSkipsASaveIsNamedAndTheOthersGoOn) {
  Job job;
  RunProcess run = job.Start({"--ranks", "2"}, With({"--save-at", "30", "--save-rank", "0"}));
  ASSERT_TRUE(run.WaitFor("[rank 0] not saved: "));
  EXPECT_SAID(run, "rank 1 did not ask for the save at boundary 30 that other ranks asked for");
  EXPECT_SAID(run, "every rank must save after the same call of step()");
  EXPECT_SAID(run, "save rolled back, training goes on: rank 1");
  run.Signal(SIGTERM);
  EXPECT_EQ(run.Wait(), 75) << run.Output();
  EXPECT_EQ(job.Durable().size(), 1u) << run.Output();
  ExpectGoesOn(&job);
}

// One rank saved and waits for the others; the next one never comes there.
TEST(Failure, ARankThatDoesNotComeToASaveIsNamedBeforeItIsGivenUp) {
  Job job;
  RunProcess run = job.Start({"--ranks", "2", "--grace", "6"},
                             {"1000000", "5", "4096", "--save-at", "30", "--stuck", "20"});
  ASSERT_TRUE(run.WaitFor("the save at boundary 30 is held up: rank 1 is at boundary 19"));
  EXPECT_SAID(run, "it is given up");
  run.Signal(SIGTERM);
  EXPECT_EQ(run.Wait(), 1) << run.Output();
  EXPECT_SAID(run, "missing: rank 1");
  EXPECT_TRUE(LivingRanks(job.dir()).empty());
}

TEST(Failure, ARankThatDoesNotCallTrackIsNamed) {
  Job job;
  RunProcess run = job.Start({"--ranks", "2", "--grace", "4"}, With({"--late-rank", "1", "4000"}));
  ASSERT_TRUE(run.WaitFor("rank 1 has not registered and called track yet, others have"));
  ASSERT_TRUE(run.WaitFor("all ranks have called track: saves and suspends are possible"));
  EXPECT_EQ(run.Wait(), 0) << run.Output();
  ExpectSameTrajectory(job, 2, kTraining);
}

// Memory for one copy only: a stop waits for the save that is being written, and both are durable.
TEST(Failure, WithOneSlotAStopWaitsForTheSaveThatIsWritten) {
  Job job;
  job.HoldAt("engine.write.create");
  const std::vector<std::string> args = {"200", "5", "60000"};
  std::vector<std::string> saving = args;
  saving.insert(saving.end(), {"--save-at", "20"});
  RunProcess run =
      job.Start({"--ranks", "2", "--grace", "60", "--staging-budget", "40MiB"}, saving);
  ASSERT_TRUE(run.WaitFor("fault point engine.write.create"));
  run.Signal(SIGTERM);
  ASSERT_TRUE(run.WaitFor("notice: "));
  job.LetGo();
  EXPECT_EQ(run.Wait(), 75) << run.Output();
  EXPECT_EQ(job.Durable().size(), 2u) << run.Output();
  job.SetEnv("CKPT_FAULT_AT", "");
  RunProcess again = job.Start({"--ranks", "2"}, args);
  EXPECT_EQ(again.Wait(), 0) << again.Output();
  ExpectSameTrajectory(job, 2, args);
}

// The store gives its bytes slowly: nobody takes that for a hang.
TEST(Failure, ASlowRestoreIsWaitedFor) {
  Job job;
  RunProcess first = job.Start({"--ranks", "2"}, kTraining);
  ASSERT_TRUE(job.WaitForStep(1, 20));
  first.Signal(SIGTERM);
  ASSERT_EQ(first.Wait(), 75) << first.Output();
  job.SetEnv("CKPT_FAULT_AT", "engine.load.chunk@1=sleep4000");
  RunProcess run = job.Start({"--ranks", "2"}, kTraining);
  EXPECT_EQ(run.Wait(), 0) << run.Output();
  EXPECT_SAID(run, "all 2 ranks have restored step");
  ExpectSameTrajectory(job, 2, kTraining);
}

TEST(Failure, ACallbackThatThrowsDropsTheSaveForAllAndTrainingGoesOn) {
  Job job;
  RunProcess run = job.Start({"--ranks", "2"}, With({"--throw", "30", "--save-at", "30"}));
  ASSERT_TRUE(run.WaitFor("[rank 0] not saved: "));
  ASSERT_TRUE(run.WaitFor("[rank 1] not saved: "));
  ASSERT_TRUE(run.WaitFor("save rolled back, training goes on: rank 1: "));
  ASSERT_TRUE(job.WaitForStep(1, 40));
  run.Signal(SIGTERM);
  EXPECT_EQ(run.Wait(), 75) << run.Output();
  ASSERT_EQ(job.Durable().size(), 1u) << run.Output();
  ExpectGoesOn(&job);
}

TEST(Failure, ARestoreThatFailsConsumesNothing) {
  Job job;
  RunProcess first = job.Start({"--ranks", "2"}, kTraining);
  ASSERT_TRUE(job.WaitForStep(1, 20));
  first.Signal(SIGTERM);
  ASSERT_EQ(first.Wait(), 75) << first.Output();
  job.SetEnv("CKPT_FAULT_AT", "engine.load.begin@1=fail");
  RunProcess run = job.Start({"--ranks", "2"}, kTraining);
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
  ExpectSameTrajectory(job, 2, kTraining);
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
        kTraining);
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
