// Commit: MANIFEST, look, COMMIT, look; and the look itself.
//
// I1  OK is answered only after COMMIT is durable and a look that began after that.
// I2  Once COMMIT may be there, no error says "not applied".
// I3  An attempt one of whose syncs failed is never committed by this process: a second sync that
//     succeeds proves nothing about what the first one lost.
#include <algorithm>

#include "libckpt/base/fault.h"
#include "libckpt/base/log.h"
#include "libckpt/format/manifest.h"
#include "libckpt/format/names.h"
#include "libckpt/format/records.h"
#include "libckpt/storage/epoch_store.h"
#include "libckpt/storage/planted_bug.h"

namespace ckpt::storage {
namespace {

std::string KeyIn(const AttemptId& id, std::string_view file) {
  return id.ToString() + "/" + std::string(file);
}

// Waits for `pause` or until the deadline.
void Pause(Nanos pause, const Deadline& deadline) {
  Mutex mutex;
  CondVar never;
  const Deadline wake("store: pause between two looks", pause);
  MutexLock lock(mutex);
  while (never.WaitUntil(mutex, wake.Min(deadline))) {
  }
}

}  // namespace

Status EpochStore::Look(const AttemptId& id, const Deadline& deadline) {
  if (Planted("drop a fence")) return OkStatus();
  for (Nanos pause = options_.poll_min;; pause = std::min(2 * pause, options_.poll_max)) {
    CKPT_ASSIGN_OR_RETURN(const EpochView view, ReadView());
    switch (MayCommit(id, view)) {
      case Verdict::kYes:
        return OkStatus();
      case Verdict::kFenced:
        return FencedError(id, view, Describe());
      case Verdict::kUnclaimed:
        return UnclaimedError(id, view, Describe());
      case Verdict::kUndecided:
        break;
    }
    if (deadline.Expired()) return UndecidedError(id, view, Describe());
    CKPT_FAULT("store.look.wait");
    Pause(pause, deadline);
  }
}

Status EpochStore::CheckNotDoomed(const AttemptId& id) {
  MutexLock lock(mutex_);
  if (!doomed_.contains(id)) return OkStatus();
  return FailedPrecondition(Describe() + ": a sync of " + id.ToString() +
                            " failed before, so it can no longer be proved durable; begin a new "
                            "attempt")
      .MaybeApplied();
}

void EpochStore::Doom(const AttemptId& id) {
  MutexLock lock(mutex_);
  doomed_.insert(id);
}

Status EpochStore::PutManifest(const AttemptId& id, std::string_view manifest) {
  Status put = directory_->PutNew(KeyIn(id, format::kManifestFile), manifest);
  if (put.outcome() == Outcome::kMaybeApplied) Doom(id);
  if (put.code() == Code::kAlreadyExists)
    put.Annotate("another MANIFEST is there; begin a new attempt");
  // The MANIFEST may be there or not; without a COMMIT it is nothing.
  return put.ok() ? put : Status(put.code(), put.message());
}

Status EpochStore::PutCommit(const AttemptId& id, const CommitRecord& record) {
  CKPT_ASSIGN_OR_RETURN(const JobId job, EnsureJob());
  const std::string key = KeyIn(id, format::kCommitFile);
  const std::string bytes =
      format::CommitFile{job, id, record.manifest_digest, record.epoch, record.coordinator}
          .Encode();
  Status put = directory_->PutNew(key, bytes);
  if (put.code() == Code::kAlreadyExists) {
    const Result<CommitRecord> there = CommitIn(id.ToString(), id);
    if (there.ok() && there->manifest_digest == record.manifest_digest) {
      // Somebody who kept the promise for us; we did not see their sync.
      return directory_->Sync(key);
    }
    if (there.ok())
      return AlreadyExists(directory_->Describe(key) + " commits another manifest, " +
                           there->manifest_digest.ToString());
    if (there.status().code() != Code::kDataLoss) return there.status();
    LogWarning(there.status().message() + ": it commits nothing and is replaced");
    put = directory_->Replace(key, bytes);
  }
  if (put.outcome() == Outcome::kMaybeApplied) Doom(id);
  return put;
}

Status EpochStore::Commit(const AttemptId& id, std::string_view manifest,
                          const CommitRecord& record, const Deadline& deadline) {
  if (record.epoch < id.epoch)
    return InvalidArgument("epoch " + std::to_string(record.epoch.value()) + " cannot commit " +
                           id.ToString() + " of a later one");
  if (manifest.empty() || manifest.size() > kManifestBytesMax)
    return InvalidArgument("the manifest of " + id.ToString() + " has " +
                           std::to_string(manifest.size()) + " bytes");
  if (format::ManifestDigest(manifest) != record.manifest_digest)
    return InvalidArgument("the commit record of " + id.ToString() +
                           " names another manifest than the one given");
  CKPT_RETURN_IF_ERROR(CheckNotDoomed(id));
  CKPT_FAULT("store.commit.begin");
  CKPT_RETURN_IF_ERROR(PutManifest(id, manifest));
  CKPT_FAULT("store.commit.after_manifest");
  CKPT_RETURN_IF_ERROR(Look(id, deadline));
  {
    MutexLock lock(mutex_);
    committing_.insert(id);
  }
  CKPT_FAULT("store.commit.after_first_look");
  CKPT_RETURN_IF_ERROR(PutCommit(id, record));
  return Acknowledge(id, deadline);
}

Status EpochStore::Acknowledge(const AttemptId& id, const Deadline& deadline) {
  const auto look_again = [&]() -> Status {
    CKPT_FAULT("store.commit.after_link");
    CKPT_RETURN_IF_ERROR(Look(id, deadline));
    CKPT_FAULT("store.commit.after_second_look");
    return OkStatus();
  };
  Status status = look_again();
  return status.ok() ? status : std::move(status).MaybeApplied();
}

}  // namespace ckpt::storage
