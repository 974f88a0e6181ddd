// Gangs whose tensors live on a CUDA device: here the double, found by the loader in the place of a
// driver.
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdlib>

#include "tests/e2e_run/harness.h"

namespace ckpt::e2e {
namespace {

class Cuda : public ::testing::Test {
 protected:
  // CKPT_REAL_CUDA: over the machine's own driver (./run gpu).
  void SetUp() override {
    if (std::getenv("CKPT_REAL_CUDA") == nullptr)
      job_.SetEnv("LD_LIBRARY_PATH", CKPT_FAKECUDA_FOLDER);
  }
  void ExpectAsOnTheHost(int ranks = 2) {
    for (const char* name : {"CKPT_FAKECUDA_FAIL", "CKPT_FAKECUDA_UPLOAD_US", "CKPT_FAULT_AT"})
      job_.SetEnv(name, "");
    RunProcess again =
        job_.Start({"--ranks", std::to_string(ranks)}, {"600", "1", "4096", "--cuda"});
    EXPECT_EQ(again.Wait(), 0) << again.Output();
    ExpectSameTrajectory(job_, ranks, kTraining);
  }

  Job job_;
};

// Each upload takes effect 20 ms after it was enqueued, on a stream that only the program knows: a
// copy that is not ordered after it would hold the step before.
TEST_F(Cuda, StoppedMidUploadWhatIsStagedIsTheStepThatWasCut) {
  job_.SetEnv("CKPT_FAKECUDA_UPLOAD_US", "20000");
  for (const long step : {15, 40}) {
    RunProcess run = job_.Start({"--ranks", "2"}, With({"--cuda"}));
    ASSERT_TRUE(job_.WaitForStep(1, step));
    run.Signal(SIGTERM);
    EXPECT_EQ(run.Wait(), 75) << run.Output();
  }
  ExpectAsOnTheHost();
}

TEST_F(Cuda, SavedKilledAndRestored) {
  RunProcess run = job_.Start({"--ranks", "2", "--restarts", "1"},
                              With({"--cuda", "--save-at", "20", "--crash-at", "40"}));
  EXPECT_EQ(run.Wait(), 0) << run.Output();
  EXPECT_SAID(run, "rank 1 was killed by signal 9");
  ExpectSameTrajectory(job_, 2, kTraining);
}

// The stop is tried again; training goes on meanwhile, and nothing is lost.
TEST_F(Cuda, ACallThatFailsOnceWhileItIsStagedIsTriedAgain) {
  for (const char* call : {"cuMemcpyDtoHAsync_v2", "cuStreamWaitEvent", "cuEventRecord"}) {
    job_.Reset();
    job_.SetEnv("CKPT_FAKECUDA_FAIL", std::string(call) + ":1:2");  // out of memory
    RunProcess run = job_.Start({"--ranks", "1"}, With({"--cuda"}));
    ASSERT_TRUE(job_.WaitForStep(0, 20));
    run.Signal(SIGTERM);
    EXPECT_EQ(run.Wait(), 75) << call << run.Output();
    EXPECT_SAID(run, std::string(call) + ": CUDA_ERROR_OUT_OF_MEMORY");
    EXPECT_SAID(run, "this try to stop failed");
    EXPECT_EQ(job_.Durable().size(), 1u) << run.Output();
    ExpectAsOnTheHost(1);
  }
}

TEST_F(Cuda, WithoutADriverTheTensorIsNamedAndWhatIsMissing) {
  job_.SetEnv("CKPT_FAKECUDA_DEVICES", "0");
  RunProcess run = job_.Start({"--ranks", "1"}, {"10", "1", "64", "--cuda"});
  EXPECT_EQ(run.Wait(), 1) << run.Output();
  EXPECT_SAID(run, "cuInit: 100");
}

}  // namespace
}  // namespace ckpt::e2e
