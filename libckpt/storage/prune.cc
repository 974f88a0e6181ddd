// Retention on a store: rename to .trash, look, rename to .dead, remove. Newest first, so that at
// no moment a checkpoint is there without what it refers to.
//
// I1  Between the two renames of a checkpoint lies a look that saw no newer claim, and a listing
//     that saw no attempt that refers to it. An attempt names its origins before it makes sure that
//     they are still there, so one of the two sees the other.
// I2  What is moved back may be moved by anybody: a rename that finds nothing is no error.
#include <algorithm>
#include <set>

#include "libckpt/base/fault.h"
#include "libckpt/base/log.h"
#include "libckpt/format/manifest.h"
#include "libckpt/format/names.h"
#include "libckpt/format/records.h"
#include "libckpt/storage/epoch_store.h"
#include "libckpt/storage/planted_bug.h"

namespace ckpt::storage {
namespace {

std::string KeyIn(std::string_view dir_name, std::string_view file) {
  return std::string(dir_name) + "/" + std::string(file);
}

}  // namespace

std::string DirNameOf(const ParsedName& name) {
  if (name.kind == NameKind::kTrash) return TrashName(name.epoch, name.id);
  if (name.kind == NameKind::kDead) return DeadName(name.epoch, name.id);
  return name.id.ToString();
}

Result<std::vector<AttemptId>> EpochStore::OriginsIn(const std::string& dir_name) {
  const Result<std::string> manifest =
      directory_->Get(KeyIn(dir_name, format::kManifestFile), kManifestBytesMax);
  if (manifest.ok()) {
    const auto decoded = format::Manifest::Decode(*manifest);
    std::vector<AttemptId> ids;
    if (decoded.ok()) {
      for (const format::ManifestOrigin& origin : decoded->origins) ids.push_back(origin.id);
      return ids;
    }
  }
  const std::string key = KeyIn(dir_name, format::kOriginsFile);
  const Result<std::string> bytes = directory_->Get(key, format::kRecordBytesMax);
  if (!bytes.ok() && bytes.status().code() == Code::kNotFound) return std::vector<AttemptId>();
  if (!bytes.ok()) return Unavailable(bytes.status().message());
  const auto file = format::OriginsFile::Decode(*bytes);
  if (!file.ok()) {
    LogWarning(directory_->Describe(key) + " is damaged: ignored (" + file.status().message() +
               ")");
    return std::vector<AttemptId>();
  }
  return file->origins;
}

Result<std::vector<AttemptId>> EpochStore::OriginsOfOpen(const Scan& scan, const EpochView& view) {
  std::vector<AttemptId> needed;
  if (Planted("retention blind to origins")) return needed;
  for (const ParsedName& name : scan.attempts) {
    const bool current = name.id.epoch == view.newest_list.epoch || view.newest_list.Names(name.id);
    if (name.kind != NameKind::kAttempt || !current) continue;
    CKPT_ASSIGN_OR_RETURN(const Marks marks, MarksIn(name.id.ToString(), name.id));
    if (marks.committed) continue;
    CKPT_ASSIGN_OR_RETURN(const std::vector<AttemptId> origins, OriginsIn(name.id.ToString()));
    needed.insert(needed.end(), origins.begin(), origins.end());
  }
  return needed;
}

Result<EpochView> EpochStore::ViewForRemoval(const Scan& scan) {
  CKPT_ASSIGN_OR_RETURN(EpochView view, ViewOf(scan));
  if (view.newest_claim != view.newest_list.epoch) {
    return Unavailable(Describe() + ": epoch " + std::to_string(view.newest_claim.value()) +
                       " is being claimed; nothing is removed before its list is complete, try "
                       "again");
  }
  if (view.newest_list.epoch.value() == 0)
    return FailedPrecondition(Describe() + " has no epoch: no run of a job ever saved here");
  return view;
}

Result<std::vector<Retained>> EpochStore::FindRetained(const Scan& scan, const EpochView& view,
                                                       const IsWhole& is_whole) {
  std::vector<Retained> found;
  std::set<AttemptId> seen;
  for (const ParsedName& name : scan.attempts) {
    if (name.kind == NameKind::kDead || seen.contains(name.id)) continue;
    const std::string dir = DirNameOf(name);
    CKPT_ASSIGN_OR_RETURN(const Marks marks, MarksIn(dir, name.id));
    if (!IsVisible(name.id, marks.committed, view.newest_list)) continue;
    seen.insert(name.id);
    Retained checkpoint{name.id};
    CKPT_ASSIGN_OR_RETURN(const CommitRecord commit, CommitIn(dir, name.id));
    const auto manifest = directory_->Get(KeyIn(dir, format::kManifestFile), kManifestBytesMax);
    checkpoint.whole = manifest.ok() && format::ManifestDigest(*manifest) == commit.manifest_digest;
    if (checkpoint.whole && is_whole && name.kind == NameKind::kAttempt) {
      CKPT_ASSIGN_OR_RETURN(checkpoint.whole, is_whole(name.id));
    }
    checkpoint.pinned =
        directory_->Get(KeyIn(dir, format::kPinnedFile), kPageBytes).status().code() !=
        Code::kNotFound;
    CKPT_ASSIGN_OR_RETURN(checkpoint.origins, OriginsIn(dir));
    CKPT_ASSIGN_OR_RETURN(checkpoint.committed_ns,
                          directory_->ModifiedNs(KeyIn(dir, format::kCommitFile)));
    found.push_back(std::move(checkpoint));
  }
  std::sort(found.begin(), found.end(),
            [](const Retained& a, const Retained& b) { return a.id > b.id; });
  return found;
}

Result<PrunePlan> EpochStore::PlanPrune(const KeepRules& rules, const IsWhole& is_whole) {
  CKPT_RETURN_IF_ERROR(KnownJob().status());
  CKPT_ASSIGN_OR_RETURN(const Scan scan, ScanNames());
  CKPT_ASSIGN_OR_RETURN(const EpochView view, ViewForRemoval(scan));
  CKPT_ASSIGN_OR_RETURN(const std::vector<Retained> checkpoints,
                        FindRetained(scan, view, is_whole));
  CKPT_ASSIGN_OR_RETURN(const std::vector<AttemptId> needed, OriginsOfOpen(scan, view));
  PrunePlan plan = DecidePrune(checkpoints, needed, rules);
  plan.epoch = view.newest_list.epoch;
  for (auto* entries : {&plan.keep, &plan.remove}) {
    for (PruneEntry& entry : *entries) {
      const auto at =
          std::find_if(scan.attempts.begin(), scan.attempts.end(), [&](const ParsedName& name) {
            return name.id == entry.id && name.kind != NameKind::kDead;
          });
      if (at == scan.attempts.end()) continue;
      const auto size = directory_->Measure(DirNameOf(*at));
      if (size.ok()) entry.bytes = size->bytes;
    }
  }
  return plan;
}

// Under whichever names an interrupted removal left them.
Status EpochStore::TakeBack(const std::vector<AttemptId>& ids, Epoch by) {
  Status first;
  for (const AttemptId& id : ids) {
    const Status back = directory_->RenameDir(TrashName(by, id), id.ToString());
    const bool settled = back.ok() || back.code() == Code::kNotFound ||  // I2
                         back.code() == Code::kAlreadyExists;
    if (!settled && first.ok()) first = back;
  }
  return first;
}

Status EpochStore::CheckStillRetired(Epoch by, std::vector<AttemptId>* moved) {
  CKPT_ASSIGN_OR_RETURN(const Scan scan, ScanNames());
  CKPT_ASSIGN_OR_RETURN(const EpochView view, ViewOf(scan));
  if (view.newest_claim > by && !Planted("let a frozen epoch delete")) {
    return Aborted(Describe() + ": epoch " + std::to_string(view.newest_claim.value()) +
                   " has claimed the job; what was being removed is moved back, remove as the "
                   "new epoch");
  }
  CKPT_ASSIGN_OR_RETURN(std::vector<AttemptId> needed, OriginsOfOpen(scan, view));
  for (const ParsedName& name : scan.attempts) {
    if (name.kind != NameKind::kAttempt) continue;
    CKPT_ASSIGN_OR_RETURN(const Marks marks, MarksIn(name.id.ToString(), name.id));
    if (!IsVisible(name.id, marks.committed, view.newest_list)) continue;
    CKPT_ASSIGN_OR_RETURN(const std::vector<AttemptId> origins, OriginsIn(name.id.ToString()));
    needed.insert(needed.end(), origins.begin(), origins.end());
  }
  std::vector<AttemptId> back;
  std::erase_if(*moved, [&](const AttemptId& id) {
    const bool keep = std::find(needed.begin(), needed.end(), id) != needed.end();
    if (keep) back.push_back(id);
    return keep;
  });
  return TakeBack(back, by);
}

Status EpochStore::Bury(Epoch by, std::vector<AttemptId> moved, PruneReport* report) {
  while (!moved.empty()) {
    const AttemptId id = moved.front();
    const Status dead = directory_->RenameDir(TrashName(by, id), DeadName(by, id));
    CKPT_FAULT("store.prune.after_dead");
    if (dead.code() == Code::kNotFound) {
      // Somebody took it back. A claimant: stop. Another removal of this epoch: go on.
      CKPT_RETURN_IF_ERROR(CheckStillRetired(by, &moved));
      std::erase(moved, id);
      continue;
    }
    CKPT_RETURN_IF_ERROR(dead);
    moved.erase(moved.begin());
    CKPT_RETURN_IF_ERROR(directory_->RemoveDir(DeadName(by, id)));
    report->removed.push_back(id);
  }
  return OkStatus();
}

// What was decided before and not carried out, of this epoch or an older one.
Status EpochStore::FinishRemovals(Epoch by) {
  CKPT_ASSIGN_OR_RETURN(const Scan scan, ScanNames());
  for (const ParsedName& name : scan.attempts) {
    if (name.kind == NameKind::kDead && name.epoch <= by)
      CKPT_RETURN_IF_ERROR(directory_->RemoveDir(DirNameOf(name)));
  }
  return OkStatus();
}

Result<PruneReport> EpochStore::Prune(const PrunePlan& plan) {
  CKPT_FAULT("store.prune.begin");
  PruneReport report;
  std::vector<AttemptId> kept;
  for (const PruneEntry& entry : plan.keep) kept.push_back(entry.id);
  CKPT_RETURN_IF_ERROR(TakeBack(kept, plan.epoch));
  std::vector<AttemptId> moved;
  Status status;
  for (const PruneEntry& entry : plan.remove) {
    status = directory_->RenameDir(entry.id.ToString(), TrashName(plan.epoch, entry.id));
    // Gone from its name: in the trash already, or removed by another. Found in both: left alone.
    if (status.ok() || status.code() == Code::kNotFound) moved.push_back(entry.id);
    const bool settled =
        status.ok() || status.code() == Code::kNotFound || status.code() == Code::kAlreadyExists;
    if (!settled) break;
    status = OkStatus();
  }
  const auto remove = [&]() -> Status {
    CKPT_RETURN_IF_ERROR(status);
    CKPT_FAULT("store.prune.after_trash");
    CKPT_RETURN_IF_ERROR(CheckStillRetired(plan.epoch, &moved));
    CKPT_FAULT("store.prune.after_look");
    return Bury(plan.epoch, moved, &report);
  };
  const Status removed = remove();
  if (removed.ok()) {
    CKPT_RETURN_IF_ERROR(FinishRemovals(plan.epoch));
    return report;
  }
  // Whatever is in the trash belongs back: what is gone from there is no error.
  TakeBack(moved, plan.epoch).IgnoreError();
  return Status(removed).Annotate("removing old checkpoints");
}

Result<std::vector<AttemptId>> EpochStore::Retain(const KeepRules& rules, const IsWhole& is_whole) {
  CKPT_ASSIGN_OR_RETURN(const PrunePlan plan, PlanPrune(rules, is_whole));
  CKPT_ASSIGN_OR_RETURN(PruneReport report, Prune(plan));
  return std::move(report.removed);
}

}  // namespace ckpt::storage
