#include "libckpt/storage/file/file_store.h"

#include "libckpt/base/fault.h"
#include "libckpt/base/log.h"
#include "libckpt/format/names.h"
#include "libckpt/storage/file/file_io.h"
#include "libckpt/storage/planted_bug.h"

namespace ckpt::storage {
namespace {

class PosixDirectory : public JobDirectory {
 public:
  PosixDirectory(os::FileSystem& fs, std::string directory)
      : fs_(fs), directory_(std::move(directory)) {}

  Status Create() override {
    return fs_.MakeDirs(directory_)
        .Annotate("creating the store " + directory_ +
                  " (choose another with --store or CKPT_STORE)");
  }

  Result<std::vector<NamedEntry>> List() override {
    CKPT_ASSIGN_OR_RETURN(const std::vector<os::DirEntry> found, fs_.List(directory_));
    return Named(found);
  }

  Result<std::string> Get(const std::string& key, uint64_t bytes_max) override {
    CKPT_ASSIGN_OR_RETURN(const std::unique_ptr<os::File> file,
                          fs_.OpenBeneath(directory_, key, os::OpenOptions::Read()));
    CKPT_ASSIGN_OR_RETURN(const uint64_t bytes, file->Size());
    if (bytes > bytes_max) {
      return ResourceExhausted(Path(key) + " has " + FormatBytes(bytes) + ", at most " +
                               FormatBytes(bytes_max) + " are expected");
    }
    std::string text(bytes, '\0');
    CKPT_RETURN_IF_ERROR(file->PRead(0, std::as_writable_bytes(std::span(text))));
    return text;
  }

  Status PutNew(const std::string& key, std::string_view bytes) override {
    const std::string path = Path(key);
    CKPT_ASSIGN_OR_RETURN(const std::string temporary, WriteTemporary(path, bytes));
    CKPT_FAULT("store.put.after_temp");
    const Status linked = LinkName(temporary, path);
    const auto unlink = [&] { fs_.Unlink(temporary).IgnoreError(); };  // a leftover is harmless
    if (linked.code() == Code::kAlreadyExists) {
      unlink();
      const Result<std::string> there = Get(key, bytes.size());
      if (!there.ok() || *there != bytes) return linked;
      return Sync(key);
    }
    if (!linked.ok()) {
      unlink();
      return ExplainFullDisk(linked, directory_, bytes.size());
    }
    return SyncName(path, unlink);
  }

  Status Replace(const std::string& key, std::string_view bytes) override {
    const std::string path = Path(key);
    CKPT_ASSIGN_OR_RETURN(const std::string temporary, WriteTemporary(path, bytes));
    CKPT_FAULT("store.put.after_temp");
    CKPT_RETURN_IF_ERROR(fs_.Rename(temporary, path));
    return SyncName(path, [] {});
  }

  Status Sync(const std::string& key) override {
    const auto sync = [&]() -> Status {
      os::OpenOptions options = os::OpenOptions::ReadWrite();
      CKPT_ASSIGN_OR_RETURN(const std::unique_ptr<os::File> file,
                            fs_.OpenBeneath(directory_, key, options));
      CKPT_RETURN_IF_ERROR(file->Sync());
      return file->Close();
    };
    Status status = sync();
    if (!status.ok()) return std::move(status).MaybeApplied();
    return SyncName(Path(key), [] {});
  }

  Status MakeDir(const std::string& name) override {
    CKPT_RETURN_IF_ERROR(ExplainFullDisk(fs_.MakeDir(Path(name)), directory_, 0));
    return fs_.SyncDir(directory_);
  }

  Status RenameDir(const std::string& from, const std::string& to) override {
    Status renamed = fs_.RenameNoReplace(Path(from), Path(to));
    if (renamed.code() == Code::kUnimplemented) {
      // A plain rename refuses a target that has files in it, and ours do.
      renamed = fs_.Rename(Path(from), Path(to));
    }
    CKPT_RETURN_IF_ERROR(renamed);
    return fs_.SyncDir(directory_);
  }

  Status RemoveDir(const std::string& name) override {
    CKPT_RETURN_IF_ERROR(fs_.RemoveTree(Path(name)));
    return fs_.SyncDir(directory_);
  }

  Result<std::vector<NamedEntry>> ListDir(const std::string& name) override {
    CKPT_ASSIGN_OR_RETURN(const std::vector<os::DirEntry> found, fs_.List(Path(name)));
    return Named(found);
  }

  Result<DirectorySize> Measure(const std::string& name) override {
    CKPT_ASSIGN_OR_RETURN(const std::vector<os::DirEntry> found, fs_.List(Path(name)));
    DirectorySize size;
    for (const os::DirEntry& entry : found) {
      const auto stat = fs_.Stat(os::JoinPath(Path(name), entry.name));
      if (!stat.ok()) continue;  // removed meanwhile
      ++size.files;
      size.bytes += stat->bytes;
    }
    return size;
  }

  Result<int64_t> ModifiedNs(const std::string& key) override {
    CKPT_ASSIGN_OR_RETURN(const os::FileStat stat, fs_.Stat(Path(key)));
    return stat.mtime_ns;
  }

  Result<std::unique_ptr<FileWriter>> CreateFile(const std::string& key,
                                                 uint64_t size_hint) override {
    return CreateAttemptFile(fs_, directory_, key, size_hint);
  }
  Result<std::unique_ptr<FileReader>> OpenFile(const std::string& key) override {
    return OpenAttemptFile(fs_, directory_, key);
  }

  std::string Describe() const override { return directory_; }

 private:
  static std::vector<NamedEntry> Named(const std::vector<os::DirEntry>& found) {
    std::vector<NamedEntry> entries;
    entries.reserve(found.size());
    for (const os::DirEntry& entry : found) {
      entries.push_back({entry.name, entry.type == os::FileType::kDirectory,
                         entry.type == os::FileType::kRegular});
    }
    return entries;
  }
  std::string Path(std::string_view key) const { return os::JoinPath(directory_, key); }

  // Written, synced and closed under a name that no other process uses.
  Result<std::string> WriteTemporary(const std::string& path, std::string_view bytes) {
    const std::string random = JobId::Random().ToString().substr(0, 16);
    const std::string temporary =
        os::JoinPath(os::ParentOf(path), ".tmp-" + random + "-" + os::BaseName(path));
    Status written = os::WriteNewFile(fs_, temporary, bytes);
    if (written.ok()) return temporary;
    fs_.Unlink(temporary).IgnoreError();
    // Whatever failed, it failed under a name that means nothing.
    written = ExplainFullDisk(std::move(written), directory_, bytes.size());
    return Status(written.code(), written.message());
  }

  Status LinkName(const std::string& temporary, const std::string& path) {
    Status linked = fs_.Link(temporary, path);
    const bool no_links =
        linked.code() == Code::kPermissionDenied || linked.code() == Code::kUnimplemented;
    // FAT, some FUSE and object gateways have no hard links; an exclusive rename is as good.
    if (no_links) linked = fs_.RenameNoReplace(temporary, path);
    return linked;
  }

  // `between` runs when the name is there and not yet synced.
  template <typename Between>
  Status SyncName(const std::string& path, Between between) {
    const auto sync = [&]() -> Status {
      CKPT_FAULT("store.put.before_sync");
      between();
      if (!Planted("skip a directory sync")) CKPT_RETURN_IF_ERROR(fs_.SyncDir(os::ParentOf(path)));
      CKPT_FAULT("store.put.after_sync");
      return OkStatus();
    };
    Status status = sync();
    return status.ok() ? status : std::move(status).MaybeApplied();
  }

  os::FileSystem& fs_;
  const std::string directory_;
};

}  // namespace

std::unique_ptr<JobDirectory> NewPosixDirectory(os::FileSystem& fs, std::string directory) {
  return std::make_unique<PosixDirectory>(fs, std::move(directory));
}

std::unique_ptr<EpochStore> OpenFileStore(os::FileSystem& fs, std::string directory,
                                          EpochStoreOptions options) {
  return std::make_unique<EpochStore>(NewPosixDirectory(fs, std::move(directory)), options);
}

std::unique_ptr<EpochStore> OpenFileStore(std::string directory) {
  return OpenFileStore(os::PosixFileSystem(), std::move(directory));
}

}  // namespace ckpt::storage
