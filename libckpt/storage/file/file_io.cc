#include "libckpt/storage/file/file_io.h"

#include <algorithm>
#include <atomic>

#include "libckpt/base/clock.h"
#include "libckpt/base/fault.h"
#include "libckpt/base/mutex.h"
#include "libckpt/os/space.h"

namespace ckpt::storage {
namespace {

// I1  The first failed write or sync is the last: every later call repeats it.
class PosixWriter : public FileWriter {
 public:
  PosixWriter(std::unique_ptr<os::File> file, std::string directory, uint64_t size_hint)
      : file_(std::move(file)), directory_(std::move(directory)), size_hint_(size_hint) {}

  Status Write(uint64_t offset, ByteSpan data) override {
    CKPT_RETURN_IF_ERROR(Failure());
    uint64_t end = 0;
    if (AddOverflows(offset, data.size(), &end))
      return OutOfRange(file_->path() + ": offset " + std::to_string(offset));
    const Status written = WriteNow(offset, data);
    Grow(end);
    return written.ok() ? written : Poison(written);
  }

  Status Finish() override {
    CKPT_RETURN_IF_ERROR(Failure());
    Status finished = FinishNow();
    if (!finished.ok()) return Poison(std::move(finished));
    Poison(FailedPrecondition(file_->path() + " is finished")).IgnoreError();
    return finished;
  }

 private:
  Status WriteNow(uint64_t offset, ByteSpan data) {
    CKPT_FAULT("store.file.write");
    return file_->PWrite(offset, data);
  }

  Status FinishNow() {
    CKPT_FAULT("store.file.before_sync");
    // What was reserved and not used goes back.
    if (size_hint_ > EndBytes()) CKPT_RETURN_IF_ERROR(file_->Truncate(EndBytes()));
    CKPT_RETURN_IF_ERROR(file_->Sync());
    CKPT_FAULT("store.file.sync");
    return file_->Close();
  }

  Status Poison(Status status) {
    const uint64_t needed = std::max(size_hint_, EndBytes());
    status = ExplainFullDisk(std::move(status), directory_, needed);
    MutexLock lock(mutex_);
    if (failure_.ok()) failure_ = status;
    return status;
  }
  Status Failure() {
    MutexLock lock(mutex_);
    return failure_;
  }
  void Grow(uint64_t end) {
    MutexLock lock(mutex_);
    end_bytes_ = std::max(end_bytes_, end);
  }
  uint64_t EndBytes() {
    MutexLock lock(mutex_);
    return end_bytes_;
  }

  const std::unique_ptr<os::File> file_;
  const std::string directory_;
  const uint64_t size_hint_;
  Mutex mutex_;
  Status failure_ CKPT_GUARDED_BY(mutex_);
  uint64_t end_bytes_ CKPT_GUARDED_BY(mutex_) = 0;
};

class PosixReader : public FileReader {
 public:
  PosixReader(std::unique_ptr<os::File> file, uint64_t size_bytes)
      : file_(std::move(file)), size_bytes_(size_bytes) {}
  uint64_t size() const override { return size_bytes_; }
  Status Read(uint64_t offset, MutableByteSpan out) const override {
    if (offset > size_bytes_ || out.size() > size_bytes_ - offset) {
      return DataLoss(file_->path() + " has " + std::to_string(size_bytes_) +
                      " bytes; it ends before " + Range(offset, out.size()));
    }
    const Status read = file_->PRead(offset, out);
    if (read.ok()) return read;
    return Status(Code::kDataLoss, read.message() + " (" + Range(offset, out.size()) + ")");
  }

 private:
  static std::string Range(uint64_t offset, uint64_t bytes) {
    return "bytes " + std::to_string(offset) + " to " + std::to_string(offset + bytes);
  }
  const std::unique_ptr<os::File> file_;
  const uint64_t size_bytes_;
};

}  // namespace

Status ExplainFullDisk(Status status, const std::string& directory, uint64_t bytes_needed) {
  if (status.code() != Code::kResourceExhausted) return status;
  const Result<uint64_t> free = os::FreeBytes(directory);
  const std::string room = free.ok() ? FormatBytes(*free) : std::string("an unknown amount");
  return Status(status.code(),
                status.message() + ": " + FormatBytes(bytes_needed) + " needed, " + room +
                    " free on the file system of " + directory +
                    " (a quota may allow less); free space, keep fewer checkpoints or choose "
                    "another store",
                status.outcome());
}

Result<std::unique_ptr<FileWriter>> CreateAttemptFile(os::FileSystem& fs,
                                                      const std::string& directory,
                                                      const std::string& name, uint64_t size_hint) {
  Result<std::unique_ptr<os::File>> file =
      fs.OpenBeneath(directory, name, os::OpenOptions::CreateNew());
  if (!file.ok()) return ExplainFullDisk(std::move(file).status(), directory, size_hint);
  const Status reserved = (*file)->Allocate(size_hint);
  if (!reserved.ok()) return ExplainFullDisk(reserved, directory, size_hint);
  return std::unique_ptr<FileWriter>(
      std::make_unique<PosixWriter>(std::move(file).value(), directory, size_hint));
}

Result<std::unique_ptr<FileReader>> OpenAttemptFile(os::FileSystem& fs,
                                                    const std::string& directory,
                                                    const std::string& name) {
  CKPT_ASSIGN_OR_RETURN(std::unique_ptr<os::File> file,
                        fs.OpenBeneath(directory, name, os::OpenOptions::Read()));
  CKPT_ASSIGN_OR_RETURN(const uint64_t size_bytes, file->Size());
  return std::unique_ptr<FileReader>(std::make_unique<PosixReader>(std::move(file), size_bytes));
}

}  // namespace ckpt::storage
