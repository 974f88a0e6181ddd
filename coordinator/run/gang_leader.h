// The gang's life as the leading ckpt-run conducts it: nodes join, an epoch is claimed, the resume
// source is chosen, launches follow each other (a restart after a crash, a second try after a
// damaged checkpoint), and one outcome ends it for all nodes.
//
// I1  An epoch is claimed in the store before any rank of it starts.
// I2  A launch starts only when every node has measured that nothing of the older one is left.
// I3  The outcome is told when all ranks are gone and nothing is on its way to the store any more.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "coordinator/run/gang_link.h"
#include "coordinator/run/leader_launch.h"
#include "coordinator/run/resume.h"
#include "coordinator/run/roles.h"
#include "coordinator/run/services.h"

namespace ckpt::run {

class GangLeader : public LeaderPart {
 public:
  struct Host {
    std::function<void(Peer, const GangMessage&)> send;
    std::function<void(Peer)> close;
    std::function<void()> changed;
    std::function<void(int exit_code, const std::string& message)> outcome;  // once
    std::function<int64_t()> step;  // that the ranks of this node have come to
  };

  GangLeader(Services* services, Host host);
  ~GangLeader() override;
  void Start() override;
  void OnMessage(Peer peer, const GangMessage& message) override;
  void OnClosed(Peer peer) override;

  const LeaderLaunch* current() const {
    return launches_.empty() ? nullptr : launches_.rbegin()->second.get();
  }
  uint64_t epoch() const { return epoch_; }
  const JobId& job_id() const { return job_id_; }
  const std::string& resumed_from() const { return resumed_from_; }
  // It ended because only an older copy than the launch expects was found.
  bool behind() const { return behind_; }

 private:
  enum class Stage { kJoining, kClaiming, kDeciding, kRunning, kStopping, kOver };
  struct Node {
    Peer peer = 0;
    bool joined = false;  // for the launch that is being prepared
    bool known = false;   // ever
    bool connected = false;
    uint32_t rank_count = 0;
    uint32_t first_rank = 0;
    std::vector<RamCopy> ram;
  };

  void OnJoin(Peer peer, const GangMessage& message, const JoinMsg& join);
  Status CheckJoin(Peer peer, const JoinMsg& join) const;
  void Rejoined(uint32_t node, Peer peer);
  void Claim();
  void Decide();
  void Launch(const ResumeDecision& decision);
  void Relaunch(bool new_epoch, const std::string& why);
  void OnDamaged(const RestoredMsg& restored);
  void OnNotice(const NoticeMsg& notice);
  void Evaluate();
  bool AllSettled() const;
  void EndStopped();
  void End(int exit_code, const std::string& message);
  void EndLaunch(const LeaderLaunch& launch);
  void SendAll(const GangBody& body);
  void SendTo(uint32_t node, GangBody body);
  std::string MissingNodes() const;
  std::string DescribeSource(const ResumeDecision& decision) const;

  Services* const services_;
  const Host host_;
  Stage stage_ = Stage::kJoining;
  uint32_t launch_ = 1;
  std::map<uint32_t, Node> nodes_;  // by node rank
  std::map<uint32_t, std::unique_ptr<LeaderLaunch>> launches_;
  os::EventLoop::TimerId join_timer_ = 0, wait_timer_ = 0;
  JobId job_id_;
  uint64_t epoch_ = 0, epoch_at_least_ = 0;
  uint32_t world_ = 0;
  std::vector<storage::CheckpointInfo> checkpoints_;
  std::set<AttemptId> damaged_;
  std::optional<int64_t> wait_until_ns_;
  uint32_t restarts_ = 0;
  std::string resumed_from_;
  bool evaluating_ = false, behind_ = false;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace ckpt::run
