// The program: one loop that owns a node's part of a gang, the leader's part if it leads, the links
// between them, and the agent's socket.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "coordinator/run/agent_link.h"
#include "coordinator/run/drain_leader.h"
#include "coordinator/run/drain_node.h"
#include "coordinator/run/gang_leader.h"
#include "coordinator/run/gang_link.h"
#include "coordinator/run/node_host.h"
#include "coordinator/run/services.h"
#include "coordinator/run/status_line.h"

namespace ckpt::run {

class Runner {
 public:
  explicit Runner(Options options);
  ~Runner();

  // Checks what can be checked before anything starts, then runs until the end; the exit code of
  // docs/cli_ckpt_run.md.
  int Run();

 private:
  Status Prepare();
  Status PrepareStore();
  Status HandleSignals();
  Status StartGang();
  void MakeRunParts();
  void MakeDrainParts();
  Status Serve();
  void DrawStatus();
  void BeginJoin(std::vector<SlotPtr> adopted);
  void ConnectToLeader();
  void OnLeaderClosed(const Status& why);
  void ToLeader(const GangMessage& message);
  void ToPeer(uint64_t peer, const GangMessage& message);
  void OnSignal(const os::SignalInfo& info);
  std::string OnAgentStop(const AgentStop& stop);
  void AttachLaunch(const NodeLaunch& launch);
  void ReportSoon();
  void Report();
  void MeasureMemcpy();
  void Leave(int exit_code, const std::string& message);
  void LeaveResult();

  Services services_;
  std::unique_ptr<os::EventLoop> loop_;
  std::unique_ptr<os::WorkerPool> prep_, write_, store_calls_;
  std::unique_ptr<NodePart> node_;
  std::unique_ptr<LeaderPart> leader_;  // null: another node leads
  // The same, by what they are.
  NodeHost* ranks_ = nullptr;
  GangLeader* gang_ = nullptr;
  DrainNode* drain_ = nullptr;
  std::unique_ptr<GangServer> server_;
  std::unique_ptr<GangClient> client_;
  std::unique_ptr<AgentLink> agent_;
  std::optional<StatusLine> status_;
  os::EventLoop::TimerId connect_timer_ = 0, reconnect_timer_ = 0;
  int64_t join_until_ns_ = 0;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  bool reporting_ = false, measuring_ = false, memcpy_pending_ = false;
  double memcpy_ratio_ = 0;
  int exit_code_ = -1;  // of the process; -1: it runs
  std::string exit_message_;
  std::set<uint64_t> streams_;  // of the server, open
};

}  // namespace ckpt::run
