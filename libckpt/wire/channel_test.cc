#include "libckpt/wire/channel.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "libckpt/os/memfd.h"
#include "libckpt/os/thread.h"

namespace ckpt::wire {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

Deadline Soon() { return Deadline("channel test", seconds(60)); }

TEST(Channel, FramesTravelWithTheirDescriptors) {
  auto [rank, run] = Channel::Pair().value();
  ASSERT_TRUE(rank.Send({1, Hello{.token = "t", .rank = 1, .world = 2}}, Soon()).ok());
  Incoming<Frame> hello = run.Receive(Soon()).value();
  EXPECT_EQ(std::get<Hello>(hello.frame.body).token, "t");
  EXPECT_TRUE(hello.fds.empty());

  os::Memfd page = os::Memfd::Create("page", 4096).value();
  const int fd = page.fd();
  ASSERT_TRUE(run.Send({hello.frame.request, Welcome{.epoch = 3}}, {&fd, 1}, Soon()).ok());
  Incoming<Frame> welcome = rank.Receive(Soon()).value();
  EXPECT_EQ(welcome.frame.request, 1u);
  ASSERT_EQ(welcome.fds.size(), 1u);
  EXPECT_EQ(os::Memfd::FromFd(std::move(welcome.fds[0]))->inode(), page.inode());

  EXPECT_FALSE(run.TryReceive()->incoming);
  EXPECT_EQ(run.Receive(Deadline("silence", milliseconds(1))).status().code(),
            Code::kDeadlineExceeded);
  rank.Close();
  EXPECT_TRUE(run.TryReceive()->closed);
  EXPECT_EQ(run.Receive(Soon()).status().code(), Code::kUnavailable);
}

TEST(Channel, GarbageIsAnError) {  // I2
  auto fds = os::UnixPair().value();
  Channel channel(std::move(fds.second));
  ASSERT_TRUE(*os::TrySend(fds.first.get(), AsBytes("garbage, not a frame")));
  EXPECT_EQ(channel.TryReceive().status().code(), Code::kDataLoss);
}

TEST(Channel, QueuedFramesLeaveInOrder) {  // I3
  auto [writer, reader] = Channel::Pair().value();
  constexpr uint32_t kCount = 300;
  const std::string big(40 * 1024, 'v');
  for (uint32_t i = 0; i < kCount; ++i) {
    os::Memfd memory = os::Memfd::Create("queued", 4096 * (i + 1)).value();
    std::vector<os::UniqueFd> fds;
    fds.push_back(std::move(memory).TakeFd());
    ASSERT_TRUE(writer.Queue({i, KvSet{.value = big}}, std::move(fds)).ok());
  }
  EXPECT_TRUE(writer.has_queued());
  EXPECT_FALSE(*writer.Flush());
  os::Thread flusher("flusher", [&writer = writer] {
    const Deadline deadline = Soon();
    while (!*writer.Flush()) {
      ASSERT_TRUE(os::WaitFd(writer.fd(), POLLOUT, deadline).ok());
    }
    EXPECT_TRUE(writer.Send({kCount, Bye{}}, deadline).ok());
  });
  for (uint32_t i = 0; i < kCount; ++i) {
    Result<Incoming<Frame>> in = reader.Receive(Soon());
    ASSERT_TRUE(in.ok()) << in.status().ToString();
    ASSERT_EQ(in->frame.request, i);
    ASSERT_EQ(in->fds.size(), 1u);
    EXPECT_TRUE(os::Memfd::FromFd(std::move(in->fds[0]), 4096 * (i + 1)).ok());
  }
  EXPECT_EQ(reader.Receive(Soon())->frame.request, kCount);
  flusher.Join();
}

TEST(Channel, AReaderThatStopsFillsTheQueueToItsBound) {
  auto [writer, reader] = Channel::Pair().value();
  Status status;
  size_t count = 0;
  while ((status = writer.Queue({0, KvSet{.value = std::string(1000, 'v')}})).ok()) {
    ASSERT_LT(++count, kChannelQueueMax + 10000);
  }
  EXPECT_EQ(status.code(), Code::kResourceExhausted);
  EXPECT_GE(count, kChannelQueueMax);
  reader.Close();
  EXPECT_EQ(writer.Flush().status().code(), Code::kUnavailable);
}

TEST(AgentChannel, AttachesMoreThanOneFrameOfDescriptors) {
  auto [run, agent] = AgentChannel::Pair().value();
  constexpr uint32_t kRegions = 40;
  std::vector<os::Memfd> regions;
  for (uint32_t i = 0; i < kRegions; ++i) {
    regions.push_back(os::Memfd::Create("region", 4096 * (i + 1)).value());
  }
  for (uint32_t first = 0; first < kRegions; first += kFrameFdsMax) {
    Attach attach{.job = "job", .epoch = 3, .pid = getpid()};
    std::vector<int> fds;
    const uint32_t end = std::min<uint32_t>(first + kFrameFdsMax, kRegions);
    for (uint32_t i = first; i < end; ++i) {
      attach.fds.push_back({AttachedKind::kStaging, i, i % 2, regions[i].bytes(), 0});
      fds.push_back(regions[i].fd());
    }
    attach.last = end == kRegions;
    ASSERT_TRUE(run.Send({0, attach}, fds, Soon()).ok());
  }
  uint32_t seen = 0;
  for (bool last = false; !last;) {
    Incoming<AgentFrame> in = agent.Receive(Soon()).value();
    const Attach& attach = std::get<Attach>(in.frame.body);
    ASSERT_EQ(in.fds.size(), AgentFrameFdCount(in.frame.body));
    for (size_t i = 0; i < in.fds.size(); ++i, ++seen) {
      EXPECT_EQ(attach.fds[i].rank, seen);
      EXPECT_TRUE(os::Memfd::FromFd(std::move(in.fds[i]), attach.fds[i].bytes).ok());
    }
    last = attach.last;
  }
  EXPECT_EQ(seen, kRegions);
}

// The memory outlives the process that made it, for whoever holds the descriptor.
TEST(Channel, MemoryOutlivesTheProcessThatSentIt) {
  auto fds = os::UnixPair().value();
  const pid_t pid = fork();
  if (pid == 0) {
    os::Memfd memory = os::Memfd::Create("child", 1 << 20).value();
    std::memcpy(memory.Map()->data() + 1000, "from the child", 14);
    Channel channel(std::move(fds.first));
    const int fd = memory.fd();
    const bool sent =
        channel.Send({0, Staging{.slot = 1, .bytes = 1 << 20}}, {&fd, 1}, Soon()).ok();
    _exit(sent ? 0 : 1);
  }
  fds.first.Reset();
  Channel channel(std::move(fds.second));
  Incoming<Frame> in = channel.Receive(Soon()).value();
  int status = 0;
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_EQ(status, 0);
  os::Memfd memory = os::Memfd::FromFd(std::move(in.fds.at(0)), 1 << 20).value();
  EXPECT_EQ(std::memcmp(memory.Map()->data() + 1000, "from the child", 14), 0);
  EXPECT_TRUE(channel.TryReceive()->closed);
}

}  // namespace
}  // namespace ckpt::wire
