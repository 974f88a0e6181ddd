#include "coordinator/run/rank_server.h"

#include "libckpt/base/clock.h"
#include "libckpt/base/log.h"
#include "libckpt/os/file.h"
#include "libckpt/os/process.h"

namespace ckpt::run {
namespace {

constexpr Nanos kHelloTimeout = std::chrono::seconds(30);
constexpr Nanos kAcceptPause = std::chrono::seconds(1);  // when there is no descriptor for it
constexpr size_t kStrangersMax = 64;                     // connections that have not said HELLO yet

}  // namespace

struct RankServer::Connection {
  explicit Connection(os::UniqueFd fd) : channel(std::move(fd)) {}
  wire::Channel channel;
  os::PeerCredentials peer;
  bool proved = false;
  bool closing = false;  // after what is queued
  uint32_t rank = 0;
  os::EventLoop::TimerId timer = 0;
};

Result<std::unique_ptr<RankServer>> RankServer::Listen(os::EventLoop* loop,
                                                       const RankServerConfig& config,
                                                       Handler handler) {
  std::unique_ptr<RankServer> server(new RankServer(loop, config, std::move(handler)));
  CKPT_ASSIGN_OR_RETURN(server->listener_, os::ListenUnix(config.socket_path));
  RankServer* self = server.get();
  CKPT_RETURN_IF_ERROR(
      loop->AddFd(server->listener_.get(), EPOLLIN, [self](uint32_t) { self->AcceptAll(); }));
  return server;
}

RankServer::~RankServer() {
  if (!listener_.valid()) return;
  loop_->RemoveFd(listener_.get());
  for (const auto& [fd, connection] : connections_) {
    loop_->RemoveFd(fd);
    loop_->CancelTimer(connection->timer);
  }
  os::PosixFileSystem().Unlink(config_.socket_path).IgnoreError();
}

void RankServer::AcceptAll() {
  while (true) {
    Result<std::optional<os::UniqueFd>> accepted = os::TryAccept(listener_.get());
    if (!accepted.ok()) {
      LogWarning("a rank that connects has to wait: " + accepted.status().message() +
                 "; looking again in " + FormatDuration(kAcceptPause));
      return loop_->RestFd(listener_.get(), kAcceptPause);
    }
    if (!accepted->has_value()) return;
    auto connection = std::make_shared<Connection>(std::move(**accepted));
    const int fd = connection->channel.fd();
    const Result<os::PeerCredentials> peer = os::GetPeerCredentials(fd);
    if (!peer.ok() || peer->uid != os::SelfUid() ||
        connections_.size() >= ranks_.size() + kStrangersMax) {
      LogWarning("rank socket: dropped a connection of another user, or one too many");
      continue;
    }
    connection->peer = *peer;
    const Status added = loop_->AddFd(
        fd, EPOLLIN, [this, connection](uint32_t events) { OnEvents(connection, events); });
    if (!added.ok()) {
      LogWarning("rank socket: " + added.ToString());
      continue;
    }
    connection->timer = loop_->AddTimer(kHelloTimeout, [this, connection] {
      if (!connection->proved) Drop(connection);
    });
    connections_[fd] = connection;
  }
}

void RankServer::OnEvents(const ConnectionPtr& connection, uint32_t events) {
  if (events & EPOLLOUT) Flush(connection);
  if (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) ReadAll(connection);
}

void RankServer::ReadAll(const ConnectionPtr& connection) {
  while (connection->channel.valid() && !connection->closing) {
    Result<wire::Polled<wire::Frame>> polled = connection->channel.TryReceive();
    if (polled.status().code() == Code::kFailedPrecondition && !connection->proved) {
      return Refuse(connection, 0, polled.status());
    }
    if (!polled.ok()) {
      if (polled.status().code() != Code::kUnavailable) {
        LogWarning("rank socket: " + polled.status().ToString());
      }
      return Drop(connection);
    }
    if (polled->incoming) {
      Handle(connection, std::move(*polled->incoming));
    } else if (polled->closed) {
      return Drop(connection);
    } else {
      return;
    }
  }
}

Status RankServer::CheckHello(const Connection& connection, const wire::Hello& hello) const {
  if (hello.token != config_.token) {
    return PermissionDenied("pid " + std::to_string(connection.peer.pid) +
                            " has not the token of this launch (CKPT_TOKEN_FILE)");
  }
  if (hello.job != config_.job) {
    return FailedPrecondition("this ckpt-run runs job '" + config_.job + "', not '" + hello.job +
                              "'; CKPT_JOB tells");
  }
  if (hello.rank < config_.first_rank || hello.rank - config_.first_rank >= config_.rank_count ||
      hello.world != config_.world) {
    return InvalidArgument(
        "rank " + std::to_string(hello.rank) + " of " + std::to_string(hello.world) +
        " is none of this ckpt-run's: it has ranks " + std::to_string(config_.first_rank) + " to " +
        std::to_string(config_.first_rank + config_.rank_count - 1) + " of " +
        std::to_string(config_.world));
  }
  if (hello.version_min > wire::kFrameVersion || hello.version_max < wire::kFrameVersion) {
    return FailedPrecondition(
        "libckpt in this program speaks frames of version " + std::to_string(hello.version_min) +
        " to " + std::to_string(hello.version_max) + ", this ckpt-run version " +
        std::to_string(wire::kFrameVersion) +
        "; install a ckpt-run of the program's release on this node, or build the program with a "
        "library of this one's");
  }
  return OkStatus();
}

void RankServer::Handle(const ConnectionPtr& connection, wire::Incoming<wire::Frame> incoming) {
  const auto* hello = std::get_if<wire::Hello>(&incoming.frame.body);
  if (connection->proved != (hello == nullptr)) {
    LogWarning("rank socket: " + std::string(wire::FrameName(incoming.frame.body)) +
               " where HELLO comes first and once; dropped the connection");
    return Drop(connection);
  }
  if (hello == nullptr) {
    return handler_.frame(connection->rank, std::move(incoming.frame), std::move(incoming.fds));
  }
  if (const Status ok = CheckHello(*connection, *hello); !ok.ok()) {
    return Refuse(connection, incoming.frame.request, ok);
  }
  if (const auto it = ranks_.find(hello->rank); it != ranks_.end()) Drop(it->second);
  connection->proved = true;
  connection->rank = hello->rank;
  ranks_[hello->rank] = connection;
  handler_.hello(hello->rank, incoming.frame.request, *hello);
}

void RankServer::Refuse(const ConnectionPtr& connection, uint32_t request, const Status& why) {
  LogWarning("refused a rank: " + why.message());
  const wire::Failed failed{static_cast<uint32_t>(why.code()), false, why.message()};
  connection->closing = true;
  if (!connection->channel.Queue(wire::Frame{request, failed}).ok() ||
      !connection->channel.has_queued()) {
    return Drop(connection);
  }
  Flush(connection);
}

void RankServer::Drop(const ConnectionPtr& connection) {
  if (!connection->channel.valid()) return;
  const int fd = connection->channel.fd();
  loop_->RemoveFd(fd);
  loop_->CancelTimer(connection->timer);
  connections_.erase(fd);
  connection->channel.Close();
  const auto it = ranks_.find(connection->rank);
  if (!connection->proved || it == ranks_.end() || it->second != connection) return;
  ranks_.erase(it);
  handler_.closed(connection->rank);
}

void RankServer::Flush(const ConnectionPtr& connection) {
  const Result<bool> flushed = connection->channel.Flush();
  if (!flushed.ok() || (*flushed && connection->closing)) return Drop(connection);
  const uint32_t events = *flushed ? EPOLLIN : EPOLLIN | EPOLLOUT;
  if (!loop_->ModifyFd(connection->channel.fd(), events).ok()) Drop(connection);
}

bool RankServer::Send(uint32_t rank, const wire::Frame& frame, std::vector<os::UniqueFd> fds) {
  const auto it = ranks_.find(rank);
  if (it == ranks_.end()) return false;
  const ConnectionPtr connection = it->second;
  const Status queued = connection->channel.Queue(frame, std::move(fds));
  if (!queued.ok()) {
    // Dropping calls the owner, which may be in the middle of something: later.
    LogWarning("rank " + std::to_string(rank) + ": " + queued.ToString());
    loop_->Post([this, alive = std::weak_ptr<Connection>(connection)] {
      if (const ConnectionPtr still = alive.lock()) Drop(still);
    });
    return false;
  }
  if (connection->channel.has_queued()) {
    loop_->ModifyFd(connection->channel.fd(), EPOLLIN | EPOLLOUT).IgnoreError();
  }
  return true;
}

pid_t RankServer::peer_pid(uint32_t rank) const {
  const auto it = ranks_.find(rank);
  return it == ranks_.end() ? -1 : it->second->peer.pid;
}

void RankServer::Drain(uint32_t rank) {
  const auto it = ranks_.find(rank);
  if (it == ranks_.end()) return;
  const ConnectionPtr connection = it->second;
  ReadAll(connection);
}

}  // namespace ckpt::run
