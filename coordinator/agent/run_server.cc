#include "coordinator/agent/run_server.h"

#include "libckpt/base/clock.h"
#include "libckpt/base/log.h"
#include "libckpt/os/file.h"
#include "libckpt/os/process.h"

namespace ckpt::agent {
namespace {

constexpr Nanos kAcceptPause = std::chrono::seconds(1);  // when there is no descriptor for it

}  // namespace

RunServer::RunServer(os::EventLoop* loop, Handlers handlers)
    : loop_(loop), handlers_(std::move(handlers)) {}

Result<std::unique_ptr<RunServer>> RunServer::Start(const std::string& path, os::EventLoop* loop,
                                                    Handlers handlers) {
  std::unique_ptr<RunServer> server(new RunServer(loop, std::move(handlers)));
  CKPT_ASSIGN_OR_RETURN(server->listener_, os::ListenUnix(path));
  server->path_ = path;
  RunServer* self = server.get();
  CKPT_RETURN_IF_ERROR(
      loop->AddFd(self->listener_.get(), EPOLLIN, [self](uint32_t) { self->OnConnect(); }));
  return server;
}

RunServer::~RunServer() {
  loop_->RemoveFd(listener_.get());
  for (const auto& [id, connection] : connections_) loop_->RemoveFd(connection->channel.fd());
  if (!path_.empty()) os::PosixFileSystem().Unlink(path_).IgnoreError();
}

void RunServer::OnConnect() {
  for (;;) {
    Result<std::optional<os::UniqueFd>> fd = os::TryAccept(listener_.get());
    if (!fd.ok()) {
      LogWarning("a ckpt-run that connects has to wait: " + fd.status().message() +
                 "; looking again in " + FormatDuration(kAcceptPause));
      return loop_->RestFd(listener_.get(), kAcceptPause);
    }
    if (!*fd) return;
    const Result<os::PeerCredentials> peer = os::GetPeerCredentials((*fd)->get());
    const bool mine = peer.ok() && (peer->uid == os::SelfUid() || peer->uid == 0);  // I1
    if (!mine || connections_.size() >= kConnectionsMax) {
      LogWarning("agent socket: a connection was refused");
      continue;
    }
    const ConnectionId id = ++last_id_;
    auto connection = std::make_shared<Connection>();
    connection->channel = wire::AgentChannel(std::move(**fd));
    connection->peer = peer->pid;
    const Status watched = loop_->AddFd(connection->channel.fd(), EPOLLIN,
                                        [this, id](uint32_t events) { OnEvents(id, events); });
    if (watched.ok()) connections_[id] = std::move(connection);
  }
}

void RunServer::OnEvents(ConnectionId id, uint32_t events) {
  const auto it = connections_.find(id);
  if (it == connections_.end()) return;
  if ((events & EPOLLOUT) != 0) {
    const Result<bool> flushed = it->second->channel.Flush();
    if (!flushed.ok()) return Drop(id);
    Watch(id, *it->second);
  }
  if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) Drain(id);
}

void RunServer::Drain(ConnectionId id) {
  for (;;) {
    const auto it = connections_.find(id);
    if (it == connections_.end()) return;
    const std::shared_ptr<Connection> connection = it->second;  // handlers may drop it
    Result<wire::Polled<wire::AgentFrame>> polled = connection->channel.TryReceive();
    if (!polled.ok() || polled->closed) {
      if (!polled.ok()) LogWarning("a ckpt-run is dropped: " + polled.status().ToString());
      return Drop(id);
    }
    if (!polled->incoming) return;
    const bool fds_fit =
        polled->incoming->fds.size() == wire::AgentFrameFdCount(polled->incoming->frame.body);
    if (!fds_fit || !handlers_.frame(id, connection->peer, std::move(*polled->incoming))) {
      return Drop(id);  // I2
    }
  }
}

Status RunServer::Send(ConnectionId id, const wire::AgentFrame& frame,
                       std::vector<os::UniqueFd> fds) {
  const auto it = connections_.find(id);
  if (it == connections_.end()) return Unavailable("the ckpt-run is not connected");
  const Status queued = it->second->channel.Queue(frame, std::move(fds));
  if (queued.ok()) {
    Watch(id, *it->second);
  } else if (queued.code() != Code::kInvalidArgument) {
    loop_->Post([this, id] { Drop(id); });
  }
  return queued;
}

void RunServer::Watch(ConnectionId, const Connection& connection) {
  const uint32_t events = connection.channel.has_queued() ? EPOLLIN | EPOLLOUT : EPOLLIN;
  loop_->ModifyFd(connection.channel.fd(), events).IgnoreError();
}

void RunServer::Drop(ConnectionId id) {
  const auto it = connections_.find(id);
  if (it == connections_.end()) return;
  const std::shared_ptr<Connection> connection = it->second;
  loop_->RemoveFd(connection->channel.fd());
  connections_.erase(it);
  handlers_.closed(id);
}

}  // namespace ckpt::agent
