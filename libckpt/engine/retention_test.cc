// Old checkpoints go by themselves after a save, by the rules of the job.
#include "libckpt/engine/retention.h"

#include <gtest/gtest.h>

#include "libckpt/base/fault.h"
#include "libckpt/testing/test_gang.h"

namespace ckpt::engine::testing {
namespace {

class RetentionTest : public ::testing::Test {
 protected:
  RetentionTest() : store_(storage::NewMemoryStore(place_)), gang_(Ranks()) {
    auto job = store_->OpenJob(JobId{});
    EXPECT_TRUE(job.ok());
    job_ = *job;
    EXPECT_TRUE(store_->ClaimEpoch(Epoch(1), {}, {}).ok());
    gang_.MakeRegions(job_);
    options_.chunk_bytes = 4096;
  }
  static std::vector<TestRank> Ranks() {
    std::vector<TestRank> ranks(1);
    ranks[0].tensors.emplace_back(
        Meta("w", format::DType::kF32, format::Placement::kReplicated, {4000}), 0);
    return ranks;
  }
  static AttemptId Id(int64_t step) {
    return {Epoch(1), Step(step), Attempt(static_cast<uint32_t>(step))};
  }
  void Save(int64_t step, int64_t content) {
    gang_.Fill(content);
    ASSERT_CKPT_OK(gang_.Save(store_.get(), job_, Id(step), false, options_));
  }
  std::vector<int64_t> Visible() {
    std::vector<int64_t> steps;
    const auto list = store_->List();
    EXPECT_TRUE(list.ok());
    for (const storage::CheckpointInfo& info : *list) {
      if (info.visible) steps.push_back(info.id.step.value());
    }
    return steps;
  }
  using Steps = std::vector<int64_t>;

  std::shared_ptr<storage::MemoryJob> place_ = storage::NewMemoryJob();
  std::unique_ptr<storage::EpochStore> store_;
  JobId job_;
  TestGang gang_;
  WriteOptions options_;
};

TEST_F(RetentionTest, AfterEachCommitWhatNoRuleKeepsGoes) {
  Retention retention(store_.get(), storage::KeepRules{.last = 2, .every_steps = 40});
  for (const int64_t step : {10, 40, 50, 60, 70}) {
    Save(step, step);
    retention.AfterCommit(Id(step));
  }
  EXPECT_EQ(Visible(), (Steps{70, 60, 40}));
}

TEST_F(RetentionTest, WithoutRulesNothingGoes) {
  Retention retention(store_.get(), std::nullopt);
  for (const int64_t step : {1, 2, 3}) {
    Save(step, step);
    retention.AfterCommit(Id(step));
  }
  EXPECT_EQ(Visible(), (Steps{3, 2, 1}));
}

TEST_F(RetentionTest, ATruncatedShardADamagedIndexAndWhatFailedToLoadDoNotCount) {
  for (const int64_t step : {10, 20, 30, 40}) Save(step, step);
  storage::PlantFile(*place_, Id(40).ToString() + "/shard-00000.safetensors", "short");
  storage::PlantFile(*place_, Id(30).ToString() + "/shard-00000.index", "no index");
  Retention retention(store_.get(), storage::KeepRules{.last = 2});
  retention.FoundDamaged(Id(20));
  Save(50, 50);
  retention.AfterCommit(Id(50));
  // 50 and 10 are the two that are whole; what is damaged and newer than 10 is not touched.
  EXPECT_EQ(Visible(), (Steps{50, 40, 30, 20, 10}));
  Save(60, 60);
  retention.AfterCommit(Id(60));
  EXPECT_EQ(Visible(), (Steps{60, 50}));
}

TEST_F(RetentionTest, WhatTheNewestRefersToStaysAndACheckpointWithoutItsOriginDoesNotCount) {
  options_.references = true;
  Retention retention(store_.get(), storage::KeepRules{.last = 1});
  Save(10, 1);
  retention.AfterCommit(Id(10));
  Save(20, 1);  // all of it refers to 10
  retention.AfterCommit(Id(20));
  EXPECT_EQ(Visible(), (Steps{20, 10}));
  ASSERT_CKPT_OK(storage::RemoveFile(*place_, Id(10).ToString() + "/shard-00000.safetensors"));
  const auto whole = LooksWhole(store_.get(), Id(20));
  ASSERT_TRUE(whole.ok()) << whole.status().ToString();
  EXPECT_FALSE(*whole);
}

#if defined(CKPT_FAULTS)
TEST_F(RetentionTest, ACommitWhileOneRemovesIsNotForgotten) {
  Retention retention(store_.get(), storage::KeepRules{.last = 1});
  for (const int64_t step : {10, 20}) Save(step, step);
  {
    FaultHook hook("store.prune.begin", [&] {  // what is to be removed is decided by now
      Save(30, 30);
      retention.AfterCommit(Id(30));
    });
    retention.AfterCommit(Id(20));
    EXPECT_TRUE(hook.fired());
  }
  EXPECT_EQ(Visible(), (Steps{30}));
}
#endif

TEST_F(RetentionTest, AFailureIsNoFailureOfTheSaveAndTheNextOneTriesAgain) {
#if defined(CKPT_FAULTS)
  Retention retention(store_.get(), storage::KeepRules{.last = 1});
  Save(10, 10);
  Save(20, 20);
  {
    ArmedFault fault("engine.retention.begin", Unavailable("the disk is away"));
    retention.AfterCommit(Id(20));
    EXPECT_TRUE(fault.fired());
  }
  EXPECT_EQ(Visible(), (Steps{20, 10}));
  Save(30, 30);
  retention.AfterCommit(Id(30));
  EXPECT_EQ(Visible(), (Steps{30}));
#endif
}

}  // namespace
}  // namespace ckpt::engine::testing
