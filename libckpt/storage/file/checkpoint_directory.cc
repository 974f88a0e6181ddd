// One checkpoint by its own path: what an operator copied, or wants to look at without its job.
#include "libckpt/format/manifest.h"
#include "libckpt/format/names.h"
#include "libckpt/format/records.h"
#include "libckpt/storage/file/file_io.h"
#include "libckpt/storage/file/file_store.h"

namespace ckpt::storage {
namespace {

class CheckpointDirectory : public Store {
 public:
  CheckpointDirectory(os::FileSystem& fs, std::string directory)
      : fs_(fs), directory_(std::move(directory)) {}

  // Finds out which checkpoint it is: COMMIT, else MANIFEST, else the directory's name say it.
  Status Identify() {
    const Result<format::CommitFile> commit = DecodeCommit();
    if (commit.ok()) {
      id_ = commit->id;
      job_ = commit->job;
      return OkStatus();
    }
    CKPT_ASSIGN_OR_RETURN(const std::string bytes, Read(format::kManifestFile, kManifestBytesMax));
    const Result<format::Manifest> manifest = format::Manifest::Decode(bytes);
    if (manifest.ok()) {
      id_ = manifest->id;
      job_ = manifest->job;
      return OkStatus();
    }
    const Result<AttemptId> named = AttemptId::Parse(os::BaseName(directory_));
    if (!named.ok()) return Status(manifest.status()).Annotate(Path(format::kManifestFile));
    id_ = *named;
    return OkStatus();
  }

  Result<JobId> OpenJob(const JobId& expected) override {
    if (!expected.IsZero() && expected != job_)
      return FailedPrecondition(directory_ + " is a checkpoint of job " + job_.ToString());
    return job_;
  }
  Result<EpochClaim> ClaimEpoch(Epoch, const std::vector<AttemptId>&,
                                const std::vector<std::pair<AttemptId, CommitRecord>>&) override {
    return ReadOnly();
  }
  Result<Epoch> HighestEpoch() override { return id_.epoch; }
  Status BeginAttempt(const AttemptId&) override { return ReadOnly(); }
  Result<std::unique_ptr<FileWriter>> CreateFile(const AttemptId&, const std::string&,
                                                 uint64_t) override {
    return ReadOnly();
  }
  Result<AttemptOrigins> NameOrigins(const AttemptId&, const AttemptOrigins&) override {
    return ReadOnly();
  }
  Status MarkDraining(const AttemptId&) override { return ReadOnly(); }
  Status Abort(const AttemptId&) override { return ReadOnly(); }
  Status Commit(const AttemptId&, std::string_view, const CommitRecord&, const Deadline&) override {
    return ReadOnly();
  }

  Result<std::vector<CheckpointInfo>> List() override {
    const bool committed = DecodeCommit().ok();
    return std::vector<CheckpointInfo>{{id_, committed, committed, false}};
  }
  Result<std::string> ReadManifest(const AttemptId& id) override {
    CKPT_RETURN_IF_ERROR(CheckId(id));
    return Read(format::kManifestFile, kManifestBytesMax);
  }
  Result<CommitRecord> ReadCommit(const AttemptId& id) override {
    CKPT_RETURN_IF_ERROR(CheckId(id));
    CKPT_ASSIGN_OR_RETURN(const format::CommitFile file, DecodeCommit());
    return CommitRecord{file.manifest_digest, file.epoch, file.coordinator};
  }
  Result<std::unique_ptr<FileReader>> OpenFile(const AttemptId& id,
                                               const std::string& name) override {
    CKPT_RETURN_IF_ERROR(CheckName("file", name));
    if (id != id_) return OpenBeside(id, name);
    return OpenAttemptFile(fs_, directory_, name);
  }
  std::string Describe() const override { return directory_; }

 private:
  // What this one refers to, as long as it is in its job's directory; a removal that was
  // interrupted may have moved it away.
  Result<std::unique_ptr<FileReader>> OpenBeside(const AttemptId& id, const std::string& name) {
    const std::string job = os::ParentOf(directory_);
    auto file = OpenAttemptFile(fs_, os::JoinPath(job, id.ToString()), name);
    if (file.ok() || file.status().code() != Code::kNotFound) return file;
    CKPT_ASSIGN_OR_RETURN(const std::vector<os::DirEntry> entries, fs_.List(job));
    for (const os::DirEntry& entry : entries) {
      const ParsedName at = ParseName(entry.name);
      if (at.kind == NameKind::kTrash && at.id == id)
        return OpenAttemptFile(fs_, os::JoinPath(job, entry.name), name);
    }
    return file;
  }
  std::string Path(std::string_view name) const { return os::JoinPath(directory_, name); }
  Status ReadOnly() const {
    return FailedPrecondition(directory_ +
                              " is one checkpoint, opened by its own path: it is only "
                              "read; name the job's directory to save");
  }
  Status CheckId(const AttemptId& id) const {
    if (id == id_) return OkStatus();
    return NotFound(directory_ + " holds " + id_.ToString() + ", not " + id.ToString());
  }
  Result<std::string> Read(std::string_view name, uint64_t bytes_max) {
    CKPT_ASSIGN_OR_RETURN(const auto reader, OpenAttemptFile(fs_, directory_, std::string(name)));
    if (reader->size() > bytes_max)
      return DataLoss(Path(name) + " has " + std::to_string(reader->size()) + " bytes, at most " +
                      std::to_string(bytes_max) + " are expected");
    std::string bytes(reader->size(), '\0');
    CKPT_RETURN_IF_ERROR(reader->Read(0, std::as_writable_bytes(std::span(bytes))));
    return bytes;
  }
  Result<format::CommitFile> DecodeCommit() {
    CKPT_ASSIGN_OR_RETURN(const std::string bytes,
                          Read(format::kCommitFile, format::kRecordBytesMax));
    Result<format::CommitFile> file = format::CommitFile::Decode(bytes);
    if (!file.ok()) return std::move(file).status().Annotate(Path(format::kCommitFile));
    return file;
  }

  os::FileSystem& fs_;
  const std::string directory_;
  AttemptId id_;
  JobId job_;
};

}  // namespace

Result<std::unique_ptr<Store>> OpenCheckpointDirectory(os::FileSystem& fs, std::string directory) {
  auto store = std::make_unique<CheckpointDirectory>(fs, std::move(directory));
  CKPT_RETURN_IF_ERROR(store->Identify());
  return std::unique_ptr<Store>(std::move(store));
}

Result<DirectoryKind> KindOfDirectory(os::FileSystem& fs, const std::string& directory) {
  CKPT_ASSIGN_OR_RETURN(const std::vector<os::DirEntry> entries, fs.List(directory));
  bool job = false;
  for (const os::DirEntry& entry : entries) {
    if (entry.name == format::kManifestFile || entry.name == format::kCommitFile)
      return DirectoryKind::kCheckpoint;
    const NameKind kind = ParseName(entry.name).kind;
    job = job || kind == NameKind::kJob || kind == NameKind::kList || kind == NameKind::kAttempt;
  }
  return job ? DirectoryKind::kJob : DirectoryKind::kNeither;
}

Result<std::unique_ptr<Store>> OpenCheckpointDirectory(std::string directory) {
  return OpenCheckpointDirectory(os::PosixFileSystem(), std::move(directory));
}

Result<DirectoryKind> KindOfDirectory(const std::string& directory) {
  return KindOfDirectory(os::PosixFileSystem(), directory);
}

std::vector<std::string> JobsBeneath(const std::string& directory) {
  std::vector<std::string> jobs;
  const auto entries = os::PosixFileSystem().List(directory);
  if (!entries.ok()) return jobs;
  for (const os::DirEntry& entry : *entries) {
    if (entry.type != os::FileType::kDirectory) continue;
    const auto kind = KindOfDirectory(os::JoinPath(directory, entry.name));
    if (kind.ok() && *kind == DirectoryKind::kJob) jobs.push_back(entry.name);
  }
  return jobs;
}

}  // namespace ckpt::storage
