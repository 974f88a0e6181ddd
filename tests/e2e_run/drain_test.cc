// What a dead ckpt-run left in the agent's memory is made durable by another, bit for bit, wherever
// the first one died.
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>

#include <filesystem>

#include "ckpt/v1/agent.pb.h"
#include "libckpt/os/socket.h"
#include "tests/e2e_run/harness.h"
#include "tests/e2e_run/mini_agent.h"

namespace ckpt::e2e {
namespace {

// 4 MiB of weights, so that a shard has several blocks.
const std::vector<std::string> kArgs = {"300", "5", "500000"};

class Drain : public testing::Test {
 protected:
  Drain() : agent_(job_.dir() + "/agent.sock") { job_.SetEnv("CKPT_AGENT", agent_.socket()); }

  // A suspend whose ckpt-run dies at `fault`, or, if that is a sleep, once the ranks are gone.
  void DieAt(const std::string& fault) {
    job_.SetEnv("CKPT_FAULT_AT", fault);
    RunProcess run = job_.Start({"--ranks", "2"}, kArgs);
    job_.SetEnv("CKPT_FAULT_AT", "");
    ASSERT_TRUE(job_.WaitForStep(1, 20));
    run.Signal(SIGTERM);
    if (fault.find("sleep") != std::string::npos) {
      ASSERT_TRUE(run.WaitFor("all ranks are gone"));
      ASSERT_TRUE(run.WaitFor("fault point"));
      run.Signal(SIGKILL);
    }
    EXPECT_EQ(run.Wait(), 128 + SIGKILL) << run.Output();
    EXPECT_NE(run.Output().find("fault point"), std::string::npos) << run.Output();
    EXPECT_TRUE(job_.Durable().empty());
    for (const pid_t pid : LivingRanks(job_.dir())) ::kill(pid, SIGKILL);  // the agent's part
  }
  RunProcess StartDrain() { return job_.StartCommand({"--drain", "--ranks", "2"}, {}); }
  void ExpectDrained() {
    RunProcess drain = StartDrain();
    EXPECT_EQ(drain.Wait(), 75) << drain.Output();
    const std::vector<std::string> durable = job_.Durable();
    ASSERT_EQ(durable.size(), 1u) << drain.Output();
    EXPECT_NE(drain.Output().find("drained " + durable[0]), std::string::npos) << drain.Output();
    EXPECT_EQ(ShardFiles(durable[0]), 4u) << "two shards and their indices, nothing half-written";
    job_.SetEnv("CKPT_AGENT", "");  // so that it is read from the store
    RunProcess again = job_.Start({"--ranks", "2"}, kArgs);
    EXPECT_EQ(again.Wait(), 0) << again.Output();
    EXPECT_NE(again.Output().find("resuming from " + job_.store() + ", " + durable[0]),
              std::string::npos)
        << again.Output();
    ExpectSameTrajectory(job_, 2, kArgs);
  }
  size_t ShardFiles(const std::string& checkpoint) const {
    size_t count = 0;
    for (const auto& entry : std::filesystem::directory_iterator(job_.store() + "/" + checkpoint)) {
      count += entry.path().filename().string().starts_with("shard-") ? 1 : 0;
    }
    return count;
  }

  Job job_;
  MiniAgent agent_;
};

TEST_F(Drain, AfterTheReleaseBeforeDurable) {
  DieAt("engine.write.finish=sleep60000");
  ExpectDrained();
}

TEST_F(Drain, InTheMiddleOfAShardBeforeTheRelease) {
  DieAt("engine.write.block:2=kill");
  ExpectDrained();
}

TEST_F(Drain, BetweenManifestAndCommitItsManifestIsCommitted) {
  DieAt("store.commit.after_manifest=kill");
  ExpectDrained();
}

TEST_F(Drain, AfterTheDrainingMark) {
  DieAt("store.draining.after_mark=kill");
  ExpectDrained();
}

TEST_F(Drain, ADrainThatDiesIsDoneAgain) {
  DieAt("engine.write.block:2=kill");
  for (const char* fault : {"run.drain.prepared=kill", "engine.write.block:3=kill",
                            "run.drain.commit=kill", "store.commit.after_manifest=kill"}) {
    job_.SetEnv("CKPT_FAULT_AT", fault);
    RunProcess drain = StartDrain();
    EXPECT_EQ(drain.Wait(), 128 + SIGKILL) << fault << ": " << drain.Output();
    EXPECT_TRUE(job_.Durable().empty()) << fault;
    if (std::string(fault) != "run.drain.commit=kill") continue;
    for (const auto& entry : std::filesystem::directory_iterator(job_.store())) {
      const std::string name = entry.path().filename().string();
      if (name.find(".e1.a") == std::string::npos) continue;
      EXPECT_EQ(ShardFiles(name), 4u) << "what those before have left takes no room";
    }
  }
  job_.SetEnv("CKPT_FAULT_AT", "");
  ExpectDrained();
  job_.SetEnv("CKPT_AGENT", agent_.socket());
  RunProcess again = StartDrain();
  EXPECT_EQ(again.Wait(), 75) << again.Output();
  EXPECT_NE(again.Output().find("durable already"), std::string::npos) << again.Output();
}

TEST_F(Drain, TwoNodesWriteWhatEachHolds) {
  MiniAgent other(job_.dir() + "/other.sock");
  const auto start = [&](const std::vector<std::string>& more, int node, const std::string& at) {
    job_.SetEnv("CKPT_AGENT", node == 0 ? agent_.socket() : other.socket());
    std::vector<std::string> flags = {
        "--ranks", "2", "--nnodes", "2", "--node-rank", std::to_string(node), "--rendezvous", at};
    flags.insert(flags.end(), more.begin(), more.end());
    return more.empty() ? job_.Start(flags, kArgs) : job_.StartCommand(flags, {});
  };
  const auto port = [] {
    return "127.0.0.1:" + std::to_string(os::PickFreePort("127.0.0.1").value());
  };
  std::string at = port();
  job_.SetEnv("CKPT_FAULT_AT", "engine.write.finish=sleep60000");
  {
    RunProcess first = start({}, 0, at), second = start({}, 1, at);
    ASSERT_TRUE(job_.WaitForStep(3, 20));
    second.Signal(SIGTERM);
    ASSERT_TRUE(first.WaitFor("all ranks are gone"));
    first.Signal(SIGKILL);
    second.Signal(SIGKILL);
    first.Wait();
    second.Wait();
  }
  job_.SetEnv("CKPT_FAULT_AT", "");
  at = port();
  RunProcess second = start({"--drain"}, 1, at), first = start({"--drain"}, 0, at);
  EXPECT_EQ(first.Wait(), 75) << first.Output();
  EXPECT_EQ(second.Wait(), 75) << second.Output();
  ASSERT_EQ(job_.Durable().size(), 1u) << first.Output();
  EXPECT_EQ(ShardFiles(job_.Durable()[0]), 8u);
  job_.SetEnv("CKPT_AGENT", "");
  RunProcess again = job_.Start({"--ranks", "4"}, kArgs);
  EXPECT_EQ(again.Wait(), 0) << again.Output();
  ExpectSameTrajectory(job_, 4, kArgs);
}

TEST_F(Drain, WithoutACopyOrWithHalfOfOneNothingIsWritten) {
  RunProcess nothing = StartDrain();
  EXPECT_EQ(nothing.Wait(), 1) << nothing.Output();
  EXPECT_NE(nothing.Output().find("the agents hold no copy of job t"), std::string::npos)
      << nothing.Output();
  DieAt("engine.write.block:2=kill");
  agent_.Forget(1);
  RunProcess half = StartDrain();
  EXPECT_EQ(half.Wait(), 1) << half.Output();
  EXPECT_NE(half.Output().find("rank 1 of 2"), std::string::npos) << half.Output();
  EXPECT_TRUE(job_.Durable().empty());
}

// The newer epoch never heard of the copy: it has gone on from elsewhere.
TEST_F(Drain, WhatANewerEpochHasFencedIsNotCommitted) {
  DieAt("run.node.write=kill");
  // Writing and marking race; the mark is what a newer epoch would have adopted it by.
  for (const auto& entry : std::filesystem::directory_iterator(job_.store()))
    if (entry.is_directory()) std::filesystem::remove(entry.path() / "DRAINING");
  job_.SetEnv("CKPT_AGENT", "");
  RunProcess newer = job_.Start({"--ranks", "2"}, kArgs);
  EXPECT_EQ(newer.Wait(), 0) << newer.Output();
  job_.SetEnv("CKPT_AGENT", agent_.socket());
  RunProcess drain = StartDrain();
  EXPECT_EQ(drain.Wait(), 76) << drain.Output();
  EXPECT_NE(drain.Output().find("NOT durable"), std::string::npos) << drain.Output();
  EXPECT_TRUE(job_.Durable().empty());
}

// One shard is written a while after it began, the other is held: what ckptd hears of must move.
TEST_F(Drain, WhileItWritesItSaysHowFarItIs) {
  DieAt("engine.write.block:2=kill");
  job_.SetEnv("CKPT_FAULT_AT",
              "engine.write.block:1=sleep300,engine.write.block:2=wait:" + job_.dir() + "/go");
  RunProcess drain = StartDrain();
  ASSERT_TRUE(drain.WaitFor("fault point engine.write.block: wait"));
  uint64_t bytes = 0;
  const Deadline deadline("a report of the drain", std::chrono::seconds(kGenerousSeconds));
  while (bytes == 0 && !deadline.Expired()) {
    v1::AgentMsg msg;
    ASSERT_TRUE(msg.ParseFromString(agent_.report()));
    for (const v1::CopyState& copy : msg.job().copies())
      bytes = std::max<uint64_t>(bytes, copy.bytes_durable());
    ::poll(nullptr, 0, 20);
  }
  EXPECT_GT(bytes, 0u);
  EXPECT_TRUE(job_.Durable().empty());
  job_.LetGo();
  EXPECT_EQ(drain.Wait(), 75) << drain.Output();
}

TEST_F(Drain, ASignalDoesNotStopIt) {
  DieAt("engine.write.block:2=kill");
  job_.HoldAt("run.drain.written");
  RunProcess drain = StartDrain();
  job_.SetEnv("CKPT_FAULT_AT", "");
  ASSERT_TRUE(drain.WaitFor("fault point run.drain.written"));
  drain.Signal(SIGTERM);
  job_.LetGo();  // it comes to the signal now
  EXPECT_EQ(drain.Wait(), 75) << drain.Output();
  EXPECT_EQ(job_.Durable().size(), 1u);
}

// Its shards will never come: who leads ends, with their names, and not only when it is killed.
TEST_F(Drain, ANodeThatDiesBeforeItHasWrittenIsNamedAndTheLeaderEnds) {
  job_.SetEnv("CKPT_AGENT", "");
  const std::string at = "127.0.0.1:" + std::to_string(os::PickFreePort("127.0.0.1").value());
  const auto start = [&](int node) {
    return job_.Start(
        {"--ranks", "1", "--nnodes", "2", "--node-rank", std::to_string(node), "--rendezvous", at},
        kTraining);
  };
  RunProcess leader = start(0);
  job_.HoldAt("engine.write.create");
  RunProcess member = start(1);
  ASSERT_TRUE(job_.WaitForStep(1, 20));
  leader.Signal(SIGTERM);
  ASSERT_TRUE(leader.WaitFor("all ranks are gone"));
  member.Signal(SIGKILL);
  EXPECT_EQ(leader.Wait(), 76) << leader.Output();
  EXPECT_SAID(leader, "the ckpt-run of ranks 1 to 1 went before their shards were written");
}

}  // namespace
}  // namespace ckpt::e2e
