// Epoch claims: EPOCH.n.claim, promised COMMITs, rescue, listing, EPOCH.n, look; in that order.
//
// I1  Nothing is concluded from one listing: attempts are taken as seen in any, until two agree.
// I2  After the list is written, a newer claim stops this one before it does anything else.
#include <algorithm>

#include "libckpt/base/fault.h"
#include "libckpt/base/log.h"
#include "libckpt/format/names.h"
#include "libckpt/format/records.h"
#include "libckpt/storage/epoch_store.h"
#include "libckpt/storage/planted_bug.h"

namespace ckpt::storage {
namespace {

constexpr int kClaimTriesMax = 1000;  // so many others took a number between our look and our put
constexpr int kListingsMax = 100;     // old runs that rename all the time
constexpr std::string_view kShape{};  // described by whoever launches, not here

Place PlaceOf(NameKind kind) {
  if (kind == NameKind::kTrash) return Place::kTrash;
  return kind == NameKind::kDead ? Place::kDead : Place::kOwn;
}

}  // namespace

Result<Epoch> EpochStore::TakeNumber(Epoch at_least) {
  if (at_least.value() > kEpochMax)
    return InvalidArgument("epoch " + std::to_string(at_least.value()) + " is out of range");
  CKPT_ASSIGN_OR_RETURN(const JobId job, EnsureJob());
  // Random, so that an answer "taken" to our own request, sent twice by a network file system, is
  // known for what it is.
  const std::string claimant = JobId::Random().ToString();
  for (int i = 0; i < kClaimTriesMax; ++i) {
    CKPT_ASSIGN_OR_RETURN(const Scan scan, ScanNames());
    const Epoch next = std::max(at_least, scan.newest_claim.Next());
    if (next.value() > kEpochMax)
      return OutOfRange(Describe() + ": epoch " + std::to_string(next.value()) +
                        " is beyond what this release can count; a foreign EPOCH file is there");
    const format::ClaimFile claim{job, next, claimant};
    if (Planted("reuse an epoch") && scan.newest_claim.value() > 0) return scan.newest_claim;
    const Status put = directory_->PutNew(format::ClaimFileName(next), claim.Encode());
    if (put.ok()) return next;
    if (put.code() != Code::kAlreadyExists) return put;
  }
  return Unavailable(Describe() + ": every epoch number was taken by another claimant, " +
                     std::to_string(kClaimTriesMax) + " times; too many runs start at once");
}

Status EpochStore::CreatePromised(const std::vector<std::pair<AttemptId, CommitRecord>>& promised) {
  for (const auto& [id, record] : promised) {
    const Result<std::string> manifest = ReadManifest(id);
    if (!manifest.ok() && manifest.status().code() == Code::kNotFound) {
      LogWarning(Describe() + ": a commit of " + id.ToString() +
                 " was recorded, but its MANIFEST is not there: it stays uncommitted");
      continue;
    }
    if (!manifest.ok()) return manifest.status();
    CKPT_RETURN_IF_ERROR(PutCommit(id, record).Annotate("keeping the promise of " + id.ToString()));
    CKPT_FAULT("store.claim.after_promised_commit");
  }
  return OkStatus();
}

Status EpochStore::RescueTrash(Epoch claimed) {
  CKPT_ASSIGN_OR_RETURN(const Scan scan, ScanNames());
  for (const ParsedName& name : scan.attempts) {
    if (name.kind != NameKind::kTrash || name.epoch >= claimed) continue;
    const Status back = directory_->RenameDir(DirNameOf(name), name.id.ToString());
    // Gone: its owner renamed it, back or on to .dead. Taken: there are two, keep both.
    if (back.ok() || back.code() == Code::kNotFound) continue;
    if (back.code() != Code::kAlreadyExists) return back;
    LogWarning(Describe() + ": " + DirNameOf(name) + " stays, there is another " +
               name.id.ToString());
  }
  return OkStatus();
}

Result<std::vector<SeenAttempt>> EpochStore::SeeAttempts(const Scan& scan, const EpochList& base) {
  std::vector<SeenAttempt> seen;
  for (const ParsedName& name : scan.attempts) {
    SeenAttempt attempt{name.id, PlaceOf(name.kind)};
    if (attempt.place != Place::kDead && name.id.epoch == base.epoch) {
      CKPT_ASSIGN_OR_RETURN(const Marks marks, MarksIn(DirNameOf(name), name.id));
      attempt.committed = marks.committed;
      attempt.draining = marks.draining && !Planted("forget to adopt a draining attempt");
    }
    seen.push_back(attempt);
  }
  return seen;
}

Result<EpochList> EpochStore::MakeList(Epoch claimed, const std::vector<AttemptId>& adopt_also) {
  std::vector<SeenAttempt> all, last;
  Epoch last_base;
  for (int i = 0; i < kListingsMax; ++i) {
    CKPT_ASSIGN_OR_RETURN(const Scan scan, ScanNames());
    const auto above = scan.lists.lower_bound(claimed);
    const Epoch base_epoch = above == scan.lists.begin() ? Epoch(0) : *std::prev(above);
    CKPT_ASSIGN_OR_RETURN(const EpochList base, ReadList(base_epoch));
    CKPT_ASSIGN_OR_RETURN(std::vector<SeenAttempt> seen, SeeAttempts(scan, base));
    CKPT_FAULT("store.claim.after_listing");
    all.insert(all.end(), seen.begin(), seen.end());
    if (i > 0 && seen == last && base_epoch == last_base)
      return EpochList{claimed, ComposeList(claimed, base, all, adopt_also)};
    last = std::move(seen);
    last_base = base_epoch;
  }
  return Unavailable(Describe() + ": the directory changed between any two of " +
                     std::to_string(kListingsMax) +
                     " listings; another run of this job is still at work, end it first");
}

Result<EpochClaim> EpochStore::ClaimEpoch(
    Epoch at_least, const std::vector<AttemptId>& adopt_also,
    const std::vector<std::pair<AttemptId, CommitRecord>>& promised) {
  CKPT_FAULT("store.claim.begin");
  CKPT_ASSIGN_OR_RETURN(const Epoch claimed, TakeNumber(at_least));
  CKPT_FAULT("store.claim.after_claim");
  CKPT_RETURN_IF_ERROR(CreatePromised(promised));
  CKPT_RETURN_IF_ERROR(RescueTrash(claimed));
  CKPT_FAULT("store.claim.after_rescue");

  CKPT_ASSIGN_OR_RETURN(EpochList list, MakeList(claimed, adopt_also));
  CKPT_FAULT("store.claim.before_list");
  CKPT_ASSIGN_OR_RETURN(const JobId job, EnsureJob());
  const format::EpochFile file{job, claimed, list.adopted, std::string(kShape)};
  CKPT_RETURN_IF_ERROR(directory_->PutNew(format::EpochFileName(claimed), file.Encode()));
  CKPT_FAULT("store.claim.after_list");

  CKPT_ASSIGN_OR_RETURN(const Scan scan, ScanNames());
  if (scan.newest_claim > claimed) {
    return Aborted(Describe() + ": epoch " + std::to_string(claimed.value()) +
                   " is overtaken by epoch " + std::to_string(scan.newest_claim.value()) +
                   ", which another run has claimed; end this one");
  }
  // What an old run moved to .trash after the first rescue is on our list: take it back.
  CKPT_RETURN_IF_ERROR(RescueTrash(claimed));
  MutexLock lock(mutex_);
  claimed_ = claimed;
  return EpochClaim{claimed, std::move(list.adopted)};
}

}  // namespace ckpt::storage
