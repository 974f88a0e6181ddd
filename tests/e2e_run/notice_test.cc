// Notices, whoever gives them and whenever they come: answered at once, merged, withdrawn, obeyed
// at one boundary, and the loss said where they cannot be.
#include <gtest/gtest.h>
#include <signal.h>

#include "ckpt/v1/agent.pb.h"
#include "libckpt/os/socket.h"
#include "tests/e2e_run/harness.h"
#include "tests/e2e_run/mini_agent.h"

namespace ckpt::e2e {
namespace {

void ExpectSuspendedAndGoesOn(Job* job, RunProcess* run) {
  EXPECT_EQ(run->Wait(), 75) << run->Output();
  EXPECT_EQ(LastStep(*job, 0), LastStep(*job, 1)) << run->Output();
  EXPECT_TRUE(LivingRanks(job->dir()).empty());
  ASSERT_EQ(job->Durable().size(), 1u) << run->Output();
  job->SetEnv("CKPT_FAULT_AT", "");
  RunProcess again = job->Start({"--ranks", "2"}, kRest);
  EXPECT_EQ(again.Wait(), 0) << again.Output();
  ExpectSameTrajectory(*job, 2, kTraining);
}

TEST(Notice, APhaseThatFitsIsWaitedFor) {
  Job job;
  RunProcess run =
      job.Start({"--ranks", "2", "--grace", "60"}, With({"--phase", "30", "3000", "3000", "1"}));
  ASSERT_TRUE(job.WaitForStep(1, 30));
  run.Signal(SIGUSR1);
  ASSERT_TRUE(run.WaitFor("rank 1 is in evaluation for another"));
  EXPECT_SAID(run, "the notice is kept");
  ExpectSuspendedAndGoesOn(&job, &run);
}

TEST(Notice, APhaseThatIsTooLongIsSaidAtOnceAndTheLossIsBooked) {
  Job job;
  RunProcess run = job.Start({"--ranks", "2", "--grace", "8"},
                             With({"--save-at", "20", "--phase", "30", "600000", "500000", "1"}));
  ASSERT_TRUE(run.WaitFor("durable: s20.e1.a1"));
  ASSERT_TRUE(job.WaitForStep(1, 30));
  run.Signal(SIGTERM);
  ASSERT_TRUE(run.WaitFor("the notice is too short: rank 1 is in evaluation for another"));
  EXPECT_TRUE(run.Running()) << "said when the notice comes, not when it is too late";
  EXPECT_SAID(run, "and resume from the copy of step 20 (attempt 1)");
  EXPECT_EQ(run.Wait(), 1) << run.Output();
  EXPECT_SAID(run, "lost: ");
  EXPECT_SAID(run, "s20.e1.a1 stands");
  EXPECT_TRUE(LivingRanks(job.dir()).empty());
  RunProcess again = job.Start({"--ranks", "2"}, kRest);
  EXPECT_EQ(again.Wait(), 0) << again.Output();
  EXPECT_SAID(again, "s20.e1.a1");
  ExpectSameTrajectory(job, 2, kTraining);
}

TEST(Notice, APhaseOfUnknownLengthIsWaitedForUntilTheKill) {
  Job job;
  RunProcess run =
      job.Start({"--ranks", "2", "--grace", "60"}, With({"--phase", "30", "2500", "0", "0"}));
  ASSERT_TRUE(job.WaitForStep(0, 30));
  run.Signal(SIGTERM);
  ASSERT_TRUE(run.WaitFor("rank 0 is in evaluation for an unknown time"));
  ExpectSuspendedAndGoesOn(&job, &run);
}

TEST(Notice, BeforeAnyRankHasRegistered) {
  Job job;
  RunProcess run = job.Start({"--ranks", "2", "--grace", "60"}, With({"--late", "2000"}));
  ASSERT_TRUE(run.WaitFor("epoch 1"));
  run.Signal(SIGTERM);
  ASSERT_TRUE(run.WaitFor("have not registered and called track yet: the notice is kept"));
  ExpectSuspendedAndGoesOn(&job, &run);
}

TEST(Notice, DuringARestore) {
  Job job;
  RunProcess first = job.Start({"--ranks", "2"}, kTraining);
  ASSERT_TRUE(job.WaitForStep(1, 20));
  first.Signal(SIGTERM);
  ASSERT_EQ(first.Wait(), 75) << first.Output();
  job.HoldAt("engine.load.begin@1");
  RunProcess run = job.Start({"--ranks", "2", "--grace", "60"}, kTraining);
  ASSERT_TRUE(run.WaitFor("fault point engine.load.begin"));
  run.Signal(SIGTERM);
  ASSERT_TRUE(run.WaitFor("notice: "));
  job.LetGo();
  EXPECT_EQ(run.Wait(), 75) << run.Output();
  job.SetEnv("CKPT_FAULT_AT", "");
  RunProcess again = job.Start({"--ranks", "2"}, kRest);
  EXPECT_EQ(again.Wait(), 0) << again.Output();
  ExpectSameTrajectory(job, 2, kTraining);
}

TEST(Notice, DuringASave) {
  Job job;
  job.HoldAt("engine.capture.copy@1");
  RunProcess run = job.Start({"--ranks", "2", "--grace", "60"}, With({"--save-at", "20"}));
  ASSERT_TRUE(run.WaitFor("fault point engine.capture.copy"));
  run.Signal(SIGTERM);
  ASSERT_TRUE(run.WaitFor("notice: "));
  job.LetGo();
  EXPECT_EQ(run.Wait(), 75) << run.Output();
  EXPECT_EQ(LastStep(job, 0), LastStep(job, 1));
  EXPECT_EQ(job.Durable().size(), 2u) << "the save as well as the stop: " << run.Output();
  job.SetEnv("CKPT_FAULT_AT", "");
  RunProcess again = job.Start({"--ranks", "2"}, kRest);
  EXPECT_EQ(again.Wait(), 0) << again.Output();
  ExpectSameTrajectory(job, 2, kTraining);
}

// A launcher that grants long must not kill early: staging takes longer than any layer's default.
TEST(Notice, ALongGraceReachesTheRanks) {
  Job job;
  job.SetEnv("CKPT_FAULT_AT", "engine.capture.copy@1=sleep13000");
  RunProcess run = job.Start({"--ranks", "2", "--grace", "90"}, kTraining);
  ASSERT_TRUE(job.WaitForStep(1, 20));
  run.Signal(SIGTERM);
  ExpectSuspendedAndGoesOn(&job, &run);
}

TEST(Notice, InTheLastStepFinishedWins) {
  Job job;
  RunProcess run = job.Start({"--ranks", "2"}, With({"--linger", "1500"}));
  ASSERT_TRUE(run.WaitFor("lingering"));
  run.Signal(SIGTERM);
  EXPECT_EQ(run.Wait(), 0) << run.Output();
  ExpectSameTrajectory(job, 2, kTraining);
}

TEST(Notice, ExitCode0WithoutAnAnswerIsNotFinished) {
  Job job;
  RunProcess run = job.StartCommand(
      {"--grace", "6"}, {"sh", "-c", "trap 'exit 0' TERM; while true; do sleep 0.1; done"});
  ASSERT_TRUE(run.WaitFor("epoch 1"));
  run.Signal(SIGTERM);
  EXPECT_EQ(run.Wait(), 1) << run.Output();
  EXPECT_SAID(run, "without having finished");
}

TEST(Notice, ACrashAfterItIsACrash) {
  Job job;
  RunProcess run =
      job.Start({"--ranks", "2", "--grace", "60"}, With({"--phase", "30", "600000", "5000", "1"}));
  ASSERT_TRUE(job.WaitForStep(1, 30));
  run.Signal(SIGTERM);
  ASSERT_TRUE(run.WaitFor("the notice is kept"));
  for (const pid_t pid : LivingRanks(job.dir())) ::kill(pid, SIGSEGV);
  EXPECT_EQ(run.Wait(), 1) << run.Output();
  EXPECT_SAID(run, "killed by signal 11");
  EXPECT_SAID(run, "the job begins anew");
  EXPECT_TRUE(job.Durable().empty());
}

// A rank that waits at the cut for one that never comes.
TEST(Notice, ARankThatNeverCallsStepIsNamedAndTheGangEndsInTime) {
  Job job;
  RunProcess run =
      job.Start({"--ranks", "2", "--grace", "6"}, {"1000000", "5", "4096", "--stuck", "30"});
  ASSERT_TRUE(job.WaitForStep(1, 30));
  run.Signal(SIGTERM);
  EXPECT_EQ(run.Wait(), 1) << run.Output();
  EXPECT_SAID(run, "the notice is too short: rank 1 is not at a boundary");
  EXPECT_SAID(run, "a longer grace, or a save before such a phase, loses less");
  EXPECT_SAID(run, "the gang ends: the deadline is near and rank 1 had not been released");
  EXPECT_SAID(run, "lost: ");
  EXPECT_TRUE(LivingRanks(job.dir()).empty());
}

// ---- an operator's and a scheduler's, by the agent

class AgentNotice : public testing::Test {
 protected:
  AgentNotice() : agent_(job_.dir() + "/agent.sock") { job_.SetEnv("CKPT_AGENT", agent_.socket()); }
  v1::Stop Stop(uint64_t operation, const std::string& source, int64_t deadline_ms) {
    v1::Stop stop;
    stop.set_job("t");
    stop.set_op_id(operation);
    stop.set_kind(v1::STOP_SUSPEND);
    stop.set_source(source);
    stop.set_deadline_ms(deadline_ms);
    return stop;
  }
  void Send(const v1::Stop& stop) {
    v1::CoordinatorMsg msg;
    *msg.mutable_stop() = stop;
    agent_.Command(msg.SerializeAsString());
  }
  v1::JobReport Report() const {
    v1::AgentMsg msg;
    EXPECT_TRUE(msg.ParseFromString(agent_.report()));
    return msg.job();
  }

  Job job_;
  MiniAgent agent_;
};

TEST_F(AgentNotice, AWithdrawnOneStopsNobody) {
  RunProcess run = job_.Start({"--ranks", "2"}, With({"--phase", "30", "3000", "3000", "1"}));
  ASSERT_TRUE(job_.WaitForStep(1, 30));
  v1::Stop stop = Stop(7, "operator", 100'000);
  Send(stop);
  ASSERT_TRUE(run.WaitFor("the notice is kept"));
  stop.set_kind(v1::STOP_WITHDRAW);
  Send(stop);
  ASSERT_TRUE(run.WaitFor("notice withdrawn: operator"));
  EXPECT_EQ(run.Wait(), 0) << run.Output();
  ExpectSameTrajectory(job_, 2, kTraining);
}

TEST_F(AgentNotice, OfTwoTheOtherStandsWhenOneIsWithdrawn) {
  RunProcess run = job_.Start({"--ranks", "2"}, With({"--phase", "30", "6000", "6000", "1"}));
  ASSERT_TRUE(job_.WaitForStep(1, 30));
  v1::Stop first = Stop(7, "scheduler", 5000);  // would kill in the middle of the phase
  Send(first);
  ASSERT_TRUE(run.WaitFor("the notice is too short"));
  Send(Stop(8, "operator", 100'000));
  ASSERT_TRUE(run.WaitFor("notice: operator"));
  first.set_kind(v1::STOP_WITHDRAW);
  Send(first);
  ASSERT_TRUE(run.WaitFor("notice withdrawn: scheduler"));
  job_.SetEnv("CKPT_AGENT", "");
  ExpectSuspendedAndGoesOn(&job_, &run);
}

TEST_F(AgentNotice, AnOperatorsThatCannotBeMetIsRefusedAtOnceAndNothingStops) {
  RunProcess run = job_.Start({"--ranks", "2"}, With({"--phase", "30", "4000", "4000", "1"}));
  ASSERT_TRUE(job_.WaitForStep(1, 30));
  Send(Stop(7, "operator", 1000));
  ASSERT_TRUE(run.WaitFor("suspend refused: rank 1 is in evaluation"));
  EXPECT_EQ(run.Wait(), 0) << run.Output();
  EXPECT_TRUE(Report().suspend_failed());
  EXPECT_EQ(Report().op_id(), 7u);
  ExpectSameTrajectory(job_, 2, kTraining);
}

TEST_F(AgentNotice, AKillOverridesEverything) {
  RunProcess run = job_.Start({"--ranks", "2"}, With({"--phase", "30", "600000", "0", "1"}));
  ASSERT_TRUE(job_.WaitForStep(1, 30));
  Send(Stop(7, "operator", 3'600'000));
  ASSERT_TRUE(run.WaitFor("for an unknown time"));
  v1::Stop kill = Stop(8, "operator", 0);
  kill.set_kind(v1::STOP_KILL);
  Send(kill);
  EXPECT_EQ(run.Wait(), 1) << run.Output();
  EXPECT_SAID(run, "killed by operator");
  EXPECT_TRUE(LivingRanks(job_.dir()).empty());
}

}  // namespace
}  // namespace ckpt::e2e
