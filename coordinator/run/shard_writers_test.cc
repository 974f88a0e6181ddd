#include "coordinator/run/shard_writers.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstring>
#include <filesystem>

#include "libckpt/base/fault.h"
#include "libckpt/plan/plan.h"
#include "libckpt/storage/file/file_store.h"

namespace ckpt::run {
namespace {

const AttemptId kId{Epoch(1), Step(7), Attempt(1)};

class ShardWritersTest : public testing::Test {
 protected:
  ShardWritersTest() {
    std::string path = testing::TempDir() + "shard-writers-XXXXXX";
    dir_ = ::mkdtemp(path.data()) == nullptr ? "" : path;
    EXPECT_FALSE(dir_.empty());
    store_ = storage::OpenFileStore(dir_);
    const Result<JobId> job = store_->OpenJob({});
    EXPECT_TRUE(job.ok() && store_->ClaimEpoch(Epoch(1), {}, {}).ok());
    MakeSlot(*job);
    writers_ = std::make_unique<ShardWriters>(
        loop_.get(), &pool_, store_, dir_, std::make_shared<engine::DrainPace>(),
        [this](uint32_t, Status status, std::string payload) {
          status_ = status;
          payload_ = payload;
        },
        [this] { return insists_; });
  }
  ~ShardWritersTest() override {
    writers_.reset();
    std::error_code error;
    std::filesystem::remove_all(dir_, error);
  }

  // One rank with one tensor, sealed.
  void MakeSlot(const JobId& job) {
    format::RankLayout layout;
    layout.rank = Rank(0);
    format::TensorMeta tensor;
    tensor.name = "weights";
    tensor.dtype = format::DType::kU8;
    tensor.global_shape = {100'000};
    tensor.local = format::Box{{0}, {100'000}};
    layout.tensors.push_back(tensor);
    Result<plan::GangPlan> plan = plan::MakePlan({layout}, {0});
    ASSERT_TRUE(plan.ok()) << plan.status().ToString();
    Result<SlotPtr> slot =
        StagingSlot::Create(std::make_shared<StagingBudget>(uint64_t{1} << 30),
                            {job, Rank(0), 1, plan->hash}, 0, layout, plan->ranks[0]);
    ASSERT_TRUE(slot.ok()) << slot.status().ToString();
    engine::StagingRegion& region = (*slot)->region();
    region.Begin({1, kId, 1, true});
    const MutableByteSpan piece = region.piece_data(0);
    std::memset(piece.data(), 5, piece.size());
    ASSERT_TRUE(region.SetValues({}).ok());
    ASSERT_TRUE(region.Seal(kId.step).ok());
    slots_ = {*slot};
  }
  bool Write() {
    writers_->Start(kId, slots_);
    const Deadline deadline("a test of shard writers", std::chrono::seconds(60));
    while (!status_ && !deadline.Expired()) EXPECT_TRUE(loop_->RunOnce(deadline).ok());
    return status_.has_value();
  }

  std::string dir_;
  std::unique_ptr<os::EventLoop> loop_ = os::EventLoop::Create().value();
  std::shared_ptr<storage::Store> store_;
  os::WorkerPool pool_{"test-write", 1, 64};
  SlotSet slots_;
  std::unique_ptr<ShardWriters> writers_;
  bool insists_ = false;
  std::optional<Status> status_;
  std::string payload_;
};

TEST_F(ShardWritersTest, WritesWhatIsSealed) {
  ASSERT_TRUE(Write());
  EXPECT_TRUE(status_->ok()) << status_->ToString();
  EXPECT_EQ(DecodeShardReports(payload_)->size(), 1u);
}

#if defined(CKPT_FAULTS)
TEST_F(ShardWritersTest, AFailureIsToldAtOnceWhileTheRanksLive) {
  ArmedFault fault("engine.write.finish", Unavailable("the disk is away"));
  ASSERT_TRUE(Write());
  EXPECT_TRUE(fault.fired());
  EXPECT_EQ(status_->code(), Code::kUnavailable);
}

// The file of the first try is there, half written: the next one begins anew.
TEST_F(ShardWritersTest, TheLastCopyIsWrittenAgainWhenTheStoreComesBack) {
  insists_ = true;
  ArmedFault fault("engine.write.finish", Unavailable("the disk is away"));
  ASSERT_TRUE(Write());
  EXPECT_TRUE(fault.fired());
  EXPECT_TRUE(status_->ok()) << status_->ToString();
  EXPECT_EQ(DecodeShardReports(payload_)->size(), 1u);
}

TEST_F(ShardWritersTest, WhatCannotPassIsNotTriedAgain) {
  insists_ = true;
  ArmedFault fault("engine.write.finish", FailedPrecondition("fenced"), 1, true);
  ASSERT_TRUE(Write());
  EXPECT_TRUE(fault.fired());
  EXPECT_EQ(status_->code(), Code::kFailedPrecondition);
}
#endif

}  // namespace
}  // namespace ckpt::run
