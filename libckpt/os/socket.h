// Sockets: Unix SEQPACKET datagrams that carry descriptors, and plain TCP streams. All descriptors
// are CLOEXEC and non-blocking; calls that wait take a Deadline.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "libckpt/base/bytes.h"
#include "libckpt/base/clock.h"
#include "libckpt/base/limits.h"
#include "libckpt/base/status.h"
#include "libckpt/os/fd.h"

namespace ckpt::os {

// Waits until `fd` shows one of `events` (POLLIN, POLLOUT) or an error or hang-up, which the next
// call on it will name. Errors: kDeadlineExceeded.
Status WaitFd(int fd, short events, const Deadline& deadline);

// Unix SEQPACKET ---------------------------------------------------------------------------------

// kInvalidArgument for a path that does not fit a Unix address (107 bytes), naming the way out.
// A socket file that nobody listens on is replaced; a living one is kAlreadyExists.
// The file's mode is 0600 at bind, then `mode`.
Result<UniqueFd> ListenUnix(const std::string& path, uint32_t mode = 0600);
// kNotFound or kUnavailable if nobody listens there.
Result<UniqueFd> ConnectUnix(const std::string& path, const Deadline& deadline);
Result<std::pair<UniqueFd, UniqueFd>> UnixPair();

// Nothing if no connection waits. Unix and TCP.
Result<std::optional<UniqueFd>> TryAccept(int listener);
Result<UniqueFd> Accept(int listener, const Deadline& deadline);

struct PeerCredentials {
  pid_t pid = 0;
  uid_t uid = 0;
  gid_t gid = 0;
};
Result<PeerCredentials> GetPeerCredentials(int fd);

struct Datagram {
  std::string bytes;
  std::vector<UniqueFd> fds;
};

// One datagram and its descriptors. False if the socket's buffer is full (nothing was sent).
// Errors: kInvalidArgument if it is empty or beyond kFrameBytesMax or kFrameFdsMax; kUnavailable if
// the peer is gone. Threads: safe; datagrams of two threads do not mix.
Result<bool> TrySend(int fd, ByteSpan bytes, std::span<const int> fds = {});
Status Send(int fd, ByteSpan bytes, std::span<const int> fds, const Deadline& deadline);

struct Receipt {
  bool closed = false;               // the peer has shut the connection down
  std::optional<Datagram> datagram;  // neither closed nor a datagram: nothing waits
};
// Errors: kDataLoss for a datagram that is too long or carries too many descriptors (all of them
// are closed, the connection should be dropped); kUnavailable if the connection broke.
Result<Receipt> TryReceive(int fd);
// Waits for the next one. kUnavailable if the peer closed.
Result<Datagram> Receive(int fd, const Deadline& deadline);

// Ends both directions: whoever waits on the socket, here or there, wakes with an error. Threads:
// any that know that it is not closed meanwhile.
void ShutdownSocket(int fd);

// TCP --------------------------------------------------------------------------------------------

struct HostPort {
  std::string host;
  uint16_t port = 0;
  std::string ToString() const;  // "[::1]:80" for IPv6
};
// "host:port", "[v6]:port", ":port" (any address). kInvalidArgument with an example.
Result<HostPort> ParseHostPort(std::string_view text);
// Whether all addresses of `host` are loopback (127.0.0.0/8, ::1, localhost).
bool IsLoopbackHost(const std::string& host);

// Port 0: the kernel chooses; LocalAddress tells.
Result<UniqueFd> ListenTcp(const HostPort& address);
Result<HostPort> LocalAddress(int fd);
Result<UniqueFd> ConnectTcp(const HostPort& address, const Deadline& deadline);
// A port that was free a moment ago, for programs that insist on being told one.
Result<uint16_t> PickFreePort(const std::string& host);

// All bytes or an error; kUnavailable if the peer is gone.
Status SendAll(int fd, ByteSpan bytes, const Deadline& deadline);
Status RecvAll(int fd, MutableByteSpan out, const Deadline& deadline);

}  // namespace ckpt::os
