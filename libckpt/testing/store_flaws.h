// The event orders that broke earlier texts of the protocol (models/FLAWS.md of the design, S1 …
// S12), every failure at every step, and every point at which one actor can overtake another. A
// typed suite like StoreConformance.
//
//   INSTANTIATE_TYPED_TEST_SUITE_P(File, StoreFlaws, FileWorld);
#pragma once

#include <functional>
#include <optional>
#include <thread>

#include "libckpt/testing/store_world.h"

namespace ckpt::testing {

// What the actors of a test were told, against what readers may see.
class Promises {
 public:
  void Told(const AttemptId& id, const Status& status) {
    if (status.ok()) acknowledged_.insert(id);
    if (status.code() == Code::kFailedPrecondition) fenced_.insert(id);
  }
  bool Acknowledged(const AttemptId& id) const { return acknowledged_.contains(id); }

  // No retention runs: what was acknowledged is there, visible and whole; what was fenced is not
  // visible; the newest visible one is not older than the last acknowledged.
  void Check(storage::Store& store, const std::string& when) const {
    const std::vector<AttemptId> visible = Visible(store);
    for (const AttemptId& id : acknowledged_) {
      EXPECT_TRUE(std::count(visible.begin(), visible.end(), id) == 1)
          << when << ": " << id.ToString() << " was acknowledged and is not visible";
    }
    for (const AttemptId& id : fenced_) {
      EXPECT_TRUE(std::count(visible.begin(), visible.end(), id) == 0)
          << when << ": " << id.ToString() << " was fenced and is visible";
    }
    for (const AttemptId& id : visible) {
      const Status bytes = CheckBytes(store, id);
      EXPECT_TRUE(bytes.ok()) << when << ": " << bytes.ToString();
    }
  }

 private:
  std::set<AttemptId> acknowledged_;
  std::set<AttemptId> fenced_;
};

template <typename World>
class StoreFlaws : public ::testing::Test {
 protected:
  // Epoch 1 with A committed and B written, ready to commit.
  void SetUp() override {
    CKPT_NEEDS_FAULTS();
    old_ = world_.Actor();
    ASSERT_OK(Claim(*old_).status());
    promises_.Told(a_, Save(*old_, a_));
    ASSERT_TRUE(promises_.Acknowledged(a_));
    ASSERT_OK(WriteAttempt(*old_, b_));
  }
  Status CommitB(const Deadline& deadline = Soon()) {
    const Status status = CommitAttempt(*old_, b_, deadline);
    promises_.Told(b_, status);
    return status;
  }
  // A claim by a new actor, which stays as `*leader`.
  Status NewEpoch(std::unique_ptr<storage::Store>* leader) {
    *leader = world_.Actor();
    return Claim(**leader).status();
  }

  World world_;
  Promises promises_;
  const AttemptId a_ = Id(1, 10);
  const AttemptId b_ = Id(1, 20);
  std::unique_ptr<storage::Store> old_, second_, third_;
};
TYPED_TEST_SUITE_P(StoreFlaws);

// S1: acknowledged means that the directory's sync came first.
TYPED_TEST_P(StoreFlaws, S1_AcknowledgedOnlyAfterTheSync) {
  bool linked = false;
  FaultHook at_sync(
      "store.put.before_sync", [&] { linked = true; }, 2);  // MANIFEST, then COMMIT
  ArmedFault fault("store.put.before_sync", DataLoss("the directory's sync failed"), 2);
  const Status status = this->CommitB();
  ASSERT_TRUE(linked && fault.fired());
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(status.outcome(), Outcome::kMaybeApplied);
}

// S1: nor is a second sync that succeeds a proof of what the first one lost.
TYPED_TEST_P(StoreFlaws, S1_AFailedSyncIsNotRetriedIntoSuccess) {
  {
    ArmedFault fault("store.put.before_sync", DataLoss("the directory's sync failed"), 2);
    EXPECT_FALSE(this->CommitB().ok());
    ASSERT_TRUE(fault.fired());
  }
  const Status again = this->CommitB();
  EXPECT_CODE(again, kFailedPrecondition);
  EXPECT_EQ(again.outcome(), Outcome::kMaybeApplied);
  EXPECT_OK(Save(*this->old_, Id(1, 30)));  // a new attempt is the way out
}

// S2: a managed leader looks like any other: its coordinator's record is a promise, not an answer.
TYPED_TEST_P(StoreFlaws, S2_ARecordedCommitStillLooks) {
  ASSERT_OK(this->NewEpoch(&this->second_));  // a standalone run, unknown to the coordinator
  const Status status = this->CommitB();      // whose record stands in B's CommitRecord
  EXPECT_CODE(status, kFailedPrecondition);
  this->promises_.Check(*this->second_, "S2");
}

// S3 (a): the claimant takes a checkpoint back from .trash and adopts it.
TYPED_TEST_P(StoreFlaws, S3_TrashIsTakenBackAndAdopted) {
  ASSERT_OK(this->world_.Rename("s10.e1.a1", ".trash-1-s10.e1.a1"));
  ASSERT_OK(this->NewEpoch(&this->second_));
  this->promises_.Check(*this->second_, "S3a");
  // The old run's next step, the rename of .trash to .dead, must find nothing.
  EXPECT_CODE(this->world_.Rename(".trash-1-s10.e1.a1", ".dead-1-s10.e1.a1"), kNotFound);
}

// S3 (b): the old run renames after the rescue; the list names A all the same, and A is taken back.
TYPED_TEST_P(StoreFlaws, S3_TrashAfterTheRescueIsListedToo) {
  FaultHook retires("store.claim.after_rescue",
                    [&] { EXPECT_OK(this->world_.Rename("s10.e1.a1", ".trash-1-s10.e1.a1")); });
  ASSERT_OK(this->NewEpoch(&this->second_));
  ASSERT_TRUE(retires.fired());
  this->promises_.Check(*this->second_, "S3b");
}

// S4: a COMMIT that came too late is on no later list.
TYPED_TEST_P(StoreFlaws, S4_ListDoesNotResurrectFenced) {
  FaultHook overtakes("store.commit.after_first_look",
                      [&] { EXPECT_OK(this->NewEpoch(&this->second_)); });
  const Status fenced = this->CommitB();
  ASSERT_TRUE(overtakes.fired());
  EXPECT_CODE(fenced, kFailedPrecondition);
  EXPECT_TRUE(this->world_.Has("s20.e1.a1/COMMIT"));  // it is there, and proves nothing
  this->promises_.Check(*this->second_, "epoch 2");
  ASSERT_OK(this->NewEpoch(&this->third_));
  this->promises_.Check(*this->third_, "epoch 3");
}

// S5: between claim and list a drain waits instead of giving up.
TYPED_TEST_P(StoreFlaws, S5_ADrainWaitsForTheList) {
  ASSERT_OK(this->old_->MarkDraining(this->b_));
  Status early;
  FaultHook between("store.claim.after_claim", [&] { early = this->CommitB(); });
  ASSERT_OK(this->NewEpoch(&this->second_));
  ASSERT_TRUE(between.fired());
  EXPECT_CODE(early, kUnavailable);
  EXPECT_EQ(early.outcome(), Outcome::kMaybeApplied);
  EXPECT_OK(this->CommitB());
  this->promises_.Check(*this->second_, "S5");
}

// S5: the second successor, which has never heard of the drain, finds its mark.
TYPED_TEST_P(StoreFlaws, S5_TheSecondSuccessorKnowsTheDrain) {
  ASSERT_OK(this->old_->MarkDraining(this->b_));
  ASSERT_OK(this->NewEpoch(&this->second_));
  ASSERT_OK(this->NewEpoch(&this->third_));
  EXPECT_OK(this->CommitB());
  this->promises_.Check(*this->third_, "S5");
}

// S7: a torn COMMIT does not hold its name against the recovery that owes one.
TYPED_TEST_P(StoreFlaws, S7_ATornCommitGivesWayToThePromise) {
  const std::string dir = this->b_.ToString();
  this->world_.Plant(dir + "/MANIFEST", ManifestOf(this->b_));
  this->world_.Plant(dir + "/COMMIT", "");
  this->second_ = this->world_.Actor();
  ASSERT_OK(
      this->second_->ClaimEpoch(Epoch(2), {}, {{this->b_, RecordOf(this->b_, Epoch(1))}}).status());
  this->promises_.Told(this->b_, OkStatus());
  this->promises_.Check(*this->second_, "S7");
}

// S8: COMMIT linked, then a claim that lists and adopts it: the second look believes the list.
TYPED_TEST_P(StoreFlaws, S8_TheListDecidesAtTheSecondLook) {
  FaultHook overtakes("store.commit.after_link",
                      [&] { EXPECT_OK(this->NewEpoch(&this->second_)); });
  EXPECT_OK(this->CommitB());
  ASSERT_TRUE(overtakes.fired());
  this->promises_.Check(*this->second_, "S8");
  ASSERT_OK(this->NewEpoch(&this->third_));
  this->promises_.Check(*this->third_, "S8, epoch 3");
}

// S9: a slow claimant whose list comes after a newer claim stops.
TYPED_TEST_P(StoreFlaws, S9_ASlowClaimantStops) {
  FaultHook overtakes("store.claim.before_list", [&] { EXPECT_OK(this->NewEpoch(&this->third_)); });
  const Status slow = this->NewEpoch(&this->second_);
  ASSERT_TRUE(overtakes.fired());
  EXPECT_CODE(slow, kAborted);
  EXPECT_NE(slow.message().find("epoch 2"), std::string::npos) << slow.message();
  EXPECT_NE(slow.message().find("epoch 3"), std::string::npos) << slow.message();
  EXPECT_OK(Save(*this->third_, Id(3, 30)));
  this->promises_.Check(*this->third_, "S9");
}

// S9: and begins nothing.
TYPED_TEST_P(StoreFlaws, S9_WhatASlowClaimantWritesIsRefused) {
  FaultHook overtakes("store.claim.before_list", [&] { EXPECT_OK(this->NewEpoch(&this->third_)); });
  EXPECT_CODE(this->NewEpoch(&this->second_), kAborted);
  EXPECT_CODE(this->second_->BeginAttempt(Id(2, 30)), kFailedPrecondition);
}

// S10: A moves between the reads of one listing and between two; it is on EPOCH.1's list, so it is
// carried over, seen or not.
TYPED_TEST_P(StoreFlaws, S10_WhatIsListedIsCarriedOverUnseen) {
  ASSERT_OK(this->NewEpoch(&this->second_));  // EPOCH.2 names A
  FaultHook away("store.claim.after_rescue",
                 [&] { EXPECT_OK(this->world_.Rename("s10.e1.a1", "hidden-from-the-listing")); });
  FaultHook back("store.claim.after_list",
                 [&] { EXPECT_OK(this->world_.Rename("hidden-from-the-listing", "s10.e1.a1")); });
  ASSERT_OK(this->NewEpoch(&this->third_));
  ASSERT_TRUE(away.fired() && back.fired());
  this->promises_.Check(*this->third_, "S10");
}

// S10: a listing that changes is taken again, and what any of them saw counts.
TYPED_TEST_P(StoreFlaws, S10_ListingsAreRepeatedUntilTwoAgree) {
  FaultHook away("store.claim.after_listing",
                 [&] { EXPECT_OK(this->world_.Rename("s10.e1.a1", "hidden-from-the-listing")); });
  FaultHook back("store.claim.before_list",
                 [&] { EXPECT_OK(this->world_.Rename("hidden-from-the-listing", "s10.e1.a1")); });
  ASSERT_OK(this->NewEpoch(&this->second_));
  this->promises_.Check(*this->second_, "S10");
}

// S12: a drain of an abandoned branch that commits late is not the newest for its high step.
TYPED_TEST_P(StoreFlaws, S12_NewestIsByEpochFirst) {
  ASSERT_OK(WriteAttempt(*this->old_, Id(1, 1000)));
  ASSERT_OK(this->old_->MarkDraining(Id(1, 1000)));
  ASSERT_OK(this->NewEpoch(&this->second_));
  ASSERT_OK(Save(*this->second_, Id(2, 950)));
  ASSERT_OK(CommitAttempt(*this->old_, Id(1, 1000)));
  EXPECT_EQ(Visible(*this->second_), (std::vector{Id(2, 950), Id(1, 1000), this->a_}));
}

// --- every failure -------------------------------------------------------------------------------

// Fails the n-th step of `what`, for n = 1, 2, … until none is left, each in a fresh world.
template <typename World>
void FailEveryStep(
    const std::function<Status(World&, storage::Store& leader)>& what,
    const std::function<void(World&, storage::Store& leader, const Status&)>& check) {
  uint64_t steps = 0;
  for (uint64_t nth = 1;; ++nth) {
    SCOPED_TRACE("step " + std::to_string(nth) + " fails");
    World world;
    auto leader = world.Actor();
    ASSERT_OK(Claim(*leader).status());
    ASSERT_OK(Save(*leader, Id(1, 10)));
    bool fired = false;
    Status status;
    {
      ArmedFault fault("*", ResourceExhausted("planted"), nth);
      status = what(world, *leader);
      fired = fault.fired();
    }
    if (!fired) break;
    ++steps;
    EXPECT_OK(CheckBytes(*world.Actor(), Id(1, 10)));
    EXPECT_TRUE(IsVisible(*world.Actor(), Id(1, 10)));
    check(world, *leader, status);
  }
  EXPECT_GE(steps, 10u);
}

TYPED_TEST_P(StoreFlaws, EveryFailureOfASaveLeavesItsPredecessor) {
  FailEveryStep<TypeParam>(
      [](TypeParam&, storage::Store& leader) { return Save(leader, Id(1, 20)); },
      [](TypeParam& world, storage::Store& leader, const Status& status) {
        auto reader = world.Actor();
        if (status.ok() || IsVisible(*reader, Id(1, 20))) {
          EXPECT_OK(CheckBytes(*reader, Id(1, 20)));
          EXPECT_EQ(status.outcome(), status.ok() ? Outcome::kNotApplied : Outcome::kMaybeApplied);
        }
        EXPECT_OK(Save(leader, Id(1, 20, 2)));
        EXPECT_EQ(Visible(*reader).front(), Id(1, 20, 2));
        auto next = world.Actor();
        EXPECT_OK(Claim(*next).status());
        EXPECT_OK(CheckBytes(*next, Id(1, 20, 2)));
        EXPECT_TRUE(IsVisible(*next, Id(1, 10)));
      });
}

TYPED_TEST_P(StoreFlaws, EveryFailureOfAClaimLeavesTheJob) {
  FailEveryStep<TypeParam>(
      [](TypeParam& world, storage::Store&) { return Claim(*world.Actor()).status(); },
      [](TypeParam& world, storage::Store&, const Status&) {
        auto next = world.Actor();
        EXPECT_OK(Claim(*next).status());
        EXPECT_TRUE(IsVisible(*next, Id(1, 10)));
        EXPECT_OK(Save(*next, Id(next->HighestEpoch()->value(), 20)));
        auto after = world.Actor();
        EXPECT_OK(Claim(*after).status());
        EXPECT_EQ(Visible(*after).size(), 2u);
      });
}

TYPED_TEST_P(StoreFlaws, EveryFailureOfTheFirstOpenCanBeRepeated) {
  uint64_t steps = 0;
  for (uint64_t nth = 1;; ++nth, ++steps) {
    TypeParam world;
    {
      ArmedFault fault("*", ResourceExhausted("planted"), nth);
      world.Actor()->OpenJob({}).status().IgnoreError();
      if (!fault.fired()) break;
    }
    const auto first = world.Actor()->OpenJob({});
    ASSERT_TRUE(first.ok()) << first.status().ToString();
    EXPECT_EQ(*first, *world.Actor()->OpenJob({}));
  }
  EXPECT_GE(steps, 2u);
}

// --- every overtaking ----------------------------------------------------------------------------

// Runs `inner` at the n-th step of `outer`, for every n, each in a fresh world.
template <typename World>
struct Overtaking {
  World world;
  Promises promises;
  std::vector<std::unique_ptr<storage::Store>> actors;

  storage::Store& Actor() { return *actors.emplace_back(world.Actor()); }
  void Commit(storage::Store& store, const AttemptId& id) {
    promises.Told(id, CommitAttempt(store, id, Soon()));
  }
  // A whole successor: claims, checks what it sees, saves.
  void Succeed(uint64_t step) {
    storage::Store& store = Actor();
    const auto claim = Claim(store);
    if (!claim.ok()) {
      EXPECT_CODE(claim.status(), kAborted);
      return;
    }
    const AttemptId id{claim->epoch, Step(static_cast<int64_t>(step)), Attempt(1)};
    promises.Told(id, Save(store, id, Soon()));
  }
};

template <typename World>
uint64_t OvertakeEverywhere(const std::function<void(Overtaking<World>&, storage::Store&)>& outer,
                            const std::function<void(Overtaking<World>&, storage::Store&)>& inner,
                            uint64_t from, uint64_t stride) {
  uint64_t runs = 0;
  for (uint64_t nth = from;; nth += stride) {
    SCOPED_TRACE("overtaken at step " + std::to_string(nth));
    Overtaking<World> run;
    storage::Store& old = run.Actor();
    EXPECT_OK(Claim(old).status());
    run.promises.Told(Id(1, 10), Save(old, Id(1, 10)));
    EXPECT_OK(WriteAttempt(old, Id(1, 20)));
    bool fired = false;
    {
      FaultHook hook(
          "*", [&] { inner(run, old); }, nth);
      outer(run, old);
      fired = hook.fired();
    }
    if (!fired) return runs;
    ++runs;
    run.promises.Check(*run.world.Actor(), "after both");
    run.Commit(old, Id(1, 20));  // whoever did not know tries again
    run.promises.Check(*run.world.Actor(), "after the retry");
    run.Succeed(100);
    run.promises.Check(*run.world.Actor(), "under the next epoch");
    run.Succeed(200);
    run.promises.Check(*run.world.Actor(), "under the one after");
    if (::testing::Test::HasFailure()) return runs;
  }
}

TYPED_TEST_P(StoreFlaws, AClaimMayOvertakeACommitAnywhere) {
  const uint64_t runs = OvertakeEverywhere<TypeParam>(
      [](auto& run, storage::Store& old) { run.Commit(old, Id(1, 20)); },
      [](auto& run, storage::Store&) { run.Succeed(30); }, 1, 1);
  EXPECT_GE(runs, 8u);
}

TYPED_TEST_P(StoreFlaws, ACommitMayOvertakeAClaimAnywhere) {
  const uint64_t runs = OvertakeEverywhere<TypeParam>(
      [](auto& run, storage::Store&) { run.Succeed(30); },
      [](auto& run, storage::Store& old) { run.Commit(old, Id(1, 20)); }, 1, 1);
  EXPECT_GE(runs, 8u);
}

TYPED_TEST_P(StoreFlaws, AClaimMayOvertakeAClaimAnywhere) {
  const uint64_t runs =
      OvertakeEverywhere<TypeParam>([](auto& run, storage::Store&) { run.Succeed(30); },
                                    [](auto& run, storage::Store&) { run.Succeed(40); }, 1, 1);
  EXPECT_GE(runs, 8u);
}

// Three actors: the claim that overtakes the commit is itself overtaken.
TYPED_TEST_P(StoreFlaws, ThreeActorsMayOvertakeEachOtherAnywhere) {
  uint64_t runs = 0;
  for (uint64_t inner_step = 1; inner_step < 60; inner_step += TypeParam::kStride) {
    runs += OvertakeEverywhere<TypeParam>(
        [](auto& run, storage::Store& old) { run.Commit(old, Id(1, 20)); },
        [&](auto& run, storage::Store&) {
          FaultHook third(
              "*", [&] { run.Succeed(40); }, inner_step);
          run.Succeed(30);
        },
        1 + inner_step % TypeParam::kStride, TypeParam::kStride);
    if (::testing::Test::HasFailure()) return;
  }
  EXPECT_GE(runs, 20u);
}

// --- real threads --------------------------------------------------------------------------------

TYPED_TEST_P(StoreFlaws, ManyLeadersAtOnceKeepEveryPromise) {
  constexpr int kLeaders = 4, kSaves = 3;
  std::vector<std::vector<std::pair<AttemptId, Status>>> told(kLeaders);
  std::vector<std::thread> threads;
  for (int i = 0; i < kLeaders; ++i) {
    threads.emplace_back([&, i] {
      auto store = this->world_.Actor();
      for (int life = 0; life < 2; ++life) {
        const auto claim = Claim(*store);
        if (!claim.ok()) continue;
        for (int save = 0; save < kSaves; ++save) {
          const AttemptId id{claim->epoch, Step(100 + save), Attempt(1)};
          told[i].emplace_back(id, Save(*store, id, Deadline("test", std::chrono::seconds(1))));
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& actor : told) {
    for (const auto& [id, status] : actor) this->promises_.Told(id, status);
  }
  this->promises_.Check(*this->world_.Actor(), "after all");
  ASSERT_OK(this->NewEpoch(&this->second_));
  this->promises_.Check(*this->second_, "under the next epoch");
}

REGISTER_TYPED_TEST_SUITE_P(
    StoreFlaws, S1_AcknowledgedOnlyAfterTheSync, S1_AFailedSyncIsNotRetriedIntoSuccess,
    S2_ARecordedCommitStillLooks, S3_TrashIsTakenBackAndAdopted, S3_TrashAfterTheRescueIsListedToo,
    S4_ListDoesNotResurrectFenced, S5_ADrainWaitsForTheList, S5_TheSecondSuccessorKnowsTheDrain,
    S7_ATornCommitGivesWayToThePromise, S8_TheListDecidesAtTheSecondLook, S9_ASlowClaimantStops,
    S9_WhatASlowClaimantWritesIsRefused, S10_WhatIsListedIsCarriedOverUnseen,
    S10_ListingsAreRepeatedUntilTwoAgree, S12_NewestIsByEpochFirst,
    EveryFailureOfASaveLeavesItsPredecessor, EveryFailureOfAClaimLeavesTheJob,
    EveryFailureOfTheFirstOpenCanBeRepeated, AClaimMayOvertakeACommitAnywhere,
    ACommitMayOvertakeAClaimAnywhere, AClaimMayOvertakeAClaimAnywhere,
    ThreeActorsMayOvertakeEachOtherAnywhere, ManyLeadersAtOnceKeepEveryPromise);

}  // namespace ckpt::testing
