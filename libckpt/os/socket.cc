// Unix SEQPACKET: addresses, datagrams, descriptors.
#include "libckpt/os/socket.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace ckpt::os {
namespace {

constexpr int kBacklog = 1024;
constexpr int kSocketFlags = SOCK_CLOEXEC | SOCK_NONBLOCK;

Result<sockaddr_un> UnixAddress(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof address.sun_path) {
    return InvalidArgument("socket path '" + path + "' has " + std::to_string(path.size()) +
                           " bytes, a Unix socket takes 1 to 107: choose a shorter directory");
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

Result<UniqueFd> NewUnixSocket() {
  const int fd = ::socket(AF_UNIX, SOCK_SEQPACKET | kSocketFlags, 0);
  if (fd < 0) return ErrnoStatus(errno, "creating a Unix socket");
  return UniqueFd(fd);
}

const sockaddr* AsSockaddr(const sockaddr_un& address) {
  return reinterpret_cast<const sockaddr*>(&address);
}

// Whether anybody listens there. False for a file that a dead process left.
bool IsAlive(const sockaddr_un& address) {
  const UniqueFd probe(::socket(AF_UNIX, SOCK_SEQPACKET | kSocketFlags, 0));
  return ::connect(probe.get(), AsSockaddr(address), sizeof address) == 0 || errno == EAGAIN;
}

// The control message of a datagram with descriptors.
union ControlBuffer {
  char bytes[CMSG_SPACE(sizeof(int) * kFrameFdsMax)];
  cmsghdr align;
};

void PutFds(msghdr* message, ControlBuffer* control, std::span<const int> fds) {
  if (fds.empty()) return;
  std::memset(control, 0, sizeof *control);
  message->msg_control = control->bytes;
  message->msg_controllen = CMSG_SPACE(fds.size_bytes());
  cmsghdr* header = CMSG_FIRSTHDR(message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(fds.size_bytes());
  std::memcpy(CMSG_DATA(header), fds.data(), fds.size_bytes());
}

std::vector<UniqueFd> TakeFds(msghdr* message) {
  std::vector<UniqueFd> fds;
  for (cmsghdr* header = CMSG_FIRSTHDR(message); header != nullptr;
       header = CMSG_NXTHDR(message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof fd, sizeof fd);
      fds.emplace_back(fd);
    }
  }
  return fds;
}

Status CheckDatagram(ByteSpan bytes, std::span<const int> fds) {
  if (bytes.empty() || bytes.size() > kFrameBytesMax) {
    return InvalidArgument("a datagram of " + std::to_string(bytes.size()) + " bytes; 1 to " +
                           std::to_string(kFrameBytesMax) + " can be sent");
  }
  if (fds.size() > kFrameFdsMax) {
    return InvalidArgument(std::to_string(fds.size()) + " descriptors with a datagram, at most " +
                           std::to_string(kFrameFdsMax) + " can be sent");
  }
  return OkStatus();
}

}  // namespace

Status WaitFd(int fd, short events, const Deadline& deadline) {
  pollfd entry{.fd = fd, .events = events, .revents = 0};
  for (;;) {
    const int ready = ::poll(&entry, 1, deadline.LeftMs());
    if (ready > 0) return OkStatus();
    if (ready < 0 && errno != EINTR) return ErrnoStatus(errno, "poll");
    if (ready == 0 && deadline.Expired()) return deadline.Exceeded();
  }
}

Result<UniqueFd> ListenUnix(const std::string& path, uint32_t mode) {
  CKPT_ASSIGN_OR_RETURN(const sockaddr_un address, UnixAddress(path));
  CKPT_ASSIGN_OR_RETURN(UniqueFd fd, NewUnixSocket());
  struct stat st;
  if (::lstat(path.c_str(), &st) == 0) {
    if (!S_ISSOCK(st.st_mode)) return AlreadyExists(path + " is there and is not a socket");
    if (IsAlive(address)) return AlreadyExists(path + ": another process listens there");
    ::unlink(path.c_str());
  }
  // Nobody can connect before listen, so the mode is right in time. No umask: it is process-wide.
  if (::bind(fd.get(), AsSockaddr(address), sizeof address) != 0) {
    return ErrnoStatus(errno, "binding socket " + path);
  }
  if (::chmod(path.c_str(), mode) != 0) return ErrnoStatus(errno, "setting the mode of " + path);
  if (::listen(fd.get(), kBacklog) != 0) return ErrnoStatus(errno, "listening on " + path);
  return fd;
}

Result<UniqueFd> ConnectUnix(const std::string& path, const Deadline& deadline) {
  CKPT_ASSIGN_OR_RETURN(const sockaddr_un address, UnixAddress(path));
  CKPT_ASSIGN_OR_RETURN(UniqueFd fd, NewUnixSocket());
  // A full backlog shows as EAGAIN at once, and poll would not wait for it: try again.
  while (::connect(fd.get(), AsSockaddr(address), sizeof address) != 0) {
    if (errno == EAGAIN && !deadline.Expired()) {
      ::poll(nullptr, 0, 5);
    } else if (errno != EINTR) {
      return ErrnoStatus(errno, "connecting to " + path);
    }
  }
  return fd;
}

Result<std::pair<UniqueFd, UniqueFd>> UnixPair() {
  int fds[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | kSocketFlags, 0, fds) != 0) {
    return ErrnoStatus(errno, "creating a pair of sockets");
  }
  return std::pair(UniqueFd(fds[0]), UniqueFd(fds[1]));
}

Result<std::optional<UniqueFd>> TryAccept(int listener) {
  for (;;) {
    const int fd = ::accept4(listener, nullptr, nullptr, kSocketFlags);
    if (fd >= 0) return std::optional<UniqueFd>(UniqueFd(fd));
    if (errno == EAGAIN) return std::optional<UniqueFd>();
    if (errno != EINTR && errno != ECONNABORTED) {
      return ErrnoStatus(errno, "accepting a connection");
    }
  }
}

Result<UniqueFd> Accept(int listener, const Deadline& deadline) {
  for (;;) {
    CKPT_ASSIGN_OR_RETURN(std::optional<UniqueFd> fd, TryAccept(listener));
    if (fd) return std::move(*fd);
    CKPT_RETURN_IF_ERROR(WaitFd(listener, POLLIN, deadline));
  }
}

Result<PeerCredentials> GetPeerCredentials(int fd) {
  ucred credentials{};
  socklen_t size = sizeof credentials;
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) {
    return ErrnoStatus(errno, "asking who the peer is");
  }
  return PeerCredentials{credentials.pid, credentials.uid, credentials.gid};
}

Result<bool> TrySend(int fd, ByteSpan bytes, std::span<const int> fds) {
  CKPT_RETURN_IF_ERROR(CheckDatagram(bytes, fds));
  iovec part{.iov_base = const_cast<std::byte*>(bytes.data()), .iov_len = bytes.size()};
  ControlBuffer control;
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  PutFds(&message, &control, fds);
  for (;;) {
    if (::sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) return true;
    // ETOOMANYREFS: too many descriptors in flight, the reader will take them.
    if (errno == EAGAIN || errno == ENOBUFS || errno == ETOOMANYREFS) return false;
    if (errno == EPIPE || errno == ECONNRESET || errno == ENOTCONN) {
      return Unavailable("the peer of a socket is gone");
    }
    if (errno != EINTR) return ErrnoStatus(errno, "sending a datagram");
  }
}

Status Send(int fd, ByteSpan bytes, std::span<const int> fds, const Deadline& deadline) {
  for (;;) {
    CKPT_ASSIGN_OR_RETURN(const bool sent, TrySend(fd, bytes, fds));
    if (sent) return OkStatus();
    CKPT_RETURN_IF_ERROR(WaitFd(fd, POLLOUT, deadline));
  }
}

Result<Receipt> TryReceive(int fd) {
  std::string bytes(kFrameBytesMax, '\0');
  iovec part{.iov_base = bytes.data(), .iov_len = bytes.size()};
  ControlBuffer control;
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes;
  message.msg_controllen = sizeof control.bytes;
  ssize_t n;
  do {
    n = ::recvmsg(fd, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  } while (n < 0 && errno == EINTR);
  if (n < 0 && errno == EAGAIN) return Receipt{};
  if (n < 0 && errno == ECONNRESET) return Receipt{.closed = true};
  if (n < 0) return ErrnoStatus(errno, "receiving a datagram");

  std::vector<UniqueFd> fds = TakeFds(&message);  // closed on every error below
  if ((message.msg_flags & MSG_TRUNC) != 0) {
    return DataLoss("a datagram is longer than " + std::to_string(kFrameBytesMax) + " bytes");
  }
  if ((message.msg_flags & MSG_CTRUNC) != 0) {
    return DataLoss("a datagram's descriptors did not arrive: more than " +
                    std::to_string(kFrameFdsMax) + ", or no more can be open here");
  }
  if (n == 0) return Receipt{.closed = true};  // empty datagrams are never sent
  bytes.resize(static_cast<size_t>(n));
  bytes.shrink_to_fit();
  return Receipt{.datagram = Datagram{std::move(bytes), std::move(fds)}};
}

Result<Datagram> Receive(int fd, const Deadline& deadline) {
  for (;;) {
    CKPT_ASSIGN_OR_RETURN(Receipt receipt, TryReceive(fd));
    if (receipt.datagram) return std::move(*receipt.datagram);
    if (receipt.closed) {
      return Unavailable(std::string(deadline.name()) + ": the peer closed the connection");
    }
    CKPT_RETURN_IF_ERROR(WaitFd(fd, POLLIN, deadline));
  }
}

}  // namespace ckpt::os
