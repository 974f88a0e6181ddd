#include "coordinator/run/rank_server.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include "libckpt/base/log.h"

namespace ckpt::run {
namespace {

constexpr auto kPatience = std::chrono::seconds(30);

class RankServerTest : public testing::Test {
 protected:
  RankServerTest() {
    std::string path = testing::TempDir() + "rank-server-XXXXXX";
    dir_ = ::mkdtemp(path.data());
    server_ = RankServer::Listen(
                  loop_.get(),
                  {.socket_path = dir_ + "/s",
                   .job = "t",
                   .token = "secret",
                   .first_rank = 0,
                   .rank_count = 1,
                   .world = 1},
                  {.hello = [this](uint32_t, uint32_t, const wire::Hello&) { welcomed_ = true; },
                   .frame = [](uint32_t, const wire::Frame&, const std::vector<os::UniqueFd>&) {},
                   .closed = [](uint32_t) {}})
                  .value();
  }
  ~RankServerTest() override {
    server_.reset();
    ::rmdir(dir_.c_str());
  }

  // What the server answers to these bytes.
  wire::Failed Refusal(std::string hello) {
    const Deadline deadline("a test of the rank socket", kPatience);
    os::UniqueFd socket = os::ConnectUnix(dir_ + "/s", deadline).value();
    EXPECT_TRUE(os::Send(socket.get(), AsBytes(hello), {}, deadline).ok());
    while (!deadline.Expired()) {
      EXPECT_TRUE(loop_->RunOnce(Deadline("a turn", std::chrono::milliseconds(20))).ok());
      Result<os::Receipt> receipt = os::TryReceive(socket.get());
      if (!receipt.ok() || receipt->closed) break;
      if (!receipt->datagram) continue;
      Result<wire::Frame> frame = wire::DecodeFrame(receipt->datagram->bytes);
      if (frame.ok() && std::holds_alternative<wire::Failed>(frame->body)) {
        return std::get<wire::Failed>(frame->body);
      }
    }
    ADD_FAILURE() << "no refusal";
    return {};
  }

  std::unique_ptr<os::EventLoop> loop_ = os::EventLoop::Create().value();
  std::string dir_;
  std::unique_ptr<RankServer> server_;
  bool welcomed_ = false;
};

const wire::Hello kHello{.token = "secret", .job = "t", .rank = 0, .world = 1};

TEST_F(RankServerTest, AFrameOfAnotherVersionIsRefusedWithBothAndTheWayOut) {
  std::string bytes = wire::EncodeFrame({1, kHello}).value();
  bytes[2] = 9;  // the version of the frame
  const wire::Failed failed = Refusal(bytes);
  EXPECT_NE(failed.message.find("version 9"), std::string::npos) << failed.message;
  EXPECT_NE(failed.message.find("version 1"), std::string::npos) << failed.message;
  EXPECT_NE(failed.message.find("install"), std::string::npos) << failed.message;
  EXPECT_FALSE(welcomed_);
}

TEST_F(RankServerTest, VersionsThatDoNotOverlapAreRefusedWithBothAndTheWayOut) {
  wire::Hello hello = kHello;
  hello.version_min = 2;
  hello.version_max = 3;
  const wire::Failed failed = Refusal(wire::EncodeFrame({1, hello}).value());
  EXPECT_NE(failed.message.find("2 to 3"), std::string::npos) << failed.message;
  EXPECT_NE(failed.message.find("install"), std::string::npos) << failed.message;
  EXPECT_FALSE(welcomed_);
}

// The rank waits in the queue of the socket; nobody turns round and round for it.
TEST_F(RankServerTest, WithoutADescriptorAConnectionWaitsUntilThereIsOne) {
  const Deadline deadline("a test of the rank socket", kPatience);
  os::UniqueFd socket = os::ConnectUnix(dir_ + "/s", deadline).value();
  const std::string hello = wire::EncodeFrame({1, kHello}).value();
  ASSERT_TRUE(os::Send(socket.get(), AsBytes(hello), {}, deadline).ok());
  int warnings = 0;
  SetLogSink([&](LogLevel, std::string_view text) {
    if (text.find("has to wait") != std::string_view::npos) ++warnings;
  });
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{static_cast<rlim_t>(socket.get()) + 1, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  for (int turn = 0; turn < 10; ++turn) {
    EXPECT_TRUE(loop_->RunOnce(Deadline("a turn", std::chrono::milliseconds(10))).ok());
  }
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(warnings, 1);
  EXPECT_FALSE(welcomed_);
  while (!welcomed_ && !deadline.Expired()) {
    EXPECT_TRUE(loop_->RunOnce(Deadline("a turn", std::chrono::milliseconds(100))).ok());
  }
  SetLogSink(nullptr);
  EXPECT_TRUE(welcomed_);
}

}  // namespace
}  // namespace ckpt::run
