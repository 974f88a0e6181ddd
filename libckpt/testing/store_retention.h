// What every store must do when it removes checkpoints and repairs a job's directory. A
// TYPED_TEST_P suite over a World (store_world.h).
#pragma once

#include "libckpt/format/records.h"
#include "libckpt/storage/epoch_store.h"
#include "libckpt/testing/store_world.h"

namespace ckpt::testing {

template <typename World>
class StoreRetention : public ::testing::Test {
 protected:
  void SetUp() override {
    store_ = Open();
    ASSERT_TRUE(store_->OpenJob(JobId{}).ok());
    ASSERT_TRUE(Claim(*store_).ok());
  }
  std::unique_ptr<storage::EpochStore> Open() {
    return std::unique_ptr<storage::EpochStore>(
        static_cast<storage::EpochStore*>(world_.Actor().release()));
  }
  void SaveAll(std::initializer_list<int64_t> steps) {
    for (const int64_t step : steps) ASSERT_OK(Save(*store_, Id(1, step)));
  }
  // An attempt of epoch 1 that says it refers to `origin`, not committed yet.
  Result<storage::AttemptOrigins> BeginReferring(storage::Store& store, int64_t step,
                                                 const AttemptId& origin) {
    CKPT_RETURN_IF_ERROR(WriteAttempt(store, Id(1, step)));
    return store.NameOrigins(Id(1, step), {origin, {origin}});
  }
  std::vector<int64_t> VisibleSteps() {
    std::vector<int64_t> steps;
    for (const AttemptId& id : Visible(*store_)) steps.push_back(id.step.value());
    return steps;
  }
  Status Prune(const storage::KeepRules& rules, const storage::IsWhole& is_whole = nullptr) {
    CKPT_ASSIGN_OR_RETURN(const storage::PrunePlan plan, store_->PlanPrune(rules, is_whole));
    return store_->Prune(plan).status();
  }
  using Steps = std::vector<int64_t>;

  World world_;
  std::unique_ptr<storage::EpochStore> store_;
};
TYPED_TEST_SUITE_P(StoreRetention);

TYPED_TEST_P(StoreRetention, KeepsTheNewestAndSaysSoBefore) {
  this->SaveAll({10, 20, 30, 40});
  auto plan = this->store_->PlanPrune({.last = 2}, nullptr);
  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  ASSERT_EQ(plan->remove.size(), 2u);
  EXPECT_EQ(plan->remove[0].id, Id(1, 20));
  EXPECT_EQ(plan->keep[0].why, "one of the newest 2");
  EXPECT_GT(plan->RemoveBytes(), 2 * 5000u);
  EXPECT_EQ(this->VisibleSteps(), (std::vector<int64_t>{40, 30, 20, 10}))
      << "a plan is only a plan";
  const auto report = this->store_->Prune(*plan);
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_EQ(report->removed, (std::vector<AttemptId>{Id(1, 20), Id(1, 10)}));
  EXPECT_EQ(this->VisibleSteps(), (std::vector<int64_t>{40, 30}));
  for (const std::string& key : this->world_.Keys())
    EXPECT_EQ(key.find("s10."), std::string::npos) << key;
  EXPECT_OK(CheckBytes(*this->store_, Id(1, 30)));
}

// After a stop saves come at other steps than before.
TYPED_TEST_P(StoreRetention, EveryKStepsOneStaysWhereverSavesFall) {
  this->SaveAll({100, 160, 221, 281, 341, 401, 461});
  ASSERT_OK(this->Prune({.last = 1, .every_steps = 200}));
  EXPECT_EQ(this->VisibleSteps(), (std::vector<int64_t>{461, 401, 221}));
}

TYPED_TEST_P(StoreRetention, RulesAndPins) {
  this->SaveAll({10, 20, 30, 40, 50});
  this->world_.Plant("s30.e1.a1/PINNED", "before the new optimizer");
  ASSERT_OK(this->Prune({.last = 1, .every_steps = 20, .pinned = {Id(1, 10)}}));
  EXPECT_EQ(this->VisibleSteps(), (std::vector<int64_t>{50, 40, 30, 20, 10}));
  ASSERT_OK(this->Prune({.last = 1, .every_steps = 20}));
  EXPECT_EQ(this->VisibleSteps(), (std::vector<int64_t>{50, 40, 30, 20}));
  ASSERT_OK(this->Prune({.last = 0}));  // at least one
  EXPECT_EQ(this->VisibleSteps(), (std::vector<int64_t>{50, 30}));
}

TYPED_TEST_P(StoreRetention, DamagedOnesDoNotCountAsKept) {
  this->SaveAll({10, 20, 30, 40});
  this->world_.Plant("s40.e1.a1/MANIFEST", "torn");
  const auto bad_30 = [](const AttemptId& id) -> Result<bool> { return id != Id(1, 30); };
  ASSERT_OK(this->Prune({.last = 1}, bad_30));
  // 40 and 30 are damaged and newer than 20, which is the one that is kept.
  EXPECT_EQ(this->VisibleSteps(), (std::vector<int64_t>{40, 30, 20}));
  const auto nothing_is = [](const AttemptId&) -> Result<bool> { return false; };
  ASSERT_OK(this->Prune({.last = 1}, nothing_is));
  EXPECT_EQ(this->VisibleSteps(), (std::vector<int64_t>{40, 30, 20}));
  const auto broken = [](const AttemptId&) -> Result<bool> { return Unavailable("the disk"); };
  EXPECT_CODE(this->Prune({.last = 1}, broken), kUnavailable);
}

TYPED_TEST_P(StoreRetention, WhatIsReferredToStays) {
  this->SaveAll({10, 20, 30});
  const auto origins = this->BeginReferring(*this->store_, 40, Id(1, 10));
  ASSERT_TRUE(origins.ok()) << origins.status().ToString();
  EXPECT_EQ(origins->origins, (std::vector<AttemptId>{Id(1, 10)}));
  ASSERT_OK(this->Prune({.last = 1}));  // while the attempt is open
  EXPECT_EQ(this->VisibleSteps(), (std::vector<int64_t>{30, 10}));
  ASSERT_OK(CommitAttempt(*this->store_, Id(1, 40)));
  ASSERT_OK(this->Prune({.last = 1}));  // and when it is committed
  EXPECT_EQ(this->VisibleSteps(), (std::vector<int64_t>{40, 10}));
  this->SaveAll({50});
  ASSERT_OK(this->Prune({.last = 1}));
  EXPECT_EQ(this->VisibleSteps(), (std::vector<int64_t>{50}));
}

TYPED_TEST_P(StoreRetention, RanksOfAnAttemptHaveOneBase) {
  this->SaveAll({10, 20});
  ASSERT_TRUE(this->BeginReferring(*this->store_, 30, Id(1, 10)).ok());
  auto other = this->Open();
  const auto theirs = other->NameOrigins(Id(1, 30), {Id(1, 20), {Id(1, 20)}});
  ASSERT_TRUE(theirs.ok()) << theirs.status().ToString();
  EXPECT_EQ(theirs->base, Id(1, 10));
  EXPECT_EQ(theirs->origins, (std::vector<AttemptId>{Id(1, 10)}));
}

TYPED_TEST_P(StoreRetention, AnAttemptThatComesBetweenTheRenamesIsSeen) {
  CKPT_NEEDS_FAULTS();
  this->SaveAll({10, 20});
  Result<storage::AttemptOrigins> late = NotFound("");
  FaultHook hook("store.prune.begin",
                 [&] { late = this->BeginReferring(*this->store_, 30, Id(1, 10)); });
  ASSERT_OK(this->Prune({.last = 1}));
  ASSERT_TRUE(hook.fired());
  ASSERT_TRUE(late.ok());
  ASSERT_EQ(late->origins.size(), 1u);
  EXPECT_EQ(this->VisibleSteps(), (std::vector<int64_t>{20, 10}));
}

TYPED_TEST_P(StoreRetention, AnAttemptThatComesTooLateDoesNotUseIt) {
  CKPT_NEEDS_FAULTS();
  this->SaveAll({10, 20});
  Result<storage::AttemptOrigins> late = NotFound("");
  FaultHook hook("store.prune.after_look",
                 [&] { late = this->BeginReferring(*this->store_, 30, Id(1, 10)); });
  ASSERT_OK(this->Prune({.last = 1}));
  ASSERT_TRUE(hook.fired());
  ASSERT_TRUE(late.ok());
  EXPECT_TRUE(late->origins.empty());
  EXPECT_EQ(this->VisibleSteps(), (std::vector<int64_t>{20}));
}

TYPED_TEST_P(StoreRetention, ANewerClaimTakesEverythingBack) {
  CKPT_NEEDS_FAULTS();
  this->SaveAll({10, 20, 30});
  auto successor = this->Open();
  const auto plan = this->store_->PlanPrune({.last = 1}, nullptr);
  ASSERT_TRUE(plan.ok());
  FaultHook hook("store.prune.after_trash", [&] { ASSERT_TRUE(Claim(*successor).ok()); });
  EXPECT_CODE(this->store_->Prune(*plan).status(), kAborted);
  ASSERT_TRUE(hook.fired());
  EXPECT_EQ(this->VisibleSteps(), (std::vector<int64_t>{30, 20, 10}));
  // The old epoch's plan is no plan for the new one.
  EXPECT_CODE(this->store_->Prune(*plan).status(), kAborted);
  EXPECT_EQ(this->VisibleSteps(), (std::vector<int64_t>{30, 20, 10}));
}

TYPED_TEST_P(StoreRetention, AClaimantThatCameAfterTheLookKeepsWhatItTookBack) {
  CKPT_NEEDS_FAULTS();
  this->SaveAll({10, 20, 30});
  auto successor = this->Open();
  FaultHook hook("store.prune.after_look", [&] { ASSERT_TRUE(Claim(*successor).ok()); });
  EXPECT_CODE(this->Prune({.last = 1}), kAborted);
  ASSERT_TRUE(hook.fired());
  EXPECT_EQ(this->VisibleSteps(), (std::vector<int64_t>{30, 20, 10}));
}

TYPED_TEST_P(StoreRetention, EachFailureLeavesWhatIsKeptAndTheNextTryWorks) {
  CKPT_NEEDS_FAULTS();
  int fired = 0;
  for (uint64_t nth = 1;; ++nth) {
    TypeParam world;
    auto store = std::unique_ptr<storage::EpochStore>(
        static_cast<storage::EpochStore*>(world.Actor().release()));
    ASSERT_TRUE(store->OpenJob(JobId{}).ok() && Claim(*store).ok());
    for (const int64_t step : {10, 20, 30}) ASSERT_OK(Save(*store, Id(1, step)));
    const auto referring = this->BeginReferring(*store, 40, Id(1, 10));
    ASSERT_TRUE(referring.ok());
    ASSERT_OK(CommitAttempt(*store, Id(1, 40)));
    bool hit = false;
    {
      ArmedFault fault("*", Unavailable("planted"), nth);
      const auto plan = store->PlanPrune({.last = 1}, nullptr);
      if (plan.ok()) store->Prune(*plan).status().IgnoreError();
      hit = fault.fired();
    }
    if (!hit) break;
    ++fired;
    EXPECT_OK(CheckBytes(*store, Id(1, 40)).Annotate("fault " + std::to_string(nth)));
    EXPECT_TRUE(store->OpenFile(Id(1, 10), "data").ok()) << "fault " << nth;
    const auto plan = store->PlanPrune({.last = 1}, nullptr);
    ASSERT_TRUE(plan.ok()) << plan.status().ToString();
    ASSERT_OK(store->Prune(*plan).status());
    EXPECT_EQ(Visible(*store), (std::vector<AttemptId>{Id(1, 40), Id(1, 10)})) << "fault " << nth;
    for (const std::string& key : world.Keys()) EXPECT_FALSE(key.starts_with(".")) << key;
  }
  EXPECT_GE(fired, 5);
}

TYPED_TEST_P(StoreRetention, NothingIsRemovedWithoutACompleteEpoch) {
  this->SaveAll({10, 20});
  this->world_.Plant("EPOCH.2.claim", "somebody starts");
  EXPECT_CODE(this->Prune({.last = 1}), kUnavailable);
  EXPECT_CODE(this->store_->PlanRepair().status(), kUnavailable);
}

TYPED_TEST_P(StoreRetention, WhatIsNotOursIsNeverRemoved) {
  this->SaveAll({10, 20});
  this->world_.Plant("s5.e1.a1/data", "a copy without its records");
  this->world_.Plant("s20.e1.a1-copy/data", "a copy under another name");
  this->world_.Plant("notes/data", "a person's");
  ASSERT_OK(this->Prune({.last = 1}));
  for (const char* dir : {"s5.e1.a1", "s20.e1.a1-copy", "notes"})
    EXPECT_TRUE(this->world_.HasDir(dir)) << dir;
}

TYPED_TEST_P(StoreRetention, RepairFinishesWhatWasLeft) {
  this->SaveAll({10, 20, 30});
  ASSERT_OK(this->world_.Rename("s10.e1.a1", ".dead-1-s10.e1.a1"));
  ASSERT_OK(this->world_.Rename("s20.e1.a1", ".trash-1-s20.e1.a1"));
  auto plan = this->store_->PlanRepair();
  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  ASSERT_EQ(plan->actions.size(), 2u);
  EXPECT_TRUE(this->world_.HasDir(".dead-1-s10.e1.a1")) << "a plan is only a plan";
  ASSERT_OK(this->store_->Repair(*plan));
  EXPECT_EQ(this->VisibleSteps(), (std::vector<int64_t>{30, 20}));
  EXPECT_FALSE(this->world_.HasDir(".dead-1-s10.e1.a1"));
  EXPECT_TRUE(this->store_->PlanRepair()->actions.empty());
}

TYPED_TEST_P(StoreRetention, RepairSweepsOnlyAttemptsThatCanNeverCount) {
  this->SaveAll({10});
  const auto open = [&](const std::string& dir) {
    this->world_.Plant(dir + "/shard-00000.index", "i");
  };
  open("s20.e1.a1");  // never committed
  open("s21.e1.a1");  // somebody's file is in it
  this->world_.Plant("s21.e1.a1/notes", "mine");
  auto next = this->Open();
  ASSERT_TRUE(Claim(*next).ok());  // epoch 2
  open("s30.e2.a1");               // may be in progress
  auto plan = next->PlanRepair();
  ASSERT_TRUE(plan.ok());
  ASSERT_EQ(plan->actions.size(), 1u);
  EXPECT_EQ(plan->actions[0].name, "s20.e1.a1");
  EXPECT_EQ(plan->actions[0].kind, storage::RepairKind::kSweep);
  ASSERT_EQ(plan->left.size(), 1u);
  EXPECT_NE(plan->left[0].find("notes"), std::string::npos);
  ASSERT_OK(next->Repair(*plan));
  EXPECT_FALSE(this->world_.HasDir("s20.e1.a1"));
  for (const char* dir : {"s10.e1.a1", "s21.e1.a1", "s30.e2.a1"})
    EXPECT_TRUE(this->world_.HasDir(dir)) << dir;
}

TYPED_TEST_P(StoreRetention, RepairKeepsPromisesAndFencedOnesNeedTheirWord) {
  ASSERT_OK(WriteAttempt(*this->store_, Id(1, 10)));
  ASSERT_OK(this->store_->MarkDraining(Id(1, 10)));
  this->world_.Plant("s10.e1.a1/MANIFEST", ManifestOf(Id(1, 10)));
  auto next = this->Open();
  ASSERT_TRUE(Claim(*next).ok());
  // Committed after its successor has listed, and not draining: fenced.
  const AttemptId fenced = Id(1, 20);
  const auto job = next->ReadJob();
  this->world_.Plant("s20.e1.a1/MANIFEST", ManifestOf(fenced));
  this->world_.Plant(
      "s20.e1.a1/COMMIT",
      format::CommitFile{*job, fenced, RecordOf(fenced, Epoch(1)).manifest_digest, Epoch(1), ""}
          .Encode());
  const std::vector<std::pair<AttemptId, storage::CommitRecord>> promised = {
      {Id(1, 10), RecordOf(Id(1, 10), Epoch(1))}};
  auto plan = next->PlanRepair(promised);
  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  ASSERT_EQ(plan->actions.size(), 1u);
  EXPECT_EQ(plan->actions[0].kind, storage::RepairKind::kCommit);
  EXPECT_EQ(plan->left.size(), 1u);
  ASSERT_OK(next->Repair(*plan, promised));
  EXPECT_TRUE(IsVisible(*next, Id(1, 10)));
  plan = next->PlanRepair({}, /*fenced_too=*/true);
  ASSERT_TRUE(plan.ok());
  ASSERT_EQ(plan->actions.size(), 1u);
  ASSERT_OK(next->Repair(*plan));
  EXPECT_FALSE(this->world_.HasDir("s20.e1.a1"));
}

TYPED_TEST_P(StoreRetention, UsageNamesEverythingThatTakesRoom) {
  this->SaveAll({10, 20});
  ASSERT_TRUE(this->BeginReferring(*this->store_, 30, Id(1, 10)).ok());
  const auto rows = this->store_->Usage();
  ASSERT_TRUE(rows.ok()) << rows.status().ToString();
  ASSERT_EQ(rows->size(), 3u);
  EXPECT_EQ((*rows)[0].state, "open");
  EXPECT_EQ((*rows)[0].origins, (std::vector<AttemptId>{Id(1, 10)}));
  EXPECT_EQ((*rows)[2].state, "visible");
  EXPECT_EQ((*rows)[2].needed_by, (std::vector<AttemptId>{Id(1, 30)}));
  EXPECT_GE((*rows)[2].bytes, 5000u);
}

REGISTER_TYPED_TEST_SUITE_P(StoreRetention, KeepsTheNewestAndSaysSoBefore, RulesAndPins,
                            EveryKStepsOneStaysWhereverSavesFall, DamagedOnesDoNotCountAsKept,
                            WhatIsReferredToStays, RanksOfAnAttemptHaveOneBase,
                            AnAttemptThatComesBetweenTheRenamesIsSeen,
                            AnAttemptThatComesTooLateDoesNotUseIt, ANewerClaimTakesEverythingBack,
                            AClaimantThatCameAfterTheLookKeepsWhatItTookBack,
                            EachFailureLeavesWhatIsKeptAndTheNextTryWorks,
                            NothingIsRemovedWithoutACompleteEpoch, WhatIsNotOursIsNeverRemoved,
                            RepairFinishesWhatWasLeft, RepairSweepsOnlyAttemptsThatCanNeverCount,
                            RepairKeepsPromisesAndFencedOnesNeedTheirWord,
                            UsageNamesEverythingThatTakesRoom);

}  // namespace ckpt::testing
