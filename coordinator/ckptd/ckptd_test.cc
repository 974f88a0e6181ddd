// ckptd on a real port, with agents that speak the real protocol (agent_fake.h).
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cmath>
#include <limits>

#include "ckpt/v1/coordinator.grpc.pb.h"
#include "coordinator/ckptd/agent_fake.h"
#include "coordinator/ckptd/convert.h"
#include "coordinator/ckptd/server.h"
#include "libckpt/base/fault.h"
#include "libckpt/base/log.h"

namespace ckpt::ckptd {
namespace {

std::string NewDirectory() {
  std::string path = testing::TempDir() + "/ckptd.XXXXXX";
  EXPECT_NE(mkdtemp(path.data()), nullptr);
  return path;
}

class CkptdTest : public testing::Test {
 protected:
  CkptdTest() {
    SetLogSink([](LogLevel, std::string_view) {});
    Restart();
  }
  ~CkptdTest() override { SetLogSink({}); }

  void Restart() {
    server_.reset();
    ServerOptions options;
    options.listen = "127.0.0.1:0";
    options.data = data_;
    options.on_fatal = [this](Status status) {
      MutexLock lock(mutex_);
      fatal_ = std::move(status);
    };
    auto server = Server::Start(std::move(options));
    ASSERT_TRUE(server.ok()) << server.status().ToString();
    server_ = std::move(server).value();
    channel_ = grpc::CreateChannel(server_->address(), grpc::InsecureChannelCredentials());
    stub_ = v1::Coordinator::NewStub(channel_);
  }

  template <typename Method, typename Request, typename Response>
  grpc::Status Call(Method method, const Request& request, Response* response) {
    grpc::ClientContext context;
    context.set_wait_for_ready(true);
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(90));
    return (stub_.get()->*method)(&context, request, response);
  }
  using Stub = v1::Coordinator::Stub;

  v1::Job Submit(const std::string& name, uint32_t ranks, int32_t priority = 1) {
    v1::PutJobRequest request;
    request.mutable_spec()->set_name(name);
    request.mutable_spec()->set_ranks(ranks);
    request.mutable_spec()->set_priority(priority);
    request.mutable_spec()->add_command("train");
    v1::Job job;
    const grpc::Status status = Call(&Stub::PutJob, request, &job);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return job;
  }
  v1::Job Get(const std::string& name) {
    v1::GetJobRequest request;
    request.set_name(name);
    v1::Job job;
    EXPECT_TRUE(Call(&Stub::GetJob, request, &job).ok());
    return job;
  }
  bool Becomes(const std::string& name, v1::JobState state) {
    const Deadline deadline("state", std::chrono::seconds(60));
    while (Get(name).state() != state) {
      if (deadline.Expired()) return false;
    }
    return true;
  }
  bool NodeUp(const std::string& name) {
    const Deadline deadline("node", std::chrono::seconds(60));
    while (!deadline.Expired()) {
      v1::ListNodesResponse nodes;
      Call(&Stub::ListNodes, v1::ListNodesRequest(), &nodes);
      for (const v1::Node& node : nodes.nodes()) {
        if (node.info().name() == name && node.connected()) return true;
      }
    }
    return false;
  }
  v1::Operation Await(uint64_t op_id) {
    v1::GetOperationRequest request;
    request.set_op_id(op_id);
    request.set_wait_ms(60'000);
    v1::Operation operation;
    EXPECT_TRUE(Call(&Stub::GetOperation, request, &operation).ok());
    return operation;
  }

  const std::string data_ = NewDirectory();
  Mutex mutex_;
  Status fatal_ CKPT_GUARDED_BY(mutex_);
  std::unique_ptr<Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<Stub> stub_;
};

TEST_F(CkptdTest, AnAgentIsGreetedAndAJobRuns) {
  FakeAgent a(server_->address(), "a", 2);
  FakeAgent b(server_->address(), "b", 2);
  const v1::CoordinatorMsg welcome = a.Welcome();
  EXPECT_EQ(welcome.cluster_id().size(), 32u);
  EXPECT_EQ(welcome.term(), 1u);
  EXPECT_EQ(welcome.welcome().heartbeat_ms(), 1000u);
  EXPECT_EQ(welcome.welcome().data_token(), b.Welcome().welcome().data_token());
  ASSERT_TRUE(NodeUp("a") && NodeUp("b"));
  EXPECT_EQ(Submit("j", 4).state(), v1::JOB_STARTING);
  ASSERT_TRUE(Becomes("j", v1::JOB_RUNNING));
  const v1::Job job = Get("j");
  EXPECT_EQ(job.placement().nodes_size(), 2);
  EXPECT_EQ(job.methods(0).name(), "suspend");
  a.Finish("j");
  b.Finish("j");
  EXPECT_TRUE(Becomes("j", v1::JOB_FINISHED));
}

TEST_F(CkptdTest, APreemptionIsCarriedOutAndItsResultIsKept) {
  FakeAgent a(server_->address(), "a", 2);
  ASSERT_TRUE(NodeUp("a"));
  Submit("train", 2);
  ASSERT_TRUE(Becomes("train", v1::JOB_RUNNING));
  EXPECT_EQ(Submit("urgent", 1, 10).state(), v1::JOB_PENDING);
  v1::QuoteRequest quote;
  quote.set_job("urgent");
  v1::Plan plan;
  ASSERT_TRUE(Call(&Stub::Quote, quote, &plan).ok());
  ASSERT_EQ(plan.victims_size(), 1);
  v1::ApplyRequest apply;
  apply.set_op_id(77);
  apply.set_plan_id(plan.id());
  v1::Operation operation;
  ASSERT_TRUE(Call(&Stub::Apply, apply, &operation).ok());
  operation = Await(77);
  EXPECT_EQ(operation.state(), v1::OPERATION_DONE) << operation.message();
  EXPECT_EQ(operation.phase(), "GRANTED");
  EXPECT_EQ(operation.victims(0).times().staged_ns(), 8'000'000);
  v1::Job train = Get("train");
  EXPECT_EQ(train.state(), v1::JOB_PREEMPTED);
  EXPECT_TRUE(train.copies(0).staged_gang());
  EXPECT_FALSE(train.copies(0).durable());
  a.MakeDurable();
  const Deadline deadline("durable", std::chrono::seconds(60));
  while (!Get("train").copies(0).durable() && !deadline.Expired()) {
  }
  EXPECT_TRUE(Get("train").copies(0).durable());
  ASSERT_TRUE(Call(&Stub::Apply, apply, &operation).ok()) << "the stored result";
  EXPECT_EQ(operation.state(), v1::OPERATION_DONE);

  a.Close();
  Restart();
  EXPECT_EQ(Await(77).state(), v1::OPERATION_DONE) << "also after a restart";
  FakeAgent again(server_->address(), "a", 2);
  EXPECT_EQ(again.Welcome().term(), 2u);
}

TEST_F(CkptdTest, StreamsThatBreakTheRulesAreClosedWithTheReason) {
  FakeAgent foreign(server_->address(), "a", 1, "another-cluster");
  const grpc::Status status = foreign.Ended();
  EXPECT_EQ(status.error_code(), grpc::FAILED_PRECONDITION);
  EXPECT_NE(status.error_message().find("another-cluster"), std::string::npos);
  FakeAgent nameless(server_->address(), "", 1);
  EXPECT_EQ(nameless.Ended().error_code(), grpc::INVALID_ARGUMENT);
  FakeAgent first(server_->address(), "a", 1);
  first.Welcome();
  FakeAgent second(server_->address(), "a", 1);
  EXPECT_EQ(first.Ended().error_code(), grpc::ABORTED) << "one agent speaks for a node";
  EXPECT_TRUE(NodeUp("a"));
}

TEST_F(CkptdTest, ASecondAgentOfTheSameNameIsRefusedAndTheFirstGoesOn) {
  FakeAgent first(server_->address(), "a", 2);
  first.Welcome();
  FakeAgent second(server_->address(), "a", 2, "", 2);
  const grpc::Status refused = second.Ended();
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::ALREADY_EXISTS);
  EXPECT_NE(refused.error_message().find("127.0.0.1:1"), std::string::npos);
  EXPECT_NE(refused.error_message().find("--name"), std::string::npos);
  v1::ListNodesResponse nodes;
  grpc::ClientContext context;
  ASSERT_TRUE(stub_->ListNodes(&context, {}, &nodes).ok());
  ASSERT_EQ(nodes.nodes_size(), 1);
  EXPECT_TRUE(nodes.nodes(0).connected());
  FakeAgent again(server_->address(), "a", 2);  // the first one, over a new connection
  EXPECT_TRUE(again.Welcome().has_welcome());
}

TEST_F(CkptdTest, ALostConnectionMakesItsJobsUnknown) {
  auto a = std::make_unique<FakeAgent>(server_->address(), "a", 1);
  ASSERT_TRUE(NodeUp("a"));
  Submit("j", 1);
  ASSERT_TRUE(Becomes("j", v1::JOB_RUNNING));
  a.reset();
  EXPECT_TRUE(Becomes("j", v1::JOB_UNKNOWN));
}

TEST_F(CkptdTest, EventsAreFollowedAndResumed) {
  v1::WatchEventsRequest request;
  request.set_follow(true);
  grpc::ClientContext context;
  const auto reader = stub_->WatchEvents(&context, request);
  FakeAgent a(server_->address(), "a", 1);
  v1::Event event;
  ASSERT_TRUE(reader->Read(&event));
  EXPECT_EQ(event.kind(), "node_up");
  Submit("j", 1);
  ASSERT_TRUE(reader->Read(&event));
  EXPECT_EQ(event.kind(), "submitted");
  EXPECT_EQ(event.job(), "j");
  const uint64_t revision = event.revision();
  context.TryCancel();
  reader->Finish();
  ASSERT_TRUE(Becomes("j", v1::JOB_RUNNING));
  request.set_follow(false);
  request.set_since(revision);
  grpc::ClientContext rest;
  const auto later = stub_->WatchEvents(&rest, request);
  ASSERT_TRUE(later->Read(&event));
  EXPECT_EQ(event.revision(), revision + 1);
  EXPECT_EQ(event.kind(), "launched");
  while (later->Read(&event)) {
  }
  EXPECT_TRUE(later->Finish().ok()) << "without follow it ends";
}

TEST(Convert, AStepTimeIsANumber) {
  v1::JobReport report;
  for (const double odd : {std::numeric_limits<double>::infinity(), 9.2e9, -1.0, std::nan("")}) {
    report.set_step_seconds(odd);
    const double step_seconds = FromProto(report).step_seconds;
    EXPECT_TRUE(step_seconds >= 0 && step_seconds <= 3600) << odd;
  }
  report.set_step_seconds(12.5);
  EXPECT_EQ(FromProto(report).step_seconds, 12.5);
}

TEST_F(CkptdTest, LogsComeFromTheAgent) {
  v1::ReadLogRequest request;
  v1::ReadLogResponse answer;
  request.set_job("j");
  EXPECT_EQ(Call(&Stub::ReadLog, request, &answer).error_code(), grpc::NOT_FOUND);
  auto a = std::make_unique<FakeAgent>(server_->address(), "a", 2);
  ASSERT_TRUE(NodeUp("a"));
  Submit("j", 2);
  ASSERT_TRUE(Call(&Stub::ReadLog, request, &answer).ok());
  EXPECT_EQ(answer.data(), "step 1\ns");
  EXPECT_EQ(answer.next_offset(), 8u);
  EXPECT_EQ(answer.epoch(), 1u);
  request.set_rank(1);
  const grpc::Status none = Call(&Stub::ReadLog, request, &answer);
  EXPECT_EQ(none.error_message(), "rank 1 has written nothing");
  request.set_rank(9);
  EXPECT_NE(Call(&Stub::ReadLog, request, &answer).error_message().find("no rank 9"),
            std::string::npos);
  request.set_rank(0);
  ASSERT_TRUE(Becomes("j", v1::JOB_RUNNING));
  a.reset();
  ASSERT_TRUE(Becomes("j", v1::JOB_UNKNOWN));
  EXPECT_EQ(Call(&Stub::ReadLog, request, &answer).error_code(), grpc::UNAVAILABLE);
}

TEST_F(CkptdTest, RefusalsCarryTheirCodes) {
  v1::StopRequest stop;
  stop.set_job("nobody");
  v1::Operation operation;
  EXPECT_EQ(Call(&Stub::Suspend, stop, &operation).error_code(), grpc::NOT_FOUND);
  EXPECT_EQ(Call(&Stub::Cancel, stop, &operation).error_code(), grpc::NOT_FOUND);
  EXPECT_EQ(Call(&Stub::Checkpoint, stop, &operation).error_code(), grpc::NOT_FOUND);
  v1::GetOperationRequest get;
  get.set_op_id(12345);
  EXPECT_EQ(Call(&Stub::GetOperation, get, &operation).error_code(), grpc::NOT_FOUND);
  v1::PutJobRequest put;
  v1::Job job;
  EXPECT_EQ(Call(&Stub::PutJob, put, &job).error_code(), grpc::INVALID_ARGUMENT);
}

TEST_F(CkptdTest, AddressesInUseAndBeyondLoopbackAreRefused) {
  ServerOptions options;
  options.data = NewDirectory();
  options.listen = server_->address();
  auto second = Server::Start(options);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), Code::kAlreadyExists);
  const std::string port = options.listen.substr(options.listen.rfind(':') + 1);
  EXPECT_NE(second.status().message().find("port " + port), std::string::npos);
  for (const char* listen : {"0.0.0.0:0", "192.0.2.1:80", "nonsense", "unix:", "127.0.0.1:"}) {
    options.listen = listen;
    EXPECT_EQ(Server::Start(options).status().code(), Code::kInvalidArgument) << listen;
  }
  options.listen = "unix:" + options.data + "/sock";
  auto third = Server::Start(options);
  ASSERT_TRUE(third.ok()) << third.status().ToString();
  ServerOptions same = options;
  same.data = NewDirectory();
  EXPECT_EQ(Server::Start(same).status().code(), Code::kAlreadyExists);
  third->reset();
  EXPECT_TRUE(Server::Start(options).ok()) << "a socket that nobody holds is no obstacle";
}

#if defined(CKPT_FAULTS)
TEST_F(CkptdTest, ARecordThatCannotBeStoredEndsItAndNothingIsShown) {
  FakeAgent a(server_->address(), "a", 1);
  ASSERT_TRUE(NodeUp("a"));
  v1::PutJobRequest put;
  put.mutable_spec()->set_name("j");
  put.mutable_spec()->set_ranks(1);
  put.mutable_spec()->add_command("train");
  v1::Job job;
  {
    ArmedFault fault("state_store.before_commit", ResourceExhausted("disk full"), 1, true);
    const grpc::Status status = Call(&Stub::PutJob, put, &job);
    EXPECT_EQ(status.error_code(), grpc::RESOURCE_EXHAUSTED) << status.error_message();
    EXPECT_TRUE(fault.fired());
  }
  {
    MutexLock lock(mutex_);
    EXPECT_EQ(fatal_.code(), Code::kResourceExhausted);
  }
  Restart();
  v1::ListJobsResponse jobs;
  ASSERT_TRUE(Call(&Stub::ListJobs, v1::ListJobsRequest(), &jobs).ok());
  EXPECT_EQ(jobs.jobs_size(), 0) << "nothing of it is left";
}

// Memory is ahead of the disk then: whatever it says might be gone after the restart.
TEST_F(CkptdTest, AfterARecordThatCannotBeStoredNothingIsAnsweredFromMemory) {
  FakeAgent a(server_->address(), "a", 1);
  ASSERT_TRUE(NodeUp("a"));
  Submit("j", 1);
  ASSERT_TRUE(Becomes("j", v1::JOB_RUNNING));
  v1::StopRequest save;  // an operation that goes on: this agent takes no saves
  save.set_op_id(7);
  save.set_job("j");
  v1::Operation operation;
  ASSERT_TRUE(Call(&Stub::Checkpoint, save, &operation).ok());
  v1::GetOperationRequest get;
  get.set_op_id(7);
  get.set_wait_ms(60'000);
  grpc::Status waited, watched;
  os::Thread waiter("waiter", [&] {
    v1::Operation late;
    waited = Call(&Stub::GetOperation, get, &late);
  });
  os::Thread watcher("watcher", [&] {
    v1::WatchEventsRequest follow;
    follow.set_follow(true);
    grpc::ClientContext context;
    const auto reader = stub_->WatchEvents(&context, follow);
    v1::Event event;
    while (reader->Read(&event)) EXPECT_NE(event.job(), "k");
    watched = reader->Finish();
  });
  v1::Job job;
  {
    ArmedFault fault("state_store.before_commit", ResourceExhausted("disk full"), 1, true);
    v1::PutJobRequest put;
    put.mutable_spec()->set_name("k");
    put.mutable_spec()->set_ranks(1);
    put.mutable_spec()->add_command("train");
    EXPECT_FALSE(Call(&Stub::PutJob, put, &job).ok());
    EXPECT_TRUE(fault.fired());
  }
  waiter.Join();
  watcher.Join();
  const auto refused = [](const grpc::Status& status) {
    EXPECT_EQ(status.error_code(), grpc::UNAVAILABLE) << status.error_message();
    EXPECT_NE(status.error_message().find("maybe applied"), std::string::npos);
  };
  refused(waited);
  refused(watched);
  v1::GetJobRequest known;
  known.set_name("k");
  refused(Call(&Stub::GetJob, known, &job));
  v1::ListJobsResponse jobs;
  refused(Call(&Stub::ListJobs, v1::ListJobsRequest(), &jobs));
  EXPECT_EQ(jobs.jobs_size(), 0);
  v1::ListNodesResponse nodes;
  refused(Call(&Stub::ListNodes, v1::ListNodesRequest(), &nodes));
  refused(Call(&Stub::GetOperation, get, &operation));
  refused(Call(&Stub::Suspend, save, &operation));
  v1::ReadLogRequest read;
  read.set_job("j");
  v1::ReadLogResponse log;
  refused(Call(&Stub::ReadLog, read, &log));
}
#endif

TEST_F(CkptdTest, AnOperationSaysWhatItMoves) {
  FakeAgent a(server_->address(), "a", 2);
  FakeAgent b(server_->address(), "b", 2);
  a.Welcome();
  b.Welcome();
  ASSERT_TRUE(NodeUp("a") && NodeUp("b"));
  Submit("j", 4);
  ASSERT_TRUE(Becomes("j", v1::JOB_RUNNING));
  v1::CopyState older;
  older.set_epoch(1);
  older.set_attempt(1);
  older.set_step(50);
  older.set_bytes(1);
  older.set_bytes_to_write(1);
  a.AddCopy(older);
  const Deadline known("copy of an earlier save", std::chrono::seconds(60));
  while (Get("j").copies_size() == 0) ASSERT_FALSE(known.Expired());
  a.Hold();
  b.Hold();
  v1::StopRequest request;
  request.set_job("j");
  v1::Operation operation;
  ASSERT_TRUE(Call(&Stub::Suspend, request, &operation).ok());
  v1::GetOperationRequest look;
  look.set_op_id(operation.op_id());
  const auto progress = [&](const std::string& what, uint64_t done, uint64_t total) {
    const Deadline deadline("progress", std::chrono::seconds(60));
    while (!deadline.Expired()) {
      EXPECT_TRUE(Call(&Stub::GetOperation, look, &operation).ok());
      for (const v1::Progress& p : operation.progress()) {
        if (p.job() == "j" && p.what() == what && p.bytes_done() == done) {
          return p.bytes_total() == total;
        }
      }
    }
    return false;
  };
  // The sum over both nodes; what an earlier save has written is none of it.
  EXPECT_TRUE(progress("staged", 64 << 20, 128 << 20));
  EXPECT_EQ(operation.progress_size(), 1);
  a.Release("j");
  b.Release("j");
  EXPECT_EQ(Await(operation.op_id()).state(), v1::OPERATION_DONE);
  EXPECT_TRUE(progress("written", 32 << 20, 64 << 20));
  EXPECT_EQ(Get("j").copies(0).bytes_to_write(), uint64_t{64} << 20);
  a.MakeDurable();
  EXPECT_TRUE(progress("written", 64 << 20, 64 << 20));
}

TEST_F(CkptdTest, TheCoordinatorAndItsNodesSayHowTheyAre) {
  FakeAgent a(server_->address(), "a", 2);
  a.Welcome();
  ASSERT_TRUE(NodeUp("a"));
  v1::AgentMsg message;
  message.mutable_health()->set_version("9.9");
  message.mutable_health()->set_wall_ns(WallNs() + 60'000'000'000);
  message.mutable_health()->add_findings()->set_name("store root");
  a.Send(message);
  v1::ListNodesResponse nodes;
  const Deadline deadline("health", std::chrono::seconds(60));
  while (nodes.nodes_size() == 0 || nodes.nodes(0).health().version().empty()) {
    ASSERT_FALSE(deadline.Expired());
    ASSERT_TRUE(Call(&Stub::ListNodes, v1::ListNodesRequest(), &nodes).ok());
  }
  EXPECT_EQ(nodes.nodes(0).health().findings(0).name(), "store root");
  EXPECT_GT(nodes.nodes(0).clock_offset_ms(), 0);
  v1::CoordinatorStatus status;
  ASSERT_TRUE(Call(&Stub::GetStatus, v1::GetStatusRequest(), &status).ok());
  EXPECT_EQ(status.term(), 1u);
  EXPECT_EQ(status.findings(0).level(), v1::FINDING_OK) << status.findings(0).message();
  const uint64_t revision = status.revision();
  EXPECT_GT(revision, 0u) << "node a came up";
  Submit("j", 1);
  ASSERT_TRUE(Call(&Stub::GetStatus, v1::GetStatusRequest(), &status).ok());
  EXPECT_GT(status.revision(), revision);
}

}  // namespace
}  // namespace ckpt::ckptd
