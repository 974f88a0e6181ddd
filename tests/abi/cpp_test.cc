// ckpt.hpp over the library as a program sees it.
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <ckpt/ckpt.hpp>
#include <fstream>
#include <limits>
#include <random>

namespace {

class CppTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* name :
         {"CKPT_RUN", "CKPT_JOB", "CKPT_STORE", "CKPT_SAVE_EVERY", "RANK", "WORLD_SIZE"}) {
      unsetenv(name);
    }
    char directory[] = "/tmp/ckpt-cpp-XXXXXX";
    ASSERT_NE(mkdtemp(directory), nullptr);
    options_.store = directory;
    options_.job = "cpp";
  }
  void TearDown() override { ASSERT_EQ(system(("rm -rf '" + options_.store + "'").c_str()), 0); }
  ckpt::Options options_;
};

struct Position {
  uint32_t shard, offset;
};

TEST_F(CppTest, EveryBoundVariableComesBackBitForBit) {
  std::vector<float> weights = {1.5f, -0.0f, 3e-39f};
  int64_t step = 12;
  int small = -7;
  double rate = 0.1, odd = std::numeric_limits<double>::quiet_NaN(), zero = -0.0, huge = 1e300;
  bool warm = true;
  std::string name = "tab\t quote\" back\\slash \x01 \xc3\xa9", raw("\0\xff", 2);
  Position position{3, 4};
  std::mt19937_64 random(5);
  random();

  const auto bind = [&](ckpt::State& state) {
    state.Tensor("weights", weights.data(), {3}, ckpt::Placement::kReplicated)
        .Value("step", &step)
        .Value("small", &small)
        .Value("rate", &rate)
        .Value("odd", &odd)
        .Value("zero", &zero)
        .Value("huge", &huge)
        .Value("warm", &warm)
        .Value("name", &name)
        .Blob("raw", &raw)
        .Blob("position", &position, ckpt::Scope::kRank)
        .Blob("random", &random);
  };
  const std::mt19937_64 random_before = random;
  {
    ckpt::State state;
    bind(state);
    ckpt::Session session(options_);
    session.Track(state);
    EXPECT_FALSE(session.Restore());
    step = 13;  // bound: read when staged
    ckpt::Save save = session.BeginSave(13);
    EXPECT_TRUE(save.Wait(ckpt::Level::kShared));
    EXPECT_EQ(save.level(), ckpt::Level::kShared);
    session.Close();
  }
  weights.assign(3, 9.0f);
  step = 0, small = 0, rate = 9, odd = 9, zero = 9, huge = 9, warm = false;
  name.clear(), raw.clear(), position = {0, 0}, random.seed(1);
  ckpt::State state;
  bind(state);
  ckpt::Session session(options_);
  session.Track(state);
  ASSERT_TRUE(session.Restore());
  EXPECT_EQ(weights[0], 1.5f);
  EXPECT_TRUE(std::signbit(weights[1]));
  EXPECT_EQ(weights[2], 3e-39f);
  EXPECT_EQ(step, 13);
  EXPECT_EQ(small, -7);
  EXPECT_EQ(rate, 0.1);
  EXPECT_TRUE(std::isnan(odd));
  EXPECT_TRUE(zero == 0 && std::signbit(zero));
  EXPECT_EQ(huge, 1e300);
  EXPECT_TRUE(warm);
  EXPECT_EQ(name, "tab\t quote\" back\\slash \x01 \xc3\xa9");
  EXPECT_EQ(raw, std::string("\0\xff", 2));
  EXPECT_EQ(position.shard, 3u);
  EXPECT_EQ(position.offset, 4u);
  EXPECT_EQ(random, random_before);
  EXPECT_EQ(session.Open("step:13")->Value("rate"), "0.1");
}

TEST_F(CppTest, FloatsAreSpelledAsTheFormatWants) {
  std::mt19937_64 random(7);
  double value = 0;
  ckpt::State state;
  state.Value("value", &value);  // the library refuses any other spelling
  for (int i = 0; i < 5000; ++i) {
    const uint64_t bits = random();
    std::memcpy(&value, &bits, sizeof value);
    if (i % 2 == 0) value = static_cast<double>(static_cast<int64_t>(bits >> 20)) / 1024;
    ASSERT_NO_THROW(state.Value("value" + std::to_string(i), &value)) << value;
    double back = 0;
    ckpt::internal::FromJson(ckpt::internal::ToJson(value), &back);
    ASSERT_EQ(std::memcmp(&back, &value, sizeof value), 0) << value;
  }
}

TEST_F(CppTest, SigtermStopsWith75) {
  std::vector<double> x(10, 1.0);
  int64_t step = 0;
  ckpt::State state;
  state.Tensor("x", x.data(), {10}).Value("step", &step);
  {
    ckpt::Session session(options_);
    session.Track(state);
    ckpt::Request request;
    while (!request.stop() && step < 100) {
      if (++step == 5) raise(SIGTERM);
      request = session.Step(step);
    }
    EXPECT_EQ(step, 5);
    EXPECT_EQ(session.exit_code(), 75);
    session.Close();
  }
  step = 0;
  ckpt::Session session(options_);
  session.Track(state);
  EXPECT_TRUE(session.Restore());
  EXPECT_EQ(step, 5);
  EXPECT_EQ(session.exit_code(), 0);
}

TEST_F(CppTest, ErrorsAreExceptionsButNotForTraining) {
  std::vector<double> x(10, 1.0);
  ckpt::State state;
  state.Tensor("x", x.data(), {10});
  EXPECT_THROW(state.Tensor("x", x.data(), {10}), ckpt::Error);
  options_.save_every = 1;
  std::vector<std::string> logged;
  options_.log = [&](int, const char* message) { logged.push_back(message); };
  ckpt::Session session(options_);
  EXPECT_THROW(session.Restore(), ckpt::Error);   // nothing tracked to load into
  const ckpt::Request request = session.Step(1);  // nothing tracked to save
  ASSERT_TRUE(request.error.has_value());
  EXPECT_EQ(request.error->code(), ckpt::ErrorCode::kFailedPrecondition);
  EXPECT_FALSE(request.stop());
  ASSERT_EQ(logged.size(), 1u) << "a loop that does not look at it is told as well";
  EXPECT_NE(logged[0].find("step 1: not saved, training goes on: FAILED_PRECONDITION"),
            std::string::npos)
      << logged[0];
  for (int step = 2; step < 20; ++step) session.Step(step);
  EXPECT_EQ(logged.size(), 1u) << "not at each step";
  try {
    session.Open("nonsense");
    FAIL() << "no exception";
  } catch (const ckpt::Error& error) {
    EXPECT_EQ(error.code(), ckpt::ErrorCode::kInvalidArgument);
    EXPECT_NE(std::string(error.what()).find("nonsense"), std::string::npos);
  }
}

uint64_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  uint64_t total = 0, resident = 0;
  statm >> total >> resident;
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

// By options, and by the environment for what the options leave open; PINNED keeps its checkpoint.
TEST_F(CppTest, OldCheckpointsGoAfterEachSave) {
  std::vector<float> weights(1000, 1.0f);
  setenv("CKPT_KEEP_EVERY", "4", 1);
  options_.keep_last = 2;
  {
    ckpt::State state;
    state.Tensor("weights", weights.data(), {weights.size()}, ckpt::Placement::kReplicated);
    ckpt::Session session(options_);
    session.Track(state);
    for (int64_t step = 1; step <= 7; ++step) {
      ckpt::Save save = session.BeginSave(step);
      EXPECT_TRUE(save.Wait(ckpt::Level::kShared));
      if (step == 2) std::ofstream(options_.store + "/s2.e1.a2/PINNED") << "the baseline";
    }
    session.Close();  // waits for what is being removed
  }
  unsetenv("CKPT_KEEP_EVERY");
  std::vector<int64_t> steps;
  for (int64_t step = 1; step <= 7; ++step) {
    const std::string name = std::to_string(step) + ".e1.a" + std::to_string(step);
    if (access((options_.store + "/s" + name + "/COMMIT").c_str(), F_OK) == 0)
      steps.push_back(step);
  }
  EXPECT_EQ(steps, (std::vector<int64_t>{2, 4, 6, 7}));
  options_.keep_last = 0;
  options_.keep_hours = 24;  // without the newest n
  EXPECT_THROW(ckpt::Session{options_}, ckpt::Error);
}

TEST_F(CppTest, SavesDoNotMakeTheProcessGrow) {
  std::vector<float> weights(4 << 20, 1.0f);  // 16 MiB
  ckpt::State state;
  state.Tensor("weights", weights.data(), {weights.size()});
  ckpt::Session session(options_);
  session.Track(state);
  uint64_t after_six = 0;
  for (int step = 1; step <= 18; ++step) {
    ckpt::Save save = session.BeginSave(step, /*overlap=*/step % 2 == 0, std::chrono::seconds(60));
    session.Fence();
    if (step % 6 == 0)
      save.Wait(ckpt::Level::kShared);  // what a writer holds meanwhile is given back
    if (step == 6) after_six = ResidentBytes();
  }
  EXPECT_LT(ResidentBytes(), after_six + weights.size());  // a quarter of one copy
  session.Close();
}

class Loopback : public ckpt::Communicator {
 public:
  std::string name() const override { return "loopback"; }
  void Quiesce(int64_t) override {}
  void Down(int64_t) override { ++downs; }
  void Up(const std::string& fresh_id, ckpt::KeyValue& kv, int64_t) override {
    id = fresh_id;
    if (fail) throw std::runtime_error("no network");
    kv.Set("big", std::string(10'000, 'x'));
    big = kv.Wait("big", std::chrono::seconds(1));
  }
  void Verify(int64_t) override {}
  std::string id, big;
  int downs = 0;
  bool fail = false;
};

TEST_F(CppTest, CommunicatorsComeUpAndGoDown) {
  ckpt::Session session(options_);
  Loopback loopback;
  {
    const ckpt::Registration registration = session.Register(loopback);
    EXPECT_FALSE(loopback.id.empty());
    EXPECT_EQ(loopback.big.size(), 10'000u);
  }
  EXPECT_EQ(loopback.downs, 1);
  loopback.fail = true;
  EXPECT_THROW(session.Register(loopback), ckpt::Error);
}

}  // namespace
