// Ranks that the command starts itself, as torchrun does: ckpt-run has one child, and the ranks are
// its children.
#include <gtest/gtest.h>
#include <signal.h>

#include "tests/e2e_run/harness.h"

namespace ckpt::e2e {
namespace {

// Starts "$@" as ranks 0 and 1; ends with 0 if both do, else with 1, whatever their codes.
constexpr const char* kLauncher =
    "RANK=0 LOCAL_RANK=0 \"$@\" & a=$!; RANK=1 LOCAL_RANK=1 \"$@\" & b=$!; "
    "wait $a; x=$?; wait $b; y=$?; [ $x = 0 ] && [ $y = 0 ]";

RunProcess Launch(Job* job, std::vector<std::string> flags, const std::vector<std::string>& args,
                  const std::string& script = kLauncher) {
  flags.insert(flags.begin(), {"--ranks", "2", "--launcher"});
  std::vector<std::string> command = {"sh",      "-c", script, "launcher", CKPT_RANK_PROGRAM,
                                      job->dir()};
  command.insert(command.end(), args.begin(), args.end());
  return job->StartCommand(std::move(flags), std::move(command));
}

TEST(Launcher, SigtermToOneRankSuspendsAllAndTheyGoOn) {
  Job job;
  RunProcess run = Launch(&job, {}, kTraining);
  ASSERT_TRUE(job.WaitForStep(0, 10));
  ASSERT_TRUE(job.WaitForStep(1, 10));
  const std::vector<pid_t> ranks = LivingRanks(job.dir());
  ASSERT_FALSE(ranks.empty());
  ::kill(ranks.back(), SIGTERM);
  EXPECT_EQ(run.Wait(), 75) << run.Output();
  EXPECT_TRUE(LivingRanks(job.dir()).empty());
  EXPECT_EQ(job.Trajectory(0).rbegin()->first, job.Trajectory(1).rbegin()->first)
      << "all stop at one step";
  ASSERT_EQ(job.Durable().size(), 1u) << run.Output();
  RunProcess again = Launch(&job, {}, kRest);
  EXPECT_EQ(again.Wait(), 0) << again.Output();
  ExpectSameTrajectory(job, 2, kTraining);
}

TEST(Launcher, ARankThatDiesEndsTheOthersAndCkptRunStartsThemAgain) {
  Job job;
  const std::vector<std::string> args = {"150", "5", "4096"};
  std::vector<std::string> crashing = args;
  crashing.insert(crashing.end(), {"--save-at", "40", "--crash-at", "70"});
  RunProcess run = Launch(&job, {"--restarts", "1"}, crashing);
  EXPECT_EQ(run.Wait(), 0) << run.Output();
  const std::string output = run.Output();
  EXPECT_NE(output.find("rank 1 ended without having finished"), std::string::npos) << output;
  EXPECT_NE(output.find("restarting (1 of 1)"), std::string::npos) << output;
  EXPECT_NE(output.find("restored step 40"), std::string::npos) << output;
  ExpectSameTrajectory(job, 2, args);
}

TEST(Launcher, ARankThatItsLauncherStartsAgainIsRefused) {
  Job job;
  const std::string again = std::string(kLauncher) + " || RANK=1 LOCAL_RANK=1 \"$@\"";
  // The first ranks leave with 75; what is started after them would undo the suspend.
  RunProcess run = Launch(&job, {}, {"100000", "5", "64"}, again);
  ASSERT_TRUE(job.WaitForStep(0, 5));
  ASSERT_TRUE(job.WaitForStep(1, 5));
  run.Signal(SIGTERM);
  EXPECT_EQ(run.Wait(), 75) << run.Output();
  EXPECT_NE(run.Output().find("rank 1 was started a second time in one launch"), std::string::npos)
      << run.Output();
  EXPECT_EQ(job.Durable().size(), 1u);
}

}  // namespace
}  // namespace ckpt::e2e
