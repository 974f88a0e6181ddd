#include "libckpt/comm/local/local_comm.h"

#include <thread>

#include "libckpt/comm/registry.h"
#include "libckpt/testing/comm_conformance.h"

namespace ckpt::testing {
namespace {

using comm::LocalCommunicator;
using comm::LocalKeyValue;
using comm::Registry;

Deadline Soon() { return Deadline("test", std::chrono::seconds(60)); }

INSTANTIATE_TEST_SUITE_P(Local, CommConformance,
                         ::testing::Values(CommMaker{"local", [](uint32_t rank, uint32_t world) {
                                                       return std::make_unique<LocalCommunicator>(
                                                           "world", rank, world);
                                                     }}));

template <typename Body>
void OnThreads(uint32_t count, Body body) {
  std::vector<std::thread> threads;
  for (uint32_t r = 0; r < count; ++r) threads.emplace_back([&body, r] { body(r); });
  for (std::thread& thread : threads) thread.join();
}

TEST(LocalCommunicator, SumsInRankOrder) {
  constexpr uint32_t kWorld = 4;
  LocalKeyValue kv;
  std::vector<std::vector<double>> results(kWorld);
  OnThreads(kWorld, [&](uint32_t r) {
    LocalCommunicator comm("sum", r, kWorld);
    ASSERT_TRUE(comm.Up("sum-1", &kv, Soon()).ok());
    for (int i = 0; i < 50; ++i) {
      std::vector<double> values{1e16 * (r == 0), 1.0 + r, -1e16 * (r == 3) + i};
      ASSERT_TRUE(comm.AllReduceSum(values, Soon()).ok());
      results[r].insert(results[r].end(), values.begin(), values.end());
    }
    ASSERT_TRUE(comm.Barrier(Soon()).ok());
  });
  EXPECT_EQ(results[0][1], 10.0);
  for (uint32_t r = 1; r < kWorld; ++r) EXPECT_EQ(results[r], results[0]);
}

TEST(LocalCommunicator, NamesWhoIsMissingAndAbortsTheOthers) {
  LocalKeyValue kv;
  std::vector<Status> statuses(2);
  std::vector<std::unique_ptr<LocalCommunicator>> comms;
  for (uint32_t r = 0; r < 3; ++r) comms.push_back(std::make_unique<LocalCommunicator>("c", r, 3));
  OnThreads(3, [&](uint32_t r) { ASSERT_TRUE(comms[r]->Up("missing-1", &kv, Soon()).ok()); });
  OnThreads(2, [&](uint32_t r) {
    const Deadline wait = r == 0 ? Deadline("gradient", std::chrono::milliseconds(100)) : Soon();
    statuses[r] = comms[r]->Barrier(wait);
  });
  EXPECT_EQ(statuses[0].code(), Code::kDeadlineExceeded);
  EXPECT_NE(statuses[0].message().find("rank 2"), std::string::npos) << statuses[0].ToString();
  EXPECT_NE(statuses[0].message().find("gradient"), std::string::npos);
  EXPECT_EQ(statuses[1].code(), Code::kAborted) << statuses[1].ToString();
  EXPECT_EQ(comms[2]->Barrier(Soon()).code(), Code::kAborted);
}

TEST(LocalCommunicator, QuiesceWaitsForWhatIsInFlight) {
  LocalKeyValue kv;
  LocalCommunicator left("c", 0, 2), right("c", 1, 2);
  OnThreads(2, [&](uint32_t r) {
    ASSERT_TRUE((r == 0 ? left : right).Up("quiesce-1", &kv, Soon()).ok());
  });
  std::thread waiting([&] { EXPECT_TRUE(left.Barrier(Soon()).ok()); });
  while (left.in_flight() == 0) std::this_thread::yield();
  EXPECT_EQ(left.Quiesce(Deadline("q", std::chrono::milliseconds(20))).code(),
            Code::kDeadlineExceeded);
  std::thread quiescing([&] { EXPECT_TRUE(left.Quiesce(Soon()).ok()); });
  EXPECT_TRUE(right.Barrier(Soon()).ok());
  waiting.join();
  quiescing.join();
  EXPECT_EQ(left.Barrier(Soon()).code(), Code::kFailedPrecondition);
}

// A communicator that writes down what is asked of it; it can be told to fail at a step.
class Recorder : public comm::Communicator {
 public:
  Recorder(std::string name, std::vector<std::string>* log) : name_(std::move(name)), log_(log) {}
  std::string name() const override { return name_; }
  Status Quiesce(const Deadline&) override { return Step("quiesce"); }
  Status Down(const Deadline&) override { return Step("down"); }
  Status Up(const std::string& id, comm::KeyValue* kv, const Deadline&) override {
    id_ = id;
    CKPT_RETURN_IF_ERROR(kv->Set("address", name_));
    return Step("up");
  }
  Status Verify(const Deadline&) override { return Step("verify"); }
  void FailAt(std::string step) { fail_at_ = std::move(step); }
  const std::string& id() const { return id_; }

 private:
  Status Step(const std::string& step) {
    log_->push_back(step + " " + name_);
    return step == fail_at_ ? Unavailable("told to fail") : OkStatus();
  }
  const std::string name_;
  std::vector<std::string>* log_;
  std::string fail_at_, id_;
};

class RegistryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (comm::Communicator* c : {&a_, &b_, &c_}) ASSERT_TRUE(registry_.Register(c).ok());
  }
  std::vector<std::string> Log() { return std::exchange(log_, {}); }
  std::vector<std::string> log_;
  Recorder a_{"a", &log_}, b_{"b", &log_}, c_{"c", &log_};
  Registry registry_;
};
using Strings = std::vector<std::string>;

TEST_F(RegistryTest, GoesUpInOrderAndDownInReverse) {
  LocalKeyValue kv;
  ASSERT_TRUE(registry_.UpAll("id1", &kv, Soon()).ok());
  EXPECT_EQ(Log(), (Strings{"up a", "up b", "up c"}));
  EXPECT_EQ(b_.id(), "id1/b");
  EXPECT_EQ(kv.Wait("b/address", Soon()).value(), "b");
  ASSERT_TRUE(registry_.VerifyAll(Soon()).ok());
  ASSERT_TRUE(registry_.QuiesceAll(Soon()).ok());
  ASSERT_TRUE(registry_.DownAll(Soon()).ok());
  EXPECT_EQ(Log(), (Strings{"verify a", "verify b", "verify c", "quiesce a", "quiesce b",
                            "quiesce c", "down c", "down b", "down a"}));
  EXPECT_TRUE(registry_.all_down());
}

TEST_F(RegistryTest, StepsAreIdempotent) {
  LocalKeyValue kv;
  ASSERT_TRUE(registry_.DownAll(Soon()).ok());
  ASSERT_TRUE(registry_.QuiesceAll(Soon()).ok());
  EXPECT_EQ(Log(), Strings{});
  ASSERT_TRUE(registry_.UpAll("id", &kv, Soon()).ok());
  ASSERT_TRUE(registry_.UpAll("id", &kv, Soon()).ok());
  EXPECT_EQ(Log().size(), 3u);
  ASSERT_TRUE(registry_.DownAll(Soon()).ok());
  ASSERT_TRUE(registry_.DownAll(Soon()).ok());
  EXPECT_EQ(Log().size(), 3u);
}

TEST_F(RegistryTest, AFailedRebuildLeavesNothingUp) {
  LocalKeyValue kv, kv2;
  b_.FailAt("up");
  const Status status = registry_.UpAll("id", &kv, Soon());
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_NE(status.message().find("'b'"), std::string::npos) << status.ToString();
  EXPECT_EQ(Log(), (Strings{"up a", "up b", "down b", "down a"}));
  EXPECT_TRUE(registry_.all_down());
  b_.FailAt("");
  EXPECT_TRUE(registry_.UpAll("id2", &kv2, Soon()).ok());
  EXPECT_TRUE(registry_.all_up());
}

TEST_F(RegistryTest, DownGoesOnAfterAnError) {
  LocalKeyValue kv;
  ASSERT_TRUE(registry_.UpAll("id", &kv, Soon()).ok());
  Log();
  b_.FailAt("down");
  const Status status = registry_.DownAll(Soon());
  EXPECT_NE(status.message().find("'b'"), std::string::npos) << status.ToString();
  EXPECT_EQ(Log(), (Strings{"down c", "down b", "down a"}));
  b_.FailAt("");
  ASSERT_TRUE(registry_.DownAll(Soon()).ok());  // only what is still up
  EXPECT_EQ(Log(), Strings{"down b"});
}

TEST_F(RegistryTest, TheDeadlineNamesWhereTimeRanOut) {
  LocalKeyValue kv;
  ASSERT_TRUE(registry_.UpAll("id", &kv, Soon()).ok());
  const Deadline over("comms verified", Nanos(-1));
  const Status status = registry_.VerifyAll(over);
  EXPECT_EQ(status.code(), Code::kDeadlineExceeded);
  EXPECT_NE(status.message().find("'a'"), std::string::npos);
  EXPECT_NE(status.message().find("comms verified"), std::string::npos);
  EXPECT_TRUE(registry_.DownAll(over).ok());  // they abort at once
  EXPECT_TRUE(registry_.all_down());
}

TEST_F(RegistryTest, NamesAreUnique) {
  Recorder again("a", &log_);
  EXPECT_EQ(registry_.Register(&again).code(), Code::kAlreadyExists);
  ASSERT_TRUE(registry_.Unregister(&a_).ok());
  EXPECT_EQ(registry_.Unregister(&a_).code(), Code::kNotFound);
  EXPECT_TRUE(registry_.Register(&again).ok());
}

TEST_F(RegistryTest, VerifyFailsWhileSomethingIsDown) {
  const Status status = registry_.VerifyAll(Soon());
  EXPECT_EQ(status.code(), Code::kFailedPrecondition);
  EXPECT_NE(status.message().find("'a'"), std::string::npos);
}

}  // namespace
}  // namespace ckpt::testing
