// The agent of one node: it starts ckpt-runs, keeps duplicates of their memory, moves copies to and
// from other nodes, and speaks with ckptd. Training does not depend on it: a ckpt-run goes on while
// the agent is away, and finds it again at the same socket.
//
// I1  Everything here runs on the event loop's thread, but for the bytes of fetches (their own
//     threads) and the killing of leftovers (a small pool), which report back by Post.
// I2  A command is obeyed only if its cluster is this node's and its term is not older than the
//     highest seen; both are stored before the first command of a newer one is obeyed.
// I3  A command that comes again (same op_id) gets its first answer and is not carried out again.
// I4  "Released", "finished" and "failed" are said only when no process of the launch is left on
//     this node, as measured.
// I5  A launch is on disk before its process exists.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ckpt/v1/agent.pb.h"
#include "coordinator/agent/coordinator_link.h"
#include "coordinator/agent/data_client.h"
#include "coordinator/agent/data_server.h"
#include "coordinator/agent/health.h"
#include "coordinator/agent/held_copies.h"
#include "coordinator/agent/options.h"
#include "coordinator/agent/run_server.h"
#include "coordinator/agent/staging_ledger.h"
#include "coordinator/agent/state_dir.h"
#include "libckpt/os/event_loop.h"
#include "libckpt/os/process.h"
#include "libckpt/os/thread.h"

namespace ckpt::agent {

class Agent {
 public:
  // Pre: CheckOptions was OK. `loop` outlives it and is not running yet.
  static Result<std::unique_ptr<Agent>> Start(AgentOptions options, os::EventLoop* loop);
  // Leaves every ckpt-run running.
  ~Agent();

  // Threads: any.
  const HeldCopies& held() const { return held_; }
  // Copies that are durable nowhere and that no ckpt-run of this node holds: they end with this
  // agent. One line, empty if there are none. Threads: the loop's.
  std::string HeldAlone() const;
  std::string data_address() const { return data_->address().ToString(); }

 private:
  using JobKey = std::pair<std::string, uint64_t>;  // name, epoch of the launch

  struct LocalJob {
    v1::Launch launch;
    v1::JobReport report;
    os::Pidfd run;                           // of the ckpt-run; invalid once it has ended
    bool ended = false;                      // and nothing that it started is left
    bool forget = false;                     // as soon as it has ended
    std::string kill_reason;                 // not empty: it was ordered to die
    std::string drain_words;                 // what a drain said last
    std::string said;                        // its newest report, as it came
    int64_t heard_ns = 0;                    // when a word of its ckpt-run came last
    std::unique_ptr<v1::Launch> next_drain;  // once what runs has ended
    os::EventLoop::TimerId kill_timer = 0;
    std::map<uint32_t, os::Pidfd> ranks;
    RunServer::ConnectionId connection = 0;
    std::vector<v1::CoordinatorMsg> waiting;  // until it connects
    // Sent to it and not answered, by op_id: sent again when it connects again.
    std::map<uint64_t, v1::CoordinatorMsg> unanswered;
  };

  struct LocalFetch {
    v1::FetchReport report;
    std::shared_ptr<FetchProgress> progress;
    os::Thread thread;  // joined once done
  };

  Agent(AgentOptions options, StateDir state, os::EventLoop* loop);
  Status Init();
  // A ckpt-run that lives on holds copies that ckptd knows of. Before they are known here again
  // ckptd is not told that the node is there: it would launch a job that finds nothing to resume
  // from.
  void ConnectWhenCopiesAreKnown(std::function<void()> connect, Nanos left);

  // agent.cc: ckptd
  void OnOpened(uint64_t session);
  void OnClosed(uint64_t session, const std::string& why);
  void OnMessage(uint64_t session, const v1::CoordinatorMsg& message);
  Status CheckSender(const v1::CoordinatorMsg& message);
  void Obey(const v1::CoordinatorMsg& message);
  void OnWelcome(const v1::Welcome& welcome);
  void Answer(const v1::CommandResult& result);
  void AnswerCommand(uint64_t op_id, const std::string& job, uint64_t epoch, const Status& status);
  bool AnswerAgain(uint64_t op_id);
  void OnReadLog(const v1::ReadLog& request);
  Result<v1::LogChunk> ReadLogChunk(const v1::ReadLog& request) const;
  void LimitLogs() const;
  void SendHeartbeat();
  void LookAtHealth();
  v1::NodeInfo Describe() const;
  void Send(v1::AgentMsg message);

  // agent_jobs.cc: launches
  Status Recover();
  void RecoverOne(StoredLaunch stored);
  void OnLaunch(const v1::Launch& launch);
  Status Launch(const v1::Launch& launch);
  Status StartRun(LocalJob* job);
  uint64_t GrantFor(const v1::Launch& launch);
  Status Drain(const v1::Launch& launch);
  Status CheckHolds(const v1::Launch& launch) const;
  Status StartDrain(const JobKey& key, const v1::Launch& launch);
  void WatchRun(const JobKey& key, LocalJob* job);
  void OnRunEnded(const JobKey& key);
  void EndLeftovers(const JobKey& key, const std::string& how);
  void OnLeftoversEnded(const JobKey& key, const std::string& how, const Status& status);
  void CloseReport(LocalJob* job, const std::string& how);
  void OnStop(const v1::CoordinatorMsg& message);
  void OnKill(LocalJob* job, const v1::CoordinatorMsg& message);
  void OnWithdraw(LocalJob* job, const v1::CoordinatorMsg& message);
  void KillRun(const JobKey& key);
  void Forward(LocalJob* job, const v1::CoordinatorMsg& message);
  void OnForget(const v1::Forget& forget);
  void Erase(const JobKey& key);
  void SendReport(const LocalJob& job);
  LocalJob* FindJob(const std::string& job, uint64_t epoch);
  static JobKey KeyOf(const LocalJob& job) { return {job.launch.job(), job.launch.epoch()}; }

  // agent_runs.cc: what ckpt-runs say, and copies
  bool OnFrame(RunServer::ConnectionId id, pid_t peer, wire::Incoming<wire::AgentFrame> incoming);
  bool OnAttach(RunServer::ConnectionId id, pid_t peer, const wire::Attach& attach,
                std::vector<os::UniqueFd> fds);
  LocalJob* WhoIs(pid_t peer, const wire::Attach& attach);
  bool Introduce(RunServer::ConnectionId id, pid_t peer, const wire::Attach& attach);
  bool Keep(LocalJob* job, const wire::AttachedFd& attached, os::UniqueFd fd);
  bool OnReport(LocalJob* job, const wire::Report& report);
  void TakeJobReport(LocalJob* job, v1::JobReport report);
  void TakeDrainReport(LocalJob* job, const v1::JobReport& report);
  void OnRunClosed(RunServer::ConnectionId id);
  // Says which ckpt-runs do not answer, and which do again.
  void LookAtRuns();
  void SetRunSilent(LocalJob* job, const std::string& words);
  std::vector<HeldCopies::Whole> CopiesFor(const v1::Launch& launch) const;
  Status SendAdopt(const LocalJob& job);
  void AddHeldCopies(LocalJob* job);
  bool HoldsAll(const v1::Launch& launch, uint64_t epoch, uint32_t attempt) const;
  void MarkLostCopies(LocalJob* job, const std::string& how);
  void OnFetch(const v1::Fetch& fetch);
  Status StartFetch(const v1::Fetch& fetch);
  void OnFetched(uint64_t op_id, Result<std::vector<HeldRegion>> regions);
  void ReportFetch(const LocalFetch& fetch);
  void ReportRunningFetches();

  AgentOptions options_;
  const StateDir state_;
  os::EventLoop* const loop_;
  const int64_t boot_ns_;
  double memcpy_gbps_ = 0;
  Membership membership_;

  HeldCopies held_;
  StagingLedger ledger_;
  std::map<JobKey, LocalJob> jobs_;
  std::map<RunServer::ConnectionId, JobKey> connections_;
  std::map<uint64_t, LocalFetch> fetches_;
  std::map<uint64_t, v1::CommandResult> results_;
  std::deque<uint64_t> result_order_;
  uint64_t session_ = 0;
  uint64_t next_request_ = 1;
  int64_t looked_ns_ = 0;  // when LookAtRuns last did
  os::EventLoop::TimerId heartbeat_timer_ = 0, fetch_timer_ = 0, health_timer_ = 0, log_timer_ = 0;
  os::EventLoop::TimerId runs_timer_ = 0;
  os::EventLoop::TimerId connect_timer_ = 0;

  std::unique_ptr<HealthCheck> health_;
  std::unique_ptr<DataServer> data_;
  std::unique_ptr<RunServer> runs_;
  std::unique_ptr<os::WorkerPool> pool_;
  std::unique_ptr<CoordinatorLink> link_;  // last: ends first
};

// Bytes per second, in 10^9, of a copy between two buffers larger than caches: the best of a few.
Result<double> MeasureMemcpyGbps();

}  // namespace ckpt::agent
