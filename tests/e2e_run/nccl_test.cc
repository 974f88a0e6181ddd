// Gangs that sum over NCCL at every step, suspended and resumed: their communicators, splits and
// registered buffers come back. Here over the doubles, each process with a device of its own.
#include <gtest/gtest.h>
#include <signal.h>

#include <map>

#include "tests/e2e_run/harness.h"

namespace ckpt::e2e {
namespace {

const std::vector<std::string> kNccl = {"200", "5", "4096", "--cuda", "--nccl"};

class Nccl : public ::testing::Test {
 protected:
  void SetUp() override {
    job_.SetEnv("LD_LIBRARY_PATH", std::string(CKPT_FAKECUDA_FOLDER) + ":" + CKPT_FAKENCCL_FOLDER);
  }
  void ExpectComplete(int ranks) {
    for (const char* name : {"CKPT_FAKENCCL_FAIL", "CKPT_FAULT_AT"}) job_.SetEnv(name, "");
    RunProcess again = job_.Start({"--ranks", std::to_string(ranks)}, kNccl);
    EXPECT_EQ(again.Wait(), 0) << again.Output();
    ExpectSameTrajectory(job_, ranks, {"200", "5", "4096"});
  }
  // A SIGTERM once the last of `ranks` has come some way.
  void ExpectStops(RunProcess* run, int ranks, int code) {
    ASSERT_TRUE(job_.WaitForStep(ranks - 1, 20)) << run->Output();
    run->Signal(SIGTERM);
    EXPECT_EQ(run->Wait(), code) << run->Output();
  }
  // The gang of two has ended at the copy of its stop, and nothing is lost.
  void ExpectCopyStands(const RunProcess& run) {
    EXPECT_SAID(run, "stands");
    EXPECT_EQ(job_.Durable().size(), 1u) << run.Output();
    ExpectComplete(2);
  }

  Job job_;
};

TEST_F(Nccl, SuspendedAndResumedWithTwoToEightRanks) {
  for (const int ranks : {2, 3, 4, 8}) {
    SCOPED_TRACE(ranks);
    job_.Reset();
    RunProcess run = job_.Start({"--ranks", std::to_string(ranks)}, kNccl);
    ExpectStops(&run, ranks, 75);
    EXPECT_EQ(job_.Durable().size(), 1u) << run.Output();
    EXPECT_EQ(run.Output().find("aborted instead"), std::string::npos) << run.Output();
    ExpectComplete(ranks);
  }
}

// The others wait on their streams for one that is gone; nobody hangs, and what was saved loads.
TEST_F(Nccl, ARankThatIsKilledTakesNoOtherWithItForEver) {
  RunProcess run = job_.Start({"--ranks", "3", "--restarts", "1"}, [&] {
    std::vector<std::string> all = kNccl;
    all.insert(all.end(), {"--save-at", "20", "--crash-at", "40"});
    return all;
  }());
  EXPECT_EQ(run.Wait(), 0) << run.Output();
  EXPECT_SAID(run, "rank 1 was killed by signal 9");
  ExpectSameTrajectory(job_, 3, {"200", "5", "4096"});
}

// All are down when the store refuses: they are built again in the living processes.
TEST_F(Nccl, AStopThatIsTakenBackBuildsThemAgainAndTheNextTryStops) {
  job_.SetEnv("CKPT_FAULT_AT", "store.draining.after_mark=fail");
  RunProcess run = job_.Start({"--ranks", "3"}, kNccl);
  ExpectStops(&run, 3, 75);
  EXPECT_SAID(run, "this try to stop failed");
  ExpectComplete(3);
}

TEST_F(Nccl, ARebuildThatFailsEndsTheGangAtTheCopyOfThatStop) {
  job_.SetEnv("CKPT_FAULT_AT", "store.draining.after_mark=fail");
  job_.SetEnv("CKPT_FAKENCCL_FAIL", "ncclCommInitRankConfig:2:2");
  RunProcess run = job_.Start({"--ranks", "2"}, kNccl);
  ExpectStops(&run, 2, 1);
  EXPECT_SAID(run, "ncclCommInitRankConfig");
  ExpectCopyStands(run);
}

// It is in the reports before anybody asks for a stop. One that comes all the same loses nothing:
// the copy is complete when the communicators refuse, and the gang ends at it.
TEST_F(Nccl, AGraphThatHoldsTheWorldIsReportedAndAtAStopTheCopyStands) {
  std::vector<std::string> arguments = kNccl;
  arguments.insert(arguments.end(), {"--graph", "100"});
  RunProcess run = job_.Start({"--ranks", "2"}, arguments);
  ASSERT_TRUE(job_.WaitForStep(1, 20)) << run.Output();
  EXPECT_SAID(run,
              R"({"method":"suspend","yes":false,"reason":"rank 1: communicator 'world': cap)");
  EXPECT_SAID(run,
              R"({"check":"graphs","verdict":"no","reason":"rank 1: communicator 'world': cap)");
  EXPECT_SAID(run, R"({"check":"mig","verdict":"yes","reason":"a whole GPU"})");
  ExpectStops(&run, 2, 1);
  EXPECT_SAID(run, "captured graph 'the step' holds it");
  ExpectCopyStands(run);
}

TEST_F(Nccl, AGraphThatIsGoneByThenKeepsNothing) {
  std::vector<std::string> arguments = kNccl;
  arguments.insert(arguments.end(), {"--graph", "10"});
  RunProcess run = job_.Start({"--ranks", "2"}, arguments);
  ExpectStops(&run, 2, 75);
  ExpectComplete(2);
}

TEST_F(Nccl, WhereADeviceCannotBeUsedTheReasonIsNamed) {
  const std::map<std::string, std::string> reasons = {
      {"CKPT_FAKECUDA_MIG", "mig: FAKE CUDA device in software (no GPU) MIG 1g.5gb"},
      {"CKPT_FAKECUDA_COMPUTE_MODE", "compute mode: prohibited"}};
  for (const auto& [name, reason] : reasons) {
    job_.SetEnv(name, "2");
    RunProcess run = job_.Start({"--ranks", "2"}, kNccl);
    EXPECT_EQ(run.Wait(), 1) << run.Output();
    EXPECT_SAID(run, reason);
    job_.SetEnv(name, "");
  }
}

// Finalize that fails is followed by abort, and the suspend goes through.
TEST_F(Nccl, AFinalizeThatFailsIsAbortedAndTheSuspendGoesThrough) {
  for (const char* how : {"ncclCommFinalize:1:2", "ncclCommFinalize.async:1:2:sticky"}) {
    SCOPED_TRACE(how);
    job_.Reset();
    job_.SetEnv("CKPT_FAKENCCL_FAIL", how);
    RunProcess run = job_.Start({"--ranks", "2"}, kNccl);
    ExpectStops(&run, 2, 75);
    EXPECT_SAID(run, "aborted instead");
    ExpectComplete(2);
  }
}

// What cannot be destroyed, or hangs there, costs the process and no step.
TEST_F(Nccl, ADestroyThatFailsOrHangsEndsTheGangAtTheCopyOfThatStop) {
  for (const char* how : {"ncclCommDestroy:1:2:sticky", "ncclCommDestroy:1:-1"}) {
    SCOPED_TRACE(how);
    job_.Reset();
    job_.SetEnv("CKPT_FAKENCCL_FAIL", how);
    RunProcess run = job_.Start({"--ranks", "2"}, kNccl);
    ExpectStops(&run, 2, 1);
    EXPECT_SAID(run, "communicator 'parity': ncclCommDestroy");
    EXPECT_SAID(run, "lost: 0 steps");
    ExpectCopyStands(run);
  }
}

TEST_F(Nccl, WhatFailsWhileItIsBuiltIsNamed) {
  for (const char* call :
       {"ncclGetUniqueId", "ncclCommInitRankConfig", "ncclCommInitRankConfig.async",
        "ncclCommSplit", "ncclCommRegister", "ncclAllGather"}) {
    SCOPED_TRACE(call);
    job_.Reset();
    job_.SetEnv("CKPT_FAKENCCL_FAIL", std::string(call) + ":1:2:sticky");
    RunProcess run = job_.Start({"--ranks", "2"}, kNccl);
    EXPECT_EQ(run.Wait(), 1) << run.Output();
    EXPECT_SAID(run, std::string(call).substr(0, std::string(call).find('.')));
    EXPECT_SAID(run, "communicator 'world'");
  }
}

TEST_F(Nccl, WithoutNcclWhatIsMissingIsNamed) {
  job_.SetEnv("LD_LIBRARY_PATH", CKPT_FAKECUDA_FOLDER);
  RunProcess run = job_.Start({"--ranks", "1"}, kNccl);
  if (run.Wait() == 0) GTEST_SKIP() << "SKIPPED: this machine has an NCCL of its own";
  EXPECT_SAID(run, "libnccl.so.2");
}

}  // namespace
}  // namespace ckpt::e2e
