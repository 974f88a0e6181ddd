#include "coordinator/run/gang_leader.h"

#include <gtest/gtest.h>
#include <signal.h>

#include "libckpt/storage/memory/memory_store.h"

namespace ckpt::run {
namespace {

constexpr auto kPatience = std::chrono::seconds(60);

// The leader of a gang of one node with one rank, whose node is this test.
class GangLeaderTest : public testing::Test {
 protected:
  GangLeaderTest() {
    services_.options.job = "t";
    services_.options.restarts_max = 1;
    services_.loop = loop_.get();
    services_.store_calls = &pool_;
    services_.store = storage::NewMemoryStore(storage::NewMemoryJob());
    services_.retention = std::make_shared<engine::Retention>(services_.store.get(), std::nullopt);
    leader_ = std::make_unique<GangLeader>(
        &services_, GangLeader::Host{
                        .send = [this](uint64_t, const GangMessage& m) { Heard(m); },
                        .close = [](uint64_t) {},
                        .changed = [] {},
                        .outcome = [this](int code, const std::string&) { outcome_ = code; },
                        .step = [] { return int64_t{0}; },
                    });
    leader_->Start();
  }
  ~GangLeaderTest() override { leader_.reset(); }

  void Heard(const GangMessage& m) {
    if (std::holds_alternative<StartMsg>(m.body)) started_ = m.launch;
    if (std::holds_alternative<PrepareMsg>(m.body)) prepared_ = m.launch;
  }
  void Join(uint32_t launch) {
    leader_->OnMessage(GangLeader::kSelf,
                       {launch, JoinMsg{.job = "t", .node_count = 1, .rank_count = 1}});
  }
  void Notice(gang::Request request, const std::string& source) {
    const NoticeMsg notice{.request = static_cast<uint32_t>(request), .source = source};
    leader_->OnMessage(GangLeader::kSelf, {launch_, notice});
  }
  void Say(gang::Msg fact) {
    fact.type = gang::MsgType::kFact;
    fact.number = ++facts_;
    leader_->OnMessage(GangLeader::kSelf, {launch_, MachineMsg{gang::Encode(fact)}});
  }
  void Crash() {
    Say({.rank = 0, .fact = gang::FactKind::kExited, .step = SIGKILL});
    Say({.fact = gang::FactKind::kReleased});
  }
  template <typename Condition>
  bool Until(Condition condition) {
    const Deadline deadline("a test of the gang's leader", kPatience);
    while (!condition() && !deadline.Expired()) EXPECT_TRUE(loop_->RunOnce(deadline).ok());
    return condition();
  }
  void RunFirst() {
    Join(0);
    ASSERT_TRUE(Until([&] { return started_ == 1; }));
    launch_ = 1;
  }

  std::unique_ptr<os::EventLoop> loop_ = os::EventLoop::Create().value();
  os::WorkerPool pool_{"test-store", 1, 64};
  Services services_;
  std::unique_ptr<GangLeader> leader_;
  uint32_t launch_ = 0, started_ = 0, prepared_ = 0;
  uint64_t facts_ = 0;
  std::optional<int> outcome_;
};

TEST_F(GangLeaderTest, ASaveBeforeTheRanksRunEndsNothing) {
  services_.options.node_count = 2;  // the other node is not there yet
  leader_->OnMessage(GangLeader::kSelf, {0, JoinMsg{.job = "t", .node_count = 2, .rank_count = 1}});
  Notice(gang::Request::kSave, "SIGUSR2");
  EXPECT_FALSE(outcome_);
  Notice(gang::Request::kSuspend, "SIGTERM");
  EXPECT_EQ(outcome_, 75);
}

TEST_F(GangLeaderTest, ACrashIsFollowedByARestart) {
  RunFirst();
  Crash();
  ASSERT_TRUE(Until([&] { return outcome_ || prepared_ == 2; }));
  EXPECT_FALSE(outcome_);
  Join(2);
  EXPECT_TRUE(Until([&] { return started_ == 2; }));
}

TEST_F(GangLeaderTest, ASaveBetweenCrashAndRestartEndsNothing) {
  RunFirst();
  Crash();
  ASSERT_TRUE(Until([&] { return prepared_ == 2; }));
  Notice(gang::Request::kSave, "SIGUSR2");
  Join(2);
  EXPECT_TRUE(Until([&] { return started_ == 2; }));
  EXPECT_FALSE(outcome_);
}

TEST_F(GangLeaderTest, AStopBetweenCrashAndRestartStartsNoRank) {
  RunFirst();
  Crash();
  ASSERT_TRUE(Until([&] { return prepared_ == 2; }));
  Notice(gang::Request::kSuspend, "SIGTERM");
  Join(2);
  ASSERT_TRUE(Until([&] { return outcome_.has_value(); }));
  EXPECT_EQ(outcome_, 1) << "a crash before the first save leaves nothing to go on from";
  EXPECT_EQ(started_, 1u);
}

TEST_F(GangLeaderTest, AStopAfterTheCrashIsSeenStartsNoRank) {
  RunFirst();
  Crash();
  Notice(gang::Request::kSuspend, "SIGTERM");  // the crash is known, the relaunch is not begun
  ASSERT_TRUE(Until([&] { return outcome_ || prepared_ == 2; }));
  EXPECT_EQ(outcome_, 1);
  EXPECT_EQ(prepared_, 0u);
}

// What it would have measured is not waited for without end.
TEST_F(GangLeaderTest, ANodeThatNeverComesBackDoesNotKeepTheLeader) {
  constexpr uint64_t kOther = 7;
  services_.options.node_count = 2;
  services_.options.member_grace = std::chrono::milliseconds(50);
  leader_->OnMessage(GangLeader::kSelf, {0, JoinMsg{.job = "t", .node_count = 2, .rank_count = 1}});
  leader_->OnMessage(kOther,
                     {0, JoinMsg{.job = "t", .node_rank = 1, .node_count = 2, .rank_count = 1}});
  ASSERT_TRUE(Until([&] { return started_ == 1; }));
  launch_ = 1;
  leader_->OnClosed(kOther);
  Say({.fact = gang::FactKind::kReleased});  // the ranks here are ended
  ASSERT_TRUE(Until([&] { return outcome_.has_value(); }));
  EXPECT_EQ(outcome_, 1);
}

}  // namespace
}  // namespace ckpt::run
