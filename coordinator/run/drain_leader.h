// The leader's part of a drain: hears what every node holds, picks the newest complete copy, sees
// that it is marked, written by all, and commits it under its own epoch. No epoch is claimed: the
// copy is that of the epoch whose ckpt-run died.
//
// I1  A MANIFEST that the dead ckpt-run has put is committed as it is: its shards are whole.
// I2  The outcome is told once, to all.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/run/drain_pick.h"
#include "coordinator/run/roles.h"
#include "coordinator/run/services.h"

namespace ckpt::run {

class DrainLeader : public LeaderPart {
 public:
  struct Host {
    std::function<void(Peer, const GangMessage&)> send;
    std::function<void(Peer)> close;
  };

  DrainLeader(Services* services, Host host);
  ~DrainLeader() override;
  void Start() override;
  void OnMessage(Peer peer, const GangMessage& message) override;
  void OnClosed(Peer peer) override;

 private:
  struct Node {
    Peer peer = 0;
    std::vector<RamCopy> ram;
    std::optional<DrainedMsg> drained;
  };
  void OnJoin(Peer peer, const JoinMsg& join);
  void Pick();
  void OnPrepared(const Status& status, const JobId& job, bool durable, std::string manifest);
  void OnDrained(Node* node, const DrainedMsg& m);
  void CommitWritten();
  void Commit(std::string manifest);
  void End(int exit_code, const std::string& message);
  // `work` on a worker thread, then `then(its result)` on the loop.
  template <typename Work, typename Then>
  void CallStore(Work work, Then then);

  Services* const services_;
  const Host host_;
  std::map<uint32_t, Node> nodes_;
  DrainPick pick_;
  JobId job_id_;
  os::EventLoop::TimerId join_timer_ = 0, commit_timer_ = 0;
  uint32_t commits_ = 0;
  int64_t started_ns_ = 0;
  bool picked_ = false, over_ = false;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace ckpt::run
