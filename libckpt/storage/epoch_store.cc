#include "libckpt/storage/epoch_store.h"

#include <algorithm>

#include "libckpt/base/fault.h"
#include "libckpt/base/log.h"
#include "libckpt/format/names.h"
#include "libckpt/format/records.h"
#include "libckpt/storage/planted_bug.h"

namespace ckpt::storage {
namespace {

std::string KeyIn(std::string_view dir_name, std::string_view file) {
  return std::string(dir_name) + "/" + std::string(file);
}

Status CheckFileName(const std::string& name) {
  CKPT_RETURN_IF_ERROR(CheckName("file", name));
  if (name == format::kManifestFile || name == format::kCommitFile ||
      name == format::kDrainingFile || name == format::kOriginsFile || name == format::kPinnedFile)
    return InvalidArgument("file name '" + name + "' is reserved for the store's own records");
  return OkStatus();
}

}  // namespace

EpochStore::EpochStore(std::unique_ptr<JobDirectory> directory, EpochStoreOptions options)
    : directory_(std::move(directory)), options_(options) {}

std::string EpochStore::Describe() const { return directory_->Describe(); }

// --- the job -------------------------------------------------------------------------------------

Result<JobId> EpochStore::ReadJob() {
  {
    MutexLock lock(mutex_);
    if (!job_.IsZero()) return job_;
  }
  const std::string key(format::kJobFile);
  CKPT_ASSIGN_OR_RETURN(const std::string bytes, directory_->Get(key, format::kRecordBytesMax));
  Result<format::JobFile> file = format::JobFile::Decode(bytes);
  if (!file.ok()) {
    return std::move(file).status().Annotate(
        directory_->Describe(key) + " (the file that names the job; restore it from a copy)");
  }
  MutexLock lock(mutex_);
  return job_ = file->job;
}

Result<JobId> EpochStore::KnownJob() {
  Result<JobId> job = ReadJob();
  if (!job.ok() && job.status().code() == Code::kNotFound) return JobId{};
  return job;
}

Result<JobId> EpochStore::OpenJob(const JobId& expected) {
  CKPT_RETURN_IF_ERROR(directory_->Create());
  CKPT_FAULT("store.job.after_create");
  Result<JobId> found = ReadJob();
  if (!found.ok() && found.status().code() != Code::kNotFound) return found;
  if (!found.ok()) {
    // JOB may have been lost while the epochs' lists, which carry the id too, are still there.
    CKPT_ASSIGN_OR_RETURN(const Scan scan, ScanNames());
    JobId minted = expected.IsZero() ? JobId::Random() : expected;
    if (!scan.lists.empty()) {
      const std::string key = format::EpochFileName(*scan.lists.rbegin());
      CKPT_ASSIGN_OR_RETURN(const std::string bytes, directory_->Get(key, format::kRecordBytesMax));
      CKPT_ASSIGN_OR_RETURN(const format::EpochFile list, format::EpochFile::Decode(bytes));
      minted = list.job;
      LogWarning(directory_->Describe("JOB") + " is missing; taking job id " + minted.ToString() +
                 " from " + key);
    }
    const Status put =
        directory_->PutNew(std::string(format::kJobFile), format::JobFile{minted}.Encode());
    if (!put.ok() && put.code() != Code::kAlreadyExists) return put;
    CKPT_FAULT("store.job.after_put");
    found = ReadJob();  // ours, or that of whoever came first
    if (!found.ok()) return found;
  }
  if (!expected.IsZero() && *found != expected) {
    return FailedPrecondition(Describe() + " belongs to job " + found->ToString() + ", not to " +
                              expected.ToString() +
                              "; choose another store or job name, or adopt it on purpose");
  }
  return found;
}

Result<JobId> EpochStore::EnsureJob() {
  {
    MutexLock lock(mutex_);
    if (!job_.IsZero()) return job_;
  }
  return OpenJob(JobId{});
}

bool EpochStore::JobMatches(const JobId& job) {
  MutexLock lock(mutex_);
  return job_.IsZero() || job_ == job;
}

// --- what is there -------------------------------------------------------------------------------

Result<EpochStore::Scan> EpochStore::ScanNames() {
  CKPT_ASSIGN_OR_RETURN(const std::vector<NamedEntry> entries, directory_->List());
  Scan scan;
  for (const NamedEntry& entry : entries) {
    const ParsedName name = ParseName(entry.name);
    const bool record = name.kind == NameKind::kClaim || name.kind == NameKind::kList;
    if (record && entry.file) {
      scan.newest_claim = std::max(scan.newest_claim, name.epoch);
      if (name.kind == NameKind::kList) scan.lists.insert(name.epoch);
    }
    const bool attempt = name.kind == NameKind::kAttempt || name.kind == NameKind::kTrash ||
                         name.kind == NameKind::kDead;
    if (attempt && entry.directory) scan.attempts.push_back(name);
  }
  return scan;
}

Result<EpochList> EpochStore::ReadList(Epoch epoch) {
  EpochList list;
  if (epoch.value() == 0) return list;
  const std::string key = format::EpochFileName(epoch);
  CKPT_ASSIGN_OR_RETURN(const std::string bytes, directory_->Get(key, format::kRecordBytesMax));
  Result<format::EpochFile> file = format::EpochFile::Decode(bytes);
  if (!file.ok()) {
    return std::move(file).status().Annotate(
        directory_->Describe(key) +
        " (it decides what is visible: restore it from a copy, or name a checkpoint by its path)");
  }
  if (file->epoch != epoch || !JobMatches(file->job)) {
    return FailedPrecondition(directory_->Describe(key) + " is of epoch " +
                              std::to_string(file->epoch.value()) + " of job " +
                              file->job.ToString() + ": a copy from elsewhere; remove it");
  }
  list.epoch = epoch;
  list.adopted = std::move(file->adopted);
  std::sort(list.adopted.begin(), list.adopted.end());
  return list;
}

Result<EpochView> EpochStore::ViewOf(const Scan& scan) {
  const Epoch newest = scan.lists.empty() ? Epoch(0) : *scan.lists.rbegin();
  CKPT_ASSIGN_OR_RETURN(EpochList list, ReadList(newest));
  return EpochView{scan.newest_claim, std::move(list)};
}

Result<EpochView> EpochStore::ReadView() {
  CKPT_RETURN_IF_ERROR(KnownJob().status());
  CKPT_ASSIGN_OR_RETURN(const Scan scan, ScanNames());
  return ViewOf(scan);
}

Result<Epoch> EpochStore::HighestEpoch() {
  Result<Scan> scan = ScanNames();
  if (scan.ok()) return scan->newest_claim;
  if (scan.status().code() == Code::kNotFound) return Epoch(0);
  return std::move(scan).status();
}

Result<CommitRecord> EpochStore::CommitIn(const std::string& dir_name, const AttemptId& id) {
  const std::string key = KeyIn(dir_name, format::kCommitFile);
  Result<std::string> bytes = directory_->Get(key, format::kRecordBytesMax);
  if (!bytes.ok() && bytes.status().code() == Code::kNotFound) return std::move(bytes).status();
  if (!bytes.ok() && bytes.status().code() == Code::kResourceExhausted)
    return DataLoss(directory_->Describe(key) + " is too long to be a COMMIT");
  if (!bytes.ok()) {
    // A disk that cannot be read is not a torn COMMIT: nothing may be concluded from it.
    return Unavailable(bytes.status().message());
  }
  Result<format::CommitFile> file = format::CommitFile::Decode(*bytes);
  if (!file.ok()) return std::move(file).status().Annotate(directory_->Describe(key));
  if (file->id != id || !JobMatches(file->job))
    return DataLoss(directory_->Describe(key) + " is that of " + file->id.ToString() + " of job " +
                    file->job.ToString());
  return CommitRecord{file->manifest_digest, file->epoch, file->coordinator};
}

Result<EpochStore::Marks> EpochStore::MarksIn(const std::string& dir_name, const AttemptId& id) {
  Marks marks;
  const Result<CommitRecord> commit = CommitIn(dir_name, id);
  marks.committed = commit.ok();
  if (!commit.ok() && commit.status().code() == Code::kDataLoss)
    LogWarning(commit.status().message() + ": ignored");
  else if (!commit.ok() && commit.status().code() != Code::kNotFound)
    return commit.status();

  const std::string key = KeyIn(dir_name, format::kDrainingFile);
  const Result<std::string> bytes = directory_->Get(key, format::kRecordBytesMax);
  if (!bytes.ok()) {
    if (bytes.status().code() == Code::kNotFound) return marks;
    return Unavailable(bytes.status().message());
  }
  const Result<format::DrainingFile> file = format::DrainingFile::Decode(*bytes);
  marks.draining = file.ok() && file->id == id && JobMatches(file->job);
  return marks;
}

Result<std::vector<CheckpointInfo>> EpochStore::List() {
  CKPT_RETURN_IF_ERROR(KnownJob().status());
  std::vector<CheckpointInfo> infos;
  Result<Scan> scan = ScanNames();
  if (!scan.ok() && scan.status().code() == Code::kNotFound) return infos;
  if (!scan.ok()) return std::move(scan).status();
  CKPT_ASSIGN_OR_RETURN(const EpochView view, ViewOf(*scan));
  for (const ParsedName& name : scan->attempts) {
    if (name.kind != NameKind::kAttempt) continue;
    Result<Marks> marks = MarksIn(name.id.ToString(), name.id);
    if (!marks.ok()) LogWarning(marks.status().message() + ": taken as not committed");
    const Marks known = marks.ok() ? *marks : Marks{};
    infos.push_back({name.id, known.committed,
                     IsVisible(name.id, known.committed, view.newest_list), known.draining});
  }
  std::sort(infos.begin(), infos.end(),
            [](const CheckpointInfo& a, const CheckpointInfo& b) { return a.id > b.id; });
  return infos;
}

// --- attempts ------------------------------------------------------------------------------------

Status EpochStore::BeginAttempt(const AttemptId& id) {
  CKPT_ASSIGN_OR_RETURN(const EpochView view, ReadView());
  const Verdict verdict = MayCommit(id, view);
  // Undecided goes on: the list may adopt it, and Commit decides.
  if (verdict == Verdict::kFenced) return FencedError(id, view, Describe());
  if (verdict == Verdict::kUnclaimed) return UnclaimedError(id, view, Describe());
  CKPT_RETURN_IF_ERROR(directory_->MakeDir(id.ToString()).Annotate("beginning " + id.ToString()));
  {
    MutexLock lock(mutex_);
    begun_.insert(id);
  }
  CKPT_FAULT("store.begin.after_dir");
  return OkStatus();
}

Result<std::unique_ptr<FileWriter>> EpochStore::CreateFile(const AttemptId& id,
                                                           const std::string& name,
                                                           uint64_t size_hint) {
  CKPT_RETURN_IF_ERROR(CheckFileName(name));
  CKPT_FAULT("store.file.before_create");
  return directory_->CreateFile(KeyIn(id.ToString(), name), size_hint);
}

Result<AttemptOrigins> EpochStore::NameOrigins(const AttemptId& id, const AttemptOrigins& wanted) {
  CKPT_ASSIGN_OR_RETURN(const JobId job, EnsureJob());
  const std::string key = KeyIn(id.ToString(), format::kOriginsFile);
  format::OriginsFile file{job, id, wanted.base, wanted.origins};
  const Status put =
      Planted("refer without naming") ? OkStatus() : directory_->PutNew(key, file.Encode());
  if (put.code() == Code::kAlreadyExists) {
    CKPT_ASSIGN_OR_RETURN(const std::string there, directory_->Get(key, format::kRecordBytesMax));
    CKPT_ASSIGN_OR_RETURN(file, format::OriginsFile::Decode(there));
    if (file.id != id || file.job != job)
      return DataLoss(directory_->Describe(key) + " is that of another attempt or job");
  } else if (!put.ok()) {
    return put;
  }
  CKPT_FAULT("store.origins.after_put");
  // Retention looks at this record after it has moved a checkpoint away: one that is still under
  // its name now stays there.
  std::erase_if(file.origins,
                [&](const AttemptId& origin) { return !CommitIn(origin.ToString(), origin).ok(); });
  return AttemptOrigins{file.base, std::move(file.origins)};
}

Status EpochStore::MarkDraining(const AttemptId& id) {
  CKPT_ASSIGN_OR_RETURN(const JobId job, EnsureJob());
  CKPT_RETURN_IF_ERROR(directory_->PutNew(KeyIn(id.ToString(), format::kDrainingFile),
                                          format::DrainingFile{job, id}.Encode()));
  CKPT_FAULT("store.draining.after_mark");
  // A claimant that listed before the mark was there does not know of it: then it holds nothing.
  return Look(id, Deadline("store: the newer epoch's list", options_.mark_wait))
      .Annotate("marking " + id.ToString() + " as draining");
}

Status EpochStore::Abort(const AttemptId& id) {
  Epoch by;
  {
    MutexLock lock(mutex_);
    if (id.epoch != claimed_ && !begun_.contains(id)) {
      return FailedPrecondition(Describe() + ": " + id.ToString() +
                                " was not begun by this epoch (" +
                                std::to_string(claimed_.value()) + "), so it is not ours to abort");
    }
    if (committing_.contains(id))
      return FailedPrecondition(Describe() + ": " + id.ToString() + " may be committed already");
    by = id.epoch;
  }
  const Result<CommitRecord> commit = CommitIn(id.ToString(), id);
  if (commit.ok()) return FailedPrecondition(Describe() + ": " + id.ToString() + " is committed");
  if (commit.status().code() != Code::kNotFound && commit.status().code() != Code::kDataLoss)
    return commit.status();
  const std::string dead = DeadName(by, id);
  const Status renamed = directory_->RenameDir(id.ToString(), dead);
  if (!renamed.ok() && renamed.code() != Code::kNotFound) return renamed;
  CKPT_FAULT("store.abort.after_rename");
  CKPT_RETURN_IF_ERROR(directory_->RemoveDir(dead));
  MutexLock lock(mutex_);
  begun_.erase(id);
  return OkStatus();
}

// --- reading -------------------------------------------------------------------------------------

Result<std::string> EpochStore::ReadManifest(const AttemptId& id) {
  return directory_->Get(KeyIn(id.ToString(), format::kManifestFile), kManifestBytesMax);
}

Result<CommitRecord> EpochStore::ReadCommit(const AttemptId& id) {
  CKPT_RETURN_IF_ERROR(KnownJob().status());
  return CommitIn(id.ToString(), id);
}

Result<std::unique_ptr<FileReader>> EpochStore::OpenFile(const AttemptId& id,
                                                         const std::string& name) {
  CKPT_RETURN_IF_ERROR(CheckName("file", name));
  auto file = directory_->OpenFile(KeyIn(id.ToString(), name));
  if (file.ok() || file.status().code() != Code::kNotFound) return file;
  // A removal that was interrupted may have moved away what a newer checkpoint refers to.
  CKPT_ASSIGN_OR_RETURN(const Scan scan, ScanNames());
  for (const ParsedName& at : scan.attempts) {
    if (at.kind == NameKind::kTrash && at.id == id)
      return directory_->OpenFile(KeyIn(TrashName(at.epoch, id), name));
  }
  return file;
}

}  // namespace ckpt::storage
