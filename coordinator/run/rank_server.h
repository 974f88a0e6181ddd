// The socket on which ranks talk to their ckpt-run: a SEQPACKET listener in a private directory.
// Ranks are untrusted: the peer's user, the token of the launch, job, rank and world are checked
// before a rank counts, and whoever sends what is no frame is dropped.
//
// I1  At most one connection speaks for a rank; a later one that proves itself replaces it.
// I2  Frames are handed over in order, and never after on_closed for the same connection.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "libckpt/os/event_loop.h"
#include "libckpt/wire/channel.h"

namespace ckpt::run {

struct RankServerConfig {
  std::string socket_path;
  std::string job, token;
  uint32_t first_rank = 0, rank_count = 0, world = 0;
};

class RankServer {
 public:
  struct Handler {
    // Proved to be this rank: answer its `request` with WELCOME.
    std::function<void(uint32_t rank, uint32_t request, const wire::Hello&)> hello;
    std::function<void(uint32_t rank, wire::Frame frame, std::vector<os::UniqueFd> fds)> frame;
    std::function<void(uint32_t rank)> closed;
  };

  static Result<std::unique_ptr<RankServer>> Listen(os::EventLoop* loop,
                                                    const RankServerConfig& config,
                                                    Handler handler);
  ~RankServer();

  // No effect if the rank is not connected (false).
  bool Send(uint32_t rank, const wire::Frame& frame, std::vector<os::UniqueFd> fds = {});
  bool connected(uint32_t rank) const { return ranks_.contains(rank); }
  // The process that speaks for this rank; -1 if none does.
  pid_t peer_pid(uint32_t rank) const;
  // Hands over what has arrived from this rank: called when its process has ended, so that its last
  // words are heard before its end.
  void Drain(uint32_t rank);
  const std::string& socket_path() const { return config_.socket_path; }

 private:
  struct Connection;
  using ConnectionPtr = std::shared_ptr<Connection>;

  RankServer(os::EventLoop* loop, RankServerConfig config, Handler handler)
      : loop_(loop), config_(std::move(config)), handler_(std::move(handler)) {}
  void AcceptAll();
  void OnEvents(const ConnectionPtr& connection, uint32_t events);
  void ReadAll(const ConnectionPtr& connection);
  void Handle(const ConnectionPtr& connection, wire::Incoming<wire::Frame> incoming);
  Status CheckHello(const Connection& connection, const wire::Hello& hello) const;
  void Refuse(const ConnectionPtr& connection, uint32_t request, const Status& why);
  void Drop(const ConnectionPtr& connection);
  void Flush(const ConnectionPtr& connection);

  os::EventLoop* const loop_;
  const RankServerConfig config_;
  const Handler handler_;
  os::UniqueFd listener_;
  std::map<int, ConnectionPtr> connections_;  // by descriptor
  std::map<uint32_t, ConnectionPtr> ranks_;   // those that have proved themselves
};

}  // namespace ckpt::run
