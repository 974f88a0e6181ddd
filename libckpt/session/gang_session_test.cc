// The rank's side of the gang protocol against a real other end (libckpt/testing/run_peer): every
// state of the word, every barrier, and the death of ckpt-run in each of them.
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>

#include <atomic>
#include <map>
#include <thread>

#include "libckpt/base/log.h"
#include "libckpt/base/mutex.h"
#include "libckpt/device/host/host_device.h"
#include "libckpt/os/file.h"
#include "libckpt/session/session.h"
#include "libckpt/storage/memory/memory_store.h"
#include "libckpt/testing/run_peer/run_peer.h"

namespace ckpt::session {
namespace {

using testing::RunPeer;

Deadline Soon() { return Deadline("the test", std::chrono::seconds(30)); }

#define ASSERT_STATUS_OK(expr)                                     \
  do {                                                             \
    const Status status_of_test = (expr);                          \
    ASSERT_TRUE(status_of_test.ok()) << status_of_test.ToString(); \
  } while (0)

// A communicator that counts what is done to it.
class CountingComm : public comm::Communicator {
 public:
  std::string name() const override { return "counting"; }
  Status Quiesce(const Deadline&) override { return ++quiesced, OkStatus(); }
  Status Down(const Deadline&) override { return ++downs, down_error; }
  Status Up(const std::string& fresh_id, comm::KeyValue* keys, const Deadline& deadline) override {
    ids.push_back(fresh_id);
    CKPT_RETURN_IF_ERROR(keys->Set("address", "here"));
    return keys->Wait("address", deadline).status();
  }
  Status Verify(const Deadline&) override { return ++verified, OkStatus(); }

  int quiesced = 0, downs = 0, verified = 0;
  Status down_error;
  std::vector<std::string> ids;
};

// A rank that steps when it is told to, on a thread of its own.
class RankThread {
 public:
  RankThread(std::shared_ptr<Session> session) : session_(std::move(session)) {
    thread_ = std::thread([this] { Loop(); });
  }
  ~RankThread() {
    quit_ = true;
    thread_.join();
  }
  // Lets it take `count` more steps.
  void Allow(uint64_t count) { allowed_ += count; }
  bool AwaitSteps(uint64_t count) {
    const Deadline deadline = Soon();
    while (done_ < count && !deadline.Expired())
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return done_ >= count;
  }
  bool Stuck() const { return entered_ > done_; }
  uint64_t done() const { return done_; }
  // Of the step-th call, from 1.
  StepResult result(uint64_t step) {
    MutexLock lock(mutex_);
    return results_[step].first;
  }
  Status status(uint64_t step) {
    MutexLock lock(mutex_);
    return results_[step].second;
  }
  std::function<void(int64_t)> before_step;  // set before Allow

 private:
  void Loop() {
    while (!quit_) {
      if (done_ >= allowed_) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        continue;
      }
      const uint64_t step = done_ + 1;
      if (before_step) before_step(static_cast<int64_t>(step));
      StepResult result;
      entered_ = step;
      const Status status = session_->AtBoundary(static_cast<int64_t>(100 + step), &result);
      {
        MutexLock lock(mutex_);
        results_[step] = {result, status};
      }
      done_ = step;
    }
  }

  std::shared_ptr<Session> session_;
  std::atomic<bool> quit_{false};
  std::atomic<uint64_t> allowed_{0}, done_{0}, entered_{0};
  Mutex mutex_;
  std::map<uint64_t, std::pair<StepResult, Status>> results_;
  std::thread thread_;
};

class GangSessionTest : public ::testing::Test {
 protected:
  void SetUp() override {
    SetLogSink([](LogLevel, std::string_view) {});
    char directory[] = "/tmp/ckpt-session-XXXXXX";
    ASSERT_NE(mkdtemp(directory), nullptr);
    directory_ = directory;
    config_.socket = directory_ + "/run.sock";
    config_.store = "memory";
    host_ = device::CreateHostDevice();
    weights_.assign(1000, 1.5f);
  }
  void TearDown() override {
    rank_.reset();
    if (session_ != nullptr)
      session_->Close(Deadline("close", std::chrono::milliseconds(50))).IgnoreError();
    session_.reset();
    EXPECT_TRUE(os::PosixFileSystem().RemoveTree(directory_).ok());
    SetLogSink(nullptr);
  }

  Options MakeOptions() {
    Options options;
    options.job = "test";
    options.rank = Rank(config_.rank);
    options.world = config_.world;
    options.run_socket = config_.socket;
    options.token = "secret";
    options.save_every = save_every_;
    return options;
  }
  Parts MakeParts() {
    Parts parts;
    parts.open_store = [job = job_](const std::string&) -> Result<std::unique_ptr<storage::Store>> {
      return std::unique_ptr<storage::Store>(storage::NewMemoryStore(job));
    };
    return parts;
  }

  // Session open, one tensor and one value tracked, slots mapped.
  void Start() {
    Result<std::unique_ptr<RunPeer>> peer = RunPeer::Listen(config_);
    ASSERT_TRUE(peer.ok()) << peer.status().ToString();
    peer_ = std::move(*peer);
    OpenSession();
    state_ = std::make_shared<State>();
    engine::LiveTensor tensor;
    tensor.meta.name = "weights";
    tensor.meta.dtype = format::DType::kF32;
    tensor.meta.placement = format::Placement::kReplicated;
    tensor.meta.global_shape = {weights_.size()};
    tensor.meta.local = {{0}, {weights_.size()}};
    tensor.data = weights_.data();
    tensor.device = host_.get();
    ASSERT_STATUS_OK(state_->AddTensor(tensor));
    ASSERT_STATUS_OK(session_->Track(state_, [this](State* state) {
      ++refreshed_;
      if (refuse_refresh_) return 7;
      return state->SetValue("position", format::Scope::kShared, std::to_string(refreshed_)).ok()
                 ? 0
                 : 1;
    }));
    ASSERT_STATUS_OK(peer_->SendSlots(Soon()));
    if (!config_.resume_from.epoch.value()) rank_ = std::make_unique<RankThread>(session_);
  }
  void OpenSession() {
    std::thread opener([this] {
      Result<std::shared_ptr<Session>> opened = Session::Open(MakeOptions(), MakeParts());
      open_status_ = opened.status();
      if (opened.ok()) session_ = *opened;
    });
    Result<wire::Hello> hello = peer_->Welcome(Soon());
    opener.join();
    ASSERT_TRUE(hello.ok()) << hello.status().ToString();
    ASSERT_STATUS_OK(open_status_);
    EXPECT_EQ(hello->token, "secret");
    EXPECT_EQ(hello->job, "test");
    EXPECT_FALSE(hello->methods.empty());
  }

  wire::Order MakeOrder(wire::Request request, uint32_t attempt = 3) {
    wire::Order order;
    order.operation = 11;
    order.round = 1;
    order.attempt = attempt;
    order.generation = 5;
    order.slot = 1;
    order.request = request;
    order.deadline_boottime_ns = BoottimeNs() + wait_ns_;
    return order;
  }
  // Steps to `cut`, proposed and committed before, and waits until the rank stands there.
  void ReachCut(uint32_t cut, WordState proposed, wire::Request request) {
    ASSERT_TRUE(peer_->Propose(cut, proposed, MakeOrder(request)));
    rank_->Allow(cut);
    ASSERT_TRUE(rank_->AwaitSteps(cut - 1));
    ASSERT_TRUE(AwaitAt(cut));
  }
  bool AwaitAt(uint32_t boundary) {
    return peer_->Await([&] { return peer_->word().boundary == boundary; }, Soon());
  }
  // To SEALED of a stop at `cut`.
  void Seal(uint32_t cut) {
    ReachCut(cut, WordState::kProposedStop, wire::Request::kSuspend);
    ASSERT_TRUE(peer_->Commit());
    ASSERT_TRUE(peer_->Stage());
    const Result<wire::Sealed> sealed = peer_->Expect<wire::Sealed>(Soon());
    ASSERT_TRUE(sealed.ok()) << sealed.status().ToString();
    EXPECT_EQ(sealed->generation, 5u);
    EXPECT_EQ(sealed->slot, 1u);
    EXPECT_EQ(sealed->attempt, 3u);
    EXPECT_EQ(sealed->step, 100 + cut);
  }

  RunPeer::Config config_;
  std::string directory_;
  std::unique_ptr<device::Device> host_;
  std::vector<float> weights_;
  std::shared_ptr<storage::MemoryJob> job_ = storage::NewMemoryJob();
  std::unique_ptr<RunPeer> peer_;
  std::shared_ptr<Session> session_;
  std::shared_ptr<State> state_;
  std::unique_ptr<RankThread> rank_;
  Status open_status_;
  int refreshed_ = 0;
  std::atomic<bool> refuse_refresh_{false};
  uint64_t save_every_ = 0;
  int64_t wait_ns_ = 60'000'000'000;
};

TEST_F(GangSessionTest, OpenFailsWithoutCkptRun) {
  const Result<std::shared_ptr<Session>> opened = Session::Open(MakeOptions(), MakeParts());
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.status().code(), Code::kUnavailable);
  EXPECT_NE(opened.status().message().find(config_.socket), std::string::npos);
}

TEST_F(GangSessionTest, OpenPassesTheRefusalOn) {
  Result<std::unique_ptr<RunPeer>> peer = RunPeer::Listen(config_);
  ASSERT_STATUS_OK(peer.status());
  peer_ = std::move(*peer);
  std::thread opener([&] { open_status_ = Session::Open(MakeOptions(), MakeParts()).status(); });
  ASSERT_STATUS_OK(peer_->Refuse(Unauthenticated("a token of another epoch"), Soon()));
  opener.join();
  EXPECT_EQ(open_status_.code(), Code::kUnauthenticated);
  EXPECT_NE(open_status_.message().find("another epoch"), std::string::npos);
}

TEST_F(GangSessionTest, CountsBoundariesAndSamplesThePage) {
  Start();
  rank_->Allow(3);
  ASSERT_TRUE(rank_->AwaitSteps(3));
  EXPECT_EQ(peer_->word().boundary, 3u);
  EXPECT_EQ(peer_->page().user_step.load(), 103);
  EXPECT_EQ(rank_->result(3).boundary, 3u);
  EXPECT_EQ(rank_->result(3).kind, RequestKind::kNone);
  EXPECT_TRUE(peer_->Await([&] { return peer_->page().progress_boottime_ns.load() != 0; }, Soon()));
  EXPECT_GE(peer_->page().alive_boottime_ns.load(), peer_->page().progress_boottime_ns.load());
}

TEST_F(GangSessionTest, WaitsAtAProposedCutAndGoesOnWhenWithdrawn) {
  Start();
  ReachCut(3, WordState::kProposedStop, wire::Request::kSuspend);
  EXPECT_TRUE(rank_->Stuck());
  ASSERT_TRUE(peer_->Withdraw());
  ASSERT_TRUE(rank_->AwaitSteps(3));
  EXPECT_EQ(rank_->result(3).kind, RequestKind::kNone);
  EXPECT_TRUE(rank_->status(3).ok());
  EXPECT_EQ(refreshed_, 0);  // nothing was staged
}

TEST_F(GangSessionTest, GoesOnToARaisedCut) {
  Start();
  ReachCut(2, WordState::kProposedStop, wire::Request::kSuspend);
  ASSERT_TRUE(peer_->Raise(4, MakeOrder(wire::Request::kSuspend)));
  rank_->Allow(2);
  ASSERT_TRUE(rank_->AwaitSteps(3));
  ASSERT_TRUE(AwaitAt(4));
  EXPECT_TRUE(rank_->Stuck());
  ASSERT_TRUE(peer_->Withdraw());
  ASSERT_TRUE(rank_->AwaitSteps(4));
}

TEST_F(GangSessionTest, TakesItsPromiseBackAtTheDeadline) {
  wait_ns_ = 50'000'000;
  Start();
  ASSERT_TRUE(peer_->Propose(2, WordState::kProposedStop, MakeOrder(wire::Request::kSuspend)));
  ASSERT_TRUE(peer_->Commit());  // from COMMITTED as well (G6)
  rank_->Allow(2);
  ASSERT_TRUE(rank_->AwaitSteps(2));
  EXPECT_EQ(rank_->result(2).kind, RequestKind::kNone);
  EXPECT_EQ(peer_->word().state, WordState::kRefused);
  EXPECT_FALSE(peer_->Stage());  // exactly one of time-out and barrier 1 wins
  ASSERT_TRUE(peer_->Settle());
}

TEST_F(GangSessionTest, SavesAtACommittedCutAndRunsOn) {
  Start();
  ReachCut(2, WordState::kProposedSave, wire::Request::kSave);
  ASSERT_TRUE(peer_->Commit());
  ASSERT_TRUE(rank_->AwaitSteps(2));
  EXPECT_EQ(rank_->result(2).kind, RequestKind::kSave);
  const Result<wire::Sealed> sealed = peer_->Expect<wire::Sealed>(Soon());
  ASSERT_TRUE(sealed.ok());
  EXPECT_EQ(sealed->step, 102);
  EXPECT_EQ(peer_->word().state, WordState::kIdle);
  EXPECT_EQ(peer_->region(1)->state(), engine::GenerationState::kSealed);
  EXPECT_FALSE(peer_->region(1)->info().full);
  EXPECT_EQ(peer_->region(1)->info().boundary, 2u);
  rank_->Allow(1);
  EXPECT_TRUE(rank_->AwaitSteps(3));
}

TEST_F(GangSessionTest, StopsThroughAllBarriers) {
  Start();
  auto comm = std::make_shared<CountingComm>();
  std::thread registering([&] { EXPECT_TRUE(session_->RegisterCommunicator(comm).ok()); });
  ASSERT_TRUE(peer_->Expect<wire::KvSet>(Soon()).ok());
  ASSERT_TRUE(peer_->Expect<wire::KvWait>(Soon()).ok());
  ASSERT_STATUS_OK(peer_->Answer(wire::KvValue{"here"}));
  registering.join();

  Seal(3);
  EXPECT_EQ(peer_->region(1)->state(), engine::GenerationState::kSealed);
  EXPECT_TRUE(peer_->region(1)->info().full);
  const Result<format::RankValues> values = peer_->region(1)->Values();
  ASSERT_TRUE(values.ok());
  ASSERT_EQ(values->values.size(), 1u);
  EXPECT_EQ(values->values[0].name, "position");
  EXPECT_EQ(std::memcmp(peer_->region(1)->piece_data(0).data(), weights_.data(),
                        weights_.size() * sizeof(float)),
            0);
  EXPECT_EQ(comm->downs, 0);  // not before barrier 2
  EXPECT_TRUE(rank_->Stuck());

  ASSERT_STATUS_OK(peer_->Tell(wire::BarrierReleased{11, 1, 2}));
  const Result<wire::CommsDown> down = peer_->Expect<wire::CommsDown>(Soon());
  ASSERT_TRUE(down.ok());
  EXPECT_EQ(down->code, 0u);
  EXPECT_EQ(down->operation, 11u);
  EXPECT_EQ(comm->downs, 1);
  EXPECT_EQ(comm->quiesced, 1);
  EXPECT_TRUE(rank_->Stuck());

  ASSERT_STATUS_OK(peer_->Tell(wire::BarrierReleased{11, 1, 3}));
  ASSERT_TRUE(rank_->AwaitSteps(3));
  EXPECT_EQ(rank_->result(3).kind, RequestKind::kStop);
  EXPECT_NE(rank_->result(3).deadline_boottime_ns, 0);
  rank_->Allow(1);
  ASSERT_TRUE(rank_->AwaitSteps(4));
  EXPECT_EQ(rank_->status(4).code(), Code::kFailedPrecondition);  // after STOP there is no step
}

TEST_F(GangSessionTest, IgnoresBarriersOfOlderRounds) {
  Start();
  Seal(2);
  ASSERT_STATUS_OK(peer_->Tell(wire::BarrierReleased{10, 1, 3}));
  ASSERT_STATUS_OK(peer_->Tell(wire::BarrierReleased{11, 0, 3}));
  ASSERT_STATUS_OK(peer_->Tell(wire::BarrierReleased{11, 1, 2}));
  ASSERT_TRUE(peer_->Expect<wire::CommsDown>(Soon()).ok());
  EXPECT_TRUE(rank_->Stuck());
  ASSERT_STATUS_OK(peer_->Tell(wire::BarrierReleased{11, 1, 3}));
  ASSERT_TRUE(rank_->AwaitSteps(2));
  EXPECT_EQ(rank_->result(2).kind, RequestKind::kStop);
}

// The gang's deadlines move while ranks wait: what counts is what the order line says by then.
TEST_F(GangSessionTest, ItsWaitAtABarrierFollowsTheDeadlineInItsOrder) {
  Start();
  Seal(2);
  wire::Order order = *wire::LoadOrder(peer_->page());
  order.deadline_boottime_ns += 3'600'000'000'000;
  peer_->StoreOrder(order);
  EXPECT_TRUE(rank_->Stuck());
  order.deadline_boottime_ns = 1;  // long ago, with any grace
  peer_->StoreOrder(order);
  ASSERT_TRUE(rank_->AwaitSteps(2)) << "it waits by the deadline that it met at the cut";
  EXPECT_EQ(rank_->result(2).kind, RequestKind::kStop);
}

TEST_F(GangSessionTest, RollsBackBeforeCommunicatorsAreDown) {
  Start();
  Seal(2);
  ASSERT_STATUS_OK(peer_->Tell(wire::RolledBack{11, 1, false, 0, "rank 1 could not stage"}));
  ASSERT_TRUE(rank_->AwaitSteps(2));
  EXPECT_EQ(rank_->result(2).kind, RequestKind::kNone);
  EXPECT_TRUE(rank_->status(2).ok());
  // The next step does not stage again though the word still says STAGING.
  rank_->Allow(1);
  ASSERT_TRUE(rank_->AwaitSteps(3));
  EXPECT_EQ(refreshed_, 1);
  ASSERT_TRUE(peer_->Settle());
}

TEST_F(GangSessionTest, RollsBackWithARebuildUnderAFreshId) {
  Start();
  auto comm = std::make_shared<CountingComm>();
  const auto answer_keys = [&] {
    const Result<wire::KvSet> set = peer_->Expect<wire::KvSet>(Soon());
    ASSERT_TRUE(set.ok());
    const Result<wire::KvWait> wait = peer_->Expect<wire::KvWait>(Soon());
    ASSERT_TRUE(wait.ok());
    EXPECT_EQ(set->scope, wait->scope);
    ASSERT_STATUS_OK(peer_->Answer(wire::KvValue{set->value}));
  };
  std::thread registering([&] { EXPECT_TRUE(session_->RegisterCommunicator(comm).ok()); });
  answer_keys();
  registering.join();
  Seal(2);
  ASSERT_STATUS_OK(peer_->Tell(wire::BarrierReleased{11, 1, 2}));
  ASSERT_TRUE(peer_->Expect<wire::CommsDown>(Soon()).ok());
  ASSERT_STATUS_OK(peer_->Tell(wire::RolledBack{11, 1, true, 77, "withdrawn"}));
  answer_keys();
  const Result<wire::CommsUp> up = peer_->Expect<wire::CommsUp>(Soon());
  ASSERT_TRUE(up.ok());
  EXPECT_EQ(up->code, 0u);
  ASSERT_TRUE(rank_->AwaitSteps(2));
  EXPECT_EQ(rank_->result(2).kind, RequestKind::kNone);
  ASSERT_EQ(comm->ids.size(), 2u);
  EXPECT_NE(comm->ids[0], comm->ids[1]);
  EXPECT_NE(comm->ids[1].find("77"), std::string::npos);
  EXPECT_EQ(comm->verified, 2);
}

TEST_F(GangSessionTest, SaysWhyCommunicatorsDidNotGoDown) {
  Start();
  auto comm = std::make_shared<CountingComm>();
  std::thread registering([&] { EXPECT_TRUE(session_->RegisterCommunicator(comm).ok()); });
  ASSERT_TRUE(peer_->Expect<wire::KvWait>(Soon()).ok());
  ASSERT_STATUS_OK(peer_->Answer(wire::KvValue{"here"}));
  registering.join();
  comm->down_error = Aborted("a collective hangs");
  Seal(2);
  ASSERT_STATUS_OK(peer_->Tell(wire::BarrierReleased{11, 1, 2}));
  const Result<wire::CommsDown> down = peer_->Expect<wire::CommsDown>(Soon());
  ASSERT_TRUE(down.ok());
  EXPECT_EQ(down->code, static_cast<uint32_t>(Code::kAborted));
  EXPECT_NE(down->message.find("a collective hangs"), std::string::npos);
  ASSERT_STATUS_OK(peer_->Tell(wire::BarrierReleased{11, 1, 3}));
  ASSERT_TRUE(rank_->AwaitSteps(2));
}

TEST_F(GangSessionTest, AFailedStageIsSaidAndRolledBack) {
  Start();
  refuse_refresh_ = true;
  ReachCut(2, WordState::kProposedStop, wire::Request::kSuspend);
  ASSERT_TRUE(peer_->Commit());
  ASSERT_TRUE(peer_->Stage());
  const Result<wire::StageFailed> failed = peer_->Expect<wire::StageFailed>(Soon());
  ASSERT_TRUE(failed.ok());
  EXPECT_EQ(failed->attempt, 3u);
  EXPECT_NE(failed->message.find("7"), std::string::npos);
  ASSERT_STATUS_OK(peer_->Tell(wire::RolledBack{11, 1, false, 0, "rank 0 could not stage"}));
  ASSERT_TRUE(rank_->AwaitSteps(2));
  EXPECT_EQ(rank_->result(2).kind, RequestKind::kNone);
  EXPECT_EQ(rank_->status(2).code(), Code::kAborted);
}

// ---- ckpt-run dies ----

TEST_F(GangSessionTest, WithoutCkptRunTrainingGoesOnAndSavesAreRefused) {
  save_every_ = 2;
  Start();
  rank_->Allow(1);
  ASSERT_TRUE(rank_->AwaitSteps(1));
  peer_->Die();
  rank_->Allow(3);
  ASSERT_TRUE(rank_->AwaitSteps(4));
  EXPECT_EQ(rank_->result(2).kind, RequestKind::kNone);
  EXPECT_EQ(rank_->status(2).code(), Code::kUnavailable);
  EXPECT_TRUE(rank_->status(3).ok());
}

TEST_F(GangSessionTest, DeathAtAProposedOrCommittedCutFreesTheRank) {
  Start();
  ReachCut(2, WordState::kProposedStop, wire::Request::kSuspend);
  ASSERT_TRUE(peer_->Commit());
  peer_->Die();
  ASSERT_TRUE(rank_->AwaitSteps(2));
  EXPECT_EQ(rank_->result(2).kind, RequestKind::kNone);
  EXPECT_EQ(peer_->word().state, WordState::kRefused);
}

TEST_F(GangSessionTest, DeathBeforeTheVoteFreesTheRank) {
  Start();
  ReachCut(2, WordState::kProposedStop, wire::Request::kSuspend);
  ASSERT_TRUE(peer_->Commit());
  refuse_refresh_ = true;  // it never votes
  ASSERT_TRUE(peer_->Stage());
  peer_->Die();
  ASSERT_TRUE(rank_->AwaitSteps(2));
  EXPECT_EQ(rank_->result(2).kind, RequestKind::kNone);
}

TEST_F(GangSessionTest, DeathAfterTheVoteEndsTheRankAtTheDeadline) {
  Start();
  Seal(2);
  peer_->StoreOutcome(wire::PageOutcome::kEnded);  // what a member says when nothing else helps
  peer_->Die();
  ASSERT_TRUE(rank_->AwaitSteps(2));
  EXPECT_EQ(rank_->result(2).kind, RequestKind::kStop);
  EXPECT_EQ(peer_->region(1)->state(), engine::GenerationState::kSealed);  // the copy stays
}

// Nobody is left who would decide: it gives way when it was asked to, not long after that.
TEST_F(GangSessionTest, DeathAfterTheVoteWithoutAnOutcomeEndsTheRankAtItsDeadline) {
  Start();
  Seal(2);
  wire::Order order = *wire::LoadOrder(peer_->page());
  order.deadline_boottime_ns = BoottimeNs() + 500'000'000;
  peer_->StoreOrder(order);
  peer_->Die();
  ASSERT_TRUE(rank_->AwaitSteps(2));
  EXPECT_EQ(rank_->result(2).kind, RequestKind::kStop);
  EXPECT_GE(BoottimeNs(), order.deadline_boottime_ns);
}

TEST_F(GangSessionTest, DeathAfterTheVoteWithAStoredRollBackFreesTheRank) {
  Start();
  Seal(2);
  peer_->StoreOutcome(wire::PageOutcome::kRolledBack);
  peer_->Die();
  ASSERT_TRUE(rank_->AwaitSteps(2));
  EXPECT_EQ(rank_->result(2).kind, RequestKind::kNone);
}

TEST_F(GangSessionTest, DeathAfterBarrier2WithAStoredReleaseEndsTheRank) {
  Start();
  Seal(2);
  ASSERT_STATUS_OK(peer_->Tell(wire::BarrierReleased{11, 1, 2}));
  ASSERT_TRUE(peer_->Expect<wire::CommsDown>(Soon()).ok());
  peer_->StoreOutcome(wire::PageOutcome::kReleased);
  peer_->Die();
  ASSERT_TRUE(rank_->AwaitSteps(2));
  EXPECT_EQ(rank_->result(2).kind, RequestKind::kStop);
}

TEST_F(GangSessionTest, ReconnectsAndSendsItsLayoutAgain) {
  Start();
  rank_->Allow(2);
  ASSERT_TRUE(rank_->AwaitSteps(2));
  peer_->HangUp();
  ASSERT_TRUE(peer_->Welcome(Soon()).ok());
  ASSERT_STATUS_OK(peer_->SendSlots(Soon()));
  Seal(4);
  ASSERT_STATUS_OK(peer_->Tell(wire::BarrierReleased{11, 1, 3}));
  ASSERT_TRUE(rank_->AwaitSteps(4));
  EXPECT_EQ(rank_->result(4).kind, RequestKind::kStop);
}

TEST_F(GangSessionTest, AdoptsTheFreshPageOfACkptRunThatCameBack) {
  Start();
  rank_->Allow(5);
  ASSERT_TRUE(rank_->AwaitSteps(5));
  peer_->Die();
  ASSERT_STATUS_OK(peer_->FreshPage());
  ASSERT_STATUS_OK(peer_->ComeBack());
  ASSERT_TRUE(peer_->Welcome(Soon()).ok());
  ASSERT_STATUS_OK(peer_->SendSlots(Soon()));
  // It takes the page over at a step; from then on its boundaries count there.
  const Deadline deadline = Soon();
  while (peer_->word().boundary == 0 && !deadline.Expired()) {
    rank_->Allow(1);
    ASSERT_TRUE(rank_->AwaitSteps(rank_->done()));
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_GT(peer_->word().boundary, 5u);
}

// ---- saves of the program ----

TEST_F(GangSessionTest, AGrantedSaveIsSealedAndReportedByLevel) {
  Start();
  Result<std::shared_ptr<Save>> save = NotFound("");
  std::thread saving([&] { save = session_->BeginSave({.step = 42}); });
  const Result<wire::StagingGet> get = peer_->Expect<wire::StagingGet>(Soon());
  ASSERT_TRUE(get.ok());
  EXPECT_FALSE(get->wait);
  ASSERT_STATUS_OK(peer_->Answer(wire::Staging{0, 9, 4, 0}));
  saving.join();
  ASSERT_TRUE(save.ok()) << save.status().ToString();
  EXPECT_EQ((*save)->id().ToString(), "s42.e1.a4");
  EXPECT_EQ((*save)->progress().level, Level::kStaged);
  const Result<wire::Sealed> sealed = peer_->Expect<wire::Sealed>(Soon());
  ASSERT_TRUE(sealed.ok());
  EXPECT_EQ(sealed->generation, 9u);
  ASSERT_TRUE(peer_->Expect<wire::SaveQuery>(Soon()).ok());
  EXPECT_EQ((*save)->Wait(Level::kShared, Deadline("now", Nanos(0))).code(),
            Code::kDeadlineExceeded);
  ASSERT_STATUS_OK(peer_->Answer(wire::SaveState{4, 2, 10, 20, 0, ""}));
  ASSERT_STATUS_OK((*save)->Wait(Level::kStagedGang, Soon()));
  ASSERT_STATUS_OK(peer_->Tell(wire::SaveState{4, 3, 20, 20, 0, ""}));
  ASSERT_STATUS_OK((*save)->Wait(Level::kShared, Soon()));
}

TEST_F(GangSessionTest, SavesAtOneBoundaryAreCounted) {
  Start();
  const auto ask = [&](uint32_t boundary, uint32_t sequence) {
    Status status;
    std::thread saving([&] { status = session_->BeginSave({.step = 1}).status(); });
    const Result<wire::StagingGet> get = peer_->Expect<wire::StagingGet>(Soon());
    EXPECT_TRUE(get.ok());
    EXPECT_TRUE(peer_->Answer(wire::Failed{8, false, "both slots drain"}).ok());
    saving.join();
    EXPECT_EQ(status.code(), Code::kResourceExhausted);
    if (!get.ok()) return;
    EXPECT_EQ(get->boundary, boundary);
    EXPECT_EQ(get->sequence, sequence);
  };
  ask(0, 1);
  ask(0, 2);
  rank_->Allow(1);
  ASSERT_TRUE(rank_->AwaitSteps(1));
  ask(1, 1);
}

TEST_F(GangSessionTest, ARankThatCannotSaveAsksAllTheSameAndFailsTheAttempt) {
  Result<std::unique_ptr<RunPeer>> peer = RunPeer::Listen(config_);
  ASSERT_STATUS_OK(peer.status());
  peer_ = std::move(*peer);
  OpenSession();  // nothing is tracked
  Status status;
  std::thread saving([&] { status = session_->BeginSave({.step = 42}).status(); });
  EXPECT_TRUE(peer_->Expect<wire::StagingGet>(Soon()).ok());
  EXPECT_TRUE(peer_->Answer(wire::Staging{0, 9, 4, 0}).ok());
  saving.join();
  EXPECT_EQ(status.code(), Code::kFailedPrecondition);
  const Result<wire::StageFailed> failed = peer_->Expect<wire::StageFailed>(Soon());
  ASSERT_TRUE(failed.ok()) << "the others' copies would wait for this rank's";
  EXPECT_EQ(failed->generation, 9u);
  EXPECT_EQ(failed->attempt, 4u);
}

TEST_F(GangSessionTest, ARefusedPeriodicSaveIsOneErrorAndTrainingGoesOn) {
  save_every_ = 2;
  Start();
  rank_->Allow(3);
  ASSERT_TRUE(peer_->Expect<wire::StagingGet>(Soon()).ok());
  ASSERT_STATUS_OK(peer_->Answer(
      wire::Failed{static_cast<uint32_t>(Code::kResourceExhausted), false, "both slots drain"}));
  ASSERT_TRUE(rank_->AwaitSteps(3));
  EXPECT_EQ(rank_->status(2).code(), Code::kResourceExhausted);
  EXPECT_NE(rank_->status(2).message().find("both slots drain"), std::string::npos);
  EXPECT_EQ(rank_->result(2).kind, RequestKind::kNone);
  EXPECT_TRUE(rank_->status(3).ok());
}

TEST_F(GangSessionTest, ASaveThatFailsInTheBackgroundIsTheErrorOfTheNextStep) {
  save_every_ = 2;
  Start();
  rank_->Allow(2);
  ASSERT_TRUE(peer_->Expect<wire::StagingGet>(Soon()).ok());
  ASSERT_STATUS_OK(peer_->Answer(wire::Staging{0, 1, 1, 0}));
  ASSERT_TRUE(rank_->AwaitSteps(2));
  EXPECT_EQ(rank_->result(2).kind, RequestKind::kSave);
  ASSERT_STATUS_OK(peer_->Tell(wire::SaveState{
      1, 2, 0, 0, static_cast<uint32_t>(Code::kResourceExhausted), "rank 3: disk full"}));
  Status seen;
  for (uint64_t step = 3; step < 2000 && seen.ok(); step += 1) {
    if (step % 2 == 0) {  // a save is due: refuse it
      rank_->Allow(1);
      ASSERT_TRUE(peer_->Expect<wire::StagingGet>(Soon()).ok());
      ASSERT_STATUS_OK(peer_->Answer(wire::Failed{14, false, "no"}));
    } else {
      rank_->Allow(1);
    }
    ASSERT_TRUE(rank_->AwaitSteps(step));
    if (step % 2 == 1) seen = rank_->status(step);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(seen.code(), Code::kResourceExhausted);
  EXPECT_NE(seen.message().find("rank 3: disk full"), std::string::npos);
}

TEST_F(GangSessionTest, AnOverlappedSaveIsSealedAtTheFence) {
  Start();
  Result<std::shared_ptr<Save>> save = NotFound("");
  std::thread saving([&] {
    save = session_->BeginSave({.step = 1, .overlap = true});
    EXPECT_TRUE(session_->Fence().ok());
  });
  ASSERT_TRUE(peer_->Expect<wire::StagingGet>(Soon()).ok());
  ASSERT_STATUS_OK(peer_->Answer(wire::Staging{0, 1, 1, 0}));
  saving.join();
  ASSERT_TRUE(save.ok());
  EXPECT_GE((*save)->progress().level, Level::kStaged);
  EXPECT_TRUE(peer_->Expect<wire::Sealed>(Soon()).ok());
}

TEST_F(GangSessionTest, ASignalIsPassedOnAsANotice) {
  Start();
  session_->Close(Soon()).IgnoreError();
  rank_.reset();
  peer_->Die();
  ASSERT_STATUS_OK(peer_->ComeBack());
  std::thread opener([&] {
    Options options = MakeOptions();
    options.signals = uint64_t{1} << SIGUSR2;
    Result<std::shared_ptr<Session>> opened = Session::Open(options, MakeParts());
    ASSERT_TRUE(opened.ok());
    session_ = *opened;
  });
  ASSERT_TRUE(peer_->Welcome(Soon()).ok());
  opener.join();
  raise(SIGUSR2);
  const Result<wire::Notice> notice = peer_->Expect<wire::Notice>(Soon());
  ASSERT_TRUE(notice.ok()) << notice.status().ToString();
  EXPECT_EQ(notice->signal, static_cast<uint32_t>(SIGUSR2));
  EXPECT_EQ(peer_->page().signal.load(), static_cast<uint32_t>(SIGUSR2));
}

TEST_F(GangSessionTest, FinishMakesTheWordFinishedAndSaysSo) {
  Start();
  rank_->Allow(1);
  ASSERT_TRUE(rank_->AwaitSteps(1));
  rank_.reset();
  ASSERT_STATUS_OK(session_->Finish());
  EXPECT_EQ(peer_->word().state, WordState::kFinished);
  EXPECT_TRUE(peer_->Expect<wire::Finished>(Soon()).ok());
  EXPECT_FALSE(peer_->Propose(9, WordState::kProposedStop, MakeOrder(wire::Request::kSuspend)));
  StepResult result;
  EXPECT_EQ(session_->AtBoundary(1, &result).code(), Code::kFailedPrecondition);
}

// ---- resuming ----

TEST_F(GangSessionTest, AFreshStartHasNothingToResumeFrom) {
  Start();
  EXPECT_EQ(session_->OpenReader("").status().code(), Code::kNotFound);
}

TEST_F(GangSessionTest, RestoresFromRam) {
  Start();
  Seal(2);
  ASSERT_STATUS_OK(peer_->Tell(wire::BarrierReleased{11, 1, 3}));
  ASSERT_TRUE(rank_->AwaitSteps(2));
  rank_.reset();
  session_->Close(Soon()).IgnoreError();
  session_.reset();
  const std::unique_ptr<RunPeer> old = std::move(peer_);
  old->Die();
  old->region(1)->set_state(engine::GenerationState::kGangComplete);

  // The next epoch, from the old one's memory.
  config_.epoch = 2;
  config_.resume = wire::ResumeKind::kRam;
  config_.resume_from = AttemptId{Epoch(1), Step(102), Attempt(3)};
  const std::vector<float> before = weights_;
  weights_.assign(weights_.size(), 0.0f);
  Start();
  std::thread serving([&] { EXPECT_TRUE(peer_->ServeRam({&old->memfd(1)}, Soon()).ok()); });
  Result<std::unique_ptr<Reader>> reader = session_->OpenReader("");
  serving.join();
  ASSERT_TRUE(reader.ok()) << reader.status().ToString();
  ASSERT_STATUS_OK((*reader)->Load(state_.get()));
  EXPECT_EQ(weights_, before);
  ASSERT_TRUE((*reader)->ValueJson("position").ok());
  EXPECT_EQ(**(*reader)->ValueJson("position"), "1");
  EXPECT_EQ((*reader)->ValueJson("nothing").status().code(), Code::kNotFound);
  const Result<wire::Restored> restored = peer_->Expect<wire::Restored>(Soon());
  ASSERT_TRUE(restored.ok());
  EXPECT_EQ(restored->step, 102);
  EXPECT_EQ(restored->code, 0u);
}

TEST_F(GangSessionTest, RegionsOfAnotherJobAreNotRestoredFrom) {
  Start();
  Seal(2);
  ASSERT_STATUS_OK(peer_->Tell(wire::BarrierReleased{11, 1, 3}));
  ASSERT_TRUE(rank_->AwaitSteps(2));
  rank_.reset();
  session_->Close(Soon()).IgnoreError();
  session_.reset();
  const std::unique_ptr<RunPeer> old = std::move(peer_);
  old->Die();
  old->region(1)->set_state(engine::GenerationState::kGangComplete);
  config_.epoch = 2;
  config_.job_id = JobId::Random();
  config_.resume = wire::ResumeKind::kRam;
  config_.resume_from = AttemptId{Epoch(1), Step(102), Attempt(3)};
  Start();
  std::thread serving([&] { EXPECT_TRUE(peer_->ServeRam({&old->memfd(1)}, Soon()).ok()); });
  const Status status = session_->OpenReader("").status();
  serving.join();
  EXPECT_EQ(status.code(), Code::kDataLoss);
  EXPECT_NE(status.message().find(config_.job_id.ToString()), std::string::npos);
}

TEST_F(GangSessionTest, ARestoreThatFailsIsReported) {
  config_.resume = wire::ResumeKind::kRam;
  config_.resume_from = AttemptId{Epoch(1), Step(102), Attempt(3)};
  config_.epoch = 2;
  Start();
  std::thread serving([&] {
    EXPECT_TRUE(peer_->Expect<wire::RestoreOpen>(Soon()).ok());
    EXPECT_TRUE(peer_
                    ->Answer(wire::Failed{static_cast<uint32_t>(Code::kDataLoss), false,
                                          "the copy of node 1 is gone"})
                    .ok());
  });
  EXPECT_EQ(session_->OpenReader("").status().code(), Code::kDataLoss);
  serving.join();
  const Result<wire::Restored> restored = peer_->Expect<wire::Restored>(Soon());
  ASSERT_TRUE(restored.ok());
  EXPECT_EQ(restored->code, static_cast<uint32_t>(Code::kDataLoss));
}

}  // namespace
}  // namespace ckpt::session
