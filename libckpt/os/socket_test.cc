#include "libckpt/os/socket.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstring>

#include "libckpt/os/file.h"
#include "libckpt/os/memfd.h"
#include "libckpt/os/thread.h"

namespace ckpt::os {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

Deadline Soon() { return Deadline("socket test", seconds(60)); }

size_t OpenFdCount() { return PosixFileSystem().List("/proc/self/fd")->size(); }

class UnixTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string path = "/tmp/ckpt-socket-XXXXXX";
    ASSERT_NE(mkdtemp(path.data()), nullptr);
    dir_ = path;
  }
  void TearDown() override { EXPECT_TRUE(PosixFileSystem().RemoveTree(dir_).ok()); }
  std::string dir_;
};

TEST_F(UnixTest, ListensConnectsAndNamesThePeer) {
  const std::string path = dir_ + "/s";
  EXPECT_EQ(ConnectUnix(path, Soon()).status().code(), Code::kNotFound);
  Result<UniqueFd> listener = ListenUnix(path);
  ASSERT_TRUE(listener.ok()) << listener.status().ToString();
  EXPECT_EQ(PosixFileSystem().Stat(path)->mode, 0600u);
  EXPECT_FALSE(TryAccept(listener->get())->has_value());
  Result<UniqueFd> client = ConnectUnix(path, Soon());
  ASSERT_TRUE(client.ok());
  Result<UniqueFd> server = Accept(listener->get(), Soon());
  ASSERT_TRUE(server.ok());
  const Result<PeerCredentials> peer = GetPeerCredentials(server->get());
  ASSERT_TRUE(peer.ok());
  EXPECT_EQ(peer->pid, getpid());
  EXPECT_EQ(peer->uid, getuid());
  EXPECT_EQ(ListenUnix(path).status().code(), Code::kAlreadyExists) << "somebody listens";
  listener->Reset();
  EXPECT_EQ(ConnectUnix(path, Soon()).status().code(), Code::kUnavailable);
  EXPECT_TRUE(ListenUnix(path).ok()) << "a dead socket file is replaced";
}

TEST_F(UnixTest, PathsThatDoNotFitAreRefusedClearly) {
  const std::string path = dir_ + "/" + std::string(120, 'x');
  const Status status = ListenUnix(path).status();
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_NE(status.message().find("107"), std::string::npos) << status.ToString();
  EXPECT_EQ(ConnectUnix(path, Soon()).status().code(), Code::kInvalidArgument);
  ASSERT_TRUE(WriteNewFile(PosixFileSystem(), dir_ + "/f", "").ok());
  EXPECT_EQ(ListenUnix(dir_ + "/f").status().code(), Code::kAlreadyExists);
  EXPECT_TRUE(*Exists(PosixFileSystem(), dir_ + "/f"));
}

TEST(Datagrams, CarryDescriptorsAndKeepTheirBorders) {
  auto pair = UnixPair();
  ASSERT_TRUE(pair.ok());
  Result<Memfd> memory = Memfd::Create("sent", 4096);
  ASSERT_TRUE(memory.ok());
  const int fd = memory->fd();
  ASSERT_TRUE(*TrySend(pair->first.get(), AsBytes("one"), std::span(&fd, 1)));
  ASSERT_TRUE(*TrySend(pair->first.get(), AsBytes("two")));
  Result<Datagram> one = Receive(pair->second.get(), Soon());
  ASSERT_TRUE(one.ok());
  EXPECT_EQ(one->bytes, "one");
  ASSERT_EQ(one->fds.size(), 1u);
  EXPECT_EQ(fcntl(one->fds[0].get(), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
  EXPECT_EQ(Memfd::FromFd(std::move(one->fds[0]))->inode(), memory->inode());
  EXPECT_EQ(Receive(pair->second.get(), Soon())->bytes, "two");
  Result<Receipt> nothing = TryReceive(pair->second.get());
  ASSERT_TRUE(nothing.ok());
  EXPECT_FALSE(nothing->closed || nothing->datagram);
  EXPECT_EQ(Receive(pair->second.get(), Deadline("nobody sends", milliseconds(1))).status().code(),
            Code::kDeadlineExceeded);
  pair->first.Reset();
  EXPECT_TRUE(TryReceive(pair->second.get())->closed);
  EXPECT_EQ(Receive(pair->second.get(), Soon()).status().code(), Code::kUnavailable);
  EXPECT_EQ(TrySend(pair->second.get(), AsBytes("x")).status().code(), Code::kUnavailable);
}

TEST(Datagrams, BoundsAreHeldOnBothSides) {
  auto pair = UnixPair();
  ASSERT_TRUE(pair.ok());
  const std::string big(kFrameBytesMax, 'b');
  EXPECT_EQ(TrySend(pair->first.get(), AsBytes(big + "x")).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(TrySend(pair->first.get(), {}).status().code(), Code::kInvalidArgument);
  std::vector<int> fds(kFrameFdsMax + 1, pair->second.get());
  EXPECT_EQ(TrySend(pair->first.get(), AsBytes("x"), fds).status().code(), Code::kInvalidArgument);
  EXPECT_TRUE(*TrySend(pair->first.get(), AsBytes(big)));
  EXPECT_EQ(Receive(pair->second.get(), Soon())->bytes, big);
  // Another program may send what ours would not.
  ASSERT_GT(send(pair->first.get(), (big + "x").data(), big.size() + 1, 0), 0);
  EXPECT_EQ(TryReceive(pair->second.get()).status().code(), Code::kDataLoss);
}

TEST(Datagrams, TooManyDescriptorsAreAllClosed) {
  auto pair = UnixPair();
  ASSERT_TRUE(pair.ok());
  const size_t before = OpenFdCount();
  constexpr size_t kCount = kFrameFdsMax + 20;
  std::vector<int> fds(kCount, pair->first.get());
  std::vector<char> control(CMSG_SPACE(sizeof(int) * kCount));
  char byte = 'x';
  iovec part{&byte, 1};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int) * kCount);
  std::memcpy(CMSG_DATA(header), fds.data(), sizeof(int) * kCount);
  ASSERT_EQ(sendmsg(pair->first.get(), &message, 0), 1);
  EXPECT_EQ(TryReceive(pair->second.get()).status().code(), Code::kDataLoss);
  EXPECT_EQ(OpenFdCount(), before);
}

TEST(Datagrams, AFullSocketSaysSoAndADeadlineEndsTheWait) {
  auto pair = UnixPair();
  ASSERT_TRUE(pair.ok());
  const std::string block(32 * 1024, 'x');
  int sent = 0;
  while (*TrySend(pair->first.get(), AsBytes(block))) ASSERT_LT(++sent, 10000);
  EXPECT_EQ(Send(pair->first.get(), AsBytes(block), {}, Deadline("full", milliseconds(5))).code(),
            Code::kDeadlineExceeded);
  for (int i = 0; i < sent; ++i) ASSERT_TRUE(Receive(pair->second.get(), Soon()).ok());
  EXPECT_TRUE(Send(pair->first.get(), AsBytes(block), {}, Soon()).ok());
}

TEST(HostPort, Parses) {
  EXPECT_EQ(ParseHostPort("localhost:80")->host, "localhost");
  EXPECT_EQ(ParseHostPort("[::1]:80")->host, "::1");
  EXPECT_EQ(ParseHostPort("[::1]:80")->ToString(), "[::1]:80");
  EXPECT_EQ(ParseHostPort(":0")->host, "");
  for (const char* bad : {"", "host", "host:", "host:x", "host:70000", "::1:80", "host:80x"}) {
    EXPECT_EQ(ParseHostPort(bad).status().code(), Code::kInvalidArgument) << bad;
  }
  EXPECT_TRUE(IsLoopbackHost("127.0.0.1"));
  EXPECT_TRUE(IsLoopbackHost("127.8.8.8"));
  EXPECT_TRUE(IsLoopbackHost("::1"));
  EXPECT_FALSE(IsLoopbackHost("0.0.0.0"));
  EXPECT_FALSE(IsLoopbackHost("10.0.0.1"));
  EXPECT_FALSE(IsLoopbackHost(""));
}

struct TcpPair {
  UniqueFd client, server;
};
TcpPair Connected() {
  const Result<UniqueFd> listener = ListenTcp({"127.0.0.1", 0});
  EXPECT_TRUE(listener.ok());
  const HostPort address = *LocalAddress(listener->get());
  EXPECT_NE(address.port, 0);
  TcpPair pair;
  pair.client = ConnectTcp(address, Soon()).value();
  pair.server = Accept(listener->get(), Soon()).value();
  return pair;
}

TEST(Tcp, MovesAllBytes) {
  TcpPair tcp = Connected();
  constexpr uint64_t kBytes = 8 << 20;
  std::vector<std::byte> source(kBytes);
  for (uint64_t i = 0; i < kBytes; ++i) source[i] = static_cast<std::byte>(i * 31 + i / 7);
  Thread sender("sender", [&] {
    EXPECT_TRUE(SendAll(tcp.server.get(), AsBytes("head"), Soon()).ok());
    EXPECT_TRUE(SendAll(tcp.server.get(), source, Soon()).ok());
    tcp.server.Reset();
  });
  std::string head(4, ' ');
  ASSERT_TRUE(RecvAll(tcp.client.get(), std::as_writable_bytes(std::span(head)), Soon()).ok());
  EXPECT_EQ(head, "head");
  std::vector<std::byte> got(kBytes);
  ASSERT_TRUE(RecvAll(tcp.client.get(), got, Soon()).ok());
  EXPECT_EQ(std::memcmp(got.data(), source.data(), kBytes), 0);
  EXPECT_EQ(RecvAll(tcp.client.get(), std::span(got).first(1), Soon()).code(), Code::kUnavailable);
  sender.Join();
}

TEST(Tcp, AVanishedPeerIsAnErrorNotASignal) {
  TcpPair tcp = Connected();
  const std::vector<std::byte> source(64 << 20);
  tcp.client.Reset();
  Status status;
  for (int i = 0; i < 100 && status.ok(); ++i) {
    status = SendAll(tcp.server.get(), source, Soon());
  }
  EXPECT_EQ(status.code(), Code::kUnavailable) << status.ToString();
  EXPECT_EQ(SendAll(tcp.server.get(), AsBytes("x"), Soon()).code(), Code::kUnavailable);
}

TEST(Tcp, ErrorsNameTheAddress) {
  const uint16_t port = *PickFreePort("127.0.0.1");
  const Status refused = ConnectTcp({"127.0.0.1", port}, Soon()).status();
  EXPECT_EQ(refused.code(), Code::kUnavailable);
  EXPECT_NE(refused.message().find(std::to_string(port)), std::string::npos);
  TcpPair tcp = Connected();
  std::byte byte;
  EXPECT_EQ(RecvAll(tcp.client.get(), {&byte, 1}, Deadline("silence", milliseconds(1))).code(),
            Code::kDeadlineExceeded);
}

}  // namespace
}  // namespace ckpt::os
