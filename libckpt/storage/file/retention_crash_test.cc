// Saves that refer to older checkpoints, and their removal, on a disk that forgets what was not
// synced and in processes that are killed: at every step, and at every step of what cleans up
// afterwards. Whatever is visible has all that it refers to, and the newest acknowledged checkpoint
// is there.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "libckpt/format/names.h"
#include "libckpt/format/records.h"
#include "libckpt/storage/file/file_store.h"
#include "libckpt/storage/file/file_world.h"
#include "libckpt/testing/forgetful_fs.h"

namespace ckpt::testing {
namespace {

// What survives the process that noted it.
struct Notes {
  int64_t newest_acknowledged = -1;  // its step; steps rise over all epochs
};

// Saves `id`, referring to `base` and what that one may refer to.
Status SaveReferring(storage::EpochStore& store, const AttemptId& id, const AttemptId& base,
                     const std::vector<AttemptId>& origins) {
  CKPT_RETURN_IF_ERROR(WriteAttempt(store, id));
  CKPT_RETURN_IF_ERROR(store.NameOrigins(id, {base, origins}).status());
  return CommitAttempt(store, id, Soon());
}

Status Prune(storage::EpochStore& store, uint32_t last) {
  CKPT_ASSIGN_OR_RETURN(const storage::PrunePlan plan, store.PlanPrune({.last = last}, nullptr));
  return store.Prune(plan).status();
}

// Two epochs: whole saves, saves with references of depth one, removals between them.
Status Work(storage::EpochStore& store, Notes* notes) {
  CKPT_RETURN_IF_ERROR(store.OpenJob(JobId{}).status());
  for (int life = 0; life < 2; ++life) {
    CKPT_ASSIGN_OR_RETURN(const storage::EpochClaim claim, Claim(store));
    const auto id = [&](int64_t step) {
      return AttemptId{claim.epoch, Step(100 * life + step), Attempt(1)};
    };
    const auto note = [&](int64_t step) { notes->newest_acknowledged = 100 * life + step; };
    CKPT_RETURN_IF_ERROR(Save(store, id(10), Soon()));
    note(10);
    CKPT_RETURN_IF_ERROR(SaveReferring(store, id(20), id(10), {id(10)}));
    note(20);
    CKPT_RETURN_IF_ERROR(Prune(store, 1));
    CKPT_RETURN_IF_ERROR(SaveReferring(store, id(30), id(20), {id(10), id(20)}));
    note(30);
    CKPT_RETURN_IF_ERROR(Save(store, id(40), Soon()));
    note(40);
    CKPT_RETURN_IF_ERROR(Prune(store, 1));
  }
  return OkStatus();
}

// Everything visible is whole with all it refers to; the job goes on and cleans up.
Status CheckAfter(os::FileSystem& fs, const std::string& job, const Notes& notes) {
  auto store = storage::OpenFileStore(fs, job, {.poll_min = std::chrono::milliseconds(1)});
  CKPT_RETURN_IF_ERROR(store->OpenJob(JobId{}).status());
  CKPT_ASSIGN_OR_RETURN(const storage::EpochClaim claim, Claim(*store));
  CKPT_ASSIGN_OR_RETURN(const std::vector<storage::CheckpointInfo> infos, store->List());
  int64_t newest = -1;
  for (const storage::CheckpointInfo& info : infos) {
    if (!info.visible) continue;
    newest = std::max(newest, info.id.step.value());
    CKPT_RETURN_IF_ERROR(CheckBytes(*store, info.id));
    const auto record = os::ReadFile(
        fs, os::JoinPath(os::JoinPath(job, info.id.ToString()), format::kOriginsFile), 1 << 20);
    if (!record.ok()) continue;
    CKPT_ASSIGN_OR_RETURN(const format::OriginsFile file, format::OriginsFile::Decode(*record));
    for (const AttemptId& origin : file.origins) {
      const Status whole = CheckBytes(*store, origin);
      if (!whole.ok()) {
        return DataLoss(info.id.ToString() + " refers to " + origin.ToString() + ": " +
                        whole.message());
      }
    }
  }
  if (newest < notes.newest_acknowledged) {
    return DataLoss("step " + std::to_string(notes.newest_acknowledged) +
                    " was acknowledged, the newest is " + std::to_string(newest));
  }
  const AttemptId next{claim.epoch, Step(1000), Attempt(1)};
  CKPT_RETURN_IF_ERROR(Save(*store, next, Soon()));
  CKPT_ASSIGN_OR_RETURN(const storage::RepairPlan repair, store->PlanRepair());
  CKPT_RETURN_IF_ERROR(store->Repair(repair));
  CKPT_RETURN_IF_ERROR(Prune(*store, 1));
  CKPT_ASSIGN_OR_RETURN(const std::vector<storage::UsageRow> rows, store->Usage());
  for (const storage::UsageRow& row : rows) {
    if (row.state == "being removed") return Internal(row.name + " is left");
  }
  return CheckBytes(*store, next);
}

// A loss of power at every step; if `again`, another at every `stride`-th step of what follows it.
int LosePower(ForgetfulFs::Bugs bugs, uint64_t stride, bool again,
              std::vector<std::string>* found) {
  constexpr char kJob[] = "/store/job";
  int losses = 0;
  for (uint64_t nth = 1;; nth += stride) {
    for (uint64_t second = again ? 1 : 0;; second += 7) {
      ForgetfulFs fs(bugs);
      Notes notes;
      bool fired = false, fired_again = false;
      {
        FaultHook hook(
            "*", [&] { fs.PowerOff(); }, nth);
        auto store = storage::OpenFileStore(fs, kJob, {.poll_min = std::chrono::milliseconds(1)});
        Work(*store, &notes).IgnoreError();
        fired = hook.fired();
      }
      if (!fired) return losses;
      ++losses;
      fs.PowerOn(nth * 1000 + second);
      if (second > 0) {
        FaultHook hook(
            "*", [&] { fs.PowerOff(); }, second);
        CheckAfter(fs, kJob, notes).IgnoreError();
        fired_again = hook.fired();
        fs.PowerOff();
        fs.PowerOn(nth * 777 + second);
      }
      const Status after = CheckAfter(fs, kJob, notes);
      if (!after.ok())
        found->push_back("step " + std::to_string(nth) + ", " + std::to_string(second) + ": " +
                         after.ToString());
      if (!fired_again) break;
    }
  }
}

TEST(RetentionPowerLoss, NothingThatIsReferredToIsLost) {
  CKPT_NEEDS_FAULTS();
  std::vector<std::string> found;
  EXPECT_GE(LosePower({}, 2, false, &found), 100);
  for (const std::string& what : found) ADD_FAILURE() << what;
}

TEST(RetentionPowerLoss, NorWhenWhatCleansUpLosesPowerToo) {
  CKPT_NEEDS_FAULTS();
  std::vector<std::string> found;
  const bool whole = std::getenv("CKPT_SOAK") != nullptr;
  EXPECT_GE(LosePower({}, whole ? 1 : 61, true, &found), 50);
  for (const std::string& what : found) ADD_FAILURE() << what;
}

// The test of the test.
TEST(RetentionPowerLoss, ASkippedDirectorySyncIsNoticed) {
  CKPT_NEEDS_FAULTS();
  std::vector<std::string> found;
  LosePower({.dir_sync_lies = true}, 3, false, &found);
  EXPECT_FALSE(found.empty());
}

TEST(RetentionKill, AtEveryStepWhatIsVisibleHasWhatItRefersTo) {
  CKPT_NEEDS_FAULTS();
  // Shared with the children that are killed.
  auto* notes = static_cast<Notes*>(
      ::mmap(nullptr, sizeof(Notes), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(notes, MAP_FAILED);
  const uint64_t stride = std::getenv("CKPT_SOAK") != nullptr ? 1 : 5;
  int kills = 0;
  for (uint64_t nth = 1;; nth += stride) {
    FastFileWorld world;
    *notes = Notes{};
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      FaultHook hook(
          "*", [] { ::kill(::getpid(), SIGKILL); }, nth);
      auto store = storage::OpenFileStore(world.path());
      Work(*store, notes).IgnoreError();
      ::_exit(0);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_OK(CheckAfter(os::PosixFileSystem(), world.path(), *notes)
                  .Annotate("killed at step " + std::to_string(nth)));
    if (!WIFSIGNALED(status)) break;
    ++kills;
  }
  EXPECT_GE(kills, 50);
  ::munmap(notes, sizeof(Notes));
}

// Processes that save, refer and prune in one directory, all in one epoch: nothing is torn apart.
TEST(RetentionTogether, ManyProcessesSaveAndPruneInOneDirectory) {
  FastFileWorld world;
  {
    auto store = storage::OpenFileStore(world.path());
    ASSERT_TRUE(store->OpenJob(JobId{}).ok());
    ASSERT_TRUE(Claim(*store).ok());
    ASSERT_OK(Save(*store, Id(1, 1)));
  }
  const uint32_t processes = std::getenv("CKPT_SOAK") != nullptr ? 64 : 8;
  std::vector<pid_t> children;
  for (uint32_t p = 0; p < processes; ++p) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      auto store = storage::OpenFileStore(world.path());
      for (int64_t i = 0; i < 8; ++i) {
        const AttemptId id = Id(1, 10 + i, p + 1);
        const std::vector<AttemptId> visible = Visible(*store);
        const Status saved = visible.empty()
                                 ? Save(*store, id)
                                 : SaveReferring(*store, id, visible.front(), {visible.front()});
        // Newer ones of the others may have retired it before its name was synced.
        const bool retired =
            saved.code() == Code::kNotFound && saved.outcome() == Outcome::kMaybeApplied;
        if (!saved.ok() && !retired) {
          std::cerr << saved.ToString() << "\n";
          ::_exit(2);
        }
        Prune(*store, 2).IgnoreError();  // it may meet what another removes
      }
      ::_exit(0);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  }
  EXPECT_OK(CheckAfter(os::PosixFileSystem(), world.path(), Notes{17}));
}

}  // namespace
}  // namespace ckpt::testing
