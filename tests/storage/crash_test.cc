// Whole saves of tensors, compressed and referring, with removals between them, on a disk that
// forgets what was not synced: whatever was acknowledged loads bit for bit after a loss of power at
// any step, also after another one while the next launch cleans up.
#include <cstdlib>
#include <random>

#include "libckpt/base/fault.h"
#include "libckpt/testing/forgetful_fs.h"
#include "tests/storage/small_job.h"

namespace ckpt::engine::testing {
namespace {

using ckpt::testing::ForgetfulFs;

constexpr char kJob[] = "/store/job";

// Two launches; the newest step that was acknowledged, 0 for none.
void Work(ForgetfulFs& fs, int64_t* acknowledged) {
  for (int64_t launch = 0; launch < 2; ++launch) {
    SmallJob job(kJob, fs);
    for (int64_t save = 1; save <= 3; ++save) {
      const int64_t step = 10 * launch + save;
      if (!job.Save(step).ok()) return;
      *acknowledged = step;
      if (save > 1 && !job.Prune(1).ok()) return;
    }
  }
}

// What the next launch finds and does.
Status Recover(ForgetfulFs& fs, int64_t acknowledged) {
  SmallJob job(kJob, fs);
  if (acknowledged > 0) CKPT_RETURN_IF_ERROR(job.CheckNewest(acknowledged));
  CKPT_RETURN_IF_ERROR(job.Save(100));
  CKPT_RETURN_IF_ERROR(job.Prune(1));
  return job.CheckNewest(100);
}

struct Losses {
  int count = 0;
  std::vector<std::string> violations;
};

// Loses power at step `nth` of the work, and again at step `second` of the recovery (0: not).
// False if there are not so many steps. By odd seeds writes are made when they are awaited.
bool Lose(ForgetfulFs::Bugs bugs, uint64_t nth, uint64_t second, uint64_t seed, Losses* losses) {
  ForgetfulFs fs(bugs, /*queued=*/seed % 2 == 1);
  int64_t acknowledged = 0;
  bool fired = false;
  {
    FaultHook hook(
        "*", [&] { fs.PowerOff(); }, nth);
    Work(fs, &acknowledged);
    fired = hook.fired();
  }
  if (!fired) return false;
  fs.PowerOn(seed);
  if (second > 0) {
    FaultHook hook(
        "*", [&] { fs.PowerOff(); }, second);
    Recover(fs, 0).IgnoreError();
    fs.PowerOff();
    fs.PowerOn(seed + 1);
  }
  ++losses->count;
  const Status recovered = Recover(fs, acknowledged);
  if (!recovered.ok()) {
    losses->violations.push_back("step " + std::to_string(nth) + ", then " +
                                 std::to_string(second) + ", seed " + std::to_string(seed) + ": " +
                                 recovered.ToString());
  }
  return true;
}

TEST(StorageCrash, WhatWasAcknowledgedLoadsAfterAnyLossOfPower) {
#if !defined(CKPT_FAULTS)
  GTEST_SKIP() << "this build has no fault points (CKPT_FAULTS)";
#else
  const bool whole = std::getenv("CKPT_SOAK") != nullptr;
  const int wanted = whole ? 20'000 : 40;
  Losses losses;
  std::mt19937_64 random(23);
  for (uint64_t round = 0; losses.count < wanted; ++round) {
    const uint64_t stride = whole ? 1 : 31;
    for (uint64_t nth = 1 + round % stride; losses.count < wanted; nth += stride) {
      const uint64_t second = round % 2 == 0 ? 0 : 1 + random() % 200;
      if (!Lose({}, nth, second, random(), &losses)) break;
      for (const std::string& violation : losses.violations) ADD_FAILURE() << violation;
      losses.violations.clear();
    }
  }
  std::cout << losses.count << " losses of power\n";
#endif
}

// The test of the test.
TEST(StorageCrash, ADiskWhoseSyncsLieIsNoticed) {
#if !defined(CKPT_FAULTS)
  GTEST_SKIP() << "this build has no fault points (CKPT_FAULTS)";
#else
  for (const ForgetfulFs::Bugs bugs :
       {ForgetfulFs::Bugs{.file_sync_lies = true}, ForgetfulFs::Bugs{.dir_sync_lies = true}}) {
    Losses losses;
    for (uint64_t nth = 40; Lose(bugs, nth, 0, nth, &losses) && losses.violations.empty();
         nth += 13) {
    }
    EXPECT_FALSE(losses.violations.empty());
  }
#endif
}

}  // namespace
}  // namespace ckpt::engine::testing
