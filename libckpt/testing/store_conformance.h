// What every Store must do, as one typed suite: instantiate it with a StoreWorld for each
// implementation.
//
//   INSTANTIATE_TYPED_TEST_SUITE_P(File, StoreConformance, FileWorld);
#pragma once

#include <algorithm>
#include <thread>

#include "libckpt/testing/store_world.h"

namespace ckpt::testing {

template <typename World>
class StoreConformance : public ::testing::Test {
 protected:
  // A leader of the next epoch.
  std::unique_ptr<storage::Store> Leader(uint64_t expected_epoch) {
    auto store = world_.Actor();
    const auto claim = Claim(*store);
    EXPECT_TRUE(claim.ok()) << claim.status().ToString();
    if (claim.ok()) {
      EXPECT_EQ(claim->epoch, Epoch(expected_epoch));
    }
    return store;
  }
  // A claim without a list: its claimant died.
  void PlantClaim(uint64_t epoch) {
    const auto job = world_.Actor()->OpenJob({});
    ASSERT_TRUE(job.ok());
    world_.Plant(format::ClaimFileName(Epoch(epoch)),
                 format::ClaimFile{*job, Epoch(epoch), "someone"}.Encode());
  }
  World world_;
};
TYPED_TEST_SUITE_P(StoreConformance);

// --- the job -------------------------------------------------------------------------------------

TYPED_TEST_P(StoreConformance, JobIdIsMintedOnce) {
  auto a = this->world_.Actor();
  auto b = this->world_.Actor();
  const auto first = a->OpenJob({});
  ASSERT_TRUE(first.ok()) << first.status().ToString();
  EXPECT_FALSE(first->IsZero());
  const auto second = b->OpenJob({});
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(*first, *second);
  EXPECT_OK(b->OpenJob(*first).status());
  EXPECT_CODE(b->OpenJob(JobId::Random()).status(), kFailedPrecondition);
  EXPECT_CODE(this->world_.Actor()->OpenJob(JobId::Random()).status(), kFailedPrecondition);
}

TYPED_TEST_P(StoreConformance, JobIdOfACoordinatorIsTaken) {
  const JobId id = JobId::Random();
  const auto opened = this->world_.Actor()->OpenJob(id);
  ASSERT_TRUE(opened.ok());
  EXPECT_EQ(*opened, id);
}

TYPED_TEST_P(StoreConformance, ManyOpenersAgreeOnOneId) {
  std::vector<JobId> ids(8);
  std::vector<std::thread> threads;
  for (JobId& id : ids) {
    threads.emplace_back([&] {
      const auto opened = this->world_.Actor()->OpenJob({});
      if (opened.ok()) id = *opened;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(ids[0].IsZero());
  for (const JobId& id : ids) EXPECT_EQ(id, ids[0]);
}

TYPED_TEST_P(StoreConformance, ALookAtNothingIsEmptyAndMakesNothing) {
  auto store = this->world_.Actor();
  const auto infos = store->List();
  ASSERT_TRUE(infos.ok()) << infos.status().ToString();
  EXPECT_TRUE(infos->empty());
  const auto highest = store->HighestEpoch();
  ASSERT_TRUE(highest.ok());
  EXPECT_EQ(*highest, Epoch(0));
  EXPECT_CODE(store->ReadCommit(Id(1, 1)).status(), kNotFound);
  EXPECT_CODE(store->ReadManifest(Id(1, 1)).status(), kNotFound);
  EXPECT_CODE(store->OpenFile(Id(1, 1), "data").status(), kNotFound);
  EXPECT_TRUE(this->world_.Keys().empty());
}

// JOB was deleted by hand: the lists know the id, and nothing acknowledged may vanish.
TYPED_TEST_P(StoreConformance, LostJobFileIsRestoredFromTheLists) {
  auto leader = this->Leader(1);
  const auto job = leader->OpenJob({});
  ASSERT_TRUE(job.ok());
  ASSERT_OK(Save(*leader, Id(1, 10)));
  ASSERT_OK(this->world_.Remove("JOB"));
  auto next = this->Leader(2);
  const auto again = next->OpenJob({});
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(*again, *job);
  EXPECT_TRUE(IsVisible(*next, Id(1, 10)));
}

// --- attempts and files --------------------------------------------------------------------------

TYPED_TEST_P(StoreConformance, InvisibleUntilCommitted) {
  auto leader = this->Leader(1);
  auto reader = this->world_.Actor();
  const AttemptId id = Id(1, 10);
  ASSERT_OK(WriteAttempt(*leader, id));
  auto infos = reader->List();
  ASSERT_TRUE(infos.ok());
  ASSERT_EQ(infos->size(), 1u);
  EXPECT_EQ(infos->front().id, id);
  EXPECT_FALSE(infos->front().committed);
  EXPECT_FALSE(infos->front().visible);
  EXPECT_CODE(reader->ReadCommit(id).status(), kNotFound);
  ASSERT_OK(CommitAttempt(*leader, id));
  EXPECT_EQ(Visible(*reader), std::vector{id});
  EXPECT_OK(CheckBytes(*reader, id));
  const auto record = reader->ReadCommit(id);
  ASSERT_TRUE(record.ok());
  EXPECT_EQ(record->epoch, Epoch(1));
  EXPECT_EQ(record->coordinator, "record of " + id.ToString());
}

TYPED_TEST_P(StoreConformance, AttemptsAndFilesAreExclusive) {
  auto leader = this->Leader(1);
  const AttemptId id = Id(1, 10);
  ASSERT_OK(leader->BeginAttempt(id));
  EXPECT_CODE(leader->BeginAttempt(id), kAlreadyExists);
  auto rank = this->world_.Actor();
  ASSERT_OK(rank->CreateFile(id, "shard", 10).status());
  EXPECT_CODE(leader->CreateFile(id, "shard", 10).status(), kAlreadyExists);
  EXPECT_CODE(leader->CreateFile(Id(1, 11), "shard", 10).status(), kNotFound);
}

TYPED_TEST_P(StoreConformance, FileNamesAreChecked) {
  auto leader = this->Leader(1);
  const AttemptId id = Id(1, 10);
  ASSERT_OK(leader->BeginAttempt(id));
  for (const char* name :
       {"", ".hidden", "a/b", "..", "../x", "MANIFEST", "COMMIT", "DRAINING", "white space"}) {
    EXPECT_CODE(leader->CreateFile(id, name, 0).status(), kInvalidArgument);
  }
  EXPECT_CODE(leader->OpenFile(id, "../JOB").status(), kInvalidArgument);
}

TYPED_TEST_P(StoreConformance, FilesReadBackExactlyAndNotBeyond) {
  auto leader = this->Leader(1);
  const AttemptId id = Id(1, 10);
  ASSERT_OK(leader->BeginAttempt(id));
  auto writer = leader->CreateFile(id, "shard", 1 << 20);  // more is reserved than is written
  ASSERT_TRUE(writer.ok()) << writer.status().ToString();
  ASSERT_OK((*writer)->Write(4, AsBytes("efgh")));
  ASSERT_OK((*writer)->Write(0, AsBytes("abcd")));
  ASSERT_OK((*writer)->Finish());
  EXPECT_CODE((*writer)->Write(0, AsBytes("x")), kFailedPrecondition);
  EXPECT_CODE((*writer)->Finish(), kFailedPrecondition);
  auto reader = this->world_.Actor()->OpenFile(id, "shard");
  ASSERT_TRUE(reader.ok());
  EXPECT_EQ((*reader)->size(), 8u);
  std::string text(3, ' ');
  ASSERT_OK((*reader)->Read(3, std::as_writable_bytes(std::span(text))));
  EXPECT_EQ(text, "def");
  const Status beyond = (*reader)->Read(6, std::as_writable_bytes(std::span(text)));
  EXPECT_CODE(beyond, kDataLoss);
  EXPECT_NE(beyond.message().find("shard"), std::string::npos) << beyond.message();
  EXPECT_CODE((*reader)->Read(UINT64_MAX, std::as_writable_bytes(std::span(text))), kDataLoss);
}

TYPED_TEST_P(StoreConformance, AFailedWriteOrSyncPoisonsTheWriter) {
  CKPT_NEEDS_FAULTS();
  for (const char* point : {"store.file.write", "store.file.sync"}) {
    TypeParam world;
    auto leader = world.Actor();
    ASSERT_OK(Claim(*leader).status());
    ASSERT_OK(leader->BeginAttempt(Id(1, 10)));
    auto writer = leader->CreateFile(Id(1, 10), "shard", 8);
    ASSERT_TRUE(writer.ok());
    ArmedFault fault(point, DataLoss("disk"));
    const Status written = (*writer)->Write(0, AsBytes("abcd"));
    const Status finished = (*writer)->Finish();
    EXPECT_TRUE(fault.fired());
    EXPECT_FALSE(finished.ok()) << point;
    EXPECT_EQ(written.ok(), std::string_view(point) == "store.file.sync");
    EXPECT_EQ((*writer)->Finish().message(), finished.message());  // never retried
    EXPECT_FALSE((*writer)->Write(0, AsBytes("abcd")).ok());
  }
}

TYPED_TEST_P(StoreConformance, AbortRemovesOnlyWhatThisEpochBegan) {
  auto leader = this->Leader(1);
  ASSERT_OK(Save(*leader, Id(1, 10)));
  ASSERT_OK(WriteAttempt(*leader, Id(1, 20)));
  EXPECT_CODE(leader->Abort(Id(1, 10)), kFailedPrecondition);  // committed
  auto stranger = this->world_.Actor();
  EXPECT_CODE(stranger->Abort(Id(1, 20)), kFailedPrecondition);
  ASSERT_OK(leader->Abort(Id(1, 20)));
  EXPECT_FALSE(this->world_.HasDir("s20.e1.a1"));
  EXPECT_OK(leader->Abort(Id(1, 20)));  // once more: nothing is left to do
  EXPECT_OK(CheckBytes(*leader, Id(1, 10)));
  auto next = this->Leader(2);
  EXPECT_CODE(next->Abort(Id(1, 10)), kFailedPrecondition);
  EXPECT_CODE(CommitAttempt(*leader, Id(1, 20), Soon()), kNotFound);
}

// --- commits -------------------------------------------------------------------------------------

TYPED_TEST_P(StoreConformance, CommitAgainIsTheSameCommit) {
  auto leader = this->Leader(1);
  const AttemptId id = Id(1, 10);
  ASSERT_OK(Save(*leader, id));
  EXPECT_OK(CommitAttempt(*leader, id));
  EXPECT_CODE(leader->Commit(id, "other", {format::ManifestDigest("other"), id.epoch, ""}, Long()),
              kAlreadyExists);
  EXPECT_OK(CheckBytes(*leader, id));
}

TYPED_TEST_P(StoreConformance, CommitChecksItsArguments) {
  auto leader = this->Leader(1);
  const AttemptId id = Id(1, 10);
  ASSERT_OK(WriteAttempt(*leader, id));
  EXPECT_CODE(leader->Commit(id, "x", RecordOf(id, Epoch(1)), Long()), kInvalidArgument);
  EXPECT_CODE(leader->Commit(id, ManifestOf(id), RecordOf(id, Epoch(0)), Long()), kInvalidArgument);
  EXPECT_CODE(CommitAttempt(*leader, Id(1, 11)), kNotFound);
  EXPECT_TRUE(Visible(*leader).empty());
  EXPECT_OK(CommitAttempt(*leader, id));
}

TYPED_TEST_P(StoreConformance, NothingIsSavedWithoutAClaim) {
  auto store = this->world_.Actor();
  ASSERT_OK(store->OpenJob({}).status());
  EXPECT_CODE(store->BeginAttempt(Id(1, 10)), kFailedPrecondition);
  ASSERT_OK(Claim(*store).status());
  EXPECT_CODE(store->BeginAttempt(Id(7, 10)), kFailedPrecondition);
  EXPECT_OK(store->BeginAttempt(Id(1, 10)));
}

TYPED_TEST_P(StoreConformance, TornCommitCommitsNothingAndGivesWay) {
  auto leader = this->Leader(1);
  const AttemptId id = Id(1, 10);
  const std::string whole =
      format::CommitFile{*leader->OpenJob({}), id, format::ManifestDigest(ManifestOf(id)), Epoch(1)}
          .Encode();
  ASSERT_OK(WriteAttempt(*leader, id));
  for (size_t cut = 0; cut < whole.size(); cut += 7) {
    this->world_.Plant(id.ToString() + "/COMMIT", whole.substr(0, cut));
    EXPECT_TRUE(Visible(*leader).empty()) << cut;
    EXPECT_CODE(leader->ReadCommit(id).status(), kDataLoss);
  }
  ASSERT_OK(CommitAttempt(*leader, id));
  EXPECT_OK(CheckBytes(*this->world_.Actor(), id));
}

TYPED_TEST_P(StoreConformance, ForeignCommitCommitsNothing) {
  auto leader = this->Leader(1);
  const AttemptId id = Id(1, 10);
  ASSERT_OK(WriteAttempt(*leader, id));
  const Digest digest = format::ManifestDigest(ManifestOf(id));
  const std::string key = id.ToString() + "/COMMIT";
  this->world_.Plant(key, format::CommitFile{JobId::Random(), id, digest, Epoch(1)}.Encode());
  EXPECT_TRUE(Visible(*leader).empty());  // of another job
  this->world_.Plant(
      key, format::CommitFile{*leader->OpenJob({}), Id(1, 11), digest, Epoch(1)}.Encode());
  EXPECT_TRUE(Visible(*leader).empty());  // of another attempt
  auto next = this->Leader(2);
  EXPECT_TRUE(Visible(*next).empty());
}

TYPED_TEST_P(StoreConformance, ListIgnoresWhatIsNotOurs) {
  auto leader = this->Leader(1);
  ASSERT_OK(Save(*leader, Id(1, 10)));
  const std::vector<std::string> foreign = {"x.tmp",
                                            "step_10.partial/model.bin",
                                            "backup/s1.e1.a1/COMMIT",
                                            "EPOCH.x",
                                            "EPOCH.01",
                                            "EPOCH.0.claim",
                                            "EPOCH.",
                                            "s010.e1.a1/data",
                                            "s10.e1/data",
                                            "latest",
                                            ".trash-x/data",
                                            "s10.e1.a1.bak/data",
                                            "EPOCH.1.claim~",
                                            ".nfs0001",
                                            "s99.e1.a1",
                                            "copy/MANIFEST"};
  for (const std::string& key : foreign) this->world_.Plant(key, "foreign");
  this->world_.Plant("s5.e1.a9/data", "no marker");  // a copied checkpoint without its COMMIT
  EXPECT_EQ(Visible(*leader), std::vector{Id(1, 10)});
  const auto highest = leader->HighestEpoch();
  ASSERT_TRUE(highest.ok());
  EXPECT_EQ(*highest, Epoch(1));
  auto next = this->Leader(2);
  EXPECT_EQ(Visible(*next), std::vector{Id(1, 10)});
  for (const std::string& key : foreign) EXPECT_TRUE(this->world_.Has(key)) << key;
}

TYPED_TEST_P(StoreConformance, ADamagedListIsAnErrorNotAnEmptyStore) {
  auto leader = this->Leader(1);
  ASSERT_OK(Save(*leader, Id(1, 10)));
  this->world_.Plant("EPOCH.1", "");
  auto reader = this->world_.Actor();
  const Status listed = reader->List().status();
  EXPECT_CODE(listed, kDataLoss);
  EXPECT_NE(listed.message().find("EPOCH.1"), std::string::npos) << listed.message();
  EXPECT_CODE(Claim(*this->world_.Actor()).status(), kDataLoss);
}

// --- epochs --------------------------------------------------------------------------------------

TYPED_TEST_P(StoreConformance, EpochsCountUpAndHonourTheGrant) {
  auto store = this->world_.Actor();
  EXPECT_EQ(Claim(*store)->epoch, Epoch(1));
  EXPECT_EQ(Claim(*store)->epoch, Epoch(2));
  EXPECT_EQ(Claim(*store, 7)->epoch, Epoch(7));
  EXPECT_EQ(Claim(*store, 3)->epoch, Epoch(8));
  EXPECT_EQ(*this->world_.Actor()->HighestEpoch(), Epoch(8));
  EXPECT_CODE(Claim(*store, UINT64_MAX).status(), kInvalidArgument);
}

TYPED_TEST_P(StoreConformance, CommittedIsCarriedOverManyEpochs) {
  std::vector<AttemptId> all;
  for (uint64_t epoch = 1; epoch <= 5; ++epoch) {
    auto leader = this->Leader(epoch);
    EXPECT_EQ(Visible(*leader), std::vector(all.rbegin(), all.rend()));
    all.push_back(Id(epoch, static_cast<int64_t>(epoch) * 10));
    ASSERT_OK(Save(*leader, all.back()));
    ASSERT_OK(WriteAttempt(*leader, Id(epoch, 999)));  // never committed, never adopted
  }
  auto leader = this->Leader(6);
  EXPECT_EQ(Visible(*leader), std::vector(all.rbegin(), all.rend()));
  for (const AttemptId& id : all) EXPECT_OK(CheckBytes(*leader, id));
}

// An epoch that died between claim and list is stepped over.
TYPED_TEST_P(StoreConformance, ClaimsWithoutListsAreSteppedOver) {
  auto leader = this->Leader(1);
  ASSERT_OK(Save(*leader, Id(1, 10)));
  this->PlantClaim(2);
  this->PlantClaim(3);
  auto next = this->Leader(4);
  EXPECT_EQ(Visible(*next), std::vector{Id(1, 10)});
}

TYPED_TEST_P(StoreConformance, FencedAtTheFirstLook) {
  auto old = this->Leader(1);
  ASSERT_OK(Save(*old, Id(1, 10)));
  ASSERT_OK(WriteAttempt(*old, Id(1, 20)));
  auto next = this->Leader(2);
  const Status fenced = CommitAttempt(*old, Id(1, 20));
  EXPECT_CODE(fenced, kFailedPrecondition);
  EXPECT_EQ(fenced.outcome(), Outcome::kNotApplied);
  EXPECT_NE(fenced.message().find("epoch 1"), std::string::npos) << fenced.message();
  EXPECT_NE(fenced.message().find("epoch 2"), std::string::npos) << fenced.message();
  EXPECT_CODE(next->ReadCommit(Id(1, 20)).status(), kNotFound);
  EXPECT_CODE(old->BeginAttempt(Id(1, 30)), kFailedPrecondition);
  auto third = this->Leader(3);
  EXPECT_EQ(Visible(*third), std::vector{Id(1, 10)});
}

TYPED_TEST_P(StoreConformance, AClaimWithoutItsListDecidesNothing) {
  auto old = this->Leader(1);
  ASSERT_OK(WriteAttempt(*old, Id(1, 10)));
  this->PlantClaim(2);
  const Status undecided = CommitAttempt(*old, Id(1, 10), Soon());
  EXPECT_CODE(undecided, kUnavailable);
  EXPECT_EQ(undecided.outcome(), Outcome::kMaybeApplied);
  // The way out that the message names: the next epoch.
  auto next = this->Leader(3);
  EXPECT_CODE(CommitAttempt(*old, Id(1, 10), Soon()), kFailedPrecondition);
}

TYPED_TEST_P(StoreConformance, TheListArrivesWhileTheLookWaits) {
  CKPT_NEEDS_FAULTS();
  auto old = this->Leader(1);
  const AttemptId id = Id(1, 10);
  ASSERT_OK(WriteAttempt(*old, id));
  this->PlantClaim(2);
  const JobId job = *old->OpenJob({});
  FaultHook arrives("store.look.wait", [&] {
    this->world_.Plant("EPOCH.2", format::EpochFile{job, Epoch(2), {id}, ""}.Encode());
  });
  EXPECT_OK(CommitAttempt(*old, id));
  EXPECT_TRUE(arrives.fired());
  EXPECT_EQ(Visible(*this->world_.Actor()), std::vector{id});
}

TYPED_TEST_P(StoreConformance, DrainingIsAdoptedAndCarriedUntilItCommits) {
  auto old = this->Leader(1);
  ASSERT_OK(Save(*old, Id(1, 10)));
  const AttemptId drain = Id(1, 20);
  ASSERT_OK(WriteAttempt(*old, drain));
  ASSERT_OK(old->MarkDraining(drain));
  ASSERT_OK(old->MarkDraining(drain));
  auto second = this->Leader(2);
  EXPECT_EQ(Visible(*second), std::vector{Id(1, 10)});
  ASSERT_OK(Save(*second, Id(2, 15)));
  auto third = this->Leader(3);
  ASSERT_OK(CommitAttempt(*old, drain));
  EXPECT_EQ(Visible(*third), (std::vector{Id(2, 15), drain, Id(1, 10)}));
  EXPECT_OK(CheckBytes(*third, drain));
  EXPECT_EQ(Visible(*this->Leader(4)), (std::vector{Id(2, 15), drain, Id(1, 10)}));
}

TYPED_TEST_P(StoreConformance, ADrainingMarkThatComesTooLateIsRefused) {
  auto old = this->Leader(1);
  ASSERT_OK(WriteAttempt(*old, Id(1, 20)));
  auto next = this->Leader(2);
  EXPECT_CODE(old->MarkDraining(Id(1, 20)), kFailedPrecondition);
}

TYPED_TEST_P(StoreConformance, AdoptAlsoNamesMore) {
  auto old = this->Leader(1);
  ASSERT_OK(WriteAttempt(*old, Id(1, 20)));
  auto next = this->world_.Actor();
  const auto claim = next->ClaimEpoch(Epoch(2), {Id(1, 20), Id(2, 5), Id(9, 5)}, {});
  ASSERT_TRUE(claim.ok());
  EXPECT_EQ(claim->adopted, std::vector{Id(1, 20)});  // none of its own or later epochs
  ASSERT_OK(CommitAttempt(*old, Id(1, 20)));
  EXPECT_EQ(Visible(*next), std::vector{Id(1, 20)});
}

// A new process finishes what an older epoch has staged.
TYPED_TEST_P(StoreConformance, ASuccessorCommitsWhatItAdopted) {
  auto old = this->Leader(1);
  ASSERT_OK(WriteAttempt(*old, Id(1, 20)));
  ASSERT_OK(old->MarkDraining(Id(1, 20)));
  auto next = this->Leader(2);
  ASSERT_OK(next->Commit(Id(1, 20), ManifestOf(Id(1, 20)), RecordOf(Id(1, 20), Epoch(2)), Long()));
  EXPECT_EQ(Visible(*next), std::vector{Id(1, 20)});
  EXPECT_OK(CommitAttempt(*old, Id(1, 20)));  // the same manifest: it was committed for us
}

TYPED_TEST_P(StoreConformance, PromisedCommitsAreCreated) {
  auto old = this->Leader(1);
  const AttemptId promised = Id(1, 20), torn = Id(1, 21), never = Id(1, 22);
  for (const AttemptId& id : {promised, torn}) {
    ASSERT_OK(WriteAttempt(*old, id));
    this->world_.Plant(id.ToString() + "/MANIFEST", ManifestOf(id));
  }
  this->world_.Plant(torn.ToString() + "/COMMIT", "");
  auto next = this->world_.Actor();
  const auto claim = next->ClaimEpoch(Epoch(2), {},
                                      {{promised, RecordOf(promised, Epoch(1))},
                                       {torn, RecordOf(torn, Epoch(1))},
                                       {never, RecordOf(never, Epoch(1))}});
  ASSERT_TRUE(claim.ok()) << claim.status().ToString();
  EXPECT_EQ(Visible(*next), (std::vector{torn, promised}));
  EXPECT_OK(CheckBytes(*next, promised));
  EXPECT_OK(CommitAttempt(*old, promised));  // its own record, kept by the successor
}

TYPED_TEST_P(StoreConformance, TrashOfOlderEpochsIsTakenBackAndDeadIsNot) {
  auto old = this->Leader(1);
  ASSERT_OK(Save(*old, Id(1, 10)));
  ASSERT_OK(Save(*old, Id(1, 20)));
  ASSERT_OK(Save(*old, Id(1, 30)));
  ASSERT_OK(this->world_.Rename("s10.e1.a1", ".trash-1-s10.e1.a1"));
  ASSERT_OK(this->world_.Rename("s20.e1.a1", ".dead-1-s20.e1.a1"));
  auto next = this->Leader(2);
  EXPECT_EQ(Visible(*next), (std::vector{Id(1, 30), Id(1, 10)}));
  EXPECT_TRUE(this->world_.HasDir(".dead-1-s20.e1.a1"));
}

TYPED_TEST_P(StoreConformance, OfManyClaimantsTheHighestLives) {
  auto first = this->Leader(1);
  ASSERT_OK(Save(*first, Id(1, 10)));
  constexpr int kClaimants = 6;
  std::vector<Status> statuses(kClaimants);
  std::vector<Epoch> epochs(kClaimants);
  std::vector<std::thread> threads;
  for (int i = 0; i < kClaimants; ++i) {
    threads.emplace_back([&, i] {
      const auto claim = Claim(*this->world_.Actor(), 2);
      statuses[i] = claim.status();
      if (claim.ok()) epochs[i] = claim->epoch;
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::set<Epoch> winners;
  for (int i = 0; i < kClaimants; ++i) {
    if (statuses[i].ok()) {
      EXPECT_TRUE(winners.insert(epochs[i]).second);
    } else {
      EXPECT_CODE(statuses[i], kAborted);
    }
  }
  EXPECT_TRUE(winners.contains(Epoch(1 + kClaimants)));  // numbers are never skipped
  EXPECT_EQ(Visible(*this->world_.Actor()), std::vector{Id(1, 10)});
}

REGISTER_TYPED_TEST_SUITE_P(
    StoreConformance, JobIdIsMintedOnce, JobIdOfACoordinatorIsTaken, ManyOpenersAgreeOnOneId,
    ALookAtNothingIsEmptyAndMakesNothing, LostJobFileIsRestoredFromTheLists,
    InvisibleUntilCommitted, AttemptsAndFilesAreExclusive, FileNamesAreChecked,
    FilesReadBackExactlyAndNotBeyond, AFailedWriteOrSyncPoisonsTheWriter,
    AbortRemovesOnlyWhatThisEpochBegan, CommitAgainIsTheSameCommit, CommitChecksItsArguments,
    NothingIsSavedWithoutAClaim, TornCommitCommitsNothingAndGivesWay, ForeignCommitCommitsNothing,
    ListIgnoresWhatIsNotOurs, ADamagedListIsAnErrorNotAnEmptyStore, EpochsCountUpAndHonourTheGrant,
    CommittedIsCarriedOverManyEpochs, ClaimsWithoutListsAreSteppedOver, FencedAtTheFirstLook,
    AClaimWithoutItsListDecidesNothing, TheListArrivesWhileTheLookWaits,
    DrainingIsAdoptedAndCarriedUntilItCommits, ADrainingMarkThatComesTooLateIsRefused,
    AdoptAlsoNamesMore, ASuccessorCommitsWhatItAdopted, PromisedCommitsAreCreated,
    TrashOfOlderEpochsIsTakenBackAndDeadIsNot, OfManyClaimantsTheHighestLives);

}  // namespace ckpt::testing
