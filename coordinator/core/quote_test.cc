// Quotes: who may be stopped, at what price, and that no smaller or cheaper set would do. And the
// preemptions that carry them out.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <limits>

#include "coordinator/core/placement.h"
#include "coordinator/core/world_fake.h"

namespace ckpt::core {
namespace {

JobSpec Spec(const std::string& name, uint32_t ranks, int32_t priority,
             const std::string& job_class = "training") {
  JobSpec spec;
  spec.name = name;
  spec.command = {"train"};
  spec.ranks = ranks;
  spec.priority = priority;
  spec.job_class = job_class;
  return spec;
}

WorldOptions Calm(uint32_t seed = 1) {
  WorldOptions options;
  options.seed = seed;
  options.steps_to_finish = 1 << 30;
  return options;
}

void RunJob(World& world, const JobSpec& spec) {
  ASSERT_TRUE(world.Step(PutJob{0, spec})->status.ok());
  ASSERT_TRUE(world.RunUntil([&] { return world.state(spec.name) == JobState::kRunning; }));
}

std::string Rejected(const Plan& plan) {
  std::string all;
  for (const std::string& line : plan.rejected) all += line + "\n";
  return all;
}

#define EXPECT_SAYS(text, part)                   \
  EXPECT_NE((text).find(part), std::string::npos) \
      << "\"" << (text) << "\" lacks \"" << (part) << "\""

TEST(Quote, SaysWhyEachJobMayNotBeStopped) {
  World world(Calm());
  world.AddNode("a", 10);
  world.RunFor(World::kSecond);
  JobSpec fixed = Spec("fixed", 1, 1);
  fixed.not_preemptible = true;
  JobSpec fresh = Spec("fresh", 1, 1);
  fresh.min_runtime_ms = 3'600'000;
  RunJob(world, fixed);
  RunJob(world, fresh);
  RunJob(world, Spec("high", 1, 50));
  RunJob(world, Spec("equal", 1, 10));
  RunJob(world, Spec("realtime", 1, 1, "realtime"));
  RunJob(world, Spec("batch", 5, 1, "batch"));
  ASSERT_TRUE(world.Step(PutJob{0, Spec("new", 3, 10)})->status.ok());
  const Reply reply = *world.Step(Quote{"new"});
  ASSERT_TRUE(reply.status.ok()) << reply.status.ToString();
  ASSERT_EQ(reply.plan.victims.size(), 1u);
  EXPECT_EQ(reply.plan.victims[0].job, "batch");
  const std::string rejected = Rejected(reply.plan);
  EXPECT_SAYS(rejected, "fixed is not preemptible");
  EXPECT_SAYS(rejected, "fresh has run for");
  EXPECT_SAYS(rejected, "high has priority 50, not below 10");
  EXPECT_SAYS(rejected, "equal has priority 10, not below 10");
  EXPECT_SAYS(rejected, "realtime is of class realtime");
  ASSERT_TRUE(world.Step(PutJob{0, Spec("huge", 9, 10)})->status.ok());
  const Status none = world.Step(Quote{"huge"})->status;
  EXPECT_EQ(none.code(), Code::kFailedPrecondition);
  EXPECT_SAYS(none.message(), "no set of victims makes room for huge");
  EXPECT_SAYS(none.message(), "high has priority 50");
}

TEST(Quote, ThePriceIsTheSumOfItsParts) {
  World world(Calm());
  world.AddNode("a", 2);
  world.RunFor(World::kSecond);
  JobSpec victim = Spec("victim", 2, 1);
  victim.state_bytes_per_rank = 128 << 20;
  RunJob(world, victim);
  ASSERT_TRUE(world.Step(PutJob{0, Spec("new", 1, 10)})->status.ok());
  const Plan plan = world.Step(Quote{"new"})->plan;
  ASSERT_EQ(plan.victims.size(), 1u);
  const VictimQuote& v = plan.victims[0];
  EXPECT_NEAR(v.stage_seconds, 2.0 * (128 << 20) / 8e9 + world.job("victim")->step_seconds, 1e-9);
  EXPECT_EQ(v.lost_seconds, 0);
  EXPECT_NEAR(v.price,
              2 * (v.lost_seconds + v.stage_seconds + v.restore_seconds + v.requeue_seconds) + 600,
              1e-9);
  EXPECT_DOUBLE_EQ(plan.price, v.price);
  EXPECT_GT(plan.grant_seconds, v.stage_seconds);
}

TEST(Quote, GoesByWhatTheLastStopOfTheVictimTook) {
  World world(Calm());
  world.AddNode("a", 2);
  world.RunFor(World::kSecond);
  JobSpec victim = Spec("victim", 2, 1);
  victim.state_bytes_per_rank = 64 << 20;
  RunJob(world, victim);
  world.StopsTake(4 * World::kSecond, 2 * World::kSecond);
  world.RunFor(5 * World::kSecond);  // a copy to resume from
  ASSERT_TRUE(world.Step(Suspend{{7, "victim", 0, 60'000}})->status.ok());
  ASSERT_TRUE(world.RunUntil([&] { return world.state("victim") == JobState::kSuspended; }));
  ASSERT_TRUE(world.Step(Resume{8, "victim"})->status.ok());
  ASSERT_TRUE(world.RunUntil([&] { return world.state("victim") == JobState::kRunning; }));
  world.RunFor(World::kSecond);
  ASSERT_TRUE(world.Step(PutJob{0, Spec("new", 1, 10)})->status.ok());
  const Plan plan = world.Step(Quote{"new", 1000})->plan;
  ASSERT_EQ(plan.victims.size(), 1u);
  const VictimQuote& v = plan.victims[0];
  EXPECT_TRUE(v.measured);
  EXPECT_NEAR(v.stage_seconds, 4, 0.1);
  EXPECT_NEAR(v.exit_seconds, 2, 0.1);
  EXPECT_LT(v.restore_seconds, 1) << "its start took less than what is assumed";
  EXPECT_NEAR(plan.grant_seconds, 6.1, 0.3);
  ASSERT_EQ(plan.warnings.size(), 1u) << "more than the second that it is to be given";
  EXPECT_SAYS(plan.warnings[0], "needs about 4.0 s");
}

TEST(Quote, NeverTenWhenOneIsEnough) {
  World world(Calm());
  world.AddNode("a", 20);
  world.RunFor(World::kSecond);
  for (int i = 0; i < 20; ++i) RunJob(world, Spec("j" + std::to_string(i), 1, 1));
  ASSERT_TRUE(world.Step(PutJob{0, Spec("new", 1, 10)})->status.ok());
  EXPECT_EQ(world.Step(Quote{"new"})->plan.victims.size(), 1u);
}

TEST(Quote, HoldsAPriceLimit) {
  World world(Calm());
  world.AddNode("a", 1);
  world.RunFor(World::kSecond);
  RunJob(world, Spec("victim", 1, 1));
  JobSpec poor = Spec("poor", 1, 10);
  poor.max_price = 5;
  ASSERT_TRUE(world.Step(PutJob{0, poor})->status.ok());
  EXPECT_SAYS(world.Step(Quote{"poor"})->status.message(), "more than its max_price 5.0");
}

// Against every subset of victims: nothing cheaper is enough, and nobody in the set is superfluous.
TEST(Quote, RandomClustersAgreeWithBruteForce) {
  const char* text = std::getenv("CKPT_TEST_SEED");
  const auto first = text == nullptr ? 1u : static_cast<uint32_t>(std::atoi(text));
  int with_victims = 0;
  for (uint32_t seed = first; seed < first + 60; ++seed) {
    std::mt19937 rng(seed);
    World world(Calm(seed));
    const size_t nodes = 1 + rng() % 4;
    uint32_t slots = 0;
    for (size_t i = 0; i < nodes; ++i) {
      const uint32_t count = 1 + rng() % 4;
      slots += count;
      world.AddNode("n" + std::to_string(i), count);
    }
    world.RunFor(World::kSecond);
    std::vector<std::string> jobs;
    for (uint32_t left = slots; left > 0 && jobs.size() < 8;) {
      const uint32_t ranks = 1 + rng() % std::min<uint32_t>(left, 4);
      JobSpec spec = Spec("j" + std::to_string(jobs.size()), ranks, static_cast<int>(rng() % 6));
      spec.state_bytes_per_rank = (1 + rng() % 20) << 20;
      RunJob(world, spec);
      jobs.push_back(spec.name);
      left -= ranks;
    }
    const uint32_t need = 1 + rng() % slots;
    ASSERT_TRUE(world.Step(PutJob{0, Spec("new", need, 4)})->status.ok());
    if (world.state("new") != JobState::kPending) continue;
    const Reply reply = *world.Step(Quote{"new"});
    std::map<std::string, double> price;
    uint32_t free = 0;
    for (const auto& [name, node] : world.core().nodes()) free += world.core().FreeSlots(name);
    // Prices as the core names them, one candidate at a time.
    std::vector<std::string> candidates;
    for (const std::string& name : jobs) {
      if (world.job(name)->spec.priority < 4) candidates.push_back(name);
    }
    const auto single = [&](const std::string& name) {
      const Job& job = *world.job(name);
      uint32_t most = 0;
      double stage = 0;
      for (const Member& m : job.members) most = std::max(most, m.place.rank_count);
      stage = static_cast<double>(job.spec.state_bytes_per_rank) * most / 8e9;
      return job.spec.ranks * (stage + job.step_seconds + stage + 1 + 5) + 600.0;
    };
    double best = std::numeric_limits<double>::infinity();
    for (uint32_t bits = 0; bits < (1u << candidates.size()); ++bits) {
      uint32_t freed = free;
      double cost = 0;
      for (size_t i = 0; i < candidates.size(); ++i) {
        if (!(bits >> i & 1)) continue;
        freed += world.job(candidates[i])->spec.ranks;
        cost += single(candidates[i]);
      }
      if (freed >= need) best = std::min(best, cost);
    }
    if (best == std::numeric_limits<double>::infinity()) {
      EXPECT_FALSE(reply.status.ok()) << "seed " << seed;
      continue;
    }
    ASSERT_TRUE(reply.status.ok()) << "seed " << seed << ": " << reply.status.ToString();
    EXPECT_NEAR(reply.plan.price, best, 1e-6) << "seed " << seed;
    ++with_victims;
    uint32_t freed = free;
    for (const VictimQuote& victim : reply.plan.victims) freed += victim.ranks;
    for (const VictimQuote& victim : reply.plan.victims) {
      EXPECT_LT(freed - victim.ranks, need) << victim.job << " is superfluous, seed " << seed;
    }
    uint32_t placed = 0;
    for (const NodePlacement& place : reply.plan.placement) placed += place.rank_count;
    EXPECT_EQ(placed, need);
  }
  EXPECT_GT(with_victims, 10);
}

TEST(Quote, ManyCandidatesGiveAPrunedSetThatIsEnough) {
  World world(Calm(3));
  for (int i = 0; i < 6; ++i) world.AddNode("n" + std::to_string(i), 8);
  world.RunFor(World::kSecond);
  std::mt19937 rng(5);
  uint32_t left = 48;
  std::map<std::string, uint32_t> ranks;
  for (int i = 0; left > 0; ++i) {
    const uint32_t count = 1 + rng() % std::min<uint32_t>(left, 3);
    RunJob(world, Spec("j" + std::to_string(i), count, 1));
    left -= count;
  }
  ASSERT_GT(world.core().jobs().size(), 12u);
  for (const uint32_t need : {1u, 2u, 5u, 16u, 48u}) {
    const std::string name = "new" + std::to_string(need);
    ASSERT_TRUE(world.Step(PutJob{0, Spec(name, need, 10)})->status.ok());
    const Reply reply = *world.Step(Quote{name});
    ASSERT_TRUE(reply.status.ok());
    uint32_t freed = 0;
    for (const VictimQuote& victim : reply.plan.victims) freed += victim.ranks;
    EXPECT_GE(freed, need);
    for (const VictimQuote& victim : reply.plan.victims) EXPECT_LT(freed - victim.ranks, need);
  }
}

// ---- apply

struct Preempted : testing::Test {
  void Start(WorldOptions options) {
    world = std::make_unique<World>(options);
    world->AddNode("a", 2);
    world->AddNode("b", 2);
    world->RunFor(World::kSecond);
    RunJob(*world, Spec("one", 2, 1));
    RunJob(*world, Spec("two", 2, 2));
    ASSERT_TRUE(world->Step(PutJob{0, Spec("new", 4, 10)})->status.ok());
  }
  Plan QuoteIt() {
    const Reply reply = *world->Step(Quote{"new"});
    EXPECT_TRUE(reply.status.ok()) << reply.status.ToString();
    return reply.plan;
  }
  const Operation& Op() { return *world->core().FindOperation(7); }
  bool Ended() { return Op().state != OperationState::kRunning; }
  std::unique_ptr<World> world;
};

TEST_F(Preempted, TwoVictimsLeaveAndTheNewcomerIsGranted) {
  Start(Calm());
  const Plan plan = QuoteIt();
  ASSERT_EQ(plan.victims.size(), 2u);
  ASSERT_TRUE(world->Step(Apply{7, plan.id, 0})->status.ok());
  EXPECT_EQ(Op().phase, Phase::kNotified);
  ASSERT_TRUE(world->RunUntil([&] { return Ended(); }));
  EXPECT_EQ(Op().state, OperationState::kDone);
  EXPECT_EQ(Op().phase, Phase::kGranted);
  EXPECT_GT(Op().granted_ns, Op().started_ns);
  EXPECT_EQ(world->state("new"), JobState::kRunning);
  for (const char* name : {"one", "two"}) {
    EXPECT_EQ(world->state(name), JobState::kPreempted);
    EXPECT_EQ(world->job(name)->preempted_count, 1u);
    EXPECT_EQ(world->job(name)->restart_count, 0u);
    EXPECT_EQ(world->job(name)->lost_gpu_seconds, 0);
  }
  world->Step(Cancel{{8, "new", 0, 0}});
  ASSERT_TRUE(world->RunUntil([&] {
    return world->state("one") == JobState::kRunning && world->state("two") == JobState::kRunning;
  })) << "they resume by themselves";
  EXPECT_TRUE(world->violations().empty()) << world->violations().front();
}

TEST_F(Preempted, AVictimThatCannotStopAbortsItAndTheOtherGoesBack) {
  WorldOptions options = Calm(4);
  options.suspend_fails = 0.5;
  int aborted_with_one_released = 0;
  for (options.seed = 1; options.seed < 12; ++options.seed) {
    Start(options);
    if (testing::Test::HasFailure()) return;
    ASSERT_TRUE(world->Step(Apply{7, QuoteIt().id, 0})->status.ok());
    ASSERT_TRUE(world->RunUntil([&] { return Ended(); }));
    if (Op().state == OperationState::kDone) continue;
    EXPECT_SAYS(Op().message, "could not be stopped and runs on: barrier B1");
    ASSERT_TRUE(world->RunUntil([&] {
      return world->state("one") == JobState::kRunning && world->state("two") == JobState::kRunning;
    })) << "seed "
        << options.seed;
    EXPECT_EQ(world->state("new"), JobState::kPending);
    aborted_with_one_released += world->job("one")->epoch == 2 || world->job("two")->epoch == 2;
    EXPECT_TRUE(world->violations().empty()) << world->violations().front();
  }
  EXPECT_GT(aborted_with_one_released, 0);
}

TEST_F(Preempted, AStalePlanIsRefusedAndSaysWhatChanged) {
  Start(Calm());
  const Plan plan = QuoteIt();
  EXPECT_SAYS(world->Step(Apply{1, "p0-0", 0})->status.message(), "quote again");
  world->CrashRank("one");
  ASSERT_TRUE(world->RunUntil(
      [&] { return world->job("one")->epoch == 2 && world->state("one") == JobState::kRunning; }));
  const Status stale = world->Step(Apply{7, plan.id, 0})->status;
  EXPECT_EQ(stale.code(), Code::kFailedPrecondition);
  EXPECT_SAYS(stale.message(), "victim one has been launched anew (epoch 2)");
  const Plan again = QuoteIt();
  ASSERT_TRUE(world->Step(Apply{7, again.id, 0})->status.ok());
  EXPECT_EQ(world->Step(Apply{7, again.id, 0})->op_id, 7u) << "repeated";
  EXPECT_EQ(world->Step(Apply{8, again.id, 0})->status.code(), Code::kFailedPrecondition);
}

TEST_F(Preempted, ALostVictimNodeEndsItAtTheDeadlineAndNothingIsGivenTwice) {
  Start(Calm());
  world->Disconnect("b");
  world->RunFor(100 * kMs);
  EXPECT_SAYS(world->Step(Quote{"new"})->status.message(), "is unknown");
  world->Connect("b");
  world->RunFor(World::kSecond);
  ASSERT_TRUE(world->Step(Apply{7, QuoteIt().id, 5000})->status.ok());
  world->Disconnect("b");
  ASSERT_TRUE(world->RunUntil([&] { return Ended(); }));
  EXPECT_EQ(Op().state, OperationState::kFailed);
  world->Connect("b");
  ASSERT_TRUE(world->RunUntil([&] {
    return world->state("one") == JobState::kRunning && world->state("two") == JobState::kRunning;
  }));
  EXPECT_TRUE(world->violations().empty()) << world->violations().front();
}

// ---- placement

TEST(Placement, PacksByNodeWithConsecutiveRanks) {
  const std::vector<Room> rooms = {{"a", 2, 100}, {"b", 4, 100}, {"c", 3, 100}};
  EXPECT_EQ(*Place(3, 0, rooms), (Placement{{"c", 0, 0, 3}})) << "best fit";
  EXPECT_EQ(*Place(6, 0, rooms), (Placement{{"b", 0, 0, 4}, {"a", 1, 4, 2}})) << "fewest nodes";
  EXPECT_EQ(*Place(9, 0, rooms), (Placement{{"b", 0, 0, 4}, {"c", 1, 4, 3}, {"a", 2, 7, 2}}));
  EXPECT_FALSE(Place(10, 0, rooms));
  EXPECT_FALSE(Place(0, 0, rooms));
  EXPECT_EQ(RanksThatFit({"a", 4, 100}, 40), 2u) << "staging memory counts";
  EXPECT_FALSE(Place(7, 50, rooms));
}

}  // namespace
}  // namespace ckpt::core
