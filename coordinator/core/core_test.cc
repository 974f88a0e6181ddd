// Every transition of the core, one by one: no world, only events and what comes out.
#include "coordinator/core/core.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "coordinator/core/records.h"

namespace ckpt::core {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

JobSpec Spec(const std::string& name, uint32_t ranks, int32_t priority = 1,
             const std::string& job_class = "training") {
  JobSpec spec;
  spec.name = name;
  spec.command = {"train"};
  spec.ranks = ranks;
  spec.priority = priority;
  spec.job_class = job_class;
  return spec;
}

// A core, its disk, and the commands that it has sent.
class CoreTest : public testing::Test {
 protected:
  CoreTest() { Restart(); }

  void Restart() {
    core_ = std::make_unique<Core>(TestOptions());
    std::vector<Record> records;
    for (const auto& [key, value] : disk_) records.push_back({key, value});
    auto actions = core_->Recover({now_, now_}, records, "cluster");
    ASSERT_TRUE(actions.ok()) << actions.status().ToString();
    Keep(*actions);
  }
  static Options TestOptions() {
    Options options;
    options.mint_token = [] { return "token"; };
    return options;
  }
  void Keep(const Actions& actions) {
    writes_ = actions.writes.size();
    for (const Write& write : actions.writes) {
      if (write.value) {
        disk_[write.key] = *write.value;
      } else {
        disk_.erase(write.key);
      }
    }
    sends_.insert(sends_.end(), actions.sends.begin(), actions.sends.end());
    for (const EventRecord& event : actions.events) kinds_.push_back(event.kind);
  }
  Reply Do(const Event& event) {
    now_ += 1'000'000;
    Actions actions = core_->Step({now_, now_}, event);
    Keep(actions);
    return actions.reply.value_or(Reply{});
  }
  std::string Refusal(const Event& event, Code code) {
    const Reply reply = Do(event);
    EXPECT_EQ(reply.status.code(), code) << reply.status.ToString();
    EXPECT_EQ(writes_, 0u) << "a refusal changed something";
    return reply.status.message();
  }
  void Wait(int64_t ns) {
    for (int64_t i = 0; i < 20; ++i) {
      now_ += ns / 20;
      if (hearts_) Hearts();
      Do(Tick{});
    }
  }

  void Hearts() {
    std::vector<std::string> names;
    for (const auto& [name, node] : core_->nodes()) {
      if (node.connected) names.push_back(name);
    }
    for (const std::string& name : names) Do(StagingUsed{name, 0});
  }

  static NodeInfo Info(const std::string& name, uint32_t slots) {
    NodeInfo info;
    info.name = name;
    info.address = "127.0.0.1";
    info.data_address = name + ":9";
    info.slots = slots;
    info.staging_budget_bytes = 1 << 30;
    info.boot_ns = 1;
    info.memcpy_gbps = 8;
    return info;
  }
  void Node(const std::string& name, uint32_t slots) { Do(NodeConnected{Info(name, slots)}); }
  JobReport Snapshot(const std::string& name, const std::string& node, NodeJobState state) {
    const Job& job = *core_->FindJob(name);
    JobReport report;
    report.job = name;
    report.epoch = job.epoch;
    report.state = state;
    report.op_id = job.stop_op;
    report.methods = {{"suspend", true, ""}};
    for (const Member& member : job.members) {
      if (member.place.node == node) report.node_rank = member.place.node_rank;
    }
    if (report.node_rank == 0) report.gang_address = node + ":7";
    return report;
  }
  void Say(const std::string& name, const std::string& node, NodeJobState state) {
    Do(JobReported{node, Snapshot(name, node, state)});
  }
  void SayAll(const std::string& name, NodeJobState state) {
    for (const NodePlacement& place : PlacementOf(*core_->FindJob(name))) {
      Say(name, place.node, state);
    }
  }
  void SayCopy(const std::string& name, const std::string& node, NodeJobState state, int64_t step,
               bool durable) {
    JobReport report = Snapshot(name, node, state);
    CopyState copy{report.epoch, 1, step, true, {node}, durable, 1 << 20};
    report.copies = {copy};
    Do(JobReported{node, report});
  }
  void Runs(const JobSpec& spec) {
    ASSERT_TRUE(Do(PutJob{0, spec}).status.ok());
    SayAll(spec.name, NodeJobState::kStarting);
    SayAll(spec.name, NodeJobState::kRunning);
    ASSERT_EQ(StateOf(spec.name), JobState::kRunning);
  }
  JobState StateOf(const std::string& name) { return core_->VisibleState(*core_->FindJob(name)); }
  template <typename T>
  std::vector<std::pair<std::string, T>> Sent() {
    std::vector<std::pair<std::string, T>> found;
    for (const Send& send : sends_) {
      if (const T* command = std::get_if<T>(&send.command)) found.emplace_back(send.node, *command);
    }
    sends_.clear();
    return found;
  }
  bool Happened(const std::string& kind) {
    return std::find(kinds_.begin(), kinds_.end(), kind) != kinds_.end();
  }
  const Operation& Op(uint64_t op_id) { return *core_->FindOperation(op_id); }

  std::unique_ptr<Core> core_;
  std::map<std::string, std::string> disk_;
  std::vector<Send> sends_;
  std::vector<std::string> kinds_;
  size_t writes_ = 0;
  bool hearts_ = true;  // agents are alive
  int64_t now_ = 100 * kSecond;
};

#define EXPECT_SAYS(text, part)                   \
  EXPECT_NE((text).find(part), std::string::npos) \
      << "\"" << (text) << "\" lacks \"" << (part) << "\""

// ---- submit

TEST_F(CoreTest, BadJobsAreRefusedBeforeAnything) {
  EXPECT_SAYS(Refusal(PutJob{0, Spec("j", 1)}, Code::kFailedPrecondition), "no agent");
  Node("a", 2);
  Node("b", 2);
  EXPECT_SAYS(Refusal(PutJob{0, Spec("j", 5)}, Code::kFailedPrecondition), "has 4 on 2 nodes");
  EXPECT_SAYS(Refusal(PutJob{0, Spec("j", 0)}, Code::kInvalidArgument), "0 ranks");
  EXPECT_SAYS(Refusal(PutJob{0, Spec("j", 1, 1, "gold")}, Code::kInvalidArgument), "gold");
  EXPECT_SAYS(Refusal(PutJob{0, Spec("../j", 1)}, Code::kInvalidArgument), "../j");
  JobSpec silent = Spec("j", 1);
  silent.command.clear();
  EXPECT_SAYS(Refusal(PutJob{0, silent}, Code::kInvalidArgument), "no command");
  JobSpec fat = Spec("j", 2);
  fat.state_bytes_per_rank = 2ull << 30;
  EXPECT_SAYS(Refusal(PutJob{0, fat}, Code::kFailedPrecondition), "2.00 GiB");
  EXPECT_TRUE(Do(PutJob{5, Spec("j", 2)}).status.ok());
  EXPECT_SAYS(Refusal(PutJob{6, Spec("j", 2)}, Code::kAlreadyExists), "in use");
  EXPECT_TRUE(Do(PutJob{5, Spec("j", 2)}).status.ok()) << "a repeated op_id is no second job";
}

TEST_F(CoreTest, TheLeaderIsLaunchedFirstAndTheOthersJoinIt) {
  Node("a", 2);
  Node("b", 2);
  ASSERT_TRUE(Do(PutJob{0, Spec("j", 4)}).status.ok());
  auto launches = Sent<Launch>();
  ASSERT_EQ(launches.size(), 1u);
  EXPECT_EQ(launches[0].first, "a");
  EXPECT_EQ(launches[0].second.nnodes, 2u);
  EXPECT_EQ(launches[0].second.leader_address, "");
  EXPECT_EQ(launches[0].second.epoch, 1u);
  Say("j", "a", NodeJobState::kStarting);
  launches = Sent<Launch>();
  ASSERT_EQ(launches.size(), 1u);
  EXPECT_EQ(launches[0].first, "b");
  EXPECT_EQ(launches[0].second.leader_address, "a:7");
  EXPECT_EQ(launches[0].second.place.first_rank, 2u);
  EXPECT_EQ(launches[0].second.token, "token");
  Say("j", "a", NodeJobState::kRunning);
  EXPECT_EQ(StateOf("j"), JobState::kStarting);
  Say("j", "b", NodeJobState::kRunning);
  EXPECT_EQ(StateOf("j"), JobState::kRunning);
}

TEST_F(CoreTest, WithoutRoomItWaitsAndSaysWhatIsShort) {
  Node("a", 2);
  Runs(Spec("first", 2));
  ASSERT_TRUE(Do(PutJob{0, Spec("second", 1)}).status.ok());
  EXPECT_EQ(StateOf("second"), JobState::kPending);
  const std::string reason = core_->FindJob("second")->reason;
  EXPECT_SAYS(reason, "needs 1 slot, 0 of 2 free");
  EXPECT_SAYS(reason, "ckptctl quote second");
  EXPECT_TRUE(Happened("pending"));
  SayAll("first", NodeJobState::kFinished);
  EXPECT_EQ(StateOf("first"), JobState::kFinished);
  EXPECT_EQ(StateOf("second"), JobState::kStarting);
}

TEST_F(CoreTest, PriorityThenAgeDecidesWhoStarts) {
  Node("a", 1);
  Runs(Spec("now", 1));
  for (const auto& [name, priority] :
       std::vector<std::pair<const char*, int>>{{"old", 1}, {"young", 1}, {"high", 5}}) {
    ASSERT_TRUE(Do(PutJob{0, Spec(name, 1, priority)}).status.ok());
  }
  for (const char* next : {"high", "old", "young"}) {
    for (const auto& [name, job] : core_->jobs()) {
      if (job.state == JobState::kRunning || job.state == JobState::kStarting) {
        SayAll(name, NodeJobState::kFinished);
        break;
      }
    }
    EXPECT_EQ(StateOf(next), JobState::kStarting) << next;
  }
}

// ---- reports

TEST_F(CoreTest, ARepeatedReportAndMereProgressWriteNothing) {
  Node("a", 2);
  Runs(Spec("j", 2));
  JobReport report = Snapshot("j", "a", NodeJobState::kRunning);
  Do(JobReported{"a", report});
  EXPECT_EQ(writes_, 0u);
  report.step = 50;
  report.step_seconds = 0.1;
  Do(JobReported{"a", report});
  EXPECT_EQ(writes_, 0u);
  EXPECT_EQ(core_->FindJob("j")->step, 50);
  Do(StagingUsed{"a", 7});
  EXPECT_EQ(writes_, 0u);
}

TEST_F(CoreTest, AnEpochIsAboveAllThatWasEverSeen) {
  Node("a", 1);
  Runs(Spec("j", 1));
  JobReport report = Snapshot("j", "a", NodeJobState::kRunning);
  report.claimed_epoch = 41;
  Do(JobReported{"a", report});
  Say("j", "a", NodeJobState::kFailed);
  EXPECT_EQ(core_->FindJob("j")->epoch, 42u);
  EXPECT_EQ(core_->FindJob("j")->restart_count, 1u);
}

TEST_F(CoreTest, OldRecordsAdoptWhatTheAgentsReport) {
  Node("a", 2);
  Node("b", 2);
  Runs(Spec("j", 4));
  JobReport one = Snapshot("j", "a", NodeJobState::kRunning);
  JobReport two = Snapshot("j", "b", NodeJobState::kRunning);
  one.epoch = two.epoch = 9;
  one.rank_count = two.rank_count = 2;
  SayAll("j", NodeJobState::kReleased);  // as far as these records know, it was at epoch 1
  Do(JobReported{"b", two});
  Do(JobReported{"a", one});
  const Job& job = *core_->FindJob("j");
  EXPECT_EQ(job.epoch, 9u);
  EXPECT_EQ(job.state, JobState::kRunning);
  ASSERT_EQ(job.members.size(), 2u);
  EXPECT_EQ(job.members[1].place, (NodePlacement{"b", 1, 2, 2}));
}

TEST_F(CoreTest, ALiveOldEpochIsFenced) {
  Node("a", 1);
  Runs(Spec("j", 1));
  JobReport old = Snapshot("j", "a", NodeJobState::kRunning);
  Say("j", "a", NodeJobState::kFailed);
  sends_.clear();
  Do(JobReported{"a", old});
  const auto stops = Sent<Stop>();
  ASSERT_EQ(stops.size(), 1u);
  EXPECT_TRUE(stops[0].second.kill);
  EXPECT_EQ(stops[0].second.epoch, 1u);
}

TEST_F(CoreTest, AJobThatIsNotOnRecordIsLeftAloneAndItsSlotsCount) {
  Node("a", 2);
  JobReport foreign;
  foreign.job = "unheard-of";
  foreign.epoch = 3;
  foreign.state = NodeJobState::kRunning;
  foreign.rank_count = 1;
  Do(JobReported{"a", foreign});
  EXPECT_EQ(core_->FreeSlots("a"), 1u);
  EXPECT_TRUE(Sent<Stop>().empty());
  foreign.state = NodeJobState::kFinished;
  Do(JobReported{"a", foreign});
  EXPECT_EQ(core_->FreeSlots("a"), 2u);
}

TEST_F(CoreTest, CopiesAreThreeFacts) {
  Node("a", 1);
  Runs(Spec("j", 1));
  SayCopy("j", "a", NodeJobState::kRunning, 10, false);
  auto copies = core_->Copies(*core_->FindJob("j"));
  ASSERT_EQ(copies.size(), 1u);
  EXPECT_TRUE(copies[0].staged_gang && !copies[0].durable);
  EXPECT_EQ(copies[0].ram_nodes, std::vector<std::string>{"a"});
  EXPECT_FALSE(Happened("durable"));
  SayCopy("j", "a", NodeJobState::kRunning, 10, true);
  EXPECT_TRUE(core_->Copies(*core_->FindJob("j"))[0].durable);
  EXPECT_EQ(std::count(kinds_.begin(), kinds_.end(), "durable"), 1);
}

// ---- suspend, resume, cancel, checkpoint

TEST_F(CoreTest, ADeadlineBeyondAllTimeIsAFarOne) {
  Node("a", 1);
  Runs(Spec("j", 1));
  sends_.clear();
  ASSERT_TRUE(Do(Suspend{{7, "j", 0, INT64_MAX}}).status.ok());
  Do(Tick{});
  const auto stops = Sent<Stop>();
  ASSERT_FALSE(stops.empty());
  for (const auto& [node, stop] : stops) {
    EXPECT_FALSE(stop.kill);
    EXPECT_GT(stop.deadline_ms, 86'400'000) << "more than a day is left";
  }
}

TEST_F(CoreTest, SuspendAndResume) {
  Node("a", 1);
  Node("b", 1);
  Runs(Spec("j", 2));
  sends_.clear();
  ASSERT_TRUE(Do(Suspend{{7, "j", 0, 5000}}).status.ok());
  EXPECT_EQ(StateOf("j"), JobState::kSuspending);
  const auto stops = Sent<Stop>();
  ASSERT_EQ(stops.size(), 2u);
  EXPECT_FALSE(stops[0].second.kill);
  EXPECT_LE(stops[0].second.deadline_ms, 5000);
  EXPECT_EQ(Do(Suspend{{8, "j", 0, 0}}).op_id, 7u) << "the one in progress";
  EXPECT_EQ(Op(7).phase, Phase::kNotified);
  JobReport staged = Snapshot("j", "a", NodeJobState::kStopping);
  staged.times.noticed_ns = 1;
  staged.times.cut_ns = 2;
  staged.times.staged_ns = 3;
  Do(JobReported{"a", staged});
  EXPECT_EQ(Op(7).phase, Phase::kStaged);
  EXPECT_TRUE(Happened("cut") && Happened("staged"));
  SayCopy("j", "a", NodeJobState::kReleased, 10, false);
  EXPECT_EQ(StateOf("j"), JobState::kSuspending) << "node b is not free yet";
  Say("j", "b", NodeJobState::kReleased);
  EXPECT_EQ(StateOf("j"), JobState::kSuspended);
  EXPECT_EQ(Op(7).state, OperationState::kDone);
  EXPECT_SAYS(Op(7).message, "in RAM of a only, not durable");
  EXPECT_EQ(core_->FindJob("j")->preempted_count, 0u);
  EXPECT_SAYS(Do(Suspend{{9, "j", 0, 0}}).status.ToString(), "OK");
  EXPECT_SAYS(Op(9).message, "already suspended");
  Wait(100 * kSecond);
  EXPECT_EQ(StateOf("j"), JobState::kSuspended) << "until an operator resumes it";

  ASSERT_TRUE(Do(Resume{10, "j", {}}).status.ok());
  EXPECT_EQ(core_->FindJob("j")->epoch, 2u);
  SayAll("j", NodeJobState::kStarting);
  SayAll("j", NodeJobState::kRunning);
  EXPECT_EQ(Op(10).state, OperationState::kDone);
  EXPECT_EQ(Do(Resume{10, "j", {}}).op_id, 10u) << "a repeated op_id returns the stored result";
  EXPECT_SAYS(Refusal(Resume{11, "j", {}}, Code::kFailedPrecondition), "running already");
  EXPECT_SAYS(Refusal(Suspend{{10, "j", 0, 0}}, Code::kInvalidArgument), "another request");
}

TEST_F(CoreTest, WhatCannotBeSuspendedIsRefusedWithItsReason) {
  Node("a", 1);
  Runs(Spec("j", 1));
  JobReport report = Snapshot("j", "a", NodeJobState::kRunning);
  report.methods = {{"suspend", false, "staging budget 1 MiB < 66 MiB"}};
  Do(JobReported{"a", report});
  EXPECT_SAYS(Refusal(Suspend{{1, "j", 0, 0}}, Code::kFailedPrecondition), "staging budget 1 MiB");
  EXPECT_SAYS(Refusal(Suspend{{1, "j", 7, 0}}, Code::kFailedPrecondition), "epoch 1, not 7");
  EXPECT_SAYS(Refusal(Suspend{{1, "nobody", 0, 0}}, Code::kNotFound), "nobody");
}

TEST_F(CoreTest, ASuspendThatRollsBackLeavesTheJobRunning) {
  Node("a", 1);
  Runs(Spec("j", 1));
  Do(Suspend{{7, "j", 0, 0}});
  JobReport report = Snapshot("j", "a", NodeJobState::kRunning);
  report.suspend_failed = true;
  report.message = "barrier B1: rank 3 is missing";
  Do(JobReported{"a", report});
  EXPECT_EQ(StateOf("j"), JobState::kRunning);
  EXPECT_EQ(Op(7).state, OperationState::kFailed);
  EXPECT_SAYS(Op(7).message, "rank 3 is missing");
  Do(JobReported{"a", report});  // it stands in every later snapshot, too
  EXPECT_TRUE(Do(Suspend{{8, "j", 0, 0}}).status.ok());
  EXPECT_EQ(StateOf("j"), JobState::kSuspending);
  Do(JobReported{"a", report});
  EXPECT_EQ(StateOf("j"), JobState::kSuspending) << "an old failure is not this one's";
}

TEST_F(CoreTest, WhatIsNotReleasedByItsDeadlineIsKilledAndTheLossIsBooked) {
  Node("a", 2);
  Runs(Spec("j", 2));
  JobReport report = Snapshot("j", "a", NodeJobState::kRunning);
  report.step = 30;
  report.step_seconds = 0.5;
  report.copies = {CopyState{1, 1, 20, true, {"a"}, true, 1}};
  Do(JobReported{"a", report});
  Do(Suspend{{7, "j", 0, 2000}});
  sends_.clear();
  Wait(12 * kSecond);
  const auto stops = Sent<Stop>();
  ASSERT_EQ(stops.size(), 1u);
  EXPECT_TRUE(stops[0].second.kill);
  Say("j", "a", NodeJobState::kFailed);
  EXPECT_EQ(StateOf("j"), JobState::kSuspended);
  EXPECT_EQ(Op(7).state, OperationState::kFailed);
  EXPECT_DOUBLE_EQ(core_->FindJob("j")->lost_gpu_seconds, 2 * 10 * 0.5);
  EXPECT_SAYS(core_->FindJob("j")->reason, "resumes from step 20 (durable)");
}

TEST_F(CoreTest, FinishedBeforeReleaseWins) {
  Node("a", 1);
  Runs(Spec("j", 1));
  Do(Suspend{{7, "j", 0, 0}});
  Say("j", "a", NodeJobState::kFinished);
  EXPECT_EQ(StateOf("j"), JobState::kFinished);
  EXPECT_EQ(Op(7).state, OperationState::kDone);
  EXPECT_SAYS(Op(7).message, "finished first");
  EXPECT_SAYS(Refusal(Resume{8, "j", {}}, Code::kFailedPrecondition), "finished");
}

TEST_F(CoreTest, CancelOverridesEverythingAndMayBeRepeated) {
  Node("a", 1);
  Node("b", 1);
  ASSERT_TRUE(Do(PutJob{0, Spec("j", 2)}).status.ok());
  Say("j", "a", NodeJobState::kStarting);
  Say("j", "a", NodeJobState::kRunning);
  Say("j", "b", NodeJobState::kRunning);
  Do(Suspend{{7, "j", 0, 0}});
  sends_.clear();
  Do(Cancel{{8, "j", 0, 0}});
  EXPECT_EQ(Op(7).state, OperationState::kFailed);
  const auto stops = Sent<Stop>();
  ASSERT_EQ(stops.size(), 2u);
  EXPECT_TRUE(stops[0].second.kill && stops[1].second.kill);
  EXPECT_EQ(Do(Cancel{{9, "j", 0, 0}}).op_id, 8u);
  SayAll("j", NodeJobState::kFailed);
  EXPECT_EQ(StateOf("j"), JobState::kCancelled);
  EXPECT_EQ(Op(8).state, OperationState::kDone);
  EXPECT_TRUE(Do(Cancel{{10, "j", 0, 0}}).status.ok());
  EXPECT_SAYS(Op(10).message, "cancelled already");
}

TEST_F(CoreTest, ALaunchThatWasNeverSentNeedsNoKill) {
  Node("a", 1);
  Node("b", 1);
  ASSERT_TRUE(Do(PutJob{0, Spec("j", 2)}).status.ok());
  Do(Cancel{{8, "j", 0, 0}});
  Say("j", "a", NodeJobState::kFailed);
  EXPECT_EQ(StateOf("j"), JobState::kCancelled);
}

TEST_F(CoreTest, ACheckpointIsDoneWhenANewerCopyIsDurable) {
  Node("a", 1);
  Runs(Spec("j", 1));
  SayCopy("j", "a", NodeJobState::kRunning, 10, true);
  sends_.clear();
  Do(Checkpoint{{7, "j", 0, 0}});
  ASSERT_EQ(Sent<SaveNow>().size(), 1u);
  SayCopy("j", "a", NodeJobState::kRunning, 10, true);
  EXPECT_EQ(Op(7).state, OperationState::kRunning) << "that one is older";
  SayCopy("j", "a", NodeJobState::kRunning, 15, false);
  EXPECT_EQ(Op(7).phase, Phase::kStaged);
  SayCopy("j", "a", NodeJobState::kRunning, 15, true);
  EXPECT_EQ(Op(7).state, OperationState::kDone);
}

TEST_F(CoreTest, ASaveThatGotLostIsOrderedAgainUnderTheSameNumber) {
  Node("a", 1);
  Runs(Spec("j", 1));
  Do(Checkpoint{{7, "j", 0, 0}});
  const SaveNow first = Sent<SaveNow>().at(0).second;
  Restart();  // it was on record, and is not known to have been sent
  sends_.clear();
  Node("a", 1);
  const auto again = Sent<SaveNow>();
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(again[0].second.op_id, first.op_id);
  EXPECT_EQ(again[0].second.epoch, first.epoch);
  SayCopy("j", "a", NodeJobState::kRunning, 15, true);
  EXPECT_EQ(Op(7).state, OperationState::kDone);
}

// ---- crashes and lost nodes

TEST_F(CoreTest, OneRankDiesAndTheGangStartsAgainInItsPlace) {
  Node("a", 1);
  Node("b", 1);
  Runs(Spec("j", 2));
  sends_.clear();
  JobReport dead = Snapshot("j", "b", NodeJobState::kFailed);
  dead.message = "rank 1: killed by signal 9";
  Do(JobReported{"b", dead});
  auto stops = Sent<Stop>();
  ASSERT_EQ(stops.size(), 1u);
  EXPECT_EQ(stops[0].first, "a");
  EXPECT_TRUE(stops[0].second.kill);
  EXPECT_EQ(core_->FindJob("j")->epoch, 1u) << "not before all of it is over";
  Say("j", "a", NodeJobState::kFailed);
  EXPECT_EQ(core_->FindJob("j")->epoch, 2u);
  EXPECT_EQ(StateOf("j"), JobState::kStarting);
  EXPECT_TRUE(Happened("failed") && Happened("restarted"));
}

TEST_F(CoreTest, ItGivesUpAfterItsRestartsAndResumeTriesAgain) {
  Node("a", 1);
  JobSpec spec = Spec("j", 1);
  spec.restarts_max = 2;
  Runs(spec);
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(IsLive(core_->FindJob("j")->state));
    Say("j", "a", NodeJobState::kFailed);
    Wait(5 * kSecond);
  }
  EXPECT_EQ(StateOf("j"), JobState::kFailed);
  EXPECT_SAYS(core_->FindJob("j")->reason, "gave up after 2 restarts");
  EXPECT_EQ(core_->FindJob("j")->restart_count, 2u);
  EXPECT_TRUE(Do(Resume{9, "j", {}}).status.ok());
  EXPECT_EQ(StateOf("j"), JobState::kStarting);
  EXPECT_EQ(core_->FindJob("j")->restart_count, 0u);
}

TEST_F(CoreTest, AFirstLaunchThatIsRefusedFailsAtOnce) {
  Node("a", 1);
  ASSERT_TRUE(Do(PutJob{0, Spec("j", 1)}).status.ok());
  const auto launch = Sent<Launch>().at(0).second;
  Do(CommandAnswered{"a", {launch.op_id, "j", 1, false, "store /x: Permission denied (EACCES)"}});
  EXPECT_EQ(StateOf("j"), JobState::kFailed);
  EXPECT_SAYS(core_->FindJob("j")->reason, "/x: Permission denied");
}

TEST_F(CoreTest, ALostNodeMakesItUnknownUntilTheNodeIsBack) {
  Node("a", 1);
  Runs(Spec("j", 1));
  Do(NodeLost{"a", "no heartbeat"});
  EXPECT_EQ(StateOf("j"), JobState::kUnknown);
  EXPECT_SAYS(core_->VisibleReason(*core_->FindJob("j")), "no contact with node a");
  Wait(1000 * kSecond);
  EXPECT_EQ(StateOf("j"), JobState::kUnknown);
  EXPECT_EQ(core_->FindJob("j")->epoch, 1u);
  Node("a", 1);
  Say("j", "a", NodeJobState::kRunning);
  EXPECT_EQ(StateOf("j"), JobState::kRunning);
}

TEST_F(CoreTest, ALaunchThatGotLostIsSentAgainUnderTheSameNumber) {
  Node("a", 1);
  ASSERT_TRUE(Do(PutJob{0, Spec("j", 1)}).status.ok());
  const auto first = Sent<Launch>().at(0).second;
  Do(NodeLost{"a", ""});
  Node("a", 1);
  const auto again = Sent<Launch>();
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(again[0].second.op_id, first.op_id);
  EXPECT_EQ(again[0].second.epoch, first.epoch);
}

TEST_F(CoreTest, AnAgentThatRestartedAndSaysNothingOfItsJobIsAskedToEndIt) {
  Node("a", 1);
  Runs(Spec("j", 1));
  Do(NodeLost{"a", ""});
  NodeInfo info = Info("a", 1);
  info.boot_ns = 2;
  Do(NodeConnected{info});
  sends_.clear();
  Wait(30 * kSecond);
  const auto stops = Sent<Stop>();
  ASSERT_FALSE(stops.empty());
  EXPECT_TRUE(stops[0].second.kill);
  EXPECT_EQ(core_->FindJob("j")->epoch, 1u);
  Do(CommandAnswered{"a", {stops.back().second.op_id, "j", 1, false, "not known here"}});
  EXPECT_EQ(core_->FindJob("j")->epoch, 2u);
}

TEST_F(CoreTest, ACopyThatIsOnlyInRamBindsTheJobToItsPlace) {
  Node("a", 1);
  Node("b", 1);
  Runs(Spec("j", 1));
  Do(Suspend{{7, "j", 0, 0}});
  SayCopy("j", "a", NodeJobState::kReleased, 10, false);
  Runs(Spec("other", 1));
  ASSERT_EQ(PlacementOf(*core_->FindJob("other"))[0].node, "a");
  Do(Resume{8, "j", {}});
  EXPECT_EQ(StateOf("j"), JobState::kPending) << "node b is free, but the copy is not there";
  EXPECT_SAYS(core_->FindJob("j")->reason, "in RAM of a only");
  EXPECT_SAYS(Refusal(Resume{9, "j", {"b"}}, Code::kFailedPrecondition), "left behind");
  SayCopy("j", "a", NodeJobState::kReleased, 10, true);
  EXPECT_EQ(StateOf("j"), JobState::kStarting) << "durable: anywhere";
  EXPECT_EQ(PlacementOf(*core_->FindJob("j"))[0].node, "b");
}

// ---- terms and records

TEST_F(CoreTest, ARestartRaisesTheTermAndGoesOn) {
  const uint64_t term = core_->term();
  Node("a", 1);
  Runs(Spec("j", 1));
  Do(Suspend{{7, "j", 0, 0}});
  Restart();
  EXPECT_EQ(core_->term(), term + 1);
  EXPECT_EQ(StateOf("j"), JobState::kUnknown) << "until its node has spoken";
  sends_.clear();
  Node("a", 1);
  const auto stops = Sent<Stop>();
  ASSERT_EQ(stops.size(), 1u) << "ordered again";
  SayCopy("j", "a", NodeJobState::kReleased, 5, false);
  EXPECT_EQ(StateOf("j"), JobState::kSuspended);
  EXPECT_EQ(Op(7).state, OperationState::kDone);
}

TEST_F(CoreTest, ANodeThatHasSeenAHigherTermRaisesIt) {
  NodeInfo info = Info("a", 1);
  info.term = 77;
  Do(NodeConnected{info});
  EXPECT_EQ(core_->term(), 78u);
  Restart();
  EXPECT_EQ(core_->term(), 79u);
}

TEST_F(CoreTest, EveryRecordSurvivesARoundTripAndEveryCutIsFound) {
  Node("a", 2);
  Runs(Spec("j", 2));
  SayCopy("j", "a", NodeJobState::kRunning, 10, true);
  Do(Suspend{{7, "j", 0, 0}});
  for (const auto& [key, value] : disk_) {
    std::string again = value;
    if (key.starts_with("job/")) again = EncodeJob(*DecodeJob(value));
    if (key.starts_with("op/")) again = EncodeOperation(*DecodeOperation(value));
    if (key.starts_with("node/")) again = EncodeNode(*DecodeNode(value));
    if (key.starts_with("event/")) again = EncodeEvent(*DecodeEvent(value));
    EXPECT_EQ(again, value) << key;
    for (size_t cut = 0; key.starts_with("job/") && cut < value.size(); ++cut) {
      EXPECT_FALSE(DecodeJob(std::string_view(value).substr(0, cut)).ok()) << cut;
    }
  }
  std::string newer = disk_.at("job/j");
  newer[0] = 9;
  EXPECT_EQ(DecodeJob(newer).status().code(), Code::kFailedPrecondition);
  Core other(TestOptions());
  const auto without_meta = other.Recover({1, 1}, {{"job/j", disk_.at("job/j")}}, "c");
  EXPECT_EQ(without_meta.status().code(), Code::kDataLoss);
}

TEST_F(CoreTest, EventsGoOnOverARestart) {
  Node("a", 1);
  Runs(Spec("j", 1));
  const auto before = core_->EventsSince(0);
  ASSERT_FALSE(before.empty());
  Restart();
  EXPECT_EQ(core_->EventsSince(0).size(), before.size());
  Node("a", 1);
  const auto news = core_->EventsSince(before.back().revision);
  ASSERT_FALSE(news.empty());
  EXPECT_EQ(news.front().revision, before.back().revision + 1);
  EXPECT_EQ(core_->EventsSince(0, 2).size(), 2u);
}

// ---- migrate

TEST_F(CoreTest, MigrateMovesTheRanksOfOneNode) {
  for (const char* node : {"a", "b", "c"}) Node(node, 1);
  Runs(Spec("j", 2));
  EXPECT_SAYS(Refusal(Migrate{1, "j", "c", "b", 0}, Code::kInvalidArgument), "no rank on node c");
  EXPECT_SAYS(Refusal(Migrate{1, "j", "a", "b", 0}, Code::kInvalidArgument), "already");
  EXPECT_SAYS(Refusal(Migrate{1, "j", "a", "nowhere", 0}, Code::kFailedPrecondition), "nowhere");
  Do(Migrate{7, "j", "b", "c", 0});
  EXPECT_EQ(StateOf("j"), JobState::kSuspending);
  SayCopy("j", "a", NodeJobState::kReleased, 10, false);
  sends_.clear();
  SayCopy("j", "b", NodeJobState::kReleased, 10, false);
  const auto fetches = Sent<Fetch>();
  ASSERT_EQ(fetches.size(), 1u);
  EXPECT_EQ(fetches[0].first, "c");
  EXPECT_EQ(fetches[0].second.from_data_address, "b:9");
  EXPECT_EQ(fetches[0].second.ranks, std::vector<uint32_t>{1});
  EXPECT_EQ(core_->FreeSlots("a") + core_->FreeSlots("b") + core_->FreeSlots("c"), 0u)
      << "the old place and the new one are both kept";
  Do(Fetched{"c", {"j", fetches[0].second.op_id, true, "", 5, 5, 1, 2}});
  const Job& job = *core_->FindJob("j");
  EXPECT_EQ(job.epoch, 2u);
  EXPECT_EQ(PlacementOf(job)[1], (NodePlacement{"c", 1, 1, 1}));
  SayAll("j", NodeJobState::kStarting);
  SayAll("j", NodeJobState::kRunning);
  EXPECT_EQ(Op(7).state, OperationState::kDone);
  EXPECT_EQ(core_->FreeSlots("b"), 1u);
}

TEST_F(CoreTest, AMigrationThatFailsGoesBackToItsOldPlace) {
  for (const char* node : {"a", "b"}) Node(node, 1);
  Runs(Spec("j", 1));
  Do(Migrate{7, "j", "a", "b", 0});
  sends_.clear();
  SayCopy("j", "a", NodeJobState::kReleased, 10, false);
  const auto fetch = Sent<Fetch>().at(0).second;
  Do(Fetched{"b", {"j", fetch.op_id, false, "connection refused"}});
  EXPECT_EQ(Op(7).state, OperationState::kFailed);
  EXPECT_SAYS(Op(7).message, "connection refused");
  EXPECT_EQ(PlacementOf(*core_->FindJob("j"))[0].node, "a");
  EXPECT_EQ(StateOf("j"), JobState::kStarting);

  SayAll("j", NodeJobState::kRunning);
  Do(Migrate{8, "j", "a", "b", 0});
  sends_.clear();
  SayCopy("j", "a", NodeJobState::kReleased, 20, false);
  Do(Fetched{"b", {"j", Sent<Fetch>().at(0).second.op_id, true}});
  EXPECT_EQ(PlacementOf(*core_->FindJob("j"))[0].node, "b");
  Say("j", "b", NodeJobState::kFailed);  // it cannot start there
  EXPECT_EQ(Op(8).state, OperationState::kFailed);
  EXPECT_EQ(PlacementOf(*core_->FindJob("j"))[0].node, "a");
}

TEST_F(CoreTest, ACopyIsForgottenOnlyWhenANewerOneStandsInForIt) {
  Node("a", 1);
  Runs(Spec("j", 1));
  Do(Suspend{{7, "j", 0, 0}});
  SayCopy("j", "a", NodeJobState::kReleased, 10, false);
  Do(Resume{8, "j", {}});
  SayAll("j", NodeJobState::kRunning);
  sends_.clear();
  JobReport old = Snapshot("j", "a", NodeJobState::kReleased);
  old.epoch = 1;
  old.copies = {CopyState{1, 1, 10, true, {"a"}, true, 1}};
  Do(JobReported{"a", old});
  EXPECT_TRUE(Sent<Forget>().empty()) << "durable, but the newest there is: RAM is faster";
  SayCopy("j", "a", NodeJobState::kRunning, 20, false);
  const auto forgets = Sent<Forget>();
  ASSERT_EQ(forgets.size(), 1u);
  EXPECT_EQ(forgets[0].second.epoch, 1u);
}

// The agent repeats its report until it has heard that it may forget it.
TEST_F(CoreTest, WhatIsDurableIsToldOnceThoughTheAgentRepeatsItAfterTheEnd) {
  Node("a", 1);
  Runs(Spec("j", 1));
  JobReport report = Snapshot("j", "a", NodeJobState::kRunning);
  report.copies = {CopyState{1, 2, 20, true, {"a"}, true, 1},
                   CopyState{1, 1, 10, true, {"a"}, true, 1}};
  Do(JobReported{"a", report});
  report.state = NodeJobState::kFinished;
  for (int i = 0; i < 3; ++i) Do(JobReported{"a", report});
  EXPECT_EQ(core_->FindJob("j")->state, JobState::kFinished);
  EXPECT_EQ(std::count(kinds_.begin(), kinds_.end(), "durable"), 2);
}

// It was killed before it had stored its last report.
TEST_F(CoreTest, WhatIsDurableStaysSoThoughAnAgentThatCameBackKnowsLess) {
  Node("a", 1);
  Runs(Spec("j", 1));
  SayCopy("j", "a", NodeJobState::kRunning, 20, true);
  JobReport report = Snapshot("j", "a", NodeJobState::kFailed);
  report.copies = {CopyState{1, 1, 20, true, {"a"}, false, 1 << 20, 0, "ended before it was"}};
  Do(JobReported{"a", report});
  const auto copies = core_->Copies(*core_->FindJob("j"));
  ASSERT_EQ(copies.size(), 1u);
  EXPECT_TRUE(copies[0].durable);
  EXPECT_EQ(std::count(kinds_.begin(), kinds_.end(), "durable"), 1);
  EXPECT_EQ(std::count(kinds_.begin(), kinds_.end(), "drain_failed"), 0);
}

// A store that is full for a second must not use up the restarts of a day.
TEST_F(CoreTest, WhatFailsBeforeItHasStartedIsTriedAgainLaterAndLater) {
  Node("a", 1);
  JobSpec spec = Spec("j", 1);
  spec.restarts_max = 9;
  Runs(spec);
  Say("j", "a", NodeJobState::kFailed);
  EXPECT_EQ(core_->FindJob("j")->epoch, 2u) << "it had run: at once";
  Say("j", "a", NodeJobState::kFailed);
  EXPECT_EQ(StateOf("j"), JobState::kPending);
  EXPECT_SAYS(core_->FindJob("j")->reason, "starts again in 1.000 s");
  EXPECT_TRUE(core_->NeedsTicks());
  Wait(2 * kSecond);
  EXPECT_EQ(core_->FindJob("j")->epoch, 3u);
  Say("j", "a", NodeJobState::kFailed);
  Wait(2 * kSecond);
  EXPECT_EQ(core_->FindJob("j")->epoch, 3u) << "four times as long";
  EXPECT_TRUE(Do(Resume{9, "j", {}}).status.ok());
  EXPECT_EQ(core_->FindJob("j")->epoch, 4u) << "somebody wants it now";
  SayAll("j", NodeJobState::kRunning);
  Say("j", "a", NodeJobState::kFailed);
  EXPECT_EQ(core_->FindJob("j")->epoch, 5u) << "it had run: at once";
}

// ---- copies that nobody writes any more

TEST_F(CoreTest, ACopyWhoseCkptRunsHaveEndedIsDrainedAgainAndAgainUntilItIsDurable) {
  Node("a", 1);
  Node("b", 1);
  Runs(Spec("j", 2));
  Do(Suspend{{7, "j", 0, 5000}});
  const auto say = [&](const std::string& node, uint64_t drain_op, bool ended, bool durable) {
    JobReport report = Snapshot("j", node, NodeJobState::kReleased);
    report.copies = {CopyState{1, 1, 10, true, {node}, durable, 1 << 20}};
    report.run_ended = ended;
    report.drain_op = drain_op;
    Do(JobReported{node, report});
  };
  say("a", 0, false, false);
  say("b", 0, false, false);
  sends_.clear();
  say("a", 0, true, false);
  EXPECT_TRUE(Sent<Launch>().empty()) << "the other may still write";
  say("b", 0, true, false);
  auto launches = Sent<Launch>();
  ASSERT_EQ(launches.size(), 1u) << "the leader first";
  const uint64_t op = launches[0].second.op_id;
  EXPECT_TRUE(launches[0].second.drain);
  EXPECT_EQ(launches[0].second.epoch, 1u);
  EXPECT_EQ(launches[0].first, "a");
  Restart();  // the order is stored, and is given again under its number
  Node("a", 1);
  Node("b", 1);
  launches = Sent<Launch>();
  ASSERT_EQ(launches.size(), 1u);
  EXPECT_EQ(launches[0].second.op_id, op);
  say("a", op, false, false);
  launches = Sent<Launch>();
  ASSERT_EQ(launches.size(), 1u);
  EXPECT_EQ(launches[0].first, "b");
  EXPECT_EQ(launches[0].second.leader_address, "a:7");
  say("b", op, false, false);
  say("a", op, true, false);
  EXPECT_TRUE(Happened("drain_failed"));
  EXPECT_SAYS(core_->DrainInWords(*core_->FindJob("j")), "next try in");
  say("b", op, true, false);
  sends_.clear();
  Wait(20 * kSecond);
  launches = Sent<Launch>();
  ASSERT_FALSE(launches.empty());
  EXPECT_NE(launches[0].second.op_id, op);
  say("a", launches[0].second.op_id, false, true);
  EXPECT_EQ(core_->FindJob("j")->drain.op, 0u);
  EXPECT_EQ(core_->DrainInWords(*core_->FindJob("j")), "");
  EXPECT_SAYS(core_->FindJob("j")->reason, "resumes from step 10 (durable)");
}

TEST_F(CoreTest, ACopyThatIsLostIsSaidAndItsStepsAreBooked) {
  Node("a", 1);
  Runs(Spec("j", 1));
  JobReport report = Snapshot("j", "a", NodeJobState::kRunning);
  report.step = 30;
  report.step_seconds = 2;
  report.copies = {CopyState{1, 1, 20, false, {}, true, 1}};
  Do(JobReported{"a", report});
  Do(Suspend{{7, "j", 0, 5000}});
  report = Snapshot("j", "a", NodeJobState::kReleased);
  report.step_seconds = 2;
  const CopyState old{1, 1, 20, false, {}, true, 1};
  report.copies = {CopyState{1, 2, 30, true, {"a"}, false, 1}, old};
  Do(JobReported{"a", report});
  EXPECT_EQ(StateOf("j"), JobState::kSuspended);
  EXPECT_EQ(core_->FindJob("j")->lost_steps, 0);
  report.run_ended = true;
  report.copies[0].staged_gang = false;
  report.copies[0].ram_nodes.clear();
  report.copies[0].lost = true;
  report.copies[0].failure = "no longer in RAM of node a";
  Do(JobReported{"a", report});
  EXPECT_TRUE(Happened("copy_lost") && Happened("lost"));
  EXPECT_EQ(core_->FindJob("j")->lost_steps, 10);
  EXPECT_DOUBLE_EQ(core_->FindJob("j")->lost_gpu_seconds, 20);
  EXPECT_SAYS(core_->FindJob("j")->reason, "resumes from step 20 (durable)");
  sends_.clear();
  Wait(20 * kSecond);
  EXPECT_TRUE(Sent<Launch>().empty()) << "there is nothing to drain";
}

TEST_F(CoreTest, WhoCommitsWhatHeHasWrittenIsLeftTheTimeForIt) {
  for (const bool written : {true, false}) {
    Restart();
    const std::string name = written ? "j" : "k", node = written ? "a" : "b";
    Node(node, 1);
    Runs(Spec(name, 1));
    Do(Suspend{{written ? 7u : 8u, name, 0, 5000}});
    JobReport report = Snapshot(name, node, NodeJobState::kReleased);
    report.copies = {CopyState{1, 1, 10, true, {node}, false, 1 << 20}};
    report.copies[0].bytes_to_write = 1 << 20;
    report.copies[0].bytes_durable = written ? 1 << 20 : 1 << 19;
    Do(JobReported{node, report});
    sends_.clear();
    const auto silence = [&](int64_t ns) {
      for (int64_t gone = 0; gone < ns; gone += kSecond) {
        Do(JobReported{node, report});
        Wait(kSecond);
      }
    };
    silence(130 * kSecond);
    EXPECT_EQ(Sent<Launch>().empty(), written) << "the other one does not write";
    silence(700 * kSecond);
    EXPECT_FALSE(Sent<Launch>().empty()) << "nor does this one commit";
  }
}

TEST_F(CoreTest, ACopyWhoseCkptRunDoesNotAnswerIsWrittenByAnotherOne) {
  Node("a", 1);
  Runs(Spec("j", 1));
  Do(Suspend{{7, "j", 0, 5000}});
  JobReport report = Snapshot("j", "a", NodeJobState::kReleased);
  report.copies = {CopyState{1, 1, 10, true, {"a"}, false, 1 << 20}};
  Do(JobReported{"a", report});
  sends_.clear();
  Wait(5 * kSecond);
  EXPECT_TRUE(Sent<Launch>().empty()) << "it is being written";
  report.run_silent = "process 9 has not answered for 15 s";
  Do(JobReported{"a", report});
  auto launches = Sent<Launch>();
  ASSERT_EQ(launches.size(), 1u);
  EXPECT_TRUE(launches[0].second.drain);
  EXPECT_TRUE(Happened("run_silent") && Happened("drain_started"));
  Wait(5 * kSecond);
  EXPECT_FALSE(Happened("drain_failed")) << "that one was silent, not the one that drains";
  report.run_silent.clear();
  report.drain_op = launches[0].second.op_id;
  Do(JobReported{"a", report});
  report.run_silent = "process 10 has not answered for 15 s";
  Do(JobReported{"a", report});
  EXPECT_TRUE(Happened("drain_failed"));
  EXPECT_SAYS(core_->DrainInWords(*core_->FindJob("j")), "node a: process 10");
}

TEST_F(CoreTest, WhatHoldsACopyUpIsSaidOnceEachTimeThatItChanges) {
  Node("a", 1);
  Runs(Spec("j", 1));
  const auto said = [&] { return std::count(kinds_.begin(), kinds_.end(), "held_up"); };
  JobReport report = Snapshot("j", "a", NodeJobState::kRunning);
  report.held_up = "No space left on device; try 2 of 10";
  Do(JobReported{"a", report});
  Do(JobReported{"a", report});
  EXPECT_EQ(said(), 1);
  report.held_up = "";
  Do(JobReported{"a", report});
  EXPECT_EQ(said(), 1);
  report.held_up = "rank 0 is at boundary 7";
  Do(JobReported{"a", report});
  EXPECT_EQ(said(), 2);
}

TEST_F(CoreTest, ASaveThatTheGangRefusesEndsItsOperationWithTheReason) {
  Node("a", 1);
  Runs(Spec("j", 1));
  Do(Checkpoint{{7, "j", 0, 0}});
  JobReport report = Snapshot("j", "a", NodeJobState::kRunning);
  report.save_refusal = "rank 1 has no memory to stage";
  report.refused_save = Sent<SaveNow>().back().second.op_id + 1;
  Do(JobReported{"a", report});
  EXPECT_EQ(Op(7).state, OperationState::kRunning) << "that was another one";
  report.refused_save -= 1;
  Do(JobReported{"a", report});
  EXPECT_EQ(Op(7).state, OperationState::kFailed);
  EXPECT_SAYS(Op(7).message, "rank 1 has no memory to stage");
}

TEST_F(CoreTest, WhatHoldsUpTheCopyOfAnEpochBeforeIsSaidToo) {
  Node("a", 1);
  Runs(Spec("j", 1));
  JobReport old = Snapshot("j", "a", NodeJobState::kReleased);
  Say("j", "a", NodeJobState::kFailed);  // the job is launched again
  ASSERT_EQ(core_->FindJob("j")->epoch, 2u);
  old.held_up = "No space left on device; try 2 of 10";
  Do(JobReported{"a", old});
  Do(JobReported{"a", old});
  EXPECT_EQ(std::count(kinds_.begin(), kinds_.end(), "held_up"), 1);
}

// ---- taken back, and not heard

TEST_F(CoreTest, ASuspendIsWithdrawnBeforeItsReleaseAndTheJobRunsOn) {
  Node("a", 1);
  Runs(Spec("j", 1));
  Do(Suspend{{7, "j", 0, 5000}});
  const uint64_t stop_op = core_->FindJob("j")->stop_op;
  sends_.clear();
  EXPECT_TRUE(Do(Withdraw{7}).status.ok());
  EXPECT_EQ(Op(7).state, OperationState::kFailed);
  EXPECT_SAYS(Op(7).message, "withdrawn");
  const auto stops = Sent<Stop>();
  ASSERT_EQ(stops.size(), 1u);
  EXPECT_TRUE(stops[0].second.withdraw && !stops[0].second.kill);
  EXPECT_EQ(stops[0].second.op_id, stop_op);
  EXPECT_EQ(stops[0].second.source, "operator") << "no preemption has taken it back";
  EXPECT_TRUE(Do(Withdraw{7}).status.ok()) << "twice is once";
  JobReport report = Snapshot("j", "a", NodeJobState::kRunning);
  report.suspend_failed = true;
  report.message = "withdrawn by operator";
  Do(JobReported{"a", report});
  EXPECT_EQ(StateOf("j"), JobState::kRunning);
  EXPECT_EQ(core_->FindJob("j")->epoch, 1u);
  Do(Suspend{{8, "j", 0, 5000}});
  Say("j", "a", NodeJobState::kReleased);
  EXPECT_SAYS(Refusal(Withdraw{8}, Code::kFailedPrecondition), "has ended already");
  EXPECT_SAYS(Refusal(Withdraw{99}, Code::kNotFound), "99");
}

TEST_F(CoreTest, AnEndedJobKeepsItsStepOverARestart) {
  Node("a", 1);
  Runs(Spec("j", 1));
  JobReport report = Snapshot("j", "a", NodeJobState::kRunning);
  report.step = 1000;
  Do(JobReported{"a", report});
  Say("j", "a", NodeJobState::kFinished);
  Restart();
  EXPECT_EQ(core_->FindJob("j")->step, 1000);
}

TEST_F(CoreTest, AWithdrawalThatComesTooLateLaunchesItAgainInItsPlace) {
  Node("a", 1);
  Runs(Spec("j", 1));
  Do(Suspend{{7, "j", 0, 5000}});
  Do(Withdraw{7});
  Say("j", "a", NodeJobState::kReleased);
  EXPECT_EQ(StateOf("j"), JobState::kStarting);
  EXPECT_EQ(core_->FindJob("j")->epoch, 2u);
}

TEST_F(CoreTest, ANodeThatDoesNotAnswerIsNamedAndNoKillLiesInWaitForIt) {
  Node("a", 1);
  Runs(Spec("j", 1));
  Do(Suspend{{7, "j", 0, 2000}});
  sends_.clear();
  hearts_ = false;
  Wait(60 * kSecond);
  for (const auto& [node, stop] : Sent<Stop>()) EXPECT_FALSE(stop.kill);
  EXPECT_EQ(Op(7).state, OperationState::kFailed);
  EXPECT_SAYS(Op(7).message, "node a, which runs j, does not answer");
  JobReport report = Snapshot("j", "a", NodeJobState::kRunning);
  report.suspend_failed = true;
  Do(JobReported{"a", report});
  EXPECT_EQ(StateOf("j"), JobState::kRunning);
}

// ---- never from less than is known

TEST_F(CoreTest, ALaunchThatFindsOnlyAnOlderCopyIsHeldAndTriedAgain) {
  Node("a", 1);
  Runs(Spec("j", 1));
  Do(Suspend{{7, "j", 0, 5000}});
  SayCopy("j", "a", NodeJobState::kReleased, 10, false);
  sends_.clear();
  Do(Resume{8, "j"});
  auto launches = Sent<Launch>();
  ASSERT_EQ(launches.size(), 1u);
  EXPECT_EQ(launches[0].second.expect, "s10.e1.a1");
  const auto refuse = [&] {
    JobReport report = Snapshot("j", "a", NodeJobState::kFailed);
    report.behind = true;
    report.message = "job j is not started: s10.e1.a1 is nowhere";
    Do(JobReported{"a", report});
  };
  refuse();
  EXPECT_EQ(StateOf("j"), JobState::kPending);
  EXPECT_EQ(core_->FindJob("j")->restart_count, 0u) << "that is no crash";
  EXPECT_TRUE(Happened("behind"));
  for (const char* part : {"s10.e1.a1 is nowhere", "in RAM of a only", "--from-store"}) {
    EXPECT_SAYS(core_->FindJob("j")->reason, part);
  }
  EXPECT_EQ(Op(8).state, OperationState::kFailed);
  EXPECT_SAYS(Op(8).message, "s10.e1.a1 is nowhere");
  for (uint32_t tries = 2; StateOf("j") != JobState::kFailed; ++tries) {
    ASSERT_LE(tries, TestOptions().behind_max);
    sends_.clear();
    Wait(70 * kSecond);
    launches = Sent<Launch>();
    std::erase_if(launches, [](const auto& sent) { return sent.second.drain; });
    ASSERT_EQ(launches.size(), 1u) << tries;
    EXPECT_EQ(launches[0].second.expect, "s10.e1.a1");
    refuse();
  }
  EXPECT_SAYS(core_->FindJob("j")->reason, "gave up after 12 tries");
  EXPECT_SAYS(core_->FindJob("j")->reason, "`ckptctl resume j --from-store`");
  EXPECT_SAYS(core_->FindJob("j")->reason, "resumes from step 10, in RAM of a only");
}

TEST_F(CoreTest, FromTheStoreMeansWithoutWhatIsNotFound) {
  Node("a", 1);
  Runs(Spec("j", 1));
  JobReport report = Snapshot("j", "a", NodeJobState::kRunning);
  report.copies = {CopyState{1, 1, 20, false, {}, true, 1}};
  Do(JobReported{"a", report});
  Do(Suspend{{7, "j", 0, 5000}});
  report = Snapshot("j", "a", NodeJobState::kReleased);
  const CopyState durable{1, 1, 20, false, {}, true, 1};
  report.copies = {CopyState{1, 2, 30, true, {"a"}, false, 1}, durable};
  Do(JobReported{"a", report});
  sends_.clear();
  Resume resume{8, "j"};
  resume.from_store = true;
  EXPECT_TRUE(Do(resume).status.ok());
  auto launches = Sent<Launch>();
  ASSERT_EQ(launches.size(), 1u);
  EXPECT_EQ(launches[0].second.expect, "s20.e1.a1") << "what the store had is still asked for";
  EXPECT_TRUE(Happened("copy_given_up"));
  Restart();
  Node("a", 1);
  launches = Sent<Launch>();
  ASSERT_EQ(launches.size(), 1u);
  EXPECT_EQ(launches[0].second.expect, "s20.e1.a1") << "and after a restart";
  report = Snapshot("j", "a", NodeJobState::kRunning);
  report.resumed_from = "store s20.e1.a1";
  Do(JobReported{"a", report});
  EXPECT_EQ(StateOf("j"), JobState::kRunning);
  EXPECT_TRUE(Happened("fell_back"));
  EXPECT_EQ(core_->FindJob("j")->lost_steps, 10);
}

TEST_F(CoreTest, ADamagedCopyThatIsSkippedIsToldAndBookedOnce) {
  Node("a", 1);
  Runs(Spec("j", 1));
  Do(Suspend{{7, "j", 0, 5000}});
  JobReport report = Snapshot("j", "a", NodeJobState::kReleased);
  report.copies = {CopyState{1, 2, 30, false, {}, true, 1},
                   CopyState{1, 1, 20, false, {}, true, 1}};
  Do(JobReported{"a", report});
  Do(Resume{8, "j"});
  report = Snapshot("j", "a", NodeJobState::kRunning);
  report.resumed_from = "store s30.e1.a2";
  Do(JobReported{"a", report});
  EXPECT_FALSE(Happened("fell_back"));
  report.resumed_from = "store s20.e1.a1";
  report.copies = {CopyState{2, 1, 40, true, {"a"}, false, 1}};
  Do(JobReported{"a", report});
  Do(JobReported{"a", report});
  EXPECT_TRUE(Happened("fell_back"));
  EXPECT_EQ(core_->FindJob("j")->lost_steps, 10);
}

TEST_F(CoreTest, AFallBackIsNotBookedAgainWhenItsLaunchCrashesBeforeASave) {
  Node("a", 1);
  Runs(Spec("j", 1));
  JobReport report = Snapshot("j", "a", NodeJobState::kRunning);
  report.step_seconds = 2;
  Do(JobReported{"a", report});
  Do(Suspend{{7, "j", 0, 5000}});
  report = Snapshot("j", "a", NodeJobState::kReleased);
  report.copies = {CopyState{1, 2, 30, false, {}, true, 1},
                   CopyState{1, 1, 20, false, {}, true, 1}};
  Do(JobReported{"a", report});
  Do(Resume{8, "j"});
  const auto starts_from_20 = [&] {
    report = Snapshot("j", "a", NodeJobState::kRunning);
    report.resumed_from = "store s20.e1.a1";
    Do(JobReported{"a", report});  // it runs, and has not measured a step yet
    report.step = 25;
    report.step_seconds = 2;
    Do(JobReported{"a", report});
  };
  starts_from_20();
  EXPECT_EQ(core_->FindJob("j")->lost_steps, 10);
  EXPECT_DOUBLE_EQ(core_->FindJob("j")->lost_gpu_seconds, 20);
  Do(JobReported{"a", Snapshot("j", "a", NodeJobState::kFailed)});
  EXPECT_EQ(core_->FindJob("j")->lost_steps, 15) << "those it computed since, from 20 to 25";
  Restart();
  Node("a", 1);
  Wait(kSecond);
  starts_from_20();
  ASSERT_EQ(StateOf("j"), JobState::kRunning);
  EXPECT_EQ(core_->FindJob("j")->lost_steps, 15);
}

TEST_F(CoreTest, WhoNamesOtherNodesForACopyOutOfReachGoesOnWithoutIt) {
  Node("a", 1);
  Node("b", 1);
  Runs(Spec("j", 1));
  Do(Suspend{{7, "j", 0, 5000}});
  SayCopy("j", "a", NodeJobState::kReleased, 10, false);
  Resume resume{8, "j", {"b"}};
  EXPECT_SAYS(Refusal(resume, Code::kFailedPrecondition), "with --from-store it is");
  Resume nowhere{9, "j", {"full"}};
  nowhere.from_store = true;
  Node("full", 0);
  EXPECT_SAYS(Refusal(nowhere, Code::kResourceExhausted), "on the nodes named");
  EXPECT_FALSE(Happened("copy_given_up")) << "what is refused gives nothing up";
  Do(NodeLost{"a", "test"});
  sends_.clear();
  EXPECT_TRUE(Do(resume).status.ok());
  const auto launches = Sent<Launch>();
  ASSERT_EQ(launches.size(), 1u);
  EXPECT_EQ(launches[0].second.expect, "");
}

TEST_F(CoreTest, WhatAStopAndAStartTookIsMeasured) {
  Node("a", 1);
  Runs(Spec("j", 1));
  Do(Suspend{{7, "j", 0, 5000}});
  JobReport report = Snapshot("j", "a", NodeJobState::kReleased);
  report.copies = {CopyState{1, 1, 10, true, {"a"}, false, 1 << 20}};
  report.times.noticed_ns = 1;
  report.times.cut_ns = 1 * kSecond;
  report.times.staged_ns = 3 * kSecond;
  report.times.comms_down_ns = 4 * kSecond;
  report.times.released_ns = 4 * kSecond + kSecond / 2;
  report.times.staged_bytes = 2 << 20;
  Do(JobReported{"a", report});
  EXPECT_DOUBLE_EQ(core_->FindJob("j")->measured.stage_bytes_per_second, 1 << 20);
  EXPECT_DOUBLE_EQ(core_->FindJob("j")->measured.exit_seconds, 0.5);
  Do(Resume{8, "j"});
  report = Snapshot("j", "a", NodeJobState::kRunning);
  report.resumed_from = "ram s10.e1.a1";
  Do(JobReported{"a", report});
  now_ += 2 * kSecond;
  report.first_step_ns = 77;  // of another clock
  Do(JobReported{"a", report});
  EXPECT_NEAR(core_->FindJob("j")->measured.restore_seconds, 2, 0.1);
  Restart();
  EXPECT_DOUBLE_EQ(core_->FindJob("j")->measured.exit_seconds, 0.5);
  EXPECT_NEAR(core_->FindJob("j")->measured.restore_seconds, 2, 0.1);
}

// ---- small

TEST_F(CoreTest, WhoHasSaidNothingCannotBeSuspended) {
  Node("a", 1);
  ASSERT_TRUE(Do(PutJob{0, Spec("j", 1)}).status.ok());
  JobReport report = Snapshot("j", "a", NodeJobState::kRunning);
  report.methods.clear();
  Do(JobReported{"a", report});
  ASSERT_EQ(StateOf("j"), JobState::kRunning);
  EXPECT_SAYS(Refusal(Suspend{{7, "j", 0, 0}}, Code::kFailedPrecondition), "has not said");
}

TEST_F(CoreTest, NoRestartsMeansNone) {
  Node("a", 1);
  JobSpec spec = Spec("j", 1);
  spec.restarts_max = 0;
  Runs(spec);
  Say("j", "a", NodeJobState::kFailed);
  EXPECT_EQ(StateOf("j"), JobState::kFailed);
  EXPECT_SAYS(core_->FindJob("j")->reason, "gave up after 0 restarts");
}

TEST_F(CoreTest, CancellingWhatHasFailedGivesItsMemoryBack) {
  Node("a", 1);
  JobSpec spec = Spec("j", 1);
  spec.restarts_max = 0;
  Runs(spec);
  SayCopy("j", "a", NodeJobState::kRunning, 10, false);
  SayCopy("j", "a", NodeJobState::kFailed, 10, false);
  ASSERT_EQ(StateOf("j"), JobState::kFailed);
  sends_.clear();
  EXPECT_TRUE(Do(Cancel{{9, "j", 0, 0}}).status.ok());
  EXPECT_EQ(StateOf("j"), JobState::kCancelled);
  const auto forgets = Sent<Forget>();
  ASSERT_EQ(forgets.size(), 1u);
  EXPECT_TRUE(forgets[0].second.drop_copies);
}

}  // namespace
}  // namespace ckpt::core
