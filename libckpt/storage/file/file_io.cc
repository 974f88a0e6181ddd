#include "libckpt/storage/file/file_io.h"

#include <algorithm>
#include <atomic>

#include "libckpt/base/clock.h"
#include "libckpt/base/fault.h"
#include "libckpt/base/limits.h"
#include "libckpt/base/mutex.h"
#include "libckpt/os/space.h"
#include "libckpt/storage/planted_bug.h"

namespace ckpt::storage {
namespace {

// Smaller files are not worth a second descriptor, nor whole pages.
constexpr uint64_t kDirectBytesMin = uint64_t{1} << 20;

// I1  The first failed write or sync is the last: every later call repeats it.
class PosixWriter : public FileWriter {
 public:
  // `extent_bytes`: what the file's size has been set to beforehand.
  PosixWriter(std::unique_ptr<os::File> file, std::string directory, uint64_t size_hint,
              uint64_t extent_bytes)
      : file_(std::move(file)),
        directory_(std::move(directory)),
        size_hint_(size_hint),
        extent_bytes_(std::max(size_hint, extent_bytes)) {}

  Status Write(uint64_t offset, ByteSpan data) override {
    CKPT_RETURN_IF_ERROR(Failure());
    uint64_t end = 0;
    if (AddOverflows(offset, data.size(), &end))
      return OutOfRange(file_->path() + ": offset " + std::to_string(offset));
    const Status written = WriteNow(offset, data);
    Grow(end);
    return written.ok() ? written : Poison(written);
  }

  Result<StartedWrite> Start(uint64_t offset, ByteSpan data) override {
    if (data.size() % kPageBytes != 0) return FileWriter::Start(offset, data);  // the file's end
    CKPT_RETURN_IF_ERROR(Failure());
    uint64_t end = 0;
    if (AddOverflows(offset, data.size(), &end))
      return OutOfRange(file_->path() + ": offset " + std::to_string(offset));
    auto started = StartNow(offset, data);
    Grow(end);
    if (!started.ok()) return Poison(std::move(started).status());
    if (started->number != 0) ++under_way_;
    return StartedWrite{started->number, offset, data};
  }

  Status Await(const StartedWrite& write) override {
    if (write.number == 0) return OkStatus();
    auto* memory = const_cast<std::byte*>(write.data.data());
    const auto done = file_->Await({write.number, true, write.offset, {memory, write.data.size()}});
    --under_way_;
    return done.ok() ? OkStatus() : Poison(done.status());
  }

  uint32_t depth() const override { return file_->depth(); }

  Status Finish() override {
    CKPT_RETURN_IF_ERROR(Failure());
    // What is not written yet would be synced as a hole.
    if (under_way_ != 0 && !Planted("sync before the last write"))
      return Poison(Internal(file_->path() + ": finished with writes under way"));
    Status finished = FinishNow();
    if (!finished.ok()) return Poison(std::move(finished));
    Poison(FailedPrecondition(file_->path() + " is finished")).IgnoreError();
    return finished;
  }

 private:
  Status WriteNow(uint64_t offset, ByteSpan data) {
    CKPT_FAULT("store.file.write");
    if (Planted("ignore a short write")) data = data.first(data.size() / 2);
    const size_t whole = data.size() / kPageBytes * kPageBytes;
    if (!file_->direct() || whole == data.size()) return file_->PWrite(offset, data);
    // The end of the file: its last page is filled up, and cut off by Finish.
    if (whole > 0) CKPT_RETURN_IF_ERROR(file_->PWrite(offset, data.first(whole)));
    AlignedBuffer last(kPageBytes);
    std::fill_n(last.data(), kPageBytes, std::byte{0});
    std::copy(data.begin() + static_cast<ptrdiff_t>(whole), data.end(), last.data());
    Extend(offset + whole + kPageBytes);
    return file_->PWrite(offset + whole, last.span().first(kPageBytes));
  }

  Result<os::Transfer> StartNow(uint64_t offset, ByteSpan data) {
    CKPT_FAULT("store.file.write");
    if (Planted("ignore a short write")) data = data.first(data.size() / 2);
    return file_->StartWrite(offset, data);
  }

  Status FinishNow() {
    CKPT_FAULT("store.file.before_sync");
    // What was reserved and not used goes back.
    if (Extent() > EndBytes()) CKPT_RETURN_IF_ERROR(file_->Truncate(EndBytes()));
    if (!Planted("commit before data")) CKPT_RETURN_IF_ERROR(file_->Sync());
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
  void Extend(uint64_t to) {
    MutexLock lock(mutex_);
    extent_bytes_ = std::max(extent_bytes_, to);
  }
  uint64_t Extent() {
    MutexLock lock(mutex_);
    return extent_bytes_;
  }
  uint64_t EndBytes() {
    MutexLock lock(mutex_);
    return end_bytes_;
  }

  const std::unique_ptr<os::File> file_;
  const std::string directory_;
  const uint64_t size_hint_;
  std::atomic<uint32_t> under_way_{0};
  Mutex mutex_;
  Status failure_ CKPT_GUARDED_BY(mutex_);
  uint64_t extent_bytes_ CKPT_GUARDED_BY(mutex_);
  uint64_t end_bytes_ CKPT_GUARDED_BY(mutex_) = 0;
};

class PosixReader : public FileReader {
 public:
  // `direct` is the same file opened past the page cache, or null.
  PosixReader(std::unique_ptr<os::File> file, std::unique_ptr<os::File> direct, uint64_t size_bytes)
      : file_(std::move(file)), direct_(std::move(direct)), size_bytes_(size_bytes) {}
  uint64_t size() const override { return size_bytes_; }
  Status Read(uint64_t offset, MutableByteSpan out) const override {
    CKPT_RETURN_IF_ERROR(CheckRange(offset, out.size()));
    const Status read = file_->PRead(offset, out);
    if (read.ok()) return read;
    return Status(Code::kDataLoss, read.message() + " (" + Range(offset, out.size()) + ")");
  }
  // The pages that hold the range, so that nothing has to be copied.
  Result<ByteSpan> Fetch(uint64_t offset, uint64_t bytes, Reuse reuse,
                         AlignedBuffer* scratch) const override {
    CKPT_RETURN_IF_ERROR(CheckRange(offset, bytes));
    if (!Direct(reuse)) {
      scratch->Reserve(bytes + kPageBytes);
      const MutableByteSpan out = scratch->span().first(bytes);
      CKPT_RETURN_IF_ERROR(Read(offset, out));
      return ByteSpan(out);
    }
    const MutableByteSpan pages = PagesOf(offset, bytes, scratch);
    return Within(offset, bytes, pages, direct_->PReadSome(PageOf(offset), pages));
  }

  Result<StartedFetch> StartFetch(uint64_t offset, uint64_t bytes, Reuse reuse,
                                  AlignedBuffer* scratch) const override {
    StartedFetch fetch{0, offset, bytes, reuse, scratch};
    if (depth() == 1 || !Direct(reuse)) return fetch;
    CKPT_RETURN_IF_ERROR(CheckRange(offset, bytes));
    const MutableByteSpan pages = PagesOf(offset, bytes, scratch);
    CKPT_ASSIGN_OR_RETURN(const os::Transfer started, direct_->StartRead(PageOf(offset), pages));
    fetch.number = started.number;
    return fetch;
  }

  Result<ByteSpan> AwaitFetch(const StartedFetch& fetch) const override {
    if (fetch.number == 0) return FileReader::AwaitFetch(fetch);
    const MutableByteSpan pages = PagesOf(fetch.offset, fetch.bytes, fetch.scratch);
    return Within(fetch.offset, fetch.bytes, pages,
                  direct_->Await({fetch.number, false, PageOf(fetch.offset), pages}));
  }

  uint32_t depth() const override { return direct_ == nullptr ? 1 : direct_->depth(); }

 private:
  bool Direct(Reuse reuse) const {
    return reuse != Reuse::kShared && direct_ != nullptr && direct_->direct();
  }
  static uint64_t PageOf(uint64_t offset) { return offset / kPageBytes * kPageBytes; }
  // Where in `scratch` the pages come to lie that hold the range.
  static MutableByteSpan PagesOf(uint64_t offset, uint64_t bytes, AlignedBuffer* scratch) {
    const uint64_t lead = offset % kPageBytes;
    scratch->Reserve(lead + bytes + kPageBytes);
    return scratch->span().first(AlignUp(lead + bytes, kPageBytes));
  }
  // The range within its pages, of which `got` bytes were read.
  Result<ByteSpan> Within(uint64_t offset, uint64_t bytes, MutableByteSpan pages,
                          const Result<size_t>& got) const {
    const uint64_t lead = offset % kPageBytes;
    if (!got.ok() || *got < lead + bytes) {
      return DataLoss((got.ok() ? file_->path() + " ends early" : got.status().message()) + " (" +
                      Range(offset, bytes) + ")");
    }
    return ByteSpan(pages.subspan(lead, bytes));
  }
  Status CheckRange(uint64_t offset, uint64_t bytes) const {
    if (offset <= size_bytes_ && bytes <= size_bytes_ - offset) return OkStatus();
    return DataLoss(file_->path() + " has " + std::to_string(size_bytes_) +
                    " bytes; it ends before " + Range(offset, bytes));
  }
  static std::string Range(uint64_t offset, uint64_t bytes) {
    return "bytes " + std::to_string(offset) + " to " + std::to_string(offset + bytes);
  }
  const std::unique_ptr<os::File> file_;
  const std::unique_ptr<os::File> direct_;
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
  os::OpenOptions options = os::OpenOptions::CreateNew();
  options.direct = size_hint == 0 || size_hint >= kDirectBytesMin;
  Result<std::unique_ptr<os::File>> file = fs.OpenBeneath(directory, name, options);
  if (!file.ok()) return ExplainFullDisk(std::move(file).status(), directory, size_hint);
  const Status reserved = (*file)->Allocate(size_hint);
  if (!reserved.ok()) return ExplainFullDisk(reserved, directory, size_hint);
  uint64_t extent = 0;
  if ((*file)->direct() && size_hint > 0) {
    // Direct writes that make a file longer wait for each other; those within its size do not.
    extent = AlignUp(size_hint, kPageBytes);
    const Status grown = (*file)->Truncate(extent);
    if (!grown.ok()) return ExplainFullDisk(grown, directory, size_hint);
  }
  return std::unique_ptr<FileWriter>(
      std::make_unique<PosixWriter>(std::move(file).value(), directory, size_hint, extent));
}

Result<std::unique_ptr<FileReader>> OpenAttemptFile(os::FileSystem& fs,
                                                    const std::string& directory,
                                                    const std::string& name) {
  os::OpenOptions options = os::OpenOptions::Read();
  CKPT_ASSIGN_OR_RETURN(std::unique_ptr<os::File> file, fs.OpenBeneath(directory, name, options));
  CKPT_ASSIGN_OR_RETURN(const uint64_t size_bytes, file->Size());
  std::unique_ptr<os::File> direct;
  if (size_bytes >= kDirectBytesMin) {
    options.direct = true;
    CKPT_ASSIGN_OR_RETURN(direct, fs.OpenBeneath(directory, name, options));
  }
  return std::unique_ptr<FileReader>(
      std::make_unique<PosixReader>(std::move(file), std::move(direct), size_bytes));
}

}  // namespace ckpt::storage
