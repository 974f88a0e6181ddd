// Sessions without ckpt-run, on stores in memory and on a disk, with one rank and with several.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <barrier>
#include <thread>

#include "libckpt/base/fault.h"
#include "libckpt/base/log.h"
#include "libckpt/device/host/host_device.h"
#include "libckpt/session/session.h"
#include "libckpt/storage/memory/memory_store.h"
#include "libckpt/testing/sanitizer.h"

namespace ckpt::session {
namespace {

Deadline Soon() { return Deadline("the test", std::chrono::seconds(60)); }

#define ASSERT_STATUS_OK(expr)                                     \
  do {                                                             \
    const Status status_of_test = (expr);                          \
    ASSERT_TRUE(status_of_test.ok()) << status_of_test.ToString(); \
  } while (0)

// A store whose commits wait until the test opens the gate.
class GatedStore : public storage::Store {
 public:
  struct Gate {
    Mutex mutex;
    CondVar changed;
    bool open = true;
    void Set(bool to) {
      MutexLock lock(mutex);
      open = to;
      changed.NotifyAll();
    }
  };
  GatedStore(std::unique_ptr<storage::Store> store, Gate* gate)
      : store_(std::move(store)), gate_(gate) {}

  Result<JobId> OpenJob(const JobId& expected) override { return store_->OpenJob(expected); }
  Result<storage::EpochClaim> ClaimEpoch(
      Epoch at_least, const std::vector<AttemptId>& adopt_also,
      const std::vector<std::pair<AttemptId, storage::CommitRecord>>& promised) override {
    return store_->ClaimEpoch(at_least, adopt_also, promised);
  }
  Result<Epoch> HighestEpoch() override { return store_->HighestEpoch(); }
  Status BeginAttempt(const AttemptId& id) override { return store_->BeginAttempt(id); }
  Result<std::unique_ptr<storage::FileWriter>> CreateFile(const AttemptId& id,
                                                          const std::string& name,
                                                          uint64_t size_hint) override {
    return store_->CreateFile(id, name, size_hint);
  }
  Result<storage::AttemptOrigins> NameOrigins(const AttemptId& id,
                                              const storage::AttemptOrigins& wanted) override {
    return store_->NameOrigins(id, wanted);
  }
  Status MarkDraining(const AttemptId& id) override { return store_->MarkDraining(id); }
  Status Abort(const AttemptId& id) override { return store_->Abort(id); }
  Status Commit(const AttemptId& id, std::string_view manifest, const storage::CommitRecord& record,
                const Deadline& deadline) override {
    {
      MutexLock lock(gate_->mutex);
      while (!gate_->open) gate_->changed.Wait(gate_->mutex);
    }
    return store_->Commit(id, manifest, record, deadline);
  }
  Result<std::vector<storage::CheckpointInfo>> List() override { return store_->List(); }
  Result<std::string> ReadManifest(const AttemptId& id) override {
    return store_->ReadManifest(id);
  }
  Result<storage::CommitRecord> ReadCommit(const AttemptId& id) override {
    return store_->ReadCommit(id);
  }
  Result<std::unique_ptr<storage::FileReader>> OpenFile(const AttemptId& id,
                                                        const std::string& name) override {
    return store_->OpenFile(id, name);
  }
  Result<std::vector<AttemptId>> Retain(const storage::KeepRules& rules,
                                        const storage::IsWhole& is_whole) override {
    return store_->Retain(rules, is_whole);
  }
  std::string Describe() const override { return store_->Describe(); }

 private:
  std::unique_ptr<storage::Store> store_;
  Gate* gate_;
};

// What one rank trains.
struct Training {
  explicit Training(uint32_t rank, size_t size = 5000) : weights(size), own(100) {
    for (size_t i = 0; i < size; ++i) weights[i] = static_cast<float>(i) * 0.5f;
    for (size_t i = 0; i < own.size(); ++i) own[i] = static_cast<int64_t>(rank * 1000 + i);
    host = device::CreateHostDevice();
    state = std::make_shared<State>();
    Add("weights", format::DType::kF32, format::Placement::kReplicated, weights.data(), size);
    Add("own", format::DType::kI64, format::Placement::kPerRank, own.data(), own.size());
  }
  void Add(const std::string& name, format::DType dtype, format::Placement placement, void* data,
           size_t size) {
    engine::LiveTensor tensor;
    tensor.meta.name = name;
    tensor.meta.dtype = dtype;
    tensor.meta.placement = placement;
    tensor.meta.global_shape = {size};
    tensor.meta.local = {{0}, {size}};
    tensor.data = data;
    tensor.device = host.get();
    EXPECT_TRUE(state->AddTensor(tensor).ok());
  }
  void Step() {
    for (float& w : weights) w += 1;
    for (int64_t& o : own) o *= 3;
  }
  std::vector<float> weights;
  std::vector<int64_t> own;
  std::unique_ptr<device::Device> host;
  std::shared_ptr<State> state;
};

class StandaloneTest : public ::testing::Test {
 protected:
  void SetUp() override {
    SetLogSink([this](LogLevel level, std::string_view message) {
      MutexLock lock(log_mutex_);
      if (level >= LogLevel::kWarning) log_ += std::string(message) + "\n";
    });
  }
  void TearDown() override { SetLogSink(nullptr); }

  Parts MakeParts() {
    Parts parts;
    parts.open_store = [this](const std::string&) -> Result<std::unique_ptr<storage::Store>> {
      std::unique_ptr<storage::Store> store = storage::NewMemoryStore(job_);
      return std::unique_ptr<storage::Store>(new GatedStore(std::move(store), &gate_));
    };
    return parts;
  }
  std::shared_ptr<Session> OpenOne(uint64_t save_every = 0, uint64_t signals = 0) {
    Options options;
    options.job = "test";
    options.store = "memory";
    options.save_every = save_every;
    options.signals = signals;
    Result<std::shared_ptr<Session>> session = Session::Open(options, MakeParts());
    EXPECT_TRUE(session.ok()) << session.status().ToString();
    return session.ok() ? *session : nullptr;
  }
  std::string log() {
    MutexLock lock(log_mutex_);
    return log_;
  }

  std::shared_ptr<storage::MemoryJob> job_ = storage::NewMemoryJob();
  GatedStore::Gate gate_;
  Mutex log_mutex_;
  std::string log_;
};

TEST_F(StandaloneTest, AFreshStartIsNotFound) {
  const auto session = OpenOne();
  EXPECT_EQ(session->OpenReader("").status().code(), Code::kNotFound);
  ASSERT_STATUS_OK(session->Close(Soon()));
}

TEST_F(StandaloneTest, WhatWasSavedIsRestoredBitForBit) {
  Training first(0);
  ASSERT_STATUS_OK(first.state->SetValue("lr", format::Scope::kShared, "0.1"));
  ASSERT_STATUS_OK(
      first.state->SetBlob("rng", format::Scope::kShared, "x/y", std::string("\0\1\2", 3)));
  {
    const auto session = OpenOne();
    ASSERT_STATUS_OK(session->Track(first.state, nullptr));
    first.Step();
    Result<std::shared_ptr<Save>> save = session->BeginSave({.step = 7});
    ASSERT_STATUS_OK(save.status());
    ASSERT_STATUS_OK((*save)->Wait(Level::kShared, Soon()));
    ASSERT_STATUS_OK(session->Close(Soon()));
  }
  Training second(0);
  const auto session = OpenOne();
  ASSERT_STATUS_OK(session->Track(second.state, nullptr));
  Result<std::unique_ptr<Reader>> reader = session->OpenReader("");
  ASSERT_STATUS_OK(reader.status());
  EXPECT_EQ((*reader)->id().step, Step(7));
  ASSERT_STATUS_OK((*reader)->Load(second.state.get()));
  EXPECT_EQ(second.weights, first.weights);
  EXPECT_EQ(second.own, first.own);
  EXPECT_EQ(**(*reader)->ValueJson("lr"), "0.1");
  EXPECT_EQ(**(*reader)->Blob("rng"), std::string("\0\1\2", 3));
  EXPECT_EQ(second.state->values().values.size(), 1u);
  ASSERT_STATUS_OK(session->Close(Soon()));
}

TEST_F(StandaloneTest, SelectorsFindSteps) {
  Training training(0);
  const auto session = OpenOne(1);
  ASSERT_STATUS_OK(session->Track(training.state, nullptr));
  for (int64_t step = 10; step <= 30; step += 10) {
    StepResult result;
    ASSERT_STATUS_OK(session->AtBoundary(step, &result));
    EXPECT_EQ(result.kind, RequestKind::kSave);
    Result<std::shared_ptr<Save>> save =
        session->BeginSave({.step = step + 1, .slot_timeout = std::chrono::seconds(60)});
    ASSERT_STATUS_OK(save.status());
    ASSERT_STATUS_OK((*save)->Wait(Level::kShared, Soon()));
  }
  EXPECT_EQ((*session->OpenReader("latest"))->id().step, Step(31));
  EXPECT_EQ((*session->OpenReader("step:20"))->id().step, Step(20));
  EXPECT_EQ((*session->OpenReader("s11.e1.a2"))->id().step, Step(11));
  EXPECT_EQ(session->OpenReader("step:99").status().code(), Code::kNotFound);
  EXPECT_EQ(session->OpenReader("nonsense").status().code(), Code::kInvalidArgument);
  EXPECT_EQ(session->ListCheckpoints()->size(), 6u);
  EXPECT_NE(session->Describe()->find("\"level\":\"SHARED\""), std::string::npos);
  ASSERT_STATUS_OK(session->Close(Soon()));
}

TEST_F(StandaloneTest, NothingIsSharedBeforeItIsCommitted) {
  Training training(0);
  const auto session = OpenOne();
  ASSERT_STATUS_OK(session->Track(training.state, nullptr));
  gate_.Set(false);
  Result<std::shared_ptr<Save>> save = session->BeginSave({.step = 1});
  ASSERT_STATUS_OK(save.status());
  ASSERT_STATUS_OK((*save)->Wait(Level::kStagedGang, Soon()));
  EXPECT_EQ((*save)->Wait(Level::kShared, Deadline("now", std::chrono::milliseconds(50))).code(),
            Code::kDeadlineExceeded);
  gate_.Set(true);
  ASSERT_STATUS_OK((*save)->Wait(Level::kShared, Soon()));
  ASSERT_STATUS_OK(session->Close(Soon()));
}

TEST_F(StandaloneTest, WithoutAFreeSlotASaveIsRefusedAndTrainingGoesOn) {
  Training training(0);
  const auto session = OpenOne(1);
  ASSERT_STATUS_OK(session->Track(training.state, nullptr));
  gate_.Set(false);
  StepResult result;
  ASSERT_STATUS_OK(session->AtBoundary(1, &result));
  ASSERT_STATUS_OK(session->AtBoundary(2, &result));
  EXPECT_EQ(result.kind, RequestKind::kSave);
  const Status refused = session->AtBoundary(3, &result);
  EXPECT_EQ(refused.code(), Code::kResourceExhausted);
  EXPECT_EQ(result.kind, RequestKind::kNone);
  EXPECT_EQ(result.boundary, 3u);
  gate_.Set(true);
  Result<std::shared_ptr<Save>> waited =
      session->BeginSave({.step = 4, .slot_timeout = std::chrono::seconds(60)});
  ASSERT_STATUS_OK(waited.status());
  ASSERT_STATUS_OK(session->Close(Soon()));
  EXPECT_EQ((*waited)->progress().level, Level::kShared);
}

TEST_F(StandaloneTest, CloseNamesWhatIsNotDurable) {
  Training training(0);
  const auto session = OpenOne();
  ASSERT_STATUS_OK(session->Track(training.state, nullptr));
  gate_.Set(false);
  ASSERT_STATUS_OK(session->BeginSave({.step = 5}).status());
  std::thread opener([this] {  // within the grace that cancelled writers get
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    gate_.Set(true);
  });
  const Status status = session->Close(Deadline("close", std::chrono::milliseconds(100)));
  opener.join();
  EXPECT_EQ(status.code(), Code::kDeadlineExceeded);
  EXPECT_NE(status.message().find("s5.e1.a1"), std::string::npos);
  EXPECT_NE(log().find("s5.e1.a1"), std::string::npos);
  StepResult result;
  EXPECT_EQ(session->AtBoundary(1, &result).code(), Code::kFailedPrecondition);
}

#if defined(CKPT_FAULTS)
TEST_F(StandaloneTest, ABackgroundFailureIsTheErrorOfALaterStepOnce) {
  Training training(0);
  const auto session = OpenOne(1'000'000);
  ASSERT_STATUS_OK(session->Track(training.state, nullptr));
  ArmedFault fault("session.standalone.write", ResourceExhausted("the disk is full"));
  ASSERT_STATUS_OK(session->BeginSave({.step = 2}).status());  // it staged: that much is true
  const Deadline deadline = Soon();
  StepResult result;
  Status status;
  while (status.ok() && !deadline.Expired()) status = session->AtBoundary(3, &result);
  EXPECT_TRUE(fault.fired());
  EXPECT_EQ(result.kind, RequestKind::kNone);
  EXPECT_EQ(status.code(), Code::kResourceExhausted);
  EXPECT_NE(status.message().find("the disk is full"), std::string::npos);
  EXPECT_NE(status.message().find("rank 0"), std::string::npos);
  EXPECT_NE(status.message().find("s2.e1.a1"), std::string::npos);
  ASSERT_STATUS_OK(session->AtBoundary(4, &result));
  ASSERT_STATUS_OK(session->Close(Soon()));  // it was said
}

TEST_F(StandaloneTest, AFailedCommitIsTheErrorOfWaitAndOfClose) {
  Training training(0);
  const auto session = OpenOne();
  ASSERT_STATUS_OK(session->Track(training.state, nullptr));
  ArmedFault fault("session.standalone.commit", Unavailable("no answer").MaybeApplied());
  Result<std::shared_ptr<Save>> save = session->BeginSave({.step = 1});
  ASSERT_STATUS_OK(save.status());
  const Status closed = session->Close(Soon());
  EXPECT_TRUE(fault.fired());
  EXPECT_EQ(closed.code(), Code::kUnavailable);
  EXPECT_EQ(closed.outcome(), Outcome::kMaybeApplied);
  EXPECT_EQ((*save)->Wait(Level::kShared, Soon()).code(), Code::kUnavailable);
  EXPECT_EQ((*save)->progress().level, Level::kStagedGang);
}
#endif

TEST_F(StandaloneTest, ASignalStopsAtTheNextBoundaryWithADurableState) {
  Training training(0);
  const auto session = OpenOne(0, uint64_t{1} << SIGUSR1);
  ASSERT_STATUS_OK(session->Track(training.state, nullptr));
  StepResult result;
  ASSERT_STATUS_OK(session->AtBoundary(1, &result));
  EXPECT_EQ(result.kind, RequestKind::kNone);
  raise(SIGUSR1);
  training.Step();
  ASSERT_STATUS_OK(session->AtBoundary(2, &result));
  EXPECT_EQ(result.kind, RequestKind::kStop);
  EXPECT_EQ((*session->OpenReader("latest"))->id().step, Step(2));
  EXPECT_EQ(session->AtBoundary(3, &result).code(), Code::kFailedPrecondition);
  ASSERT_STATUS_OK(session->Close(Soon()));
}

#if defined(CKPT_FAULTS)
TEST_F(StandaloneTest, ASignalStopsThoughAnEarlierOverlappedSaveFailed) {
  Training training(0);
  const auto session = OpenOne(0, uint64_t{1} << SIGUSR1);
  ASSERT_STATUS_OK(session->Track(training.state, nullptr));
  ArmedFault fault("engine.staging.seal", ResourceExhausted("no pinned memory"));
  Result<std::shared_ptr<Save>> save = session->BeginSave({.step = 1, .overlap = true});
  ASSERT_STATUS_OK(save.status());
  EXPECT_TRUE((*save)->AwaitEnd(Soon()));
  ASSERT_TRUE(fault.fired());
  raise(SIGUSR1);
  StepResult result;
  ASSERT_STATUS_OK(session->AtBoundary(2, &result));
  EXPECT_EQ(result.kind, RequestKind::kStop);
  EXPECT_NE(log().find("no pinned memory"), std::string::npos);
  EXPECT_EQ((*session->OpenReader("latest"))->id().step, Step(2));
  session->Close(Soon()).IgnoreError();
}
#endif

std::atomic<int> g_chained{0};

TEST_F(StandaloneTest, HandlersChainAndAreTakenBack) {
  struct sigaction before {};
  before.sa_handler = [](int) { ++g_chained; };
  sigaction(SIGUSR1, &before, nullptr);
  const auto session = OpenOne(0, uint64_t{1} << SIGUSR1);
  EXPECT_EQ(Session::Open(
                [] {
                  Options options;
                  options.job = "other";
                  options.signals = uint64_t{1} << SIGUSR1;
                  return options;
                }(),
                MakeParts())
                .status()
                .code(),
            Code::kFailedPrecondition);
  raise(SIGUSR1);
  EXPECT_EQ(g_chained, 1);
  ASSERT_STATUS_OK(session->Close(Soon()));
  raise(SIGUSR1);
  EXPECT_EQ(g_chained, 2);
  signal(SIGUSR1, SIG_DFL);
}

TEST_F(StandaloneTest, InAForkedChildEveryCallFailsAndTheParentGoesOn) {
  Training training(0);
  const auto session = OpenOne(0, uint64_t{1} << SIGUSR1);
  ASSERT_STATUS_OK(session->Track(training.state, nullptr));
  const pid_t child = fork();
  if (child == 0) {
    StepResult result;
    const bool failed = session->AtBoundary(1, &result).code() == Code::kFailedPrecondition &&
                        session->Finish().code() == Code::kFailedPrecondition &&
                        session->BeginSave({}).status().code() == Code::kFailedPrecondition &&
                        session->Close(Soon()).code() == Code::kFailedPrecondition;
    if (!failed) _exit(1);
    if (kThreadSanitizer) _exit(0);  // it holds signals of a forked child back
    raise(SIGUSR1);                  // the default: it ends the child
    _exit(2);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  if (!kThreadSanitizer) {
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGUSR1) << status;
  }
  StepResult result;
  ASSERT_STATUS_OK(session->AtBoundary(1, &result));
  EXPECT_EQ(result.boundary, 1u);  // the child's step did not count
  EXPECT_EQ(result.kind, RequestKind::kNone);
  ASSERT_STATUS_OK(session->Close(Soon()));
}

TEST_F(StandaloneTest, MistakesAreErrorsAndTrainingGoesOn) {
  Training training(0);
  const auto session = OpenOne(1);
  StepResult result;
  EXPECT_EQ(session->AtBoundary(1, &result).code(), Code::kFailedPrecondition);  // nothing tracked
  ASSERT_STATUS_OK(session->Track(training.state, nullptr));
  float late = 0;
  training.Add("late", format::DType::kF32, format::Placement::kReplicated, &late, 1);
  EXPECT_EQ(session->AtBoundary(2, &result).code(), Code::kFailedPrecondition);
  ASSERT_STATUS_OK(session->Track(training.state, nullptr));
  ASSERT_STATUS_OK(session->AtBoundary(3, &result));
  EXPECT_EQ(result.kind, RequestKind::kSave);
  ASSERT_STATUS_OK(session->Finish());
  EXPECT_EQ(session->AtBoundary(4, &result).code(), Code::kFailedPrecondition);
  ASSERT_STATUS_OK(session->Close(Soon()));
}

TEST_F(StandaloneTest, ACallbackThatFailsFailsThatSaveOnly) {
  Training training(0);
  const auto session = OpenOne(1);
  int32_t answer = 3;
  ASSERT_STATUS_OK(session->Track(training.state, [&](State*) { return answer; }));
  StepResult result;
  EXPECT_EQ(session->AtBoundary(1, &result).code(), Code::kAborted);
  answer = 0;
  ASSERT_STATUS_OK(session->AtBoundary(2, &result));
  EXPECT_EQ(result.kind, RequestKind::kSave);
  ASSERT_STATUS_OK(session->Close(Soon()));
}

TEST_F(StandaloneTest, AnOverlappedSaveHoldsTheStateOfItsBoundary) {
  Training training(0, 500'000);
  const auto session = OpenOne();
  ASSERT_STATUS_OK(session->Track(training.state, nullptr));
  const std::vector<float> at_save = training.weights;
  Result<std::shared_ptr<Save>> save = session->BeginSave({.step = 1, .overlap = true});
  ASSERT_STATUS_OK(save.status());
  ASSERT_STATUS_OK(session->Fence());
  EXPECT_GE((*save)->progress().level, Level::kStaged);
  training.Step();
  ASSERT_STATUS_OK((*save)->Wait(Level::kShared, Soon()));
  Result<std::unique_ptr<Reader>> reader = session->OpenReader("latest");
  ASSERT_STATUS_OK(reader.status());
  ASSERT_STATUS_OK((*reader)->Load(training.state.get()));
  EXPECT_EQ(training.weights, at_save);
  ASSERT_STATUS_OK(session->Close(Soon()));
}

TEST_F(StandaloneTest, AStateThatDoesNotFitIsRefusedBeforeAByteIsWritten) {
  Training training(0);
  {
    const auto session = OpenOne(1);
    ASSERT_STATUS_OK(session->Track(training.state, nullptr));
    StepResult result;
    ASSERT_STATUS_OK(session->AtBoundary(1, &result));
    ASSERT_STATUS_OK(session->Close(Soon()));
  }
  Training other(0, 4999);
  const std::vector<float> before = other.weights;
  const auto session = OpenOne();
  Result<std::unique_ptr<Reader>> reader = session->OpenReader("");
  ASSERT_STATUS_OK(reader.status());
  const Status status = (*reader)->Load(other.state.get());
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_NE(status.message().find("weights"), std::string::npos);
  EXPECT_EQ(other.weights, before);
  ASSERT_STATUS_OK(session->Close(Soon()));
}

class SetWaitComm : public comm::Communicator {
 public:
  std::string name() const override { return "set-wait"; }
  Status Quiesce(const Deadline&) override { return OkStatus(); }
  Status Down(const Deadline&) override { return ++downs, OkStatus(); }
  Status Up(const std::string&, comm::KeyValue* keys, const Deadline& deadline) override {
    CKPT_RETURN_IF_ERROR(keys->Set("a", "1"));
    CKPT_ASSIGN_OR_RETURN(const std::string value, keys->Wait("a", deadline));
    return value == "1" ? OkStatus() : Internal("another value");
  }
  Status Verify(const Deadline&) override { return OkStatus(); }
  int downs = 0;
};

TEST_F(StandaloneTest, OneRankHasAKeyValueChannelOfItsOwn) {
  const auto session = OpenOne();
  const auto comm = std::make_shared<SetWaitComm>();
  ASSERT_STATUS_OK(session->RegisterCommunicator(comm));
  ASSERT_STATUS_OK(session->UnregisterCommunicator(comm.get()));
  EXPECT_EQ(comm->downs, 1);
  EXPECT_EQ(session->UnregisterCommunicator(comm.get()).code(), Code::kNotFound);
  ASSERT_STATUS_OK(session->Close(Soon()));
}

// ---- several ranks, by the caller's collective ----

constexpr uint32_t kWorld = 3;

// An allgather between threads.
class ThreadGather {
 public:
  bool Run(uint32_t rank, const void* in, size_t n, void* out) {
    parts_[rank].assign(static_cast<const char*>(in), n);
    barrier_.arrive_and_wait();
    std::string all;
    for (const std::string& part : parts_) all += part;
    const bool alike = all.size() == n * kWorld;
    if (alike) std::memcpy(out, all.data(), all.size());
    barrier_.arrive_and_wait();
    return alike;
  }

 private:
  std::barrier<> barrier_{kWorld};
  std::array<std::string, kWorld> parts_;
};

class SeveralRanksTest : public StandaloneTest {
 protected:
  void RunRanks(const std::function<void(uint32_t rank, Session* session)>& body,
                uint64_t save_every = 0, uint32_t signalled = kWorld) {
    ThreadGather gather;
    std::vector<std::thread> threads;
    for (uint32_t rank = 0; rank < kWorld; ++rank) {
      threads.emplace_back([&, rank] {
        Options options;
        options.job = "test";
        options.store = "memory";
        options.rank = Rank(rank);
        options.world = kWorld;
        options.save_every = save_every;
        if (rank == signalled) options.signals = uint64_t{1} << SIGUSR1;
        options.allgather = [&gather, rank](const void* in, size_t n, void* out, int64_t) {
          return gather.Run(rank, in, n, out);
        };
        Result<std::shared_ptr<Session>> session = Session::Open(options, MakeParts());
        ASSERT_TRUE(session.ok()) << session.status().ToString();
        body(rank, session->get());
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
};

TEST_F(SeveralRanksTest, NeedACollective) {
  Options options;
  options.job = "test";
  options.world = 2;
  const Status status = Session::Open(options, MakeParts()).status();
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_NE(status.message().find("ckpt-run"), std::string::npos);
}

TEST_F(SeveralRanksTest, SaveTogetherAndResumeTogether) {
  std::array<std::vector<int64_t>, kWorld> own;
  std::array<std::vector<float>, kWorld> weights;
  RunRanks(
      [&](uint32_t rank, Session* session) {
        Training training(rank);
        ASSERT_STATUS_OK(session->Track(training.state, nullptr));
        EXPECT_EQ(session->OpenReader("").status().code(), Code::kNotFound);
        for (int64_t step = 1; step <= 20; ++step) {
          training.Step();
          StepResult result;
          ASSERT_STATUS_OK(session->AtBoundary(step, &result));
          EXPECT_EQ(result.kind, step % 10 == 0 ? RequestKind::kSave : RequestKind::kNone);
        }
        own[rank] = training.own;
        weights[rank] = training.weights;
        ASSERT_STATUS_OK(session->Close(Soon()));
      },
      10);
  RunRanks([&](uint32_t rank, Session* session) {
    Training training(rank);
    ASSERT_STATUS_OK(session->Track(training.state, nullptr));
    Result<std::unique_ptr<Reader>> reader = session->OpenReader("");
    ASSERT_STATUS_OK(reader.status());
    EXPECT_EQ((*reader)->id().step, Step(20));
    ASSERT_STATUS_OK((*reader)->Load(training.state.get()));
    EXPECT_EQ(training.own, own[rank]);
    EXPECT_EQ(training.weights, weights[rank]);
    ASSERT_STATUS_OK(session->Close(Soon()));
  });
}

TEST_F(SeveralRanksTest, WaitIsCollectiveAndSaysSharedOnAll) {
  RunRanks([&](uint32_t rank, Session* session) {
    Training training(rank);
    ASSERT_STATUS_OK(session->Track(training.state, nullptr));
    Result<std::shared_ptr<Save>> save = session->BeginSave({.step = 1});
    ASSERT_STATUS_OK(save.status());
    ASSERT_STATUS_OK(session->WaitSave(save->get(), Level::kShared, Soon()));
    EXPECT_EQ((*save)->progress().level, Level::kShared);
    ASSERT_STATUS_OK(session->Close(Soon()));
  });
}

TEST_F(SeveralRanksTest, ASignalAtOneRankStopsAllAtOneBoundary) {
  std::array<uint64_t, kWorld> stopped_at{};
  RunRanks(
      [&](uint32_t rank, Session* session) {
        Training training(rank);
        ASSERT_STATUS_OK(session->Track(training.state, nullptr));
        for (int64_t step = 1; step <= 1000 && stopped_at[rank] == 0; ++step) {
          if (rank == 1 && step == 7) raise(SIGUSR1);
          StepResult result;
          ASSERT_STATUS_OK(session->AtBoundary(step, &result));
          if (result.kind == RequestKind::kStop) stopped_at[rank] = result.boundary;
        }
        ASSERT_STATUS_OK(session->Close(Soon()));
      },
      3, 1);
  EXPECT_EQ(stopped_at, (std::array<uint64_t, kWorld>{7, 7, 7}));
  RunRanks([&](uint32_t, Session* session) {
    EXPECT_EQ((*session->OpenReader(""))->id().step, Step(7));
    ASSERT_STATUS_OK(session->Close(Soon()));
  });
}

TEST_F(SeveralRanksTest, ARankThatCannotStageFailsTheSaveOnAllByName) {
  RunRanks([&](uint32_t rank, Session* session) {
    Training training(rank);
    int32_t answer = rank == 2 ? 9 : 0;
    ASSERT_STATUS_OK(session->Track(training.state, [&](State*) { return answer; }));
    const Status status = session->BeginSave({.step = 1}).status();
    EXPECT_EQ(status.code(), Code::kAborted);
    EXPECT_NE(status.message().find("rank 2"), std::string::npos);
    answer = 0;
    Result<std::shared_ptr<Save>> save = session->BeginSave({.step = 2});
    ASSERT_STATUS_OK(save.status());
    ASSERT_STATUS_OK(session->WaitSave(save->get(), Level::kShared, Soon()));
    ASSERT_STATUS_OK(session->Close(Soon()));
  });
}

#if defined(CKPT_FAULTS)
TEST_F(SeveralRanksTest, AShardThatCannotBeWrittenFailsTheSaveOnAll) {
  ArmedFault fault("session.standalone.write", ResourceExhausted("the disk is full"), 2);
  RunRanks([&](uint32_t rank, Session* session) {
    Training training(rank);
    ASSERT_STATUS_OK(session->Track(training.state, nullptr));
    Result<std::shared_ptr<Save>> save = session->BeginSave({.step = 1});
    ASSERT_STATUS_OK(save.status());
    EXPECT_EQ(session->WaitSave(save->get(), Level::kShared, Soon()).code(),
              Code::kResourceExhausted);
    EXPECT_NE((*save)->error().message().find("the disk is full"), std::string::npos);
    ASSERT_STATUS_OK(session->Close(Soon()));
  });
  EXPECT_TRUE(fault.fired());
}
#endif

TEST_F(SeveralRanksTest, WithoutFreeSlotsAllAreRefusedAtTheSameBoundary) {
  gate_.Set(false);
  RunRanks([&](uint32_t rank, Session* session) {
    Training training(rank);
    ASSERT_STATUS_OK(session->Track(training.state, nullptr));
    ASSERT_STATUS_OK(session->BeginSave({.step = 1}).status());
    ASSERT_STATUS_OK(session->BeginSave({.step = 2}).status());
    EXPECT_EQ(session->BeginSave({.step = 3}).status().code(), Code::kResourceExhausted);
    gate_.Set(true);
    ASSERT_STATUS_OK(session->Close(Soon()));
  });
}

TEST_F(SeveralRanksTest, CallsAtDifferentPointsAreNoticed) {
  RunRanks([&](uint32_t rank, Session* session) {
    Training training(rank);
    ASSERT_STATUS_OK(session->Track(training.state, nullptr));
    StepResult result;
    Status status;
    if (rank == 0) {
      status = session->Close(Soon());
    } else {
      status = session->AtBoundary(1, &result);
    }
    EXPECT_EQ(status.code(), Code::kFailedPrecondition) << status.ToString();
    if (rank != 0) {
      EXPECT_EQ(session->AtBoundary(2, &result).code(), Code::kFailedPrecondition);
      session->Close(Soon()).IgnoreError();
    }
  });
}

// The collective would be called by some ranks only, if not all stopped at the first word.
TEST_F(SeveralRanksTest, ASaveHereAndAStepThereAreNoticedByAllInOneRound) {
  RunRanks([&](uint32_t rank, Session* session) {
    Training training(rank);
    ASSERT_STATUS_OK(session->Track(training.state, nullptr));
    StepResult result;
    Status status;
    if (rank == 1) {
      status = session->BeginSave({.step = 1}).status();
    } else {
      status = session->AtBoundary(1, &result);
    }
    EXPECT_EQ(status.code(), Code::kFailedPrecondition) << status.ToString();
    EXPECT_NE(status.message().find("not at the same point: rank 0 at step, rank 1 at save"),
              std::string::npos)
        << status.message();
    session->Close(Soon()).IgnoreError();
  });
}

TEST_F(SeveralRanksTest, HaveNoKeyValueChannel) {
  RunRanks([&](uint32_t, Session* session) {
    const auto comm = std::make_shared<SetWaitComm>();
    const Status status = session->RegisterCommunicator(comm);
    EXPECT_EQ(status.code(), Code::kUnimplemented);
    EXPECT_NE(status.message().find("start them as 'ckpt-run --ranks N"), std::string::npos);
    EXPECT_NE(status.message().find("or do not register"), std::string::npos);
    ASSERT_STATUS_OK(session->Close(Soon()));
  });
}

}  // namespace
}  // namespace ckpt::session
