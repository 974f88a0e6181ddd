// Deaths: of a rank, of ckpt-run while it drains, of a checkpoint.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "tests/e2e_run/harness.h"

namespace ckpt::e2e {
namespace {

TEST(Crash, AKilledRankIsRestartedFromTheNewestSave) {
  Job job;
  const std::vector<std::string> args = {"400", "5", "4096"};
  std::vector<std::string> crashing = args;
  crashing.insert(crashing.end(), {"--save-at", "40", "--crash-at", "70"});
  RunProcess run = job.Start({"--ranks", "2", "--restarts", "1"}, crashing);
  EXPECT_EQ(run.Wait(), 0) << run.Output();
  const std::string output = run.Output();
  EXPECT_NE(output.find("rank 1 was killed by signal 9"), std::string::npos) << output;
  EXPECT_NE(output.find("restarting (1 of 1)"), std::string::npos) << output;
  EXPECT_NE(output.find("epoch 2: 2 ranks, resuming from"), std::string::npos) << output;
  EXPECT_NE(output.find("restored step 40"), std::string::npos) << output;
  ExpectSameTrajectory(job, 2, args);
}

TEST(Crash, WithoutRestartsItIsAFailureAndNothingRunsOn) {
  Job job;
  RunProcess run = job.Start({"--ranks", "2"}, {"100000", "5", "64", "--crash-at", "20"});
  EXPECT_EQ(run.Wait(), 1) << run.Output();
  EXPECT_NE(run.Output().find("rank 1 was killed by signal 9"), std::string::npos) << run.Output();
  EXPECT_TRUE(LivingRanks(job.dir()).empty());
}

TEST(Crash, CkptRunDiesWhileItDrains) {
  Job job;
  // 24 MiB of state, so that the drain takes a while.
  const std::vector<std::string> args = {"200", "10", "2000000"};
  RunProcess run = job.Start({"--ranks", "2", "--save-every", "10"}, args);
  ASSERT_TRUE(run.WaitFor("durable: s10.e1.a1"));
  run.Signal(SIGTERM);
  ASSERT_TRUE(run.WaitFor("all ranks are gone"));
  run.Signal(SIGKILL);
  run.Wait();
  const std::vector<std::string> before = job.Durable();
  ASSERT_FALSE(before.empty());

  RunProcess again = job.Start({"--ranks", "2"}, args);
  ASSERT_TRUE(again.WaitFor("ranks have restored step"));
  const std::string output = again.Output();
  // The suspend's own copy if its commit was faster than the kill, else the last durable one.
  EXPECT_NE(output.find(", " + before[0]), std::string::npos) << output;
  again.Signal(SIGTERM);
  EXPECT_EQ(again.Wait(), 75) << again.Output();
  for (int rank = 0; rank < 2; ++rank) job.Trajectory(rank);  // recomputed steps came out the same
}

// Flips one byte of the largest file of a checkpoint.
void Damage(const std::string& checkpoint) {
  std::filesystem::path largest;
  uintmax_t bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(checkpoint)) {
    if (!entry.is_regular_file() || entry.file_size() < bytes) continue;
    bytes = entry.file_size();
    largest = entry.path();
  }
  ASSERT_GT(bytes, 0u);
  std::fstream file(largest, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(bytes - 1));
  const int byte = file.get();
  file.seekp(static_cast<std::streamoff>(bytes - 1));
  file.put(static_cast<char>(byte ^ 1));
}

TEST(Crash, ADamagedNewestCheckpointIsSkippedWithAMessage) {
  Job job;
  const std::vector<std::string> args = {"400", "5", "4096"};
  std::vector<std::string> saving = args;
  saving.insert(saving.end(), {"--save-at", "30"});
  RunProcess run = job.Start({"--ranks", "2"}, saving);
  ASSERT_TRUE(run.WaitFor("durable: s30.e1.a1"));
  ASSERT_TRUE(job.WaitForStep(0, 60));
  run.Signal(SIGTERM);
  ASSERT_EQ(run.Wait(), 75) << run.Output();
  const std::vector<std::string> durable = job.Durable();
  ASSERT_EQ(durable.size(), 2u);
  Damage(job.store() + "/" + durable[0]);

  RunProcess again = job.Start({"--ranks", "2"}, args);
  EXPECT_EQ(again.Wait(), 0) << again.Output();
  const std::string output = again.Output();
  EXPECT_NE(output.find("could not load " + durable[0]), std::string::npos) << output;
  EXPECT_NE(output.find(", s30.e1.a1"), std::string::npos) << output;
  ExpectSameTrajectory(job, 2, args);
}

TEST(Crash, AllDamagedIsAnErrorAndNoStartFromTheBeginning) {
  Job job;
  const std::vector<std::string> args = {"100000", "5", "4096"};
  RunProcess run = job.Start({"--ranks", "2"}, args);
  ASSERT_TRUE(job.WaitForStep(0, 10));
  run.Signal(SIGTERM);
  ASSERT_EQ(run.Wait(), 75) << run.Output();
  Damage(job.store() + "/" + job.Durable()[0]);
  RunProcess again = job.Start({"--ranks", "2"}, args);
  EXPECT_EQ(again.Wait(), 1) << again.Output();
  EXPECT_NE(again.Output().find("none of them is whole"), std::string::npos) << again.Output();
}

}  // namespace
}  // namespace ckpt::e2e
