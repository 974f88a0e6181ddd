// The agent against a real gRPC server and a real child program.
#include "coordinator/agent/agent.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>

#include "coordinator/agent/launch_command.h"
#include "coordinator/agent/testing/fake_coordinator.h"
#include "libckpt/os/file.h"

namespace ckpt::agent {
namespace {

os::FileSystem& Fs() { return os::PosixFileSystem(); }

// An agent with its own loop on its own thread.
class Node {
 public:
  explicit Node(AgentOptions options) : options_(std::move(options)) { Start(); }
  ~Node() { Stop(); }
  void Start() {
    loop_ = os::EventLoop::Create().value();
    Result<std::unique_ptr<Agent>> agent = Agent::Start(options_, loop_.get());
    ASSERT_TRUE(agent.ok()) << agent.status().ToString();
    agent_ = std::move(*agent);
    thread_ = os::Thread("agent", [this] { EXPECT_TRUE(loop_->Run().ok()); });
  }
  void Stop() {
    if (loop_) loop_->Stop();
    thread_.Join();
    agent_.reset();
    loop_.reset();
  }
  Agent& operator*() { return *agent_; }
  Agent* operator->() { return agent_.get(); }
  const AgentOptions& options() const { return options_; }

 private:
  AgentOptions options_;
  std::unique_ptr<os::EventLoop> loop_;
  std::unique_ptr<Agent> agent_;
  os::Thread thread_;
};

class AgentTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string path = "/tmp/ckpt-agent-XXXXXX";
    ASSERT_NE(mkdtemp(path.data()), nullptr);
    dir_ = path;
    StartCoordinator(5);
  }
  void TearDown() override {
    for (const std::string name : {"a", "b"}) {
      for (uint64_t epoch = 1; epoch < 10; ++epoch) {
        const std::string mark = LaunchMark("job", epoch, dir_ + "/" + name + "/agent.sock");
        EXPECT_TRUE(
            os::KillProcessesWithEnv(mark, Deadline("tear down", std::chrono::seconds(60))).ok());
      }
    }
    nodes_.clear();
    coordinator_.reset();
    EXPECT_TRUE(Fs().RemoveTree(dir_).ok());
  }

  void StartCoordinator(uint64_t term, const std::string& cluster = "cluster-1") {
    coordinator_.reset();
    coordinator_ = std::make_unique<FakeCoordinator>("unix:" + dir_ + "/ckptd.sock", cluster, term);
  }
  Node& AddNode(const std::string& name, uint64_t budget = uint64_t{256} << 20,
                Nanos run_silence = std::chrono::minutes(10)) {
    AgentOptions options;
    options.run_silence = run_silence;
    options.name = name;
    options.coordinator = "unix:" + dir_ + "/ckptd.sock";
    options.slots = 4;
    options.staging_budget_bytes = budget;
    options.state_dir = dir_ + "/" + name;
    options.ckpt_run =
        os::JoinPath(os::ParentOf(os::SelfExecutable().value()), "ckpt_agent_fake_run");
    options.reconnect_min = std::chrono::milliseconds(20);
    options.reconnect_max = std::chrono::milliseconds(100);
    options.kill_grace = std::chrono::milliseconds(200);
    EXPECT_TRUE(CheckOptions(&options).ok());
    nodes_.push_back(std::make_unique<Node>(options));
    EXPECT_TRUE(coordinator_->Await(name, [](const auto& m) { return m.has_node(); }));
    return *nodes_.back();
  }

  static v1::CoordinatorMsg LaunchMsg(const std::string& mode, uint64_t epoch, uint64_t op_id) {
    v1::CoordinatorMsg message;
    v1::Launch* launch = message.mutable_launch();
    launch->set_job("job");
    launch->set_epoch(epoch);
    launch->set_op_id(op_id);
    launch->set_nnodes(1);
    launch->set_rank_count(2);
    launch->set_token("gang-token");
    launch->mutable_spec()->add_command(mode);
    return message;
  }
  static v1::CoordinatorMsg StopMsg(uint64_t epoch, uint64_t op_id, v1::StopKind kind) {
    v1::CoordinatorMsg message;
    message.mutable_stop()->set_job("job");
    message.mutable_stop()->set_epoch(epoch);
    message.mutable_stop()->set_op_id(op_id);
    message.mutable_stop()->set_kind(kind);
    message.mutable_stop()->set_deadline_ms(30'000);
    message.mutable_stop()->set_source("operator");
    return message;
  }

  bool AwaitState(const std::string& node, uint64_t epoch, v1::NodeJobState state,
                  v1::JobReport* report = nullptr) {
    v1::AgentMsg found;
    const bool seen = coordinator_->Await(
        node,
        [&](const v1::AgentMsg& m) {
          return m.has_job() && m.job().epoch() == epoch && m.job().state() == state;
        },
        &found);
    if (report != nullptr) *report = found.job();
    return seen;
  }
  v1::CommandResult AwaitResult(const std::string& node, uint64_t op_id) {
    v1::AgentMsg found;
    EXPECT_TRUE(coordinator_->Await(
        node, [&](const auto& m) { return m.has_result() && m.result().op_id() == op_id; },
        &found));
    return found.result();
  }
  // Until no process of the launch is left on the node.
  size_t Processes(const std::string& node, uint64_t epoch) {
    return os::ProcessesWithEnv(LaunchMark("job", epoch, dir_ + "/" + node + "/agent.sock"))
        ->size();
  }
  // Launches, and waits until it runs.
  v1::JobReport Launched(const std::string& node, const std::string& mode, uint64_t epoch) {
    v1::JobReport report;
    EXPECT_TRUE(coordinator_->Send(node, LaunchMsg(mode, epoch, 100 + epoch)));
    EXPECT_TRUE(AwaitState(node, epoch, v1::NODE_JOB_RUNNING, &report));
    return report;
  }

  std::string dir_;
  std::unique_ptr<FakeCoordinator> coordinator_;
  std::vector<std::unique_ptr<Node>> nodes_;
};

TEST_F(AgentTest, IntroducesItselfAndLives) {
  Node& node = AddNode("a");
  v1::AgentMsg hello;
  ASSERT_TRUE(coordinator_->Await(
      "a", [](const auto& m) { return m.has_node(); }, &hello));
  EXPECT_EQ(hello.node().slots(), 4u);
  EXPECT_GT(hello.node().memcpy_gbps(), 0.0);
  EXPECT_EQ(hello.node().data_address(), node->data_address());
  EXPECT_EQ(hello.node().staging_budget_bytes(), uint64_t{256} << 20);
  EXPECT_TRUE(coordinator_->Await("a", [](const auto& m) { return m.has_heartbeat(); }));
}

TEST_F(AgentTest, LaunchSuspendForget) {
  Node& node = AddNode("a");
  const v1::JobReport running = Launched("a", "run", 1);
  EXPECT_EQ(running.message(), "adopted 0");
  EXPECT_TRUE(AwaitResult("a", 101).accepted());
  EXPECT_EQ(Processes("a", 1), 2u) << "ckpt-run and one rank";

  // I3: the same command again is answered again and starts nothing.
  ASSERT_TRUE(coordinator_->Send("a", LaunchMsg("run", 1, 101)));
  ASSERT_TRUE(coordinator_->Await("a", [&, count = 0](const auto& m) mutable {
    return m.has_result() && m.result().op_id() == 101 && ++count == 2;
  }));
  EXPECT_EQ(Processes("a", 1), 2u);
  ASSERT_TRUE(coordinator_->Send("a", LaunchMsg("run", 1, 902)));
  EXPECT_FALSE(AwaitResult("a", 902).accepted()) << "another launch of an epoch that is known";
  ASSERT_TRUE(coordinator_->Send("a", LaunchMsg("run", 2, 903)));
  EXPECT_FALSE(AwaitResult("a", 903).accepted()) << "the older epoch runs";

  ASSERT_TRUE(coordinator_->Send("a", StopMsg(1, 110, v1::STOP_SUSPEND)));
  v1::JobReport released;
  ASSERT_TRUE(AwaitState("a", 1, v1::NODE_JOB_RELEASED, &released));
  EXPECT_TRUE(AwaitResult("a", 110).accepted());
  EXPECT_EQ(released.op_id(), 110u);
  ASSERT_EQ(released.copies_size(), 1);
  EXPECT_EQ(released.copies(0).ram_nodes(0), "a");
  EXPECT_GT(node->held().UsedBytes(), uint64_t{2} << 20) << "the memory outlives its process";

  // Once ckpt-run has left without having made it durable, the report says so.
  ASSERT_TRUE(coordinator_->Await("a", [](const auto& m) {
    return m.has_job() && m.job().copies_size() == 1 && !m.job().copies(0).failure().empty();
  }));
  ASSERT_TRUE(coordinator_->Send("a", StopMsg(1, 111, v1::STOP_SUSPEND)));
  EXPECT_FALSE(AwaitResult("a", 111).accepted()) << "it has ended";

  // The next epoch gets the copies.
  EXPECT_EQ(Launched("a", "run", 2).message(), "adopted 2");
  ASSERT_TRUE(coordinator_->Send("a", StopMsg(2, 120, v1::STOP_SUSPEND)));
  ASSERT_TRUE(AwaitState("a", 2, v1::NODE_JOB_RELEASED));

  for (const uint64_t epoch : {1, 2}) {
    v1::CoordinatorMsg forget;
    forget.mutable_forget()->set_job("job");
    forget.mutable_forget()->set_epoch(epoch);
    forget.mutable_forget()->set_drop_copies(true);
    ASSERT_TRUE(coordinator_->Send("a", forget));
  }
  ASSERT_TRUE(coordinator_->Await("a", [](const auto& m) {
    return m.has_heartbeat() && m.heartbeat().staging_used_bytes() > 0;
  }));
  const Deadline deadline("copies to go", std::chrono::seconds(60));
  while (node->held().UsedBytes() != 0 && !deadline.Expired()) std::this_thread::yield();
  EXPECT_EQ(node->held().UsedBytes(), 0u);
  while (!Fs().List(dir_ + "/a/jobs")->empty() && !deadline.Expired()) std::this_thread::yield();
  EXPECT_TRUE(Fs().List(dir_ + "/a/jobs")->empty());
}

TEST_F(AgentTest, ACrashedCkptRunTakesItsRanksAndLeavesItsCopies) {
  Node& node = AddNode("a");
  ASSERT_TRUE(coordinator_->Send("a", LaunchMsg("crash", 1, 101)));
  v1::JobReport failed;
  ASSERT_TRUE(AwaitState("a", 1, v1::NODE_JOB_FAILED, &failed));
  EXPECT_EQ(Processes("a", 1), 0u) << "measured before it is said";  // I4
  EXPECT_NE(failed.message().find("exited with 3"), std::string::npos) << failed.message();
  EXPECT_NE(failed.message().find("crashes as it was told"), std::string::npos)
      << "the end of its log: " << failed.message();
  EXPECT_GT(failed.times().released_ns(), 0);
  ASSERT_EQ(failed.copies_size(), 1) << "complete in RAM, though nobody reported it";
  EXPECT_EQ(failed.copies(0).step(), 120);
  EXPECT_TRUE(failed.copies(0).staged_gang());
  EXPECT_FALSE(failed.copies(0).durable());
  EXPECT_EQ(failed.copies(0).bytes(), uint64_t{2} << 20);
  EXPECT_EQ(node->held().WholeOf("job").size(), 2u);
  EXPECT_EQ(Launched("a", "run", 2).message(), "adopted 2");
}

TEST_F(AgentTest, CopiesOfAnotherJobOfTheSameNameAreNotHandedOver) {
  AddNode("a");
  Launched("a", "run", 1);
  ASSERT_TRUE(coordinator_->Send("a", StopMsg(1, 110, v1::STOP_SUSPEND)));
  ASSERT_TRUE(AwaitState("a", 1, v1::NODE_JOB_RELEASED));
  const auto relaunched = [&](uint64_t epoch, const std::string& job_id) {
    v1::CoordinatorMsg launch = LaunchMsg("run", epoch, 100 + epoch);
    launch.mutable_launch()->set_job_id(job_id);
    EXPECT_TRUE(coordinator_->Send("a", launch));
    v1::JobReport report;
    EXPECT_TRUE(AwaitState("a", epoch, v1::NODE_JOB_RUNNING, &report));
    EXPECT_TRUE(coordinator_->Send("a", StopMsg(epoch, 110 + epoch, v1::STOP_SUSPEND)));
    EXPECT_TRUE(AwaitState("a", epoch, v1::NODE_JOB_RELEASED));
    return report.message();
  };
  EXPECT_EQ(relaunched(2, std::string(16, 'x')), "adopted 0");
  EXPECT_EQ(relaunched(3, std::string(16, '\0')), "adopted 4") << "the id that its copies have";
}

TEST_F(AgentTest, KillWorksOnACkptRunThatDoesNotListen) {
  AddNode("a");
  Launched("a", "deaf", 1);
  ASSERT_TRUE(coordinator_->Send("a", StopMsg(1, 110, v1::STOP_SUSPEND)));
  ASSERT_TRUE(coordinator_->Send("a", StopMsg(1, 111, v1::STOP_KILL)));
  EXPECT_TRUE(AwaitResult("a", 111).accepted());
  v1::JobReport failed;
  ASSERT_TRUE(AwaitState("a", 1, v1::NODE_JOB_FAILED, &failed));
  EXPECT_EQ(Processes("a", 1), 0u);
  EXPECT_NE(failed.message().find("killed: ordered by operator"), std::string::npos)
      << failed.message();
  EXPECT_FALSE(AwaitResult("a", 110).accepted()) << "it died with the suspend unanswered";
}

TEST_F(AgentTest, KillOfACkptRunThatListensIsItsOwn) {
  AddNode("a");
  Launched("a", "run", 1);
  ASSERT_TRUE(coordinator_->Send("a", StopMsg(1, 111, v1::STOP_KILL)));
  v1::JobReport failed;
  ASSERT_TRUE(AwaitState("a", 1, v1::NODE_JOB_FAILED, &failed));
  EXPECT_EQ(failed.op_id(), 111u);
}

TEST_F(AgentTest, ARefusedSuspendIsPassedOn) {
  AddNode("a");
  Launched("a", "refuse", 1);
  ASSERT_TRUE(coordinator_->Send("a", StopMsg(1, 110, v1::STOP_SUSPEND)));
  const v1::CommandResult result = AwaitResult("a", 110);
  EXPECT_FALSE(result.accepted());
  EXPECT_EQ(result.error(), "not now");
}

TEST_F(AgentTest, WhatCannotStartIsRefused) {
  Node& node = AddNode("a");
  v1::CoordinatorMsg bad = LaunchMsg("run", 1, 101);
  bad.mutable_launch()->set_rank_count(9);
  ASSERT_TRUE(coordinator_->Send("a", bad));
  EXPECT_NE(AwaitResult("a", 101).error().find("4 slots"), std::string::npos);
  bad = LaunchMsg("run", 1, 102);
  bad.mutable_launch()->mutable_spec()->set_workdir("/no/such/dir");
  ASSERT_TRUE(coordinator_->Send("a", bad));
  EXPECT_NE(AwaitResult("a", 102).error().find("/no/such/dir"), std::string::npos);
  EXPECT_TRUE(Fs().List(node.options().state_dir + "/jobs")->empty());
  ASSERT_TRUE(coordinator_->Send("a", StopMsg(7, 103, v1::STOP_KILL)));
  EXPECT_NE(AwaitResult("a", 103).error().find("not known here"), std::string::npos);
}

// I2
TEST_F(AgentTest, OldTermsAndForeignClustersAreRefusedAlsoAfterARestart) {
  Node& node = AddNode("a");
  Launched("a", "run", 1);
  v1::CoordinatorMsg old = StopMsg(1, 201, v1::STOP_KILL);
  old.set_cluster_id("cluster-1");
  old.set_term(4);
  ASSERT_TRUE(coordinator_->SendAsIs("a", old));
  EXPECT_NE(AwaitResult("a", 201).error().find("term 4"), std::string::npos);
  v1::CoordinatorMsg foreign = StopMsg(1, 202, v1::STOP_KILL);
  foreign.set_cluster_id("cluster-2");
  foreign.set_term(9);
  ASSERT_TRUE(coordinator_->SendAsIs("a", foreign));
  EXPECT_NE(AwaitResult("a", 202).error().find("belongs to cluster"), std::string::npos);

  node.Stop();
  coordinator_->Clear();
  StartCoordinator(4);
  node.Start();
  v1::AgentMsg hello;
  ASSERT_TRUE(coordinator_->Await(
      "a", [](const auto& m) { return m.has_node(); }, &hello));
  EXPECT_EQ(hello.node().cluster_id(), "cluster-1");
  EXPECT_EQ(hello.node().term(), 5u);
  coordinator_->Send("a", StopMsg(1, 203, v1::STOP_KILL));  // the stream may be dropped already

  coordinator_->Clear();
  StartCoordinator(6);
  ASSERT_TRUE(AwaitState("a", 1, v1::NODE_JOB_RUNNING));
  EXPECT_EQ(Processes("a", 1), 2u) << "nobody was obeyed";
}

TEST_F(AgentTest, ACoordinatorThatComesBackHearsEverythingAgain) {
  AddNode("a");
  Launched("a", "run", 1);
  StartCoordinator(6);
  ASSERT_TRUE(AwaitState("a", 1, v1::NODE_JOB_RUNNING));
  ASSERT_TRUE(coordinator_->Send("a", StopMsg(1, 110, v1::STOP_SUSPEND)));
  ASSERT_TRUE(AwaitState("a", 1, v1::NODE_JOB_RELEASED));
  StartCoordinator(7);
  ASSERT_TRUE(AwaitState("a", 1, v1::NODE_JOB_RELEASED));
}

TEST_F(AgentTest, AnAgentThatComesBackFindsItsCkptRuns) {
  Node& node = AddNode("a");
  Launched("a", "run", 1);
  node.Stop();
  EXPECT_EQ(Processes("a", 1), 2u) << "training outlives the agent";
  coordinator_->Clear();
  node.Start();
  v1::JobReport report;
  ASSERT_TRUE(coordinator_->Await(
      "a", [](const auto& m) { return m.has_job() && m.job().state() == v1::NODE_JOB_RUNNING; }));
  const Deadline deadline("memory to be attached again", std::chrono::seconds(60));
  while (node->held().WholeOf("job").size() < 2 && !deadline.Expired()) std::this_thread::yield();
  EXPECT_EQ(node->held().WholeOf("job").size(), 2u);
  ASSERT_TRUE(coordinator_->Send("a", LaunchMsg("run", 1, 101)));
  EXPECT_TRUE(AwaitResult("a", 101).accepted()) << "it knows that launch";
  EXPECT_EQ(Processes("a", 1), 2u);
  ASSERT_TRUE(coordinator_->Send("a", StopMsg(1, 110, v1::STOP_SUSPEND)));
  ASSERT_TRUE(AwaitState("a", 1, v1::NODE_JOB_RELEASED));
}

TEST_F(AgentTest, AnAgentThatComesBackTooLateEndsWhatIsLeft) {
  Node& node = AddNode("a");
  const v1::JobReport running = Launched("a", "run", 1);
  node.Stop();
  const std::string mark = LaunchMark("job", 1, dir_ + "/a/agent.sock");
  const auto left = os::ProcessesWithEnv(mark);
  ASSERT_TRUE(left.ok());
  for (const os::ProcessInfo& process : *left) {
    if (process.pid != running.rank_pids(0)) kill(process.pid, SIGKILL);  // ckpt-run alone
  }
  const Deadline deadline("ckpt-run to end", std::chrono::seconds(60));
  while (Processes("a", 1) > 1 && !deadline.Expired()) std::this_thread::yield();
  EXPECT_EQ(Processes("a", 1), 1u) << "an orphaned rank";
  coordinator_->Clear();
  node.Start();
  v1::JobReport failed;
  ASSERT_TRUE(AwaitState("a", 1, v1::NODE_JOB_FAILED, &failed));
  EXPECT_NE(failed.message().find("while the agent was away"), std::string::npos);
  EXPECT_EQ(Processes("a", 1), 0u);
}

TEST_F(AgentTest, TwoAgentsDoNotShareAStateDirectory) {
  Node& node = AddNode("a");
  std::unique_ptr<os::EventLoop> loop = os::EventLoop::Create().value();
  EXPECT_EQ(Agent::Start(node.options(), loop.get()).status().code(), Code::kAlreadyExists);
}

TEST_F(AgentTest, ReadsLogsOfRanks) {
  AddNode("a");
  Launched("a", "run", 1);
  v1::CoordinatorMsg read;
  read.mutable_read_log()->set_request(7);
  read.mutable_read_log()->set_job("job");
  read.mutable_read_log()->set_epoch(1);
  read.mutable_read_log()->set_offset(6);
  const auto answer = [&](uint64_t request) {
    v1::AgentMsg found;
    EXPECT_TRUE(coordinator_->Await(
        "a", [&](const auto& m) { return m.has_log() && m.log().request() == request; }, &found));
    return found.log();
  };
  ASSERT_TRUE(coordinator_->Send("a", read));
  EXPECT_EQ(answer(7).data(), "from the rank\n");
  EXPECT_EQ(answer(7).next_offset(), 20u);
  read.mutable_read_log()->set_request(8);
  read.mutable_read_log()->set_rank(3);
  ASSERT_TRUE(coordinator_->Send("a", read));
  EXPECT_FALSE(answer(8).error().empty());
  read.mutable_read_log()->set_request(9);
  read.mutable_read_log()->set_job("../../etc");
  ASSERT_TRUE(coordinator_->Send("a", read));
  EXPECT_FALSE(answer(9).error().empty());
}

v1::CoordinatorMsg FetchMsg(const std::string& from, uint64_t op_id) {
  v1::CoordinatorMsg message;
  v1::Fetch* fetch = message.mutable_fetch();
  fetch->set_job("job");
  fetch->set_op_id(op_id);
  fetch->set_from_data_address(from);
  fetch->set_from_node("a");
  fetch->set_epoch(1);
  fetch->set_attempt(2);
  fetch->add_ranks(0);
  fetch->add_ranks(1);
  fetch->set_token("data-token");
  return message;
}

TEST_F(AgentTest, CopiesMoveFromNodeToNode) {
  Node& a = AddNode("a");
  Node& b = AddNode("b");
  Launched("a", "run", 1);
  ASSERT_TRUE(coordinator_->Send("a", StopMsg(1, 110, v1::STOP_SUSPEND)));
  ASSERT_TRUE(AwaitState("a", 1, v1::NODE_JOB_RELEASED));
  ASSERT_TRUE(coordinator_->Send("b", FetchMsg(a->data_address(), 130)));
  v1::AgentMsg found;
  ASSERT_TRUE(coordinator_->Await(
      "b", [](const auto& m) { return m.has_fetch() && m.fetch().done(); }, &found));
  EXPECT_EQ(found.fetch().bytes_done(), found.fetch().bytes_total());
  EXPECT_GT(found.fetch().bytes_done(), 0u);
  EXPECT_EQ(b->held().UsedBytes(), a->held().UsedBytes()) << "the source keeps its copy";
  coordinator_->Clear();
  ASSERT_TRUE(coordinator_->Send("b", FetchMsg(a->data_address(), 130)));
  ASSERT_TRUE(
      coordinator_->Await("b", [](const auto& m) { return m.has_fetch() && m.fetch().done(); }));
  EXPECT_EQ(Launched("b", "run", 2).message(), "adopted 2");
}

TEST_F(AgentTest, AFetchThatDoesNotFitTheBudgetSaysSo) {
  Node& a = AddNode("a");
  AddNode("b", 1 << 20);
  Launched("a", "run", 1);
  ASSERT_TRUE(coordinator_->Send("b", FetchMsg(a->data_address(), 130)));
  v1::AgentMsg found;
  ASSERT_TRUE(coordinator_->Await(
      "b", [](const auto& m) { return m.has_fetch() && !m.fetch().error().empty(); }, &found));
  EXPECT_NE(found.fetch().error().find("staging budget"), std::string::npos);
  ASSERT_TRUE(coordinator_->Send("b", FetchMsg("10.1.2.3:80", 131)));
  EXPECT_NE(AwaitResult("b", 131).error().find("TLS"), std::string::npos);
}

v1::CoordinatorMsg DrainMsg(const std::string& mode, uint64_t op_id) {
  v1::CoordinatorMsg message;
  v1::Launch* launch = message.mutable_launch();
  launch->set_job("job");
  launch->set_epoch(1);
  launch->set_op_id(op_id);
  launch->set_nnodes(1);
  launch->set_rank_count(2);
  launch->set_token("drain-token");
  launch->set_drain(true);
  launch->mutable_spec()->add_command(mode);
  return message;
}

TEST_F(AgentTest, ADrainWritesWhatACkptRunDidNotLiveToWrite) {
  Node& node = AddNode("a");
  ASSERT_TRUE(coordinator_->Send("a", DrainMsg("run", 200)));
  EXPECT_NE(AwaitResult("a", 200).error().find("holds no complete copy"), std::string::npos);
  ASSERT_TRUE(coordinator_->Send("a", LaunchMsg("crash", 1, 101)));
  ASSERT_TRUE(coordinator_->Await("a", [](const auto& m) {
    return m.has_job() && m.job().run_ended() && !m.job().copies().empty();
  }));
  ASSERT_TRUE(coordinator_->Send("a", DrainMsg("run", 201)));
  EXPECT_TRUE(AwaitResult("a", 201).accepted());
  v1::AgentMsg found;
  ASSERT_TRUE(coordinator_->Await(
      "a",
      [](const auto& m) { return m.has_job() && m.job().drain_op() == 201 && m.job().run_ended(); },
      &found));
  EXPECT_EQ(found.job().state(), v1::NODE_JOB_FAILED) << "how the launch ended is not changed";
  EXPECT_EQ(found.job().gang_address(), "drain:1");
  ASSERT_EQ(found.job().copies_size(), 1);
  EXPECT_TRUE(found.job().copies(0).durable());
  EXPECT_EQ(found.job().copies(0).failure(), "");
  EXPECT_EQ(node->held().WholeOf("job").size(), 2u) << "and stays in RAM";
  // The same order again, also to an agent that has restarted: nothing is started.
  ASSERT_TRUE(coordinator_->Send("a", DrainMsg("run", 201)));
  EXPECT_EQ(Processes("a", 1), 0u);
  EXPECT_EQ(Launched("a", "run", 2).message(), "adopted 2");
}

TEST_F(AgentTest, ADrainThatIsStuckIsReplacedAndKilled) {
  AddNode("a");
  ASSERT_TRUE(coordinator_->Send("a", LaunchMsg("crash", 1, 101)));
  const auto says = [&](uint64_t op_id, bool ended) {
    return coordinator_->Await("a", [&](const auto& m) {
      return m.has_job() && m.job().drain_op() == op_id && m.job().run_ended() == ended &&
             !m.job().copies().empty();
    });
  };
  ASSERT_TRUE(says(0, true));
  ASSERT_TRUE(coordinator_->Send("a", DrainMsg("stuck", 201)));
  ASSERT_TRUE(says(201, false));
  ASSERT_TRUE(coordinator_->Send("a", DrainMsg("stuck", 202)));
  ASSERT_TRUE(says(202, false));
  const auto held_up = [&](const std::string& why, bool ended) {
    return coordinator_->Await("a", [&](const auto& m) {
      return m.has_job() && m.job().run_ended() == ended && m.job().held_up() == why;
    });
  };
  EXPECT_TRUE(held_up("no space left, try 2 of 10", false));
  ASSERT_TRUE(coordinator_->Send("a", StopMsg(1, 203, v1::STOP_KILL)));
  ASSERT_TRUE(says(202, true));
  EXPECT_TRUE(held_up("", true)) << "nobody tries any more";
  EXPECT_EQ(Processes("a", 1), 0u);
}

TEST_F(AgentTest, ACkptRunThatDoesNotAnswerIsNamedAndSoIsItsReturn) {
  AddNode("a", uint64_t{256} << 20, std::chrono::seconds(1));
  Launched("a", "run", 1);
  const std::string mark = LaunchMark("job", 1, dir_ + "/a/agent.sock");
  const std::vector<os::ProcessInfo> processes = os::ProcessesWithEnv(mark).value();
  const auto run = std::find_if(processes.begin(), processes.end(),
                                [](const auto& process) { return process.name != "sleep"; });
  ASSERT_NE(run, processes.end());
  const std::string pid = std::to_string(run->pid);
  ASSERT_EQ(kill(run->pid, SIGSTOP), 0);
  EXPECT_TRUE(coordinator_->Await("a", [&](const auto& m) {
    return m.has_job() && m.job().run_silent().find(
                              "process " + pid + ") has not answered for 1") != std::string::npos;
  }));
  coordinator_->Clear();
  ASSERT_EQ(kill(run->pid, SIGCONT), 0);
  ASSERT_TRUE(coordinator_->Send("a", StopMsg(1, 110, v1::STOP_SUSPEND)));
  EXPECT_TRUE(coordinator_->Await(
      "a", [](const auto& m) { return m.has_job() && m.job().run_silent().empty(); }));
}

TEST_F(AgentTest, CopiesThatWentWithTheAgentAndItsCkptRunAreCalledLost) {
  Node& node = AddNode("a");
  ASSERT_TRUE(coordinator_->Send("a", LaunchMsg("crash", 1, 101)));
  ASSERT_TRUE(coordinator_->Await("a", [](const auto& m) {
    return m.has_job() && m.job().run_ended() && !m.job().copies().empty();
  }));
  node.Stop();
  coordinator_->Clear();
  node.Start();
  v1::AgentMsg found;
  ASSERT_TRUE(coordinator_->Await(
      "a", [](const auto& m) { return m.has_job() && m.job().run_ended(); }, &found));
  ASSERT_EQ(found.job().copies_size(), 1);
  EXPECT_TRUE(found.job().copies(0).lost());
  EXPECT_FALSE(found.job().copies(0).staged_gang());
  EXPECT_NE(found.job().copies(0).failure().find("no longer in RAM of node a"), std::string::npos);
}

TEST_F(AgentTest, AJobThatFinishesWhileItsAgentIsAwayHasFinished) {
  Node& node = AddNode("a");
  Launched("a", "finish", 1);
  node.Stop();
  coordinator_->Clear();
  const Deadline deadline("the fake run to end", std::chrono::seconds(60));
  while (Processes("a", 1) != 0 && !deadline.Expired()) std::this_thread::yield();
  node.Start();
  v1::AgentMsg found;
  ASSERT_TRUE(coordinator_->Await(
      "a", [](const auto& m) { return m.has_job() && m.job().run_ended(); }, &found));
  EXPECT_EQ(found.job().state(), v1::NODE_JOB_FINISHED) << found.job().message();
}

TEST_F(AgentTest, WhatWasPromisedToALaunchIsPromisedAfterARestartToo) {
  Node& node = AddNode("a", 64 << 20);
  Launched("a", "deaf", 1);  // half of the slots: half of the budget
  node.Stop();
  coordinator_->Clear();
  node.Start();
  ASSERT_TRUE(coordinator_->Await("a", [](const auto& m) { return m.has_node(); }));
  v1::CoordinatorMsg launch = LaunchMsg("budget", 1, 300);
  launch.mutable_launch()->set_job("other");
  launch.mutable_launch()->mutable_spec()->set_state_bytes_per_rank(uint64_t{1} << 30);
  ASSERT_TRUE(coordinator_->Send("a", launch));
  v1::AgentMsg found;
  ASSERT_TRUE(coordinator_->Await(
      "a",
      [](const auto& m) {
        return m.has_job() && m.job().job() == "other" && m.job().state() == v1::NODE_JOB_RUNNING;
      },
      &found));
  EXPECT_LE(std::stoull(found.job().resumed_from()), uint64_t{32} << 20) << "its --staging-budget";
  const std::string mark = LaunchMark("other", 1, dir_ + "/a/agent.sock");
  EXPECT_TRUE(os::KillProcessesWithEnv(mark, Deadline("end", std::chrono::seconds(60))).ok());
}

TEST_F(AgentTest, ADamagedRecordIsNamedAndWhatIsLeftOfItIsEnded) {
  Node& node = AddNode("a");
  Launched("a", "run", 1);
  node.Stop();
  ASSERT_TRUE(os::ReplaceFile(Fs(), dir_ + "/a/jobs/job.e1/launch", "\xff torn").ok());
  ASSERT_TRUE(Fs().MakeDirs(dir_ + "/a/jobs/lost+found").ok());
  coordinator_->Clear();
  node.Start();
  v1::AgentMsg found;
  ASSERT_TRUE(coordinator_->Await(
      "a", [](const auto& m) { return m.has_job() && m.job().run_ended(); }, &found));
  EXPECT_EQ(found.job().state(), v1::NODE_JOB_FAILED);
  EXPECT_NE(found.job().message().find("launch is damaged"), std::string::npos)
      << found.job().message();
  EXPECT_EQ(Processes("a", 1), 0u);
}

TEST_F(AgentTest, AnOrderThatIsWithdrawnBeforeItWasPassedOnIsRefused) {
  AddNode("a");
  Launched("a", "run", 1);
  ASSERT_TRUE(coordinator_->Send("a", StopMsg(1, 110, v1::STOP_WITHDRAW)));
  EXPECT_NE(AwaitResult("a", 110).error().find("withdrawn"), std::string::npos);
  ASSERT_TRUE(coordinator_->Send("a", StopMsg(1, 110, v1::STOP_SUSPEND)));
  ASSERT_TRUE(coordinator_->Send("a", StopMsg(1, 111, v1::STOP_KILL)));
  v1::JobReport failed;
  ASSERT_TRUE(AwaitState("a", 1, v1::NODE_JOB_FAILED, &failed));
  EXPECT_EQ(failed.op_id(), 111u) << "the suspend that overtook its withdrawal did nothing";
}

TEST(MeasureMemcpy, IsPlausible) {
  const Result<double> gbps = MeasureMemcpyGbps();
  ASSERT_TRUE(gbps.ok());
  EXPECT_GT(*gbps, 0.01);
  EXPECT_LT(*gbps, 10'000);
}

}  // namespace
}  // namespace ckpt::agent
