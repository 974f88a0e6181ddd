// Repair and usage of a job's directory: what an interrupted run has left, and what takes the room.
//
// I1  Repair does what its plan says and nothing else, and never touches what is visible, may yet
//     become visible, is referred to, or is not proven to be this job's.
#include <algorithm>
#include <map>

#include "libckpt/base/fault.h"
#include "libckpt/format/index.h"
#include "libckpt/format/names.h"
#include "libckpt/format/records.h"
#include "libckpt/storage/epoch_store.h"
#include "libckpt/storage/planted_bug.h"

namespace ckpt::storage {
namespace {

// Names that a save makes in its attempt's directory.
bool IsOurs(const std::string& name) {
  const bool record = name == format::kManifestFile || name == format::kCommitFile ||
                      name == format::kDrainingFile || name == format::kOriginsFile;
  return record || name.starts_with(".tmp-") ||
         (name.starts_with("shard-") &&
          (name.ends_with(".safetensors") || name.ends_with(".index")));
}

}  // namespace

Result<std::string> EpochStore::WhyNotGarbage(const AttemptId& id, bool fenced_too) {
  const std::string dir = id.ToString();
  CKPT_ASSIGN_OR_RETURN(const std::vector<NamedEntry> entries, directory_->ListDir(dir));
  CKPT_ASSIGN_OR_RETURN(const Marks marks, MarksIn(dir, id));
  if (marks.draining)
    return std::string("it is marked as draining: its copy may still be in RAM somewhere");
  if (marks.committed && !fenced_too)
    return std::string(
        "it is committed, though no list names it; remove it as fenced if it is not "
        "a checkpoint that somebody put back");
  for (const NamedEntry& entry : entries) {
    if (!entry.file || !IsOurs(entry.name)) return "'" + entry.name + "' in it is not ours";
  }
  for (const std::string_view file : {format::kCommitFile, format::kOriginsFile}) {
    const auto bytes = directory_->Get(dir + "/" + std::string(file), format::kRecordBytesMax);
    if (!bytes.ok()) continue;
    const auto commit = format::CommitFile::Decode(*bytes);
    const auto origins = format::OriginsFile::Decode(*bytes);
    const bool foreign =
        (commit.ok() && !JobMatches(commit->job)) || (origins.ok() && !JobMatches(origins->job));
    if (foreign) return std::string(file) + " in it is of another job";
  }
  return std::string();
}

Result<RepairPlan> EpochStore::PlanRepair(
    const std::vector<std::pair<AttemptId, CommitRecord>>& promised, bool fenced_too) {
  CKPT_RETURN_IF_ERROR(KnownJob().status());
  CKPT_ASSIGN_OR_RETURN(const Scan scan, ScanNames());
  CKPT_ASSIGN_OR_RETURN(const EpochView view, ViewForRemoval(scan));
  RepairPlan plan;
  plan.epoch = view.newest_list.epoch;
  for (const auto& [id, record] : promised) {
    if (CommitIn(id.ToString(), id).ok() || !ReadManifest(id).ok()) continue;
    plan.actions.push_back({RepairKind::kCommit, id, id.ToString(),
                            "the coordinator has recorded its commit, and COMMIT is missing"});
  }
  std::vector<AttemptId> needed;
  for (const ParsedName& name : scan.attempts) {
    if (name.kind == NameKind::kDead) continue;
    CKPT_ASSIGN_OR_RETURN(const std::vector<AttemptId> origins, OriginsIn(DirNameOf(name)));
    needed.insert(needed.end(), origins.begin(), origins.end());
  }
  for (const ParsedName& name : scan.attempts) {
    CKPT_RETURN_IF_ERROR(PlanRepairOf(name, view, needed, fenced_too, &plan));
  }
  return plan;
}

Status EpochStore::PlanRepairOf(const ParsedName& name, const EpochView& view,
                                const std::vector<AttemptId>& needed, bool fenced_too,
                                RepairPlan* plan) {
  RepairAction action{RepairKind::kSweep, name.id, DirNameOf(name), ""};
  const auto size = directory_->Measure(action.name);
  if (size.ok()) action.bytes = size->bytes;
  if (name.kind == NameKind::kDead) {
    action.kind = RepairKind::kFinish;
    action.why = "its removal was decided and not finished";
  } else if (name.kind == NameKind::kTrash) {
    action.kind = RepairKind::kTakeBack;
    action.why = "its removal was interrupted before it was decided";
    action.bytes = 0;
  } else {
    const bool older = name.id.epoch < view.newest_list.epoch;
    const bool promised =
        !Planted("collect garbage before COMMIT is repaired") &&
        std::any_of(plan->actions.begin(), plan->actions.end(), [&](const RepairAction& other) {
          return other.kind == RepairKind::kCommit && other.id == name.id;
        });
    if (!older || view.newest_list.Names(name.id) || promised) return OkStatus();
    if (std::find(needed.begin(), needed.end(), name.id) != needed.end()) return OkStatus();
    CKPT_ASSIGN_OR_RETURN(const std::string why_not, WhyNotGarbage(name.id, fenced_too));
    if (!why_not.empty()) {
      plan->left.push_back(action.name + ": " + why_not);
      return OkStatus();
    }
    action.why = "epoch " + std::to_string(name.id.epoch.value()) +
                 " is over and no list names it: it can never become visible";
  }
  plan->actions.push_back(std::move(action));
  return OkStatus();
}

Status EpochStore::Repair(const RepairPlan& plan,
                          const std::vector<std::pair<AttemptId, CommitRecord>>& promised) {
  CKPT_FAULT("store.repair.begin");
  // COMMITs first: what they make whole is no garbage any more.
  for (const auto& promise : promised) {
    const bool planned =
        std::any_of(plan.actions.begin(), plan.actions.end(), [&](const RepairAction& action) {
          return action.kind == RepairKind::kCommit && action.id == promise.first;
        });
    if (planned) CKPT_RETURN_IF_ERROR(PutCommit(promise.first, promise.second));
  }
  CKPT_ASSIGN_OR_RETURN(const EpochView view, ReadView());
  if (view.newest_claim != plan.epoch) {
    return Aborted(Describe() + ": epoch " + std::to_string(view.newest_claim.value()) +
                   " has been claimed since; plan again");
  }
  for (const RepairAction& action : plan.actions) {
    CKPT_FAULT("store.repair.action");
    Status status;
    if (action.kind == RepairKind::kTakeBack) {
      status = directory_->RenameDir(action.name, action.id.ToString());
    } else if (action.kind == RepairKind::kFinish) {
      status = directory_->RemoveDir(action.name);
    } else if (action.kind == RepairKind::kSweep) {
      const std::string dead = DeadName(plan.epoch, action.id);
      status = directory_->RenameDir(action.name, dead);
      if (status.ok()) status = directory_->RemoveDir(dead);
    }
    if (!status.ok() && status.code() != Code::kNotFound && status.code() != Code::kAlreadyExists)
      return std::move(status).Annotate("repairing " + action.name);
  }
  return OkStatus();
}

Result<std::vector<UsageRow>> EpochStore::Usage() {
  CKPT_RETURN_IF_ERROR(KnownJob().status());
  CKPT_ASSIGN_OR_RETURN(const Scan scan, ScanNames());
  CKPT_ASSIGN_OR_RETURN(const EpochView view, ViewOf(scan));
  std::vector<UsageRow> rows;
  std::map<AttemptId, std::vector<AttemptId>> needed_by;
  for (const ParsedName& name : scan.attempts) {
    UsageRow row{DirNameOf(name), name.id, "being removed"};
    const auto size = directory_->Measure(row.name);
    if (!size.ok() && size.status().code() == Code::kNotFound) continue;  // removed meanwhile
    if (!size.ok()) return std::move(size).status();
    row.files = size->files;
    row.bytes = size->bytes;
    if (name.kind == NameKind::kAttempt) {
      CKPT_ASSIGN_OR_RETURN(const Marks marks, MarksIn(row.name, row.id));
      const bool current = row.id.epoch == view.newest_list.epoch;
      row.state = IsVisible(row.id, marks.committed, view.newest_list) ? "visible"
                  : marks.draining                                     ? "draining"
                  : current                                            ? "open"
                                                                       : "not visible";
    }
    CKPT_ASSIGN_OR_RETURN(row.origins, OriginsIn(row.name));
    for (const AttemptId& origin : row.origins) needed_by[origin].push_back(row.id);
    rows.push_back(std::move(row));
  }
  for (UsageRow& row : rows) row.needed_by = needed_by[row.id];
  std::sort(rows.begin(), rows.end(), [](const UsageRow& a, const UsageRow& b) {
    return std::tie(b.id, a.name) < std::tie(a.id, b.name);
  });
  return rows;
}

}  // namespace ckpt::storage
