// Frames and their descriptors over a Unix SEQPACKET socket.
//
// I1  A frame arrives with exactly the descriptors it was sent with, or not at all.
// I2  A channel on which anything undecodable came is unusable: drop the peer.
// I3  Queued frames leave in order; nothing overtakes them.
#pragma once

#include <deque>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "libckpt/base/clock.h"
#include "libckpt/base/status.h"
#include "libckpt/os/socket.h"
#include "libckpt/wire/agent_frames.h"
#include "libckpt/wire/frames.h"

namespace ckpt::wire {

inline constexpr size_t kChannelQueueMax = 4096;  // frames that wait for a slow reader

// Datagrams with a queue for what the socket does not take at once.
class DatagramChannel {
 public:
  DatagramChannel() = default;
  explicit DatagramChannel(os::UniqueFd fd) : fd_(std::move(fd)) {}

  int fd() const { return fd_.get(); }
  bool valid() const { return fd_.valid(); }
  void Close() {
    fd_.Reset();
    queue_.clear();
  }

  Status Send(const std::string& bytes, std::span<const int> fds, const Deadline& deadline);
  Status Queue(std::string bytes, std::vector<os::UniqueFd> fds);
  // True once nothing is queued; false: wait for EPOLLOUT.
  Result<bool> Flush();
  bool has_queued() const { return !queue_.empty(); }
  Result<os::Receipt> TryReceive() { return os::TryReceive(fd_.get()); }
  Result<os::Datagram> Receive(const Deadline& deadline) {
    return os::Receive(fd_.get(), deadline);
  }

 private:
  os::UniqueFd fd_;
  std::deque<os::Datagram> queue_;
};

template <typename F>
struct Incoming {
  F frame;
  std::vector<os::UniqueFd> fds;
};

// What a non-blocking receive found.
template <typename F>
struct Polled {
  bool closed = false;                  // the peer is gone
  std::optional<Incoming<F>> incoming;  // neither: nothing waits
};

inline Result<std::string> Encode(const Frame& frame) { return EncodeFrame(frame); }
inline Result<std::string> Encode(const AgentFrame& frame) { return EncodeAgentFrame(frame); }
template <typename F>
Result<F> Decode(std::string_view datagram);
template <>
inline Result<Frame> Decode<Frame>(std::string_view datagram) {
  return DecodeFrame(datagram);
}
template <>
inline Result<AgentFrame> Decode<AgentFrame>(std::string_view datagram) {
  return DecodeAgentFrame(datagram);
}

// Threads: sending and receiving may be on two threads; each is for one thread at a time.
template <typename F>
class BasicChannel {
 public:
  BasicChannel() = default;
  explicit BasicChannel(os::UniqueFd fd) : raw_(std::move(fd)) {}

  static Result<BasicChannel> Connect(const std::string& path, const Deadline& deadline) {
    CKPT_ASSIGN_OR_RETURN(os::UniqueFd fd, os::ConnectUnix(path, deadline));
    return BasicChannel(std::move(fd));
  }
  static Result<std::pair<BasicChannel, BasicChannel>> Pair() {
    CKPT_ASSIGN_OR_RETURN(auto fds, os::UnixPair());
    return std::pair(BasicChannel(std::move(fds.first)), BasicChannel(std::move(fds.second)));
  }

  int fd() const { return raw_.fd(); }
  bool valid() const { return raw_.valid(); }
  void Close() { raw_.Close(); }

  // Blocks: until the socket takes it. The descriptors stay the caller's.
  Status Send(const F& frame, std::span<const int> fds, const Deadline& deadline) {
    CKPT_ASSIGN_OR_RETURN(const std::string bytes, Encode(frame));
    return raw_.Send(bytes, fds, deadline);
  }
  Status Send(const F& frame, const Deadline& deadline) { return Send(frame, {}, deadline); }

  // For event loops: sends now or keeps it for Flush. kResourceExhausted if kChannelQueueMax wait.
  Status Queue(const F& frame, std::vector<os::UniqueFd> fds = {}) {
    CKPT_ASSIGN_OR_RETURN(std::string bytes, Encode(frame));
    return raw_.Queue(std::move(bytes), std::move(fds));
  }
  Result<bool> Flush() { return raw_.Flush(); }
  bool has_queued() const { return raw_.has_queued(); }

  // kDataLoss for what is not a frame (I2), kUnavailable if the connection broke.
  Result<Polled<F>> TryReceive() {
    CKPT_ASSIGN_OR_RETURN(os::Receipt receipt, raw_.TryReceive());
    Polled<F> polled;
    polled.closed = receipt.closed;
    if (receipt.datagram) {
      CKPT_ASSIGN_OR_RETURN(F frame, Decode<F>(receipt.datagram->bytes));
      polled.incoming = Incoming<F>{std::move(frame), std::move(receipt.datagram->fds)};
    }
    return polled;
  }
  // kUnavailable if the peer closed.
  Result<Incoming<F>> Receive(const Deadline& deadline) {
    CKPT_ASSIGN_OR_RETURN(os::Datagram datagram, raw_.Receive(deadline));
    CKPT_ASSIGN_OR_RETURN(F frame, Decode<F>(datagram.bytes));
    return Incoming<F>{std::move(frame), std::move(datagram.fds)};
  }

 private:
  DatagramChannel raw_;
};

using Channel = BasicChannel<Frame>;
using AgentChannel = BasicChannel<AgentFrame>;

}  // namespace ckpt::wire
