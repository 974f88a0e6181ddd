// The data connection: from one holder to another, whole or not at all.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstring>

#include "coordinator/agent/data_client.h"
#include "coordinator/agent/data_server.h"
#include "coordinator/agent/testing/region.h"
#include "libckpt/base/log.h"

namespace ckpt::agent {
namespace {

constexpr AttemptId kId{Epoch(3), Step(120), Attempt(2)};
constexpr uint64_t kTensorBytes = 9 << 20;  // three chunks

class DataTest : public testing::Test {
 protected:
  void SetUp() override {
    server_ = DataServer::Start("127.0.0.1", &held_).value();
    server_->SetToken("token");
    for (uint32_t rank = 0; rank < 3; ++rank) {
      Hold(rank, 0, kId);
      Hold(rank, 1, {Epoch(3), Step(60), Attempt(1)});
    }
  }
  void Hold(uint32_t rank, uint32_t slot, const AttemptId& id,
            engine::GenerationState state = engine::GenerationState::kGangComplete) {
    TestRegion region{
        .rank = rank, .world = 3, .id = id, .tensor_bytes = kTensorBytes, .state = state};
    Result<os::Memfd> memory = MakeTestRegion(region);
    ASSERT_TRUE(memory.ok()) << memory.status().ToString();
    held_.Put({{"job", id.epoch.value(), rank, slot}, std::move(*memory), false});
  }
  FetchPlan Plan() const {
    return {.from = server_->address().ToString(),
            .token = "token",
            .job = "job",
            .epoch = 3,
            .attempt = 2,
            .ranks = {0, 1, 2},
            .reserve = [](uint64_t) { return OkStatus(); }};
  }
  Status Fetch(const FetchPlan& plan) { return FetchGeneration(plan, &progress_).status(); }

  HeldCopies held_;
  std::unique_ptr<DataServer> server_;
  FetchProgress progress_;
};

TEST_F(DataTest, ArrivesBitForBit) {
  Result<std::vector<HeldRegion>> regions = FetchGeneration(Plan(), &progress_);
  ASSERT_TRUE(regions.ok()) << regions.status().ToString();
  ASSERT_EQ(regions->size(), 3u);
  for (const HeldRegion& region : *regions) {
    EXPECT_TRUE(region.fetched);
    EXPECT_EQ(region.key.epoch, 3u);
    const HeldCopies::Whole source = held_.Find("job", 3, 2, region.key.rank).value();
    ASSERT_EQ(region.memory.bytes(), source.memory.bytes());
    EXPECT_NE(region.memory.inode(), source.memory.inode());
    const os::Mapping a = region.memory.Map().value(), b = source.memory.Map().value();
    EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size()), 0);
  }
  EXPECT_EQ(progress_.bytes_done, progress_.bytes_total);
}

TEST_F(DataTest, TheEmptyRoomForValuesIsNotSent) {
  FetchPlan plan = Plan();
  plan.ranks = {0};
  Result<std::vector<HeldRegion>> regions = FetchGeneration(plan, &progress_);
  ASSERT_TRUE(regions.ok()) << regions.status().ToString();
  const os::Memfd& memory = regions->front().memory;
  constexpr uint64_t kNeeded = kTensorBytes + (uint64_t{4} << 20) * 3;  // by whole chunks
  EXPECT_GE(memory.bytes(), kTensorBytes + kValueBytesMax);
  EXPECT_LE(progress_.bytes_done, kNeeded);
  struct stat st;
  ASSERT_EQ(fstat(memory.fd(), &st), 0);
  EXPECT_LE(static_cast<uint64_t>(st.st_blocks) * 512, kNeeded);
}

TEST_F(DataTest, AttemptZeroIsTheNewestAndOneForAll) {
  FetchPlan plan = Plan();
  plan.attempt = 0;
  Result<std::vector<HeldRegion>> regions = FetchGeneration(plan, &progress_);
  ASSERT_TRUE(regions.ok());
  for (const HeldRegion& region : *regions) {
    EXPECT_EQ(InspectRegion(region.memory)->id, kId);
  }
}

TEST_F(DataTest, RefusalsSayWhy) {
  FetchPlan plan = Plan();
  plan.token = "guess";
  EXPECT_EQ(Fetch(plan).code(), Code::kUnauthenticated);
  server_->SetToken("");
  plan.token = "";
  EXPECT_EQ(Fetch(plan).code(), Code::kUnauthenticated) << "no token is nobody's token";
  server_->SetToken("token");

  plan = Plan();
  plan.ranks = {0, 7};
  const Status missing = Fetch(plan);
  EXPECT_EQ(missing.code(), Code::kNotFound);
  EXPECT_NE(missing.message().find("rank 7"), std::string::npos) << missing.ToString();
  EXPECT_NE(missing.message().find("s120.e3.a2"), std::string::npos) << "what is held instead";
  plan = Plan();
  plan.job = "other";
  EXPECT_EQ(Fetch(plan).code(), Code::kNotFound);
  plan = Plan();
  uint64_t asked = 0;
  plan.reserve = [&](uint64_t bytes) {
    asked += bytes;
    return ResourceExhausted("none is free");
  };
  EXPECT_EQ(Fetch(plan).code(), Code::kResourceExhausted);
  EXPECT_EQ(asked, held_.UsedBytes() / 2) << "once, for all ranks of one attempt";
  EXPECT_EQ(progress_.bytes_done, 0u);
  plan = Plan();
  plan.ranks.clear();
  EXPECT_EQ(Fetch(plan).code(), Code::kInvalidArgument);
  plan = Plan();
  plan.from = "127.0.0.1:" + std::to_string(os::PickFreePort("127.0.0.1").value());
  EXPECT_EQ(Fetch(plan).code(), Code::kUnavailable);
}

TEST_F(DataTest, WhatIsBeingFilledIsNotServed) {
  Hold(0, 0, kId, engine::GenerationState::kFilling);
  EXPECT_EQ(Fetch(Plan()).code(), Code::kNotFound);
}

TEST_F(DataTest, MoreThanOneFetchAtATime) {
  std::vector<Status> results(4);
  {
    std::vector<os::Thread> threads;
    for (Status& result : results) {
      threads.emplace_back("fetch", [&] {
        FetchProgress progress;
        result = FetchGeneration(Plan(), &progress).status();
      });
    }
  }
  for (const Status& result : results) EXPECT_TRUE(result.ok()) << result.ToString();
}

// Passes bytes between a client and the server, and flips one on the way.
class DamagingProxy {
 public:
  DamagingProxy(os::HostPort server, uint64_t damaged_offset)
      : server_(std::move(server)), damaged_offset_(damaged_offset) {
    listener_ = os::ListenTcp({"127.0.0.1", 0}).value();
    address_ = os::LocalAddress(listener_.get()).value();
    acceptor_ = os::Thread("proxy", [this] { Accept(); });
  }
  ~DamagingProxy() {
    stop_ = true;
    acceptor_.Join();
    pairs_.clear();
  }
  std::string address() const { return address_.ToString(); }
  int damaged() const { return damaged_; }

 private:
  void Accept() {
    while (!stop_) {
      auto client = os::Accept(listener_.get(), Deadline("client", std::chrono::milliseconds(50)));
      if (!client.ok()) continue;
      auto pair = std::make_unique<os::Thread>(
          "pair", [this, fd = std::make_shared<os::UniqueFd>(std::move(*client))] {
            const Deadline deadline("proxy", std::chrono::seconds(60));
            os::UniqueFd server = os::ConnectTcp(server_, deadline).value();
            Pump(fd->get(), server.get());
          });
      pairs_.push_back(std::move(pair));
    }
  }
  void Pump(int client, int server) {
    uint64_t seen = 0;
    std::byte byte_buffer[65536];
    while (!stop_) {
      pollfd fds[2] = {{client, POLLIN, 0}, {server, POLLIN, 0}};
      if (poll(fds, 2, 50) <= 0) continue;
      for (int i = 0; i < 2; ++i) {
        if (fds[i].revents == 0) continue;
        const ssize_t n = read(fds[i].fd, byte_buffer, sizeof byte_buffer);
        if (n <= 0) return;
        const auto size = static_cast<size_t>(n);
        if (i == 1) {
          if (seen <= damaged_offset_ && damaged_offset_ < seen + size) {
            byte_buffer[damaged_offset_ - seen] ^= std::byte{1};
            ++damaged_;
          }
          seen += size;
        }
        const Deadline deadline("proxy", std::chrono::seconds(60));
        if (!os::SendAll(fds[1 - i].fd, std::span(byte_buffer, size), deadline).ok()) return;
      }
    }
  }

  const os::HostPort server_;
  const uint64_t damaged_offset_;
  os::UniqueFd listener_;
  os::HostPort address_;
  std::atomic<bool> stop_{false};
  std::atomic<int> damaged_{0};
  os::Thread acceptor_;
  std::vector<std::unique_ptr<os::Thread>> pairs_;
};

TEST_F(DataTest, DamageInFlightIsAnErrorNamingWhere) {
  // In the first chunk (behind 60 bytes of hello and answer), in its digest, in a later one.
  for (const uint64_t offset :
       {uint64_t{64}, uint64_t{300'000}, (uint64_t{4} << 20) + 66, uint64_t{5} << 20}) {
    DamagingProxy proxy(server_->address(), offset);
    FetchPlan plan = Plan();
    plan.from = proxy.address();
    plan.connection_count = 1;
    plan.ranks = {0};
    FetchProgress progress;
    const Status status = FetchGeneration(plan, &progress).status();
    EXPECT_GT(proxy.damaged(), 0);
    EXPECT_EQ(status.code(), Code::kDataLoss) << status.ToString();
    EXPECT_NE(status.message().find("arrived damaged"), std::string::npos) << status.ToString();
  }
}

TEST_F(DataTest, WhoSpeaksAnotherVersionIsToldSo) {
  const Deadline deadline("a test of the data server", std::chrono::seconds(60));
  const os::UniqueFd client = os::ConnectTcp(server_->address(), deadline).value();
  ASSERT_TRUE(SendMessage(client.get(), "CKPDATA1 token", deadline).ok());
  const Result<std::string> answer = ReceiveMessage(client.get(), deadline);
  ASSERT_TRUE(answer.ok()) << answer.status().ToString();
  const Status told = DecodeStatus(*answer);
  EXPECT_EQ(told.code(), Code::kFailedPrecondition);
  EXPECT_NE(told.message().find("upgrade both"), std::string::npos) << told.ToString();
}

// It waits in the queue of the socket; nobody turns round and round for it.
TEST_F(DataTest, WithoutADescriptorAConnectionWaitsUntilThereIsOne) {
  static std::atomic<int> warnings;  // the sink may outlive a test that fails
  warnings = 0;
  SetLogSink([](LogLevel, std::string_view text) {
    if (text.find("has to wait") != std::string_view::npos) ++warnings;
  });
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const int lowest = ::dup(0);
  ASSERT_EQ(::close(lowest), 0);
  const rlimit one{static_cast<rlim_t>(lowest) + 1, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &one), 0);
  const Deadline deadline("a test of the data server", std::chrono::seconds(60));
  os::UniqueFd client = os::ConnectTcp(server_->address(), deadline).value();
  ASSERT_EQ(client.get(), lowest);
  while (warnings == 0 && !deadline.Expired()) ::poll(nullptr, 0, 10);
  ::poll(nullptr, 0, 200);
  EXPECT_EQ(warnings, 1);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_TRUE(Fetch(Plan()).ok());
  SetLogSink(nullptr);
}

TEST_F(DataTest, WithoutADescriptorAServerStillEnds) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const int lowest = ::dup(0);
  ASSERT_EQ(::close(lowest), 0);
  const rlimit one{static_cast<rlim_t>(lowest) + 1, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &one), 0);
  const Deadline deadline("a test of the data server", std::chrono::seconds(60));
  const os::UniqueFd client = os::ConnectTcp(server_->address(), deadline).value();
  server_.reset();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_FALSE(Fetch({.from = "127.0.0.1:1", .token = "token", .job = "job"}).ok());
}

TEST_F(DataTest, ServerThatGoesAwayEndsTheFetch) {
  FetchPlan plan = Plan();
  os::Thread stopper("stopper", [&] { server_.reset(); });
  const Status status = Fetch(plan);
  stopper.Join();
  EXPECT_TRUE(status.ok() || status.code() == Code::kUnavailable) << status.ToString();
}

TEST_F(DataTest, MessagesFromOutsideAreChecked) {
  EXPECT_EQ(DecodeHello("CKPDATA1").status().code(), Code::kDataLoss);
  EXPECT_EQ(*DecodeHello(EncodeHello("t")), "t");
  const std::string request = EncodeRequest({DataRequestKind::kRead, "job", 1, 2, 3, 4, 5});
  EXPECT_TRUE(DecodeRequest(request).ok());
  for (size_t size = 0; size < request.size(); ++size) {
    EXPECT_FALSE(DecodeRequest(std::string_view(request).substr(0, size)).ok());
  }
  EXPECT_FALSE(DecodeRequest(request + "x").ok());
  const std::string answer = EncodeAnswer({NotFound("nothing"), 7, kId});
  EXPECT_EQ(DecodeAnswer(answer)->status.message(), "nothing");
  EXPECT_EQ(DecodeAnswer(answer)->id, kId);
  for (size_t size = 0; size < answer.size(); ++size) {
    EXPECT_FALSE(DecodeAnswer(std::string_view(answer).substr(0, size)).ok());
  }
  EXPECT_EQ(DecodeStatus("").code(), Code::kDataLoss);
  EXPECT_TRUE(DecodeStatus(EncodeStatus(OkStatus())).ok());
}

TEST(HeldCopies, MemoryIsCountedOnce) {  // I1
  HeldCopies held;
  os::Memfd memory = MakeTestRegion({.id = kId}).value();
  const uint64_t bytes = memory.bytes();
  held.Put({{"job", 3, 0, 0}, memory.Dup().value(), false});
  held.Put({{"job", 4, 0, 0}, memory.Dup().value(), false});
  EXPECT_EQ(held.UsedBytes(), bytes);
  EXPECT_EQ(held.UsedBytes("job"), bytes);
  EXPECT_EQ(held.UsedBytes("other"), 0u);
  EXPECT_EQ(held.WholeOf("job").size(), 1u);
  EXPECT_EQ(held.DropEpoch("job", 3), 0u) << "epoch 4 still holds it";
  EXPECT_EQ(held.DropEpoch("job", 4), bytes);
  EXPECT_EQ(held.UsedBytes(), 0u);
}

TEST(HeldCopies, GarbageIsNoCopy) {  // I2
  HeldCopies held;
  os::Memfd garbage = os::Memfd::Create("garbage", 1 << 20).value();
  std::memset(garbage.Map()->data(), 0x5a, 1 << 20);
  held.Put({{"job", 3, 0, 0}, std::move(garbage), false});
  EXPECT_TRUE(held.WholeOf("job").empty());
  EXPECT_EQ(held.Find("job", 0, 0, 0).status().code(), Code::kNotFound);
}

}  // namespace
}  // namespace ckpt::agent
