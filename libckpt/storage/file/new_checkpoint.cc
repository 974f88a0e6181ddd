// A checkpoint that is made by its own path, outside of any job: what a copy writes into.
#include "libckpt/base/fault.h"
#include "libckpt/format/manifest.h"
#include "libckpt/format/names.h"
#include "libckpt/format/records.h"
#include "libckpt/storage/file/file_io.h"
#include "libckpt/storage/file/file_store.h"

namespace ckpt::storage {
namespace {

class NewCheckpoint : public Store {
 public:
  NewCheckpoint(os::FileSystem& fs, std::string directory, const JobId& job)
      : fs_(fs),
        directory_(std::move(directory)),
        name_(os::BaseName(directory_)),
        parent_(NewPosixDirectory(fs, os::ParentOf(directory_))),
        job_(job) {}

  Result<JobId> OpenJob(const JobId& expected) override {
    if (!expected.IsZero() && expected != job_) return Only("holds one checkpoint of one job");
    return job_;
  }
  Status BeginAttempt(const AttemptId& id) override {
    CKPT_RETURN_IF_ERROR(parent_->Create());
    CKPT_RETURN_IF_ERROR(parent_->MakeDir(name_).Annotate("making the copy's directory"));
    id_ = id;
    return OkStatus();
  }
  Result<std::unique_ptr<FileWriter>> CreateFile(const AttemptId& id, const std::string& name,
                                                 uint64_t size_hint) override {
    CKPT_RETURN_IF_ERROR(CheckId(id));
    CKPT_RETURN_IF_ERROR(CheckName("file", name));
    return CreateAttemptFile(fs_, directory_, name, size_hint);
  }
  // A COMMIT proves such a checkpoint by itself: no epochs, no looks.
  Status Commit(const AttemptId& id, std::string_view manifest, const CommitRecord& record,
                const Deadline&) override {
    CKPT_RETURN_IF_ERROR(CheckId(id));
    CKPT_RETURN_IF_ERROR(parent_->PutNew(Key(format::kManifestFile), manifest));
    CKPT_FAULT("store.copy.after_manifest");
    const format::CommitFile file{job_, id, record.manifest_digest, record.epoch,
                                  record.coordinator};
    return parent_->PutNew(Key(format::kCommitFile), file.Encode());
  }
  std::string Describe() const override { return directory_; }

  Result<EpochClaim> ClaimEpoch(Epoch, const std::vector<AttemptId>&,
                                const std::vector<std::pair<AttemptId, CommitRecord>>&) override {
    return Only("has no epochs");
  }
  Result<Epoch> HighestEpoch() override { return Only("has no epochs"); }
  Result<AttemptOrigins> NameOrigins(const AttemptId&, const AttemptOrigins&) override {
    return Only("refers to nothing");
  }
  Status MarkDraining(const AttemptId&) override { return Only("has no epochs"); }
  Status Abort(const AttemptId&) override { return Only("is removed by whoever makes it"); }
  Result<std::vector<CheckpointInfo>> List() override { return Only("is being made"); }
  Result<std::string> ReadManifest(const AttemptId&) override { return Only("is being made"); }
  Result<CommitRecord> ReadCommit(const AttemptId&) override { return Only("is being made"); }
  Result<std::unique_ptr<FileReader>> OpenFile(const AttemptId&, const std::string&) override {
    return Only("is being made");
  }

 private:
  std::string Key(std::string_view file) const { return name_ + "/" + std::string(file); }
  Status Only(const char* what) const {
    return FailedPrecondition(directory_ + " is a checkpoint by its own path: it " + what);
  }
  Status CheckId(const AttemptId& id) const {
    return id == id_ ? OkStatus() : Only("holds one checkpoint");
  }

  os::FileSystem& fs_;
  const std::string directory_, name_;
  const std::unique_ptr<JobDirectory> parent_;
  const JobId job_;
  AttemptId id_;
};

}  // namespace

std::unique_ptr<Store> NewCheckpointDirectory(os::FileSystem& fs, std::string directory,
                                              const JobId& job) {
  while (directory.size() > 1 && directory.back() == '/') directory.pop_back();
  return std::make_unique<NewCheckpoint>(fs, std::move(directory), job);
}

std::unique_ptr<Store> NewCheckpointDirectory(std::string directory, const JobId& job) {
  return NewCheckpointDirectory(os::PosixFileSystem(), std::move(directory), job);
}

}  // namespace ckpt::storage
