// The agent's socket for its ckpt-runs. It checks who connects and that frames are whole, and keeps
// nothing but connections; what they say is the Agent's business.
//
// I1  Only peers of this user, or root, are heard.
// I2  A peer that sends what is not a frame, or descriptors that do not fit it, is dropped.
// I3  At most kConnectionsMax connections; more are closed at once.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "libckpt/os/event_loop.h"
#include "libckpt/wire/channel.h"

namespace ckpt::agent {

class RunServer {
 public:
  static constexpr size_t kConnectionsMax = 4096;
  using ConnectionId = uint64_t;  // never 0, never used again

  struct Handlers {
    // False: drop the connection.
    std::function<bool(ConnectionId, pid_t peer, wire::Incoming<wire::AgentFrame>)> frame;
    std::function<void(ConnectionId)> closed;
  };

  static Result<std::unique_ptr<RunServer>> Start(const std::string& path, os::EventLoop* loop,
                                                  Handlers handlers);
  ~RunServer();

  // Queued if the peer is slow; a peer that stops reading is dropped.
  Status Send(ConnectionId id, const wire::AgentFrame& frame, std::vector<os::UniqueFd> fds = {});
  // Handles what has already arrived: the last words of a process that has just ended.
  void Drain(ConnectionId id);
  void Drop(ConnectionId id);

 private:
  struct Connection {
    wire::AgentChannel channel;
    pid_t peer = 0;
  };

  RunServer(os::EventLoop* loop, Handlers handlers);
  void OnConnect();
  void OnEvents(ConnectionId id, uint32_t events);
  void Watch(ConnectionId id, const Connection& connection);

  os::EventLoop* const loop_;
  const Handlers handlers_;
  os::UniqueFd listener_;
  std::string path_;
  ConnectionId last_id_ = 0;
  std::map<ConnectionId, std::shared_ptr<Connection>> connections_;
};

}  // namespace ckpt::agent
