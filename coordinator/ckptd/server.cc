#include "coordinator/ckptd/server.h"

#include <arpa/inet.h>
#include <grpcpp/grpcpp.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <charconv>
#include <cstring>
#include <filesystem>

#include "coordinator/ckptd/agents_service.h"
#include "coordinator/ckptd/coordinator_service.h"
#include "coordinator/ckptd/core_loop.h"
#include "libckpt/os/fd.h"

namespace ckpt::ckptd {
namespace {

constexpr auto kShutdownGrace = std::chrono::seconds(2);
constexpr std::string_view kUnix = "unix:";

// Whether somebody answers on this socket; one that a dead process left is no obstacle.
Status CheckUnixFree(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    return InvalidArgument("the socket path " + path + " is longer than " +
                           std::to_string(sizeof address.sun_path - 1) + " bytes");
  }
  std::memcpy(address.sun_path, path.c_str(), path.size());
  const os::UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const auto* raw = reinterpret_cast<const sockaddr*>(&address);
  if (::connect(fd.get(), raw, sizeof address) == 0) {
    return AlreadyExists(path + " is in use by another ckptd: stop it, or choose another --listen");
  }
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
  if (error) return ErrnoStatus(error.value(), "making the folder of " + path);
  return OkStatus();
}

// gRPC only says that it could not; this says why.
Status CheckPortFree(const std::string& host, uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  if (inet_pton(AF_INET, host.c_str(), &address.sin_addr) != 1 ||
      (ntohl(address.sin_addr.s_addr) >> 24) != 127) {
    return InvalidArgument("--listen " + host + ":" + std::to_string(port) +
                           ": only loopback (127.0.0.1:PORT) and unix:PATH are possible: beyond "
                           "loopback mutual TLS is needed, which this version does not have");
  }
  const os::UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int one = 1;
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 &&
      ::listen(fd.get(), 1) == 0) {
    return OkStatus();
  }
  if (errno == EADDRINUSE) {
    return AlreadyExists("port " + std::to_string(port) +
                         " is in use by another program: choose another with --listen");
  }
  return ErrnoStatus(errno, "listening on " + host + ":" + std::to_string(port));
}

Status CheckListen(std::string* listen) {
  if (listen->starts_with(kUnix)) {
    const std::string path = listen->substr(kUnix.size());
    if (path.empty()) return InvalidArgument("--listen unix: names no path");
    if (path.front() != '/') {
      *listen = std::string(kUnix) + std::filesystem::absolute(path).string();
    }
    return CheckUnixFree(listen->substr(kUnix.size()));
  }
  const size_t colon = listen->rfind(':');
  uint16_t port = 0;
  const char* end = listen->data() + listen->size();
  const bool number =
      colon != std::string::npos && colon + 1 < listen->size() &&
      std::from_chars(listen->data() + colon + 1, end, port) == std::from_chars_result{end, {}};
  if (!number) {
    return InvalidArgument("--listen " + *listen + ": expected unix:PATH or 127.0.0.1:PORT");
  }
  std::string host = listen->substr(0, colon);
  if (host == "localhost") host = "127.0.0.1";
  *listen = host + ":" + std::to_string(port);
  return CheckPortFree(host, port);
}

class ServerImpl final : public Server {
 public:
  ServerImpl(ServerOptions options, std::unique_ptr<store::StateStore> store)
      : options_(std::move(options)),
        loop_({options_.heartbeat_ms, options_.on_fatal}, std::move(store)),
        agents_(&loop_),
        coordinator_(&loop_, options_.data) {}

  ~ServerImpl() override {
    if (server_ == nullptr) return;
    loop_.Stop();
    server_->Shutdown(std::chrono::system_clock::now() + kShutdownGrace);
    server_->Wait();
  }

  Status Open() {
    CKPT_RETURN_IF_ERROR(loop_.Start());
    grpc::ServerBuilder builder;
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 1000);
    builder.AddListeningPort(options_.listen, grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(&agents_);
    builder.RegisterService(&coordinator_);
    const mode_t mask = ::umask(0077);  // the socket is for this user only
    server_ = builder.BuildAndStart();
    ::umask(mask);
    if (server_ == nullptr || port_ == 0) {
      return Unavailable("cannot listen on " + options_.listen);
    }
    return OkStatus();
  }

  std::string address() const override {
    if (options_.listen.starts_with(kUnix)) return options_.listen;
    return options_.listen.substr(0, options_.listen.rfind(':') + 1) + std::to_string(port_);
  }

 private:
  const ServerOptions options_;
  CoreLoop loop_;
  AgentsService agents_;
  CoordinatorService coordinator_;
  std::unique_ptr<grpc::Server> server_;
  int port_ = 0;
};

std::string Env(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

Result<std::unique_ptr<Server>> Server::Start(ServerOptions options) {
  CKPT_RETURN_IF_ERROR(CheckListen(&options.listen));
  CKPT_ASSIGN_OR_RETURN(auto store, store::OpenSqlite(options.data));
  auto server = std::make_unique<ServerImpl>(std::move(options), std::move(store));
  CKPT_RETURN_IF_ERROR(server->Open());
  return std::unique_ptr<Server>(std::move(server));
}

std::string DefaultListen() {
  if (::geteuid() == 0) return "unix:/run/ckpt/ckptd.sock";
  const std::string run = Env("XDG_RUNTIME_DIR");
  return run.empty() ? "" : "unix:" + run + "/ckpt/ckptd.sock";
}

std::string DefaultData() {
  if (::geteuid() == 0) return "/var/lib/ckpt/ckptd";
  const std::string state = Env("XDG_STATE_HOME");
  return (state.empty() ? Env("HOME") + "/.local/state" : state) + "/ckpt/ckptd";
}

}  // namespace ckpt::ckptd
