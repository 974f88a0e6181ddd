// The protocol of docs/format/commit.md over any JobDirectory: claims with lists, look - create -
// look, visibility by the newest complete list.
//
// Threads: all calls are safe at once; claims and commits are the leader's alone.
#pragma once

#include <map>
#include <set>

#include "libckpt/base/mutex.h"
#include "libckpt/storage/job_directory.h"
#include "libckpt/storage/retention.h"
#include "libckpt/storage/store.h"
#include "libckpt/storage/visibility.h"

namespace ckpt::storage {

struct EpochStoreOptions {
  // Waiting for a claim's list: the first and the longest pause between two looks.
  Nanos poll_min = std::chrono::milliseconds(5);
  Nanos poll_max = std::chrono::milliseconds(500);
  // How long MarkDraining waits for a newer claim's list.
  Nanos mark_wait = std::chrono::seconds(10);
};

struct PruneReport {
  std::vector<AttemptId> removed;
};

// The directory's name of a parsed one.
std::string DirNameOf(const ParsedName& name);

class EpochStore : public Store {
 public:
  explicit EpochStore(std::unique_ptr<JobDirectory> directory, EpochStoreOptions options = {});

  Result<JobId> OpenJob(const JobId& expected) override;
  Result<EpochClaim> ClaimEpoch(
      Epoch at_least, const std::vector<AttemptId>& adopt_also,
      const std::vector<std::pair<AttemptId, CommitRecord>>& promised) override;
  Result<Epoch> HighestEpoch() override;
  Status BeginAttempt(const AttemptId& id) override;
  Result<std::unique_ptr<FileWriter>> CreateFile(const AttemptId& id, const std::string& name,
                                                 uint64_t size_hint) override;
  Result<AttemptOrigins> NameOrigins(const AttemptId& id, const AttemptOrigins& wanted) override;
  Status MarkDraining(const AttemptId& id) override;
  Status Abort(const AttemptId& id) override;
  Status Commit(const AttemptId& id, std::string_view manifest, const CommitRecord& record,
                const Deadline& deadline) override;
  Result<std::vector<CheckpointInfo>> List() override;
  Result<std::string> ReadManifest(const AttemptId& id) override;
  Result<CommitRecord> ReadCommit(const AttemptId& id) override;
  Result<std::unique_ptr<FileReader>> OpenFile(const AttemptId& id,
                                               const std::string& name) override;
  std::string Describe() const override;

  // What the rules would remove; changes nothing. `is_whole` (may be null) looks deeper than this
  // store does, which holds MANIFEST against COMMIT.
  // Errors: kUnavailable while an epoch is being claimed; kFailedPrecondition if there is none.
  Result<PrunePlan> PlanPrune(const KeepRules& rules, const IsWhole& is_whole);
  // Removes what the plan says, as far as it is still so: an attempt that refers to one of them
  // keeps it. Safe beside writers, other removals and kills at any moment.
  // Errors: kAborted if a newer epoch has claimed the job (what was not removed is moved back).
  Result<PruneReport> Prune(const PrunePlan& plan);
  Result<std::vector<AttemptId>> Retain(const KeepRules& rules, const IsWhole& is_whole) override;

  // What an interrupted run has left: promised COMMITs that are missing, removals half done,
  // attempts of older epochs that can never become visible. `fenced_too`: also those that were
  // committed and that no list names. Changes nothing.
  Result<RepairPlan> PlanRepair(
      const std::vector<std::pair<AttemptId, CommitRecord>>& promised = {},
      bool fenced_too = false);
  // Errors: kAborted if an epoch was claimed since the plan was made.
  Status Repair(const RepairPlan& plan,
                const std::vector<std::pair<AttemptId, CommitRecord>>& promised = {});
  // A row for each checkpoint and attempt, newest first.
  Result<std::vector<UsageRow>> Usage();

  // The id in JOB; kNotFound if the job was never opened for writing here.
  Result<JobId> ReadJob();
  // The newest complete list and the newest claim.
  Result<EpochView> ReadView();

 private:
  // The names of the job's directory, parsed, without what is foreign.
  struct Scan {
    Epoch newest_claim;
    std::set<Epoch> lists;
    std::vector<ParsedName> attempts;  // kAttempt, kTrash, kDead
  };
  struct Marks {
    bool committed = false;
    bool draining = false;
  };

  Result<Scan> ScanNames();
  // An empty list for epoch 0.
  Result<EpochList> ReadList(Epoch epoch);
  Result<EpochView> ViewOf(const Scan& scan);
  // The COMMIT in directory `dir_name`, as far as it is this attempt's: kNotFound if there is none,
  // kDataLoss if what is there is torn or another's.
  Result<CommitRecord> CommitIn(const std::string& dir_name, const AttemptId& id);
  Result<Marks> MarksIn(const std::string& dir_name, const AttemptId& id);

  // Retention and repair. An epoch whose claim is complete, or why nothing may be removed.
  Result<EpochView> ViewForRemoval(const Scan& scan);
  // What a checkpoint refers to by its MANIFEST, an attempt may refer to by its ORIGINS.
  Result<std::vector<AttemptId>> OriginsIn(const std::string& dir_name);
  Result<std::vector<AttemptId>> OriginsOfOpen(const Scan& scan, const EpochView& view);
  Result<std::vector<Retained>> FindRetained(const Scan& scan, const EpochView& view,
                                             const IsWhole& is_whole);
  Status TakeBack(const std::vector<AttemptId>& ids, Epoch by);
  // The look between the renames; moves back, and takes from `moved`, what is referred to by now.
  Status CheckStillRetired(Epoch by, std::vector<AttemptId>* moved);
  Status Bury(Epoch by, std::vector<AttemptId> moved, PruneReport* report);
  Status FinishRemovals(Epoch by);
  // Empty if it is garbage.
  Result<std::string> WhyNotGarbage(const AttemptId& id, bool fenced_too);
  Status PlanRepairOf(const ParsedName& name, const EpochView& view,
                      const std::vector<AttemptId>& needed, bool fenced_too, RepairPlan* plan);

  // Claims.
  Result<Epoch> TakeNumber(Epoch at_least);
  Status CreatePromised(const std::vector<std::pair<AttemptId, CommitRecord>>& promised);
  Status RescueTrash(Epoch claimed);
  Result<std::vector<SeenAttempt>> SeeAttempts(const Scan& scan, const EpochList& base);
  Result<EpochList> MakeList(Epoch claimed, const std::vector<AttemptId>& adopt_also);

  // Commits.
  Status PutManifest(const AttemptId& id, std::string_view manifest);
  Status PutCommit(const AttemptId& id, const CommitRecord& record);
  // The second look, after COMMIT is durable.
  Status Acknowledge(const AttemptId& id, const Deadline& deadline);
  // One look: kYes is OK, kUndecided waits until the deadline.
  Status Look(const AttemptId& id, const Deadline& deadline);
  Status CheckNotDoomed(const AttemptId& id);
  void Doom(const AttemptId& id);

  // Reads JOB once; mints it if there is none.
  Result<JobId> EnsureJob();
  // Zero if there is no JOB: then any job's records are accepted.
  Result<JobId> KnownJob();
  bool JobMatches(const JobId& job);

  const std::unique_ptr<JobDirectory> directory_;
  const EpochStoreOptions options_;
  Mutex mutex_;
  JobId job_ CKPT_GUARDED_BY(mutex_);
  Epoch claimed_ CKPT_GUARDED_BY(mutex_);
  std::set<AttemptId> begun_ CKPT_GUARDED_BY(mutex_);
  std::set<AttemptId> committing_ CKPT_GUARDED_BY(mutex_);  // past the first look: never aborted
  std::set<AttemptId> doomed_ CKPT_GUARDED_BY(mutex_);      // a sync failed: never committed here
};

}  // namespace ckpt::storage
