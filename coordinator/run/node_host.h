// This node's part of the gang over all its launches: joins the leader, carries out what it says,
// holds the copies in RAM from one launch to the next, and knows when the process may leave.
//
// I1  A new launch starts only after the older one's processes are measured to be gone.
// I2  A copy in RAM is given up only when it is durable and restored from, or when a newer one is
//     complete.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/run/node_launch.h"
#include "coordinator/run/roles.h"

namespace ckpt::run {

class NodeHost : public NodePart {
 public:
  struct Host {
    std::function<void(const GangMessage&)> to_leader;
    std::function<void()> changed;
    std::function<void(int exit_code, const std::string& message)> leave;  // once
    std::function<void(const NodeLaunch&)> launched;
    std::function<void(const NodeLaunch&, const std::vector<SlotPtr>&)> slots_made;
  };

  NodeHost(Services* services, Host host);
  ~NodeHost() override;

  void Adopt(std::vector<SlotPtr> slots) override { held_ = std::move(slots); }
  void Join() override;
  void OnLeader(const GangMessage& message) override;
  void LeaderLost() override;
  void Notice(const NoticeMsg& notice) override;
  void KillHere(const std::string& why) override;
  void Abandon(int exit_code, const std::string& why) override;

  const NodeLaunch* current() const {
    return launches_.empty() ? nullptr : launches_.rbegin()->second.get();
  }
  std::vector<RamCopy> copies() const;
  bool joined() const override { return welcome_.has_value(); }
  // Between two launches: what is over is not the end.
  bool preparing() const { return preparing_; }
  const std::optional<WelcomeMsg>& welcome() const { return welcome_; }

 private:
  void SendTo(uint32_t launch, GangBody body);
  JoinMsg MakeJoin() const;
  void OnWelcome(const WelcomeMsg& m);
  void OnStart(uint32_t launch, const StartMsg& m);
  void OnPrepare(uint32_t launch);
  void OnReleased();
  void LeaveSoon(const NoticeMsg& notice);
  void SayAgain();
  void OnOutcome(const OutcomeMsg& m);
  void GiveUpCopiesSoon();
  void GiveUpCopies();
  void MaybeLeave();
  void LookAgain(Nanos after);
  Nanos Patience() const;
  bool Draining() const;
  bool OwesCopy() const;
  std::vector<SlotPtr> AllSlots() const;

  Services* const services_;
  const Host host_;
  std::map<uint32_t, std::unique_ptr<NodeLaunch>> launches_;
  std::vector<SlotPtr> held_;  // of agents and older launches
  std::optional<WelcomeMsg> welcome_;
  std::optional<uint32_t> prepare_;  // a launch that waits for the older one's end
  std::optional<OutcomeMsg> outcome_;
  bool left_ = false, preparing_ = true;
  bool connected_ = true;
  bool giving_up_ = false;
  std::optional<std::pair<NoticeMsg, int64_t>> last_notice_;  // that asks for a stop, and when
  int64_t lost_ns_ = 0;                                       // when the leader was lost last
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace ckpt::run
