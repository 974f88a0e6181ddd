// The inside of the core, shared by its source files:
//
//   core.cc        step, records, views
//   requests.cc    what people and schedulers ask for
//   reports.cc     what agents say
//   gang.cc        launching, stopping, and what becomes of a gang that is over
//   schedule.cc    room, and who gets it
//   operations.cc  the stored transactions
//   drain.cc       copies that their ckpt-runs did not live to write
//   quote.cc       victims and their price
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "coordinator/core/core.h"
#include "coordinator/core/placement.h"

namespace ckpt::core {

inline constexpr int64_t kSecondNs = 1'000'000'000;

struct PlanEntry {
  Plan plan;
  uint64_t job_epoch = 0;  // of the newcomer
  int64_t budget_ns = 0;   // as quoted
};

class Core::Impl {
 public:
  explicit Impl(Options options) : options_(std::move(options)) {}

  // --- core.cc
  Result<Actions> Recover(Time now, const std::vector<Record>& records,
                          const std::string& cluster_id);
  Actions Step(Time now, const Event& event);
  Status LoadRecord(const Record& record, bool* has_meta);
  void RearmAfterRestart();
  Actions Finish();  // settles, collects the writes
  void Settle();
  void CollectWrites();
  void PutRecord(const std::string& key, std::string bytes);
  void DropRecord(const std::string& key);
  void PruneOperations();
  Job& Edit(const std::string& name);  // marks it for storing; must exist
  Operation& EditOp(uint64_t op_id);
  Job* Find(const std::string& name);
  Operation* FindOp(uint64_t op_id);
  uint64_t MintOpId() { return (term_ << 32) | ++op_counter_; }
  EventRecord& Emit(std::string kind, const Job* job, std::string message);
  void SendTo(const std::string& node, Command command);
  bool Connected(const std::string& node) const;
  JobState VisibleState(const Job& job) const;
  std::string OutOfReach(const Job& job) const;  // nodes, comma-separated

  // --- requests.cc: each returns the answer
  Reply On(const PutJob& request);
  Reply On(const Quote& request);
  Reply On(const Apply& request);
  Reply On(const Suspend& request);
  Reply On(const Resume& request);
  Reply On(const Checkpoint& request);
  Reply On(const Migrate& request);
  Reply On(const Cancel& request);
  Reply On(const Withdraw& request);
  Status CheckSpec(const JobSpec& spec) const;
  Status CheckFitsCluster(const JobSpec& spec) const;
  Status CheckMigrate(const Job& job, const Migrate& request) const;
  // The stored operation of a repeated op_id.
  std::optional<Reply> Repeated(uint64_t op_id, OperationKind kind, const std::string& job) const;
  Result<Job*> JobForRequest(const std::string& name, uint64_t epoch);
  static bool CanWithdraw(const Operation& op);
  Status CheckIdle(const Job& job, const char* verb) const;
  Status CheckCanSuspend(const Job& job) const;
  Operation& NewOp(uint64_t op_id, OperationKind kind, Job* job, int64_t deadline_ms);
  int64_t DefaultBudgetNs(const Job& job) const;
  void GiveUpCopies(Job& job);
  Status ResumeOn(Job& job, const Resume& request, Operation& op);
  Reply Done(Operation& op, std::string message);

  // --- reports.cc
  void Heard(const std::string& node);
  void On(const NodeConnected& event);
  void On(const NodeLost& event);
  void On(const JobReported& event);
  void On(const Fetched& event);
  void On(const CommandAnswered& event);
  void On(const StagingUsed& event);
  void On(const Tick& event);
  void ReportOfUnknownJob(const std::string& node, const JobReport& report);
  void ReportOfOldEpoch(Job& job, const std::string& node, const JobReport& report);
  void AdoptEpoch(Job& job, const std::string& node, const JobReport& report);
  Member* AdoptMember(Job& job, const std::string& node, const JobReport& report);
  void FoldMember(Job& job, Member& member, const JobReport& report);
  void FoldCopies(Job& job, const std::string& node, const JobReport& report);
  void CopiesLost(Job& job, const std::vector<CopyState>& before);
  void RememberDurable(Job& job, const std::vector<CopyState>& before);
  void FoldSilence(Job& job, const std::string& node, const JobReport& report);
  void SaveRefused(const Job& job, const JobReport& report);
  void FoldHeldUp(Job& job, const std::string& node, const JobReport& report);
  void FoldTimes(Job& job, const JobReport& report);
  void Measure(Job& job);
  void ForgetSuperseded(Job& job);
  void ReconcileMember(Job& job, Member& member);
  void ProbeSilentMembers(Job& job);

  // --- gang.cc
  void LaunchAt(Job& job, const Placement& placement);
  void SendLaunch(Job& job, Member& member);
  void LaunchMembers(Job& job);  // those whose turn has come
  void BeginStop(Job& job, StopPurpose purpose, bool kill, int64_t budget_ns);
  void OrderKill(Job& job);
  const char* SourceOfStop(const Job& job);
  void SendStop(Job& job, Member& member);
  void TakeBackStop(Job& job);
  void SuspendFailed(Job& job, const std::string& message);
  void MemberFailed(Job& job, Member& member, const std::string& message);
  void FoldGang(Job& job);  // derives the job's state from its members'
  void GangRunning(Job& job);
  void GangOver(Job& job);
  void GangSuspended(Job& job, bool clean, const std::string& what);
  void RestartOrFail(Job& job, const std::string& what);
  void EndJob(Job& job, JobState state, std::string reason);
  double BookLostWork(Job& job);
  double BookLoss(Job& job, int64_t steps, double seconds, const std::string& why);
  std::string FailureOf(const Job& job) const;
  std::string FallbackOf(const Job& job) const;             // "goes on from step 100"
  std::optional<CopyState> Expected(const Job& job) const;  // the newest copy that counts
  void HoldBehind(Job& job, const std::string& what);
  void BookFallBack(Job& job);
  void DelayStart(Job& job);
  bool RelaunchInPlace(Job& job);

  // --- drain.cc
  void Drains();
  std::string Stalled(const Drain& drain, const CopyState& copy) const;
  void ConsiderDrain(Job& job);
  std::optional<CopyState> Undrained(const Job& job) const;
  bool NobodyWrites(const Job& job, const CopyState& copy) const;
  // Which ckpt-run of the gang of `copy` does not answer; empty: all do.
  std::string SilentWriter(const Job& job, const CopyState& copy) const;
  void StartDrain(Job& job, const CopyState& copy, const std::string& why);
  void SendDrains(Job& job);
  void FoldDrain(Job& job, const std::string& node, const JobReport& report);
  void CheckDrain(Job& job);
  void DrainFailed(Job& job, const std::string& why);
  void EndDrain(Job& job);
  void DrainAnswered(Job& job, const std::string& node, const CommandResult& result);
  std::string DrainInWords(const Job& job) const;

  // --- schedule.cc
  std::vector<Room> Rooms(uint64_t without_op = 0) const;  // of connected nodes
  std::map<std::string, uint32_t> HoldsOf(const Operation& op) const;
  uint64_t BytesPerRank(const Job& job) const;
  uint64_t StagingUse(const Job& job, const std::string& node) const;
  // Where `job` can go into `rooms`, or why not.
  Result<Placement> PlaceJob(const Job& job, const std::vector<Room>& rooms) const;
  std::optional<Placement> OldPlace(const Job& job, const std::vector<Room>& rooms) const;
  bool BoundToRam(const Job& job) const;
  std::string WhatIsShort(const Job& job, const std::vector<Room>& rooms) const;
  void Schedule();
  void SetReason(Job& job, std::string reason);

  // --- operations.cc
  void AdvanceOps();
  void Advance(Operation& op);
  void AdvancePreempt(Operation& op);
  void AdvanceMigrate(Operation& op);
  void AdvanceSuspend(Operation& op);
  void AdvanceResume(Operation& op);
  void SendSave(const Operation& op);
  void AdvanceCheckpoint(Operation& op);
  void AdvanceCancel(Operation& op);
  void AdvanceGranted(Operation& op);
  Phase PhaseOf(const Job& job) const;
  void SetPhase(Operation& op, Phase phase);
  void Grant(Operation& op);
  void StartFetch(Operation& op);
  void MoveBack(Operation& op, const std::string& why);
  void FinishOp(Operation& op, OperationState state, Phase phase, std::string message);
  void AbortPreempt(Operation& op, const std::string& why);
  void UndoVictim(VictimProgress& victim);
  void Overdue(Operation& op);
  void OverdueJobs();
  std::string SilentNodes(const Job& job) const;  // comma-separated
  std::string SilenceOf(const Operation& op) const;

  // --- quote.cc
  struct Candidate {
    const Job* job;
    VictimQuote quote;
  };
  Result<Plan> MakePlan(const Job& newcomer, int64_t budget_ns);
  // budget_ns: what it is given to stop; 0: its default.
  VictimQuote PriceOf(const Job& victim, int64_t budget_ns) const;
  // Why `victim` may not make room for `newcomer`; empty if it may.
  std::string WhyNot(const Job& victim, const Job& newcomer) const;
  std::vector<Candidate> CandidatesFor(const Job& newcomer, int64_t budget_ns,
                                       std::vector<std::string>* rejected);
  std::optional<Placement> PlacementWithout(const Job& newcomer,
                                            const std::vector<const Candidate*>& victims) const;
  double StageSecondsOf(const Job& victim) const;
  double GrantSeconds(const std::vector<VictimQuote>& victims) const;
  // Says that `victim` will not be staged within `budget_ns`, and what then; else empty.
  std::string TooShort(const Job& victim, int64_t budget_ns) const;
  Status Revalidate(const PlanEntry& entry, int64_t deadline_ms, Plan* fresh);

  // --- state
  Options options_;
  std::string cluster_id_;
  std::string data_token_;
  uint64_t term_ = 0;
  uint64_t op_counter_ = 0;
  uint64_t plan_counter_ = 0;
  uint64_t revision_ = 0;
  std::map<std::string, Job> jobs_;
  std::map<std::string, Node> nodes_;
  std::map<uint64_t, Operation> ops_;
  std::set<uint64_t> running_ops_;
  std::set<std::string> delayed_;   // waiting jobs that are not launched before their time
  std::set<std::string> stopping_;  // live jobs that a clock watches
  std::set<std::string> draining_;  // jobs whose drain a clock watches
  std::deque<PlanEntry> plans_;
  std::deque<EventRecord> events_;
  std::map<std::string, uint64_t> stored_;  // hash of each record as last stored

  std::vector<Room> base_rooms_;  // of the plan that is being made

  // Of the step in progress.
  Time now_;
  Actions out_;
  std::set<std::string> dirty_jobs_;
  std::set<std::string> dirty_nodes_;
  std::set<uint64_t> dirty_ops_;
  bool meta_dirty_ = false;
  int64_t pruned_ns_ = 0;
  bool settle_ = false;  // something changed that operations or waiting jobs care about
};

std::vector<CopyState> MergedCopies(const Job& job);
std::map<std::string, std::string> TimesData(const PhaseTimes& times);
std::string Plural(uint64_t count, const std::string& noun);

}  // namespace ckpt::core
