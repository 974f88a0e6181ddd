// Bad input and small means: a clear error before anything is stopped or started.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "libckpt/os/socket.h"
#include "tests/e2e_run/harness.h"

namespace ckpt::e2e {
namespace {

TEST(Input, PlainProgramsPassTheirExitCodes) {
  Job job;
  RunProcess good =
      job.StartCommand({"--ranks", "2"}, {"sh", "-c", "echo rank $RANK of $WORLD_SIZE"});
  EXPECT_EQ(good.Wait(), 0) << good.Output();
  EXPECT_NE(good.Output().find("[rank 1] rank 1 of 2"), std::string::npos) << good.Output();
  RunProcess bad = job.StartCommand({"--ranks", "2"}, {"sh", "-c", "test $RANK = 0"});
  EXPECT_EQ(bad.Wait(), 1) << bad.Output();
  EXPECT_NE(bad.Output().find("rank 1 ended with exit code 1"), std::string::npos) << bad.Output();
}

TEST(Input, ErrorsBeforeAnythingStarts) {
  Job job;
  RunProcess missing = job.StartCommand({}, {"no-such-program-xyz"});
  EXPECT_EQ(missing.Wait(), 1);
  EXPECT_NE(missing.Output().find("no-such-program-xyz"), std::string::npos);

  RunProcess flag = job.StartCommand({"--ranks", "many"}, {"true"});
  EXPECT_EQ(flag.Wait(), 2) << flag.Output();

  RunProcess store = job.StartCommand({"--store", "/proc/nowhere"}, {"true"});
  EXPECT_EQ(store.Wait(), 1) << store.Output();
  EXPECT_NE(store.Output().find("/proc/nowhere"), std::string::npos) << store.Output();
}

TEST(Input, ARendezvousPortInUse) {
  Job job;
  Result<os::UniqueFd> taken = os::ListenTcp({"127.0.0.1", 0});
  ASSERT_TRUE(taken.ok());
  Result<os::HostPort> at = os::LocalAddress(taken->get());
  ASSERT_TRUE(at.ok());
  RunProcess run = job.StartCommand({"--nnodes", "2", "--rendezvous", at->ToString()}, {"true"});
  EXPECT_EQ(run.Wait(), 1) << run.Output();
  EXPECT_NE(run.Output().find("in use"), std::string::npos) << run.Output();
}

TEST(Input, ANodeThatDoesNotComeIsNamed) {
  Job job;
  Result<uint16_t> port = os::PickFreePort("127.0.0.1");
  ASSERT_TRUE(port.ok());
  const std::string at = "127.0.0.1:" + std::to_string(*port);
  RunProcess leader =
      job.StartCommand({"--nnodes", "2", "--rendezvous", at, "--join-timeout", "1"}, {"true"});
  EXPECT_EQ(leader.Wait(), 1) << leader.Output();
  EXPECT_NE(leader.Output().find("missing: node 1"), std::string::npos) << leader.Output();
  RunProcess member = job.StartCommand(
      {"--nnodes", "2", "--node-rank", "1", "--rendezvous", at, "--join-timeout", "1"}, {"true"});
  EXPECT_EQ(member.Wait(), 1) << member.Output();
  EXPECT_NE(member.Output().find("was not reached"), std::string::npos) << member.Output();
}

TEST(Input, ASignalWhileNodeZeroIsNotThereEndsTheWait) {
  Job job;
  Result<uint16_t> port = os::PickFreePort("127.0.0.1");
  ASSERT_TRUE(port.ok());
  RunProcess run = job.Start({"--nnodes", "2", "--node-rank", "1", "--rendezvous",
                              "127.0.0.1:" + std::to_string(*port), "--join-timeout", "600"},
                             {"10", "1", "64"});
  ASSERT_TRUE(run.WaitFor("waiting for node 0 of the gang"));
  run.Signal(SIGTERM);
  EXPECT_EQ(run.Wait(), 75) << run.Output();
  EXPECT_NE(run.Output().find("SIGTERM came before node 0 of the gang was reached"),
            std::string::npos)
      << run.Output();
}

TEST(Input, AStagingBudgetTooSmallRefusesBeforeAnythingIsStopped) {
  Job job;
  RunProcess run = job.Start({"--ranks", "2", "--staging-budget", "1MiB", "--grace", "8"},
                             {"100000", "5", "400000"});
  ASSERT_TRUE(run.WaitFor("no save or suspend is possible"));
  EXPECT_NE(run.Output().find("staging budget 1.0 MiB"), std::string::npos) << run.Output();
  ASSERT_TRUE(job.WaitForStep(0, 5));
  run.Signal(SIGTERM);
  ASSERT_TRUE(run.WaitFor("cannot suspend: "));
  const long at = job.Trajectory(0).rbegin()->first;
  EXPECT_TRUE(job.WaitForStep(0, at + 3)) << "it trains on until the deadline";
  EXPECT_EQ(run.Wait(), 1) << run.Output();
  EXPECT_TRUE(job.Durable().empty());
  EXPECT_TRUE(LivingRanks(job.dir()).empty());
}

TEST(Input, AProgramWithoutTheLibraryGetsTheSignal) {
  Job job;
  RunProcess run = job.StartCommand({"--grace", "4"}, {"sleep", "1000"});
  ASSERT_TRUE(run.WaitFor("epoch 1"));
  run.Signal(SIGTERM);
  EXPECT_EQ(run.Wait(), 1) << run.Output();
  EXPECT_NE(run.Output().find("passing SIGTERM on"), std::string::npos) << run.Output();
}

// What keeps ranks from being started ends it at once, with what to do.
TEST(Input, AFolderTooDeepForASocketEndsItWithTheReason) {
  Job job;
  const std::string deep = job.dir() + "/" + std::string(150, 'x');
  std::filesystem::create_directories(deep);
  job.SetEnv("XDG_RUNTIME_DIR", deep);
  RunProcess run = job.StartCommand({}, {"sleep", "60"});
  EXPECT_EQ(run.Wait(30), 1) << run.Output();
  EXPECT_SAID(run, "choose a shorter directory");
}

TEST(Input, WithTooFewDescriptorsItEndsAndSaysSo) {
  for (const char* most : {"10", "12", "13", "16"}) {
    Job job;
    RunProcess run = job.StartCommand({}, {"true"});
    EXPECT_EQ(run.Wait(), 0) << run.Output();
    const std::string limited = std::string("ulimit -n ") + most + "; exec " +
                                std::string(CKPT_RUN_PROGRAM) + " --job t --store " + job.store() +
                                " -- true";
    const int status =
        std::system(("sh -c '" + limited + "' >" + job.dir() + "/said 2>&1").c_str());
    ASSERT_TRUE(WIFEXITED(status)) << most << ": it was killed by " << WTERMSIG(status);
    std::ifstream said(job.dir() + "/said");
    const std::string text((std::istreambuf_iterator<char>(said)), {});
    if (WEXITSTATUS(status) != 0) {
      EXPECT_NE(text.find("Too many open files"), std::string::npos) << most << ": " << text;
    }
  }
}

TEST(Input, RankOutputGoesToFilesByEpoch) {
  Job job;
  const std::string logs = job.dir() + "/logs";
  RunProcess run =
      job.StartCommand({"--ranks", "2", "--log-dir", logs}, {"sh", "-c", "echo $RANK"});
  EXPECT_EQ(run.Wait(), 0) << run.Output();
  EXPECT_EQ(::access((logs + "/e1/rank1.log").c_str(), R_OK), 0);
  EXPECT_EQ(run.Output().find("[rank"), std::string::npos);
}

TEST(Input, WhatRanksLeaveBehindIsEnded) {
  Job job;
  RunProcess run = job.StartCommand({}, {"sh", "-c", "setsid sleep 987654 & exit 0"});
  EXPECT_EQ(run.Wait(), 0) << run.Output();
  EXPECT_NE(run.Output().find("killing what the ranks left behind: sleep"), std::string::npos)
      << run.Output();
}

}  // namespace
}  // namespace ckpt::e2e
