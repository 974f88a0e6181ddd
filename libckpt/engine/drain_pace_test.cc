// The share of a drain against a training that is simulated: steps get slower by a factor of the
// share that writing takes.
#include "libckpt/engine/drain_pace.h"

#include <gtest/gtest.h>

#include <optional>
#include <thread>

namespace ckpt::engine {
namespace {

constexpr int64_t kMs = 1'000'000;

struct Training {
  DrainPace pace;
  int64_t now_ns = 1'000 * kMs;
  uint64_t boundaries = 0;
  double step_ms = 20;
  double slowdown_at_full_speed = 1;  // writing all the time makes steps twice as long

  // → mean time of a step in ms
  double Run(int steps, bool draining) {
    const int64_t began_ns = now_ns;
    for (int i = 0; i < steps; ++i) {
      const double slower = draining ? 1 + slowdown_at_full_speed * pace.share() : 1;
      now_ns += static_cast<int64_t>(step_ms * slower * static_cast<double>(kMs));
      pace.Look(now_ns, ++boundaries);
    }
    return static_cast<double>(now_ns - began_ns) / static_cast<double>(kMs) / steps;
  }
};

TEST(DrainPace, TheShareFollowsTheMeasuredTimeOfAStep) {
  Training training;
  training.Run(500, false);
  EXPECT_NEAR(static_cast<double>(training.pace.step_time().count()), 20e6, 1e5);
  training.pace.Begin();
  training.Run(2000, true);
  EXPECT_LE(training.Run(1000, true), 20 * 1.05);
  EXPECT_LT(training.pace.share(), 0.1);

  // The disk got out of the way: the drain takes what is free.
  training.slowdown_at_full_speed = 0.01;
  training.Run(3000, true);
  EXPECT_DOUBLE_EQ(training.pace.share(), 1);
  training.pace.End();
  EXPECT_NEAR(static_cast<double>(training.pace.step_time().count()), 20e6, 1e5)
      << "steps beside a drain are no measure of free ones";
}

TEST(DrainPace, WhatWasLearntHoldsForTheNextDrain) {
  Training training;
  training.slowdown_at_full_speed = 0.5;
  training.Run(500, false);
  training.pace.Begin();
  training.Run(3000, true);
  training.pace.End();
  const double learnt = training.pace.share();
  training.Run(500, false);
  training.pace.Begin();
  EXPECT_DOUBLE_EQ(training.pace.share(), learnt);
  EXPECT_LE(training.Run(500, true), 20 * 1.06);
}

TEST(DrainPace, TheShareNeverFallsBelowItsFloor) {
  Training training;
  training.slowdown_at_full_speed = 50;
  training.Run(500, false);
  training.pace.Begin();
  training.Run(3000, true);
  EXPECT_DOUBLE_EQ(training.pace.share(), DrainPace::kShareMin);
}

TEST(DrainPace, PausesAreTheRestOfTheShare) {
  Training training;
  training.Run(10, false);
  const Nanos pause = training.pace.PauseAfter(training.now_ns, std::chrono::milliseconds(2));
  EXPECT_NEAR(static_cast<double>(pause.count()),
              2e6 * (1 - DrainPace::kShareFirst) / DrainPace::kShareFirst, 1e3);
  EXPECT_EQ(training.pace.PauseAfter(training.now_ns, std::chrono::hours(1)), DrainPace::kPauseMax);
}

TEST(DrainPace, NobodyStepsNobodyIsSlowedDown) {
  Training training;
  EXPECT_EQ(training.pace.PauseAfter(training.now_ns + 10'000 * kMs, std::chrono::seconds(1)),
            Nanos(0))
      << "before the first step";
  training.Run(10, false);
  const Nanos took = std::chrono::milliseconds(2);
  EXPECT_GT(training.pace.PauseAfter(training.now_ns + 500 * kMs, took), Nanos(0));
  EXPECT_EQ(training.pace.PauseAfter(training.now_ns + 1500 * kMs, took), Nanos(0));
  training.step_ms = 3000;  // long steps are no standstill
  training.Run(3, false);
  EXPECT_GT(training.pace.PauseAfter(training.now_ns + 2900 * kMs, took), Nanos(0));
  const InAHurry hurry(&training.pace);
  EXPECT_EQ(training.pace.PauseAfter(training.now_ns, took), Nanos(0));
}

TEST(DrainPace, ATrainingThatStartedAnewIsMeasuredAnew) {
  Training training;
  training.Run(500, false);
  training.boundaries = 0;
  training.step_ms = 40;
  training.Run(2000, false);
  EXPECT_NEAR(static_cast<double>(training.pace.step_time().count()), 40e6, 1e6);
}

TEST(DrainPace, AHurryEndsAPauseAtOnce) {
  auto pace = std::make_shared<DrainPace>();
  pace->Look(BoottimeNs(), 1);
  std::thread waiting([&] {
    for (int i = 0; i < 1000; ++i) pace->Pause(std::chrono::hours(1), {});  // 500 s in all
  });
  std::optional<InAHurry> hurry(pace.get());
  waiting.join();
  hurry.reset();
  bool cancelled = false;
  PacedBy(
      pace, [] { return uint64_t{2}; }, [&] { return cancelled = true; })(std::chrono::hours(1));
  EXPECT_TRUE(cancelled);
}

}  // namespace
}  // namespace ckpt::engine
