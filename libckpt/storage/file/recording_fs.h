// A FileSystem that passes everything on and writes down what changes the disk, in order: the test
// of "synced before linked" without a tracer.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "libckpt/base/mutex.h"
#include "libckpt/os/file.h"

namespace ckpt::testing {

// Lines such as "sync s1.e1.a1/COMMIT", "link s1.e1.a1/COMMIT", "syncdir s1.e1.a1", "list .":
// paths relative to `root`, temporary names as the name they stand for with '~' before it.
class RecordingFs : public os::FileSystem {
 public:
  RecordingFs(os::FileSystem& base, std::string root) : base_(base), root_(std::move(root)) {}

  std::vector<std::string> Take() {
    MutexLock lock(mutex_);
    return std::exchange(lines_, {});
  }

  Result<std::unique_ptr<os::File>> Open(const std::string& path,
                                         const os::OpenOptions& options) override {
    return Wrap(base_.Open(path, options), path, options);
  }
  Result<std::unique_ptr<os::File>> OpenBeneath(const std::string& dir, const std::string& name,
                                                const os::OpenOptions& options) override {
    return Wrap(base_.OpenBeneath(dir, name, options), os::JoinPath(dir, name), options);
  }
  Status MakeDir(const std::string& path) override {
    return Done("mkdir", path, base_.MakeDir(path));
  }
  Status MakeDirs(const std::string& path) override {
    return Done("mkdirs", path, base_.MakeDirs(path));
  }
  Status Link(const std::string& from, const std::string& to) override {
    return Done("link", to, base_.Link(from, to));
  }
  Status Rename(const std::string& from, const std::string& to) override {
    return Done("rename", to, base_.Rename(from, to));
  }
  Status RenameNoReplace(const std::string& from, const std::string& to) override {
    return Done("rename", to, base_.RenameNoReplace(from, to));
  }
  Status Unlink(const std::string& path) override {
    return Done("unlink", path, base_.Unlink(path));
  }
  Status RemoveDir(const std::string& path) override {
    return Done("rmdir", path, base_.RemoveDir(path));
  }
  Status RemoveTree(const std::string& path) override {
    return Done("rmtree", path, base_.RemoveTree(path));
  }
  Result<std::vector<os::DirEntry>> List(const std::string& dir) override {
    Write("list", dir);
    return base_.List(dir);
  }
  Result<os::FileStat> Stat(const std::string& path) override { return base_.Stat(path); }
  Status SyncDir(const std::string& dir) override {
    return Done("syncdir", dir, base_.SyncDir(dir));
  }

 private:
  class RecordingFile : public os::File {
   public:
    RecordingFile(RecordingFs* fs, std::unique_ptr<os::File> base)
        : fs_(fs), base_(std::move(base)) {}
    Status PWrite(uint64_t offset, ByteSpan data) override {
      return fs_->Done("write", path(), base_->PWrite(offset, data));
    }
    Status PRead(uint64_t offset, MutableByteSpan out) override {
      return base_->PRead(offset, out);
    }
    Result<size_t> PReadSome(uint64_t offset, MutableByteSpan out) override {
      return base_->PReadSome(offset, out);
    }
    Status Allocate(uint64_t bytes) override {
      return fs_->Done("allocate", path(), base_->Allocate(bytes));
    }
    Status Truncate(uint64_t bytes) override {
      return fs_->Done("truncate", path(), base_->Truncate(bytes));
    }
    Status Sync() override { return fs_->Done("sync", path(), base_->Sync()); }
    Status Close() override { return fs_->Done("close", path(), base_->Close()); }
    Result<uint64_t> Size() override { return base_->Size(); }
    const std::string& path() const override { return base_->path(); }

   private:
    RecordingFs* const fs_;
    const std::unique_ptr<os::File> base_;
  };

  Result<std::unique_ptr<os::File>> Wrap(Result<std::unique_ptr<os::File>> opened,
                                         const std::string& path, const os::OpenOptions& options) {
    if (!opened.ok()) return opened;
    if (options.create) Write(options.exclusive ? "create" : "overwrite", path);
    return std::unique_ptr<os::File>(
        std::make_unique<RecordingFile>(this, std::move(opened).value()));
  }
  Status Done(std::string_view verb, const std::string& path, Status status) {
    if (status.ok()) Write(verb, path);
    return status;
  }
  void Write(std::string_view verb, const std::string& path) {
    MutexLock lock(mutex_);
    lines_.push_back(std::string(verb) + " " + Short(path));
  }
  std::string Short(const std::string& path) const {
    if (path == root_) return ".";
    std::string rest = path.starts_with(root_ + "/") ? path.substr(root_.size() + 1) : path;
    const size_t temporary = rest.find(".tmp-");
    if (temporary == std::string::npos) return rest;
    return rest.substr(0, temporary) + "~" + rest.substr(rest.find('-', temporary + 5) + 1);
  }

  os::FileSystem& base_;
  const std::string root_;
  Mutex mutex_;
  std::vector<std::string> lines_ CKPT_GUARDED_BY(mutex_);
};

}  // namespace ckpt::testing
