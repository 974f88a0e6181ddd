// Power losses at every step of claims and saves, on a disk that forgets what was not synced: what
// was acknowledged is there afterwards, whole and visible, and the job goes on.
#include <gtest/gtest.h>

#include <random>

#include "libckpt/storage/file/file_store.h"
#include "libckpt/testing/forgetful_fs.h"
#include "libckpt/testing/store_world.h"

namespace ckpt::testing {
namespace {

constexpr char kJob[] = "/store/job";

struct Outcome {
  uint64_t steps = 0;  // power losses tried
  std::vector<std::string> violations;
};

// Two epochs with two saves each, one draining attempt between them. What was acknowledged is
// noted.
void Work(ForgetfulFs& fs, std::vector<AttemptId>* acknowledged) {
  std::unique_ptr<storage::Store> drainer;
  for (int life = 0; life < 2; ++life) {
    auto store = storage::OpenFileStore(fs, kJob);
    const auto claim = Claim(*store);
    if (!claim.ok()) return;
    for (int64_t step : {10, 20}) {
      const AttemptId id{claim->epoch, Step(step), Attempt(1)};
      if (!Save(*store, id, Soon()).ok()) return;
      acknowledged->push_back(id);
    }
    const AttemptId drain{claim->epoch, Step(30), Attempt(1)};
    if (!WriteAttempt(*store, drain).ok() || !store->MarkDraining(drain).ok()) return;
    drainer = std::move(store);
  }
  const AttemptId drain{Epoch(2), Step(30), Attempt(1)};
  if (CommitAttempt(*drainer, drain, Soon()).ok()) acknowledged->push_back(drain);
}

// What a job finds after the power is back.
void CheckAfter(ForgetfulFs& fs, const std::vector<AttemptId>& acknowledged,
                const std::string& when, std::vector<std::string>* violations) {
  const auto broken = [&](const std::string& what) { violations->push_back(when + ": " + what); };
  auto store = storage::OpenFileStore(fs, kJob);
  const auto claim = Claim(*store);
  if (!claim.ok()) return broken(claim.status().ToString());
  const auto infos = store->List();
  if (!infos.ok()) return broken(infos.status().ToString());
  std::set<AttemptId> visible;
  for (const storage::CheckpointInfo& info : *infos) {
    if (!info.visible) continue;
    visible.insert(info.id);
    const Status bytes = CheckBytes(*store, info.id);
    if (!bytes.ok()) broken(bytes.ToString());
  }
  for (const AttemptId& id : acknowledged) {
    if (!visible.contains(id)) broken(id.ToString() + " was acknowledged and is gone");
  }
  const AttemptId next{claim->epoch, Step(40), Attempt(1)};
  const Status saved = Save(*store, next, Soon());
  if (!saved.ok()) broken(saved.ToString());
}

Outcome LosePowerAtEveryStep(ForgetfulFs::Bugs bugs, uint64_t seeds, uint64_t stride) {
  Outcome outcome;
  for (uint64_t nth = 1;; nth += stride) {
    for (uint64_t seed = 0; seed < seeds; ++seed) {
      ForgetfulFs fs(bugs);
      std::vector<AttemptId> acknowledged;
      bool fired = false;
      {
        FaultHook hook(
            "*", [&] { fs.PowerOff(); }, nth);
        Work(fs, &acknowledged);
        fired = hook.fired();
      }
      if (!fired) return outcome;
      ++outcome.steps;
      fs.PowerOn(nth * 1000 + seed);
      CheckAfter(fs, acknowledged, "step " + std::to_string(nth) + ", seed " + std::to_string(seed),
                 &outcome.violations);
    }
  }
}

TEST(PowerLoss, NothingAcknowledgedIsLost) {
  CKPT_NEEDS_FAULTS();
  const Outcome outcome = LosePowerAtEveryStep({}, 2, 1);
  EXPECT_GE(outcome.steps, 200u);
  for (const std::string& violation : outcome.violations) ADD_FAILURE() << violation;
  RecordProperty("power_losses", static_cast<int>(outcome.steps));
}

// The test of the test: a disk whose syncs do nothing is noticed.
TEST(PowerLoss, ASkippedDirectorySyncIsNoticed) {
  CKPT_NEEDS_FAULTS();
  EXPECT_FALSE(LosePowerAtEveryStep({.dir_sync_lies = true}, 2, 3).violations.empty());
}
TEST(PowerLoss, ASkippedFileSyncIsNoticed) {
  CKPT_NEEDS_FAULTS();
  EXPECT_FALSE(LosePowerAtEveryStep({.file_sync_lies = true}, 2, 3).violations.empty());
}

}  // namespace
}  // namespace ckpt::testing
