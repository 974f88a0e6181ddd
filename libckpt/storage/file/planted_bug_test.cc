// The test of the tests: each bug that has cost others their checkpoints, planted for real, is
// noticed by what the other tests check. Without a bug the same checks find nothing.
#include "libckpt/storage/planted_bug.h"

#include <gtest/gtest.h>

#include "libckpt/storage/file/file_store.h"
#include "libckpt/storage/file/file_world.h"
#include "libckpt/testing/forgetful_fs.h"

namespace ckpt::testing {
namespace {

#if defined(CKPT_FAULTS)

std::unique_ptr<storage::EpochStore> Actor(FastFileWorld& world) {
  return storage::OpenFileStore(os::PosixFileSystem(), world.path(),
                                {.poll_min = std::chrono::milliseconds(1)});
}

// What was acknowledged is whole after a power loss.
Status AfterAPowerLoss() {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    ForgetfulFs fs;
    auto store = storage::OpenFileStore(fs, "/store/job");
    CKPT_RETURN_IF_ERROR(store->OpenJob(JobId{}).status());
    CKPT_RETURN_IF_ERROR(Claim(*store).status());
    CKPT_RETURN_IF_ERROR(Save(*store, Id(1, 10)));
    fs.PowerOff();
    fs.PowerOn(seed);
    auto after = storage::OpenFileStore(fs, "/store/job");
    CKPT_RETURN_IF_ERROR(Claim(*after).status());
    if (!IsVisible(*after, Id(1, 10))) return DataLoss("acknowledged, and not visible");
    CKPT_RETURN_IF_ERROR(CheckBytes(*after, Id(1, 10)));
  }
  return OkStatus();
}

// A file is not finished while the kernel still writes it.
Status AQueuedWrite() {
  ForgetfulFs fs({}, /*queued=*/true);
  auto store = storage::OpenFileStore(fs, "/store/job");
  CKPT_RETURN_IF_ERROR(store->OpenJob(JobId{}).status());
  CKPT_RETURN_IF_ERROR(Claim(*store).status());
  CKPT_RETURN_IF_ERROR(store->BeginAttempt(Id(1, 10)));
  CKPT_ASSIGN_OR_RETURN(const auto file, store->CreateFile(Id(1, 10), "data", 2 * kPageBytes));
  const AlignedBuffer pages(2 * kPageBytes);
  CKPT_ASSIGN_OR_RETURN(const auto first, file->Start(0, pages.span().first(kPageBytes)));
  CKPT_RETURN_IF_ERROR(file->Start(kPageBytes, pages.span().subspan(kPageBytes)).status());
  CKPT_RETURN_IF_ERROR(file->Await(first));
  return file->Finish().ok() ? DataLoss("finished, and half of it is written") : OkStatus();
}

Status AfterASave() {
  FastFileWorld world;
  auto store = Actor(world);
  CKPT_RETURN_IF_ERROR(store->OpenJob(JobId{}).status());
  CKPT_RETURN_IF_ERROR(Claim(*store).status());
  CKPT_RETURN_IF_ERROR(Save(*store, Id(1, 10)));
  return CheckBytes(*store, Id(1, 10));
}

// An older run that has been overtaken commits nothing that counts, and no number comes twice.
Status TwoRuns() {
  FastFileWorld world;
  auto old = Actor(world), young = Actor(world);
  CKPT_RETURN_IF_ERROR(old->OpenJob(JobId{}).status());
  CKPT_ASSIGN_OR_RETURN(const storage::EpochClaim first, Claim(*old));
  CKPT_RETURN_IF_ERROR(Save(*old, Id(1, 10)));
  CKPT_RETURN_IF_ERROR(WriteAttempt(*old, Id(1, 20)));
  CKPT_ASSIGN_OR_RETURN(const storage::EpochClaim second, Claim(*young));
  if (second.epoch == first.epoch) return Internal("two runs have one epoch");
  if (CommitAttempt(*old, Id(1, 20), Soon()).ok()) return Internal("the overtaken run committed");
  return OkStatus();
}

// A suspended copy is taken over by the next run.
Status ADrain() {
  FastFileWorld world;
  auto old = Actor(world), young = Actor(world);
  CKPT_RETURN_IF_ERROR(old->OpenJob(JobId{}).status());
  CKPT_RETURN_IF_ERROR(Claim(*old).status());
  CKPT_RETURN_IF_ERROR(WriteAttempt(*old, Id(1, 10)));
  CKPT_RETURN_IF_ERROR(old->MarkDraining(Id(1, 10)));
  CKPT_RETURN_IF_ERROR(Claim(*young).status());
  CKPT_RETURN_IF_ERROR(CommitAttempt(*old, Id(1, 10), Soon()));
  return IsVisible(*young, Id(1, 10)) ? OkStatus() : DataLoss("the drained copy is not visible");
}

// A promised commit is kept before anything is swept.
Status ARepair() {
  FastFileWorld world;
  auto old = Actor(world), young = Actor(world);
  CKPT_RETURN_IF_ERROR(old->OpenJob(JobId{}).status());
  CKPT_RETURN_IF_ERROR(Claim(*old).status());
  CKPT_RETURN_IF_ERROR(WriteAttempt(*old, Id(1, 10)));
  os::PosixFileSystem()
      .Rename(world.path() + "/s10.e1.a1/data", world.path() + "/s10.e1.a1/shard-00000.safetensors")
      .IgnoreError();
  world.Plant("s10.e1.a1/MANIFEST", ManifestOf(Id(1, 10)));
  CKPT_RETURN_IF_ERROR(Claim(*young).status());
  const std::vector<std::pair<AttemptId, storage::CommitRecord>> promised = {
      {Id(1, 10), RecordOf(Id(1, 10), Epoch(1))}};
  CKPT_ASSIGN_OR_RETURN(const storage::RepairPlan plan, young->PlanRepair(promised));
  CKPT_RETURN_IF_ERROR(young->Repair(plan, promised));
  return young->ReadCommit(Id(1, 10)).status();
}

// A removal that is overtaken between its renames removes nothing.
Status AFrozenRemoval() {
  FastFileWorld world;
  auto old = Actor(world);
  CKPT_RETURN_IF_ERROR(old->OpenJob(JobId{}).status());
  CKPT_RETURN_IF_ERROR(Claim(*old).status());
  for (const int64_t step : {10, 20}) CKPT_RETURN_IF_ERROR(Save(*old, Id(1, step)));
  CKPT_ASSIGN_OR_RETURN(const storage::PrunePlan plan, old->PlanPrune({.last = 1}, nullptr));
  // A claimant that has its number, and has seen nothing yet.
  FaultHook hook("store.prune.after_trash", [&] { world.Plant("EPOCH.2.claim", "claimed"); });
  old->Prune(plan).status().IgnoreError();
  return CheckBytes(*old, Id(1, 10));
}

// What a save in progress refers to is not removed.
Status AReferringSave() {
  FastFileWorld world;
  auto store = Actor(world);
  CKPT_RETURN_IF_ERROR(store->OpenJob(JobId{}).status());
  CKPT_RETURN_IF_ERROR(Claim(*store).status());
  for (const int64_t step : {10, 20}) CKPT_RETURN_IF_ERROR(Save(*store, Id(1, step)));
  CKPT_RETURN_IF_ERROR(WriteAttempt(*store, Id(1, 30)));
  CKPT_ASSIGN_OR_RETURN(const storage::AttemptOrigins origins,
                        store->NameOrigins(Id(1, 30), {Id(1, 10), {Id(1, 10)}}));
  CKPT_ASSIGN_OR_RETURN(const storage::PrunePlan plan, store->PlanPrune({.last = 1}, nullptr));
  CKPT_RETURN_IF_ERROR(store->Prune(plan).status());
  return origins.origins.empty() ? OkStatus() : CheckBytes(*store, Id(1, 10));
}

struct Bug {
  const char* name;
  Status (*check)();
};
constexpr Bug kBugs[] = {
    {"skip a directory sync", AfterAPowerLoss},
    {"commit before data", AfterAPowerLoss},
    {"ignore a short write", AfterASave},
    {"sync before the last write", AQueuedWrite},
    {"reuse an epoch", TwoRuns},
    {"drop a fence", TwoRuns},
    {"forget to adopt a draining attempt", ADrain},
    {"collect garbage before COMMIT is repaired", ARepair},
    {"let a frozen epoch delete", AFrozenRemoval},
    {"retention blind to origins", AReferringSave},
    {"refer without naming", AReferringSave},
};

class PlantedStorageBug : public ::testing::TestWithParam<Bug> {};

TEST_P(PlantedStorageBug, IsFound) {
  EXPECT_OK(GetParam().check());
  storage::PlantedBug bug(GetParam().name);
  EXPECT_FALSE(GetParam().check().ok()) << GetParam().name << " went unnoticed";
}

INSTANTIATE_TEST_SUITE_P(Bugs, PlantedStorageBug, ::testing::ValuesIn(kBugs),
                         [](const ::testing::TestParamInfo<Bug>& info) {
                           std::string name = info.param.name;
                           std::replace(name.begin(), name.end(), ' ', '_');
                           return name;
                         });

#else
TEST(PlantedStorageBug, IsFound) { CKPT_NEEDS_FAULTS(); }
#endif

}  // namespace
}  // namespace ckpt::testing
