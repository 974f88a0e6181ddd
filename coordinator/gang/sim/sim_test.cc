// Thousands of schedules, the same twice, and planted bugs that must be found by name.
#include "coordinator/gang/sim/sim.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

namespace ckpt::gang::sim {
namespace {

// CKPT_TEST_SEED=N runs that schedule only, with its history.
uint64_t SeedFromEnvironment() {
  const char* text = std::getenv("CKPT_TEST_SEED");
  return text == nullptr ? 0 : std::strtoull(text, nullptr, 10);
}

uint64_t SchedulesToRun() {
  const char* text = std::getenv("CKPT_GANG_SCHEDULES");
  return text == nullptr ? 5000 : std::strtoull(text, nullptr, 10);
}

std::string History(uint64_t seed) {
  SimOptions options;
  options.seed = seed;
  options.history = true;
  std::string text =
      "\nseed " + std::to_string(seed) + " (replay: CKPT_TEST_SEED=" + std::to_string(seed) + ")\n";
  for (const std::string& line : RunSchedule(options).history) text += line + "\n";
  return text;
}

TEST(GangSim, AllSchedulesHold) {
  const uint64_t only = SeedFromEnvironment();
  const uint64_t first = only != 0 ? only : 1;
  const uint64_t last = only != 0 ? only : SchedulesToRun();
  SimResult sum;
  for (uint64_t seed = first; seed <= last; ++seed) {
    SimOptions options;
    options.seed = seed;
    const SimResult result = RunSchedule(options);
    ASSERT_TRUE(result.ok()) << result.violation << ": " << result.detail << History(seed);
    sum.suspended += result.suspended;
    sum.saved += result.saved;
    sum.durable += result.durable;
    sum.rolled_back += result.rolled_back;
    sum.rebuilt += result.rebuilt;
    sum.ended += result.ended;
    sum.finished += result.finished;
    sum.restarts += result.restarts;
    sum.superseded += result.superseded;
    sum.losses += result.losses;
    sum.fallbacks += result.fallbacks;
    sum.deferred += result.deferred;
    sum.withdrawn += result.withdrawn;
    sum.kills += result.kills;
    sum.drained += result.drained;
  }
  if (only != 0) GTEST_SKIP() << History(only);
  // The schedules are worth something: everything that can happen did.
  EXPECT_GT(sum.suspended, last / 10);
  EXPECT_GT(sum.saved, last / 10);
  EXPECT_GT(sum.durable, last / 10);
  EXPECT_GT(sum.rolled_back, last / 20);
  EXPECT_GT(sum.rebuilt, last / 100);
  EXPECT_GT(sum.ended, last / 20);
  EXPECT_GT(sum.finished, last / 50);
  EXPECT_GT(sum.restarts, last / 50);
  EXPECT_GT(sum.superseded, last / 200);
  EXPECT_GT(sum.losses, last / 20);
  EXPECT_GT(sum.fallbacks, last / 50);
  EXPECT_GT(sum.deferred, last / 50);
  EXPECT_GT(sum.withdrawn, last / 50);
  EXPECT_GT(sum.kills, last / 50);
  EXPECT_GT(sum.drained, last / 500);
}

TEST(GangSim, OneSeedIsOneRun) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    SimOptions options;
    options.seed = seed;
    const SimResult a = RunSchedule(options);
    options.history = true;  // keeping a history changes nothing
    const SimResult b = RunSchedule(options);
    EXPECT_EQ(a.trace, b.trace) << "seed " << seed;
    EXPECT_EQ(a.events, b.events) << "seed " << seed;
    EXPECT_EQ(b.history, RunSchedule(options).history) << "seed " << seed;
  }
}

#if defined(CKPT_FAULTS)
struct Planted {
  const char* name;
  bool Mutations::*flag;
  const char* found_as;  // one of these checks, comma-separated
  uint64_t seeds;        // within which it must be found
};

void PrintTo(const Planted& planted, std::ostream* out) { *out << planted.name; }

class PlantedBug : public testing::TestWithParam<Planted> {};

TEST_P(PlantedBug, IsFound) {
  const Planted& planted = GetParam();
  const std::string names = std::string(",") + planted.found_as + ",";
  for (uint64_t seed = 1; seed <= planted.seeds; ++seed) {
    SimOptions options;
    options.seed = seed;
    options.mutations.*planted.flag = true;
    const SimResult result = RunSchedule(options);
    if (result.ok()) continue;
    if (names.find("," + result.violation + ",") == std::string::npos) {
      ADD_FAILURE() << planted.name << " was found as " << result.violation << " (" << result.detail
                    << ") at seed " << seed;
    }
    RecordProperty("seed", static_cast<int>(seed));
    return;
  }
  FAIL() << planted.name << " went unnoticed in " << planted.seeds << " schedules";
}

INSTANTIATE_TEST_SUITE_P(
    Gang, PlantedBug,
    testing::Values(
        Planted{"passed_is_beyond", &Mutations::passed_is_beyond, "before-cut", 2000},
        Planted{"ignore_rounds", &Mutations::ignore_rounds,
                "own-round,one-boundary,one-round,legal-word,stored-first,dead-end", 2000},
        Planted{"reuse_attempt", &Mutations::reuse_attempt, "one-boundary,torn-checkpoint", 2000},
        Planted{"no_rank_timeout", &Mutations::no_rank_timeout, "dead-end", 8000},
        Planted{"back_after_sealed", &Mutations::back_after_sealed, "vote-binds", 8000},
        Planted{"back_after_crash", &Mutations::back_after_crash, "crash-forward", 8000},
        Planted{"rebuild_waits", &Mutations::rebuild_waits, "dead-end,rests", 8000},
        Planted{"free_draining", &Mutations::free_draining, "refilled,torn-checkpoint,restorable",
                2000},
        Planted{"forget_filling", &Mutations::forget_filling, "refilled", 4000},
        Planted{"save_supersedes", &Mutations::save_supersedes, "thrown-away,refilled", 2000},
        Planted{"cancel_early", &Mutations::cancel_early, "thrown-away,restorable", 8000},
        Planted{"tell_before_store", &Mutations::tell_before_store, "stored-first,early-release",
                2000},
        Planted{"release_before_mark", &Mutations::release_before_mark, "early-release", 2000},
        Planted{"comms_down_early", &Mutations::comms_down_early, "staged-gang", 2000},
        Planted{"answer_saves_apart", &Mutations::answer_saves_apart, "same-answer", 2000},
        Planted{"kind_from_latest", &Mutations::kind_from_latest,
                "one-boundary,one-round,legal-word", 8000},
        Planted{"forget_finished", &Mutations::forget_finished, "legal-word,finished-wins", 4000},
        Planted{"keep_withdrawn_deadline", &Mutations::keep_withdrawn_deadline, "own-deadline",
                20000},
        Planted{"expire_together", &Mutations::expire_together, "deadline-kept,rests", 8000},
        Planted{"late_is_not_said", &Mutations::late_is_not_said, "said-late", 2000},
        Planted{"forget_loss", &Mutations::forget_loss, "loss-booked", 2000},
        Planted{"lost_is_settled", &Mutations::lost_is_settled,
                "ended-alive,staged-gang,dead-end,own-round,kill-overrides", 8000},
        Planted{"drop_stop_copy", &Mutations::drop_stop_copy,
                "released-whole,restorable,drain-lost", 8000},
        Planted{"kill_waits", &Mutations::kill_waits, "kill-overrides,notice-lost", 2000}),
    [](const auto& info) { return std::string(info.param.name); });
#endif

}  // namespace
}  // namespace ckpt::gang::sim
