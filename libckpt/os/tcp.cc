// TCP: addresses, connections, whole transfers under a deadline.
#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>

#include "libckpt/base/fault.h"
#include "libckpt/os/socket.h"

namespace ckpt::os {
namespace {

constexpr int kBacklog = 1024;

struct FreeAddresses {
  void operator()(addrinfo* list) const { ::freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

Result<Addresses> Resolve(const HostPort& address, int flags) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  const std::string port = std::to_string(address.port);
  const char* host = address.host.empty() ? nullptr : address.host.c_str();
  const int error = ::getaddrinfo(host, port.c_str(), &hints, &list);
  if (error == 0) return Addresses(list);
  const std::string message = "looking up host '" + address.host + "': " + ::gai_strerror(error);
  return error == EAI_AGAIN ? Unavailable(message) : NotFound(message);
}

Result<UniqueFd> NewSocket(const addrinfo& info) {
  const int fd =
      ::socket(info.ai_family, info.ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, info.ai_protocol);
  if (fd < 0) return ErrnoStatus(errno, "creating a TCP socket");
  return UniqueFd(fd);
}

void SetOption(int fd, int level, int option) {
  const int on = 1;
  ::setsockopt(fd, level, option, &on, sizeof on);  // an optimization or a courtesy: may fail
}

Result<UniqueFd> ConnectOne(const addrinfo& info, const std::string& name,
                            const Deadline& deadline) {
  CKPT_ASSIGN_OR_RETURN(UniqueFd fd, NewSocket(info));
  SetOption(fd.get(), IPPROTO_TCP, TCP_NODELAY);
  SetOption(fd.get(), SOL_SOCKET, SO_KEEPALIVE);
  if (::connect(fd.get(), info.ai_addr, info.ai_addrlen) != 0) {
    if (errno != EINPROGRESS && errno != EINTR) return ErrnoStatus(errno, "connecting to " + name);
    CKPT_RETURN_IF_ERROR(WaitFd(fd.get(), POLLOUT, deadline).Annotate("connecting to " + name));
    int error = 0;
    socklen_t size = sizeof error;
    if (::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
    if (error != 0) return ErrnoStatus(error, "connecting to " + name);
  }
  return fd;
}

bool IsLoopback(const sockaddr* address) {
  if (address->sa_family == AF_INET) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(address);
    return (ntohl(v4->sin_addr.s_addr) >> 24) == 127;
  }
  if (address->sa_family != AF_INET6) return false;
  const auto* v6 = reinterpret_cast<const sockaddr_in6*>(address);
  if (IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr)) return v6->sin6_addr.s6_addr[12] == 127;
  return IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr);
}

Status StreamError(int error, std::string_view what) {
  if (error == EPIPE || error == ECONNRESET || error == ETIMEDOUT) {
    return Unavailable(std::string(what) + ": the peer is gone");
  }
  return ErrnoStatus(error, what);
}

}  // namespace

std::string HostPort::ToString() const {
  const bool v6 = host.find(':') != std::string::npos;
  return (v6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

Result<HostPort> ParseHostPort(std::string_view text) {
  const Status bad = InvalidArgument("'" + std::string(text) +
                                     "' is not HOST:PORT, as in 127.0.0.1:7070 or [::1]:7070");
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return bad;
  std::string_view host = text.substr(0, colon);
  const std::string_view port = text.substr(colon + 1);
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string_view::npos) {
    return bad;
  }
  HostPort address{.host = std::string(host)};
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), address.port);
  if (error != std::errc() || end != port.data() + port.size()) return bad;
  return address;
}

bool IsLoopbackHost(const std::string& host) {
  if (host.empty()) return false;  // any address
  const Result<Addresses> list = Resolve(HostPort{host, 0}, 0);
  if (!list.ok()) return false;
  for (const addrinfo* info = list->get(); info != nullptr; info = info->ai_next) {
    if (!IsLoopback(info->ai_addr)) return false;
  }
  return true;
}

Result<UniqueFd> ListenTcp(const HostPort& address) {
  CKPT_ASSIGN_OR_RETURN(const Addresses list, Resolve(address, AI_PASSIVE));
  CKPT_ASSIGN_OR_RETURN(UniqueFd fd, NewSocket(*list));
  SetOption(fd.get(), SOL_SOCKET, SO_REUSEADDR);
  if (::bind(fd.get(), list->ai_addr, list->ai_addrlen) != 0) {
    return ErrnoStatus(errno, "binding " + address.ToString());
  }
  if (::listen(fd.get(), kBacklog) != 0) {
    return ErrnoStatus(errno, "listening on " + address.ToString());
  }
  return fd;
}

Result<HostPort> LocalAddress(int fd) {
  sockaddr_storage storage{};
  socklen_t size = sizeof storage;
  auto* address = reinterpret_cast<sockaddr*>(&storage);
  if (::getsockname(fd, address, &size) != 0) return ErrnoStatus(errno, "reading an address");
  char host[NI_MAXHOST], port[NI_MAXSERV];
  const int error = ::getnameinfo(address, size, host, sizeof host, port, sizeof port,
                                  NI_NUMERICHOST | NI_NUMERICSERV);
  if (error != 0) return Internal(std::string("reading an address: ") + ::gai_strerror(error));
  return HostPort{host, static_cast<uint16_t>(std::stoi(port))};
}

Result<UniqueFd> ConnectTcp(const HostPort& address, const Deadline& deadline) {
  CKPT_ASSIGN_OR_RETURN(const Addresses list, Resolve(address, 0));
  Status last = NotFound("no address for " + address.ToString());
  for (const addrinfo* info = list.get(); info != nullptr; info = info->ai_next) {
    Result<UniqueFd> fd = ConnectOne(*info, address.ToString(), deadline);
    if (fd.ok()) return fd;
    last = std::move(fd).status();
  }
  return last;
}

Result<uint16_t> PickFreePort(const std::string& host) {
  CKPT_ASSIGN_OR_RETURN(const UniqueFd fd, ListenTcp(HostPort{host, 0}));
  CKPT_ASSIGN_OR_RETURN(const HostPort address, LocalAddress(fd.get()));
  return address.port;
}

void ShutdownSocket(int fd) { ::shutdown(fd, SHUT_RDWR); }

Status SendAll(int fd, ByteSpan bytes, const Deadline& deadline) {
  while (!bytes.empty()) {
    CKPT_FAULT("os.tcp.send");
    const ssize_t n = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n >= 0) {
      bytes = bytes.subspan(static_cast<size_t>(n));
    } else if (errno == EAGAIN) {
      CKPT_RETURN_IF_ERROR(WaitFd(fd, POLLOUT, deadline));
    } else if (errno != EINTR) {
      return StreamError(errno, deadline.name());
    }
  }
  return OkStatus();
}

Status RecvAll(int fd, MutableByteSpan out, const Deadline& deadline) {
  while (!out.empty()) {
    CKPT_FAULT("os.tcp.recv");
    const ssize_t n = ::recv(fd, out.data(), out.size(), MSG_DONTWAIT);
    if (n > 0) {
      out = out.subspan(static_cast<size_t>(n));
    } else if (n == 0) {
      return Unavailable(std::string(deadline.name()) + ": the peer closed the connection");
    } else if (errno == EAGAIN) {
      CKPT_RETURN_IF_ERROR(WaitFd(fd, POLLIN, deadline));
    } else if (errno != EINTR) {
      return StreamError(errno, deadline.name());
    }
  }
  return OkStatus();
}

}  // namespace ckpt::os
