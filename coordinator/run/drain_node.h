// This node's part of a drain: writes the shards of the ranks that it is told to, from copies that
// the agent handed over, into the attempt that a dead ckpt-run began.
//
// I1  What the dead one left half-written is neither read nor touched: a drain's files have names
// of
//     their own, and MANIFEST says which count. So it does not matter whether it is really dead.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/run/roles.h"
#include "coordinator/run/services.h"
#include "coordinator/run/shard_writers.h"

namespace ckpt::run {

class DrainNode : public NodePart {
 public:
  struct Host {
    std::function<void(const GangMessage&)> to_leader;
    std::function<void()> changed;
    std::function<void(int exit_code, const std::string& message)> leave;  // once
  };

  DrainNode(Services* services, Host host);
  ~DrainNode() override;

  void Adopt(std::vector<SlotPtr> slots) override { held_ = std::move(slots); }
  void Join() override;
  void OnLeader(const GangMessage& message) override;
  void LeaderLost() override;
  // The first one is no reason to lose what is nearly written; a second one, or a kill, gives up.
  void Notice(const NoticeMsg& notice) override;
  void KillHere(const std::string& why) override { Abandon(76, why + "; " + WhatIsKept()); }
  void Abandon(int exit_code, const std::string& why) override;
  bool joined() const override { return joined_; }

  std::vector<RamCopy> copies() const { return Inventory(held_); }
  const std::vector<SlotPtr>& slots() const { return held_; }
  WriteProgress progress(uint32_t attempt) const { return writers_.progress(attempt); }
  const JobId& job_id() const { return job_id_; }

 private:
  void OnDrain(const DrainMsg& m);
  void OnOutcome(const OutcomeMsg& m);
  std::string WhatIsKept() const;

  Services* const services_;
  const Host host_;
  const std::string tag_;  // of the names of its files
  std::vector<SlotPtr> held_;
  ShardWriters writers_;
  std::optional<AttemptId> id_;
  std::vector<std::string> layouts_;
  JobId job_id_;
  bool joined_ = false, noticed_ = false, left_ = false;
  os::EventLoop::TimerId report_timer_ = 0;  // while it writes
};

}  // namespace ckpt::run
