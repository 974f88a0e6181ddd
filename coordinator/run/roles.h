// What the program's loop drives: this node's part of a gang and, on node 0, the leader's. There
// are two pairs of them: ranks are run (NodeHost, GangLeader), or only what ranks left in RAM is
// made durable (DrainNode, DrainLeader).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "coordinator/run/gang_link.h"
#include "coordinator/run/options.h"
#include "coordinator/run/staging_area.h"

namespace ckpt::run {

class NodePart {
 public:
  virtual ~NodePart() = default;
  // Copies that others handed over, before Join.
  virtual void Adopt(std::vector<SlotPtr> slots) = 0;
  virtual void Join() = 0;
  virtual void OnLeader(const GangMessage& message) = 0;
  // The stream to the leader broke.
  virtual void LeaderLost() = 0;
  virtual void Notice(const NoticeMsg& notice) = 0;
  // Nothing runs on here, whatever the leader says.
  virtual void KillHere(const std::string& why) = 0;
  // The gang's leader refused or cannot be reached.
  virtual void Abandon(int exit_code, const std::string& why) = 0;
  virtual bool joined() const = 0;
};

// Whether a node that joins is of the gang that these options lead: job, size, and whether
// it drains. Errors: what differs.
Status CheckJoinOptions(const Options& options, const JoinMsg& join);

class LeaderPart {
 public:
  using Peer = uint64_t;  // a stream of the gang's server; kSelf: this process's own node
  static constexpr Peer kSelf = 0;

  virtual ~LeaderPart() = default;
  virtual void Start() = 0;  // from here on nodes are waited for
  virtual void OnMessage(Peer peer, const GangMessage& message) = 0;
  virtual void OnClosed(Peer peer) = 0;
};

}  // namespace ckpt::run
