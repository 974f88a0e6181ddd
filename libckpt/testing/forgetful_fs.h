// A disk in RAM that keeps what was synced apart from what was not, names too, and forgets at a
// power loss: the stand-in for the one failure that no test can ask of a real kernel.
//
// After PowerLoss each file has its synced bytes, or what was written since, or a torn mixture; of
// the names made, moved and removed in a directory since its last sync any subset has happened (a
// rename happens whole or not at all). That is harsher than any journaling file system, and
// allowed.
//
// Only what the stores use: no links to directories, renames within one directory.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "libckpt/base/fault.h"
#include "libckpt/base/mutex.h"
#include "libckpt/os/file.h"

namespace ckpt::testing {

class ForgetfulFs : public os::FileSystem {
 public:
  // Planted bugs: a store that passes its crash tests on such a disk is not tested at all.
  struct Bugs {
    bool file_sync_lies = false;
    bool dir_sync_lies = false;
  };
  ForgetfulFs() = default;
  // `queued`: a write that is started is made from its memory when it is awaited, as late as a
  // kernel's queue may make it.
  explicit ForgetfulFs(Bugs bugs, bool queued = false) : bugs_(bugs), queued_(queued) {}

  // Every operation fails from here on.
  void PowerOff() {
    MutexLock lock(mutex_);
    powered_ = false;
  }
  // What is left, by the choices of `seed`.
  void PowerOn(uint64_t seed) {
    MutexLock lock(mutex_);
    std::mt19937_64 rng(seed);
    Forget(*root_, rng);
    powered_ = true;
    ++boot_;
  }

  Result<std::unique_ptr<os::File>> Open(const std::string& path,
                                         const os::OpenOptions& options) override {
    CKPT_FAULT("disk.open");
    MutexLock lock(mutex_);
    CKPT_ASSIGN_OR_RETURN(const NodePtr dir, FindDir(os::ParentOf(path)));
    const std::string name = os::BaseName(path);
    const auto found = dir->names.find(name);
    if (found != dir->names.end()) {
      if (options.create && options.exclusive) return AlreadyExists("creating " + path);
      if (found->second->directory) return FailedPrecondition(path + " is a directory");
      return Handle(found->second, path);
    }
    if (!options.create) return NotFound("opening " + path);
    const auto file = std::make_shared<Node>();
    Change(*dir, {.add = name, .node = file});
    return Handle(file, path);
  }
  Result<std::unique_ptr<os::File>> OpenBeneath(const std::string& dir, const std::string& name,
                                                const os::OpenOptions& options) override {
    return Open(os::JoinPath(dir, name), options);
  }
  Status MakeDir(const std::string& path) override {
    CKPT_FAULT("disk.mkdir");
    MutexLock lock(mutex_);
    return MakeDirLocked(path);
  }
  Status MakeDirs(const std::string& path) override {
    {
      MutexLock lock(mutex_);
      if (!powered_) return Off();
      if (FindDir(path).ok()) return OkStatus();
    }
    CKPT_RETURN_IF_ERROR(MakeDirs(os::ParentOf(path)));
    const Status made = MakeDir(path);
    if (!made.ok() && made.code() != Code::kAlreadyExists) return made;
    return SyncDir(os::ParentOf(path));
  }
  Status Link(const std::string& from, const std::string& to) override {
    CKPT_FAULT("disk.link");
    MutexLock lock(mutex_);
    CKPT_ASSIGN_OR_RETURN(const NodePtr file, Find(from));
    CKPT_ASSIGN_OR_RETURN(const NodePtr dir, FindDir(os::ParentOf(to)));
    if (dir->names.contains(os::BaseName(to))) return AlreadyExists("linking " + to);
    Change(*dir, {.add = os::BaseName(to), .node = file});
    return OkStatus();
  }
  Status Rename(const std::string& from, const std::string& to) override {
    return Move(from, to, true);
  }
  Status RenameNoReplace(const std::string& from, const std::string& to) override {
    return Move(from, to, false);
  }
  Status Unlink(const std::string& path) override { return Remove(path); }
  Status RemoveDir(const std::string& path) override { return Remove(path); }
  Status RemoveTree(const std::string& path) override {
    const Status removed = Remove(path);
    return removed.code() == Code::kNotFound ? OkStatus() : removed;
  }
  Result<std::vector<os::DirEntry>> List(const std::string& path) override {
    CKPT_FAULT("disk.list");
    MutexLock lock(mutex_);
    CKPT_ASSIGN_OR_RETURN(const NodePtr dir, FindDir(path));
    std::vector<os::DirEntry> entries;
    for (const auto& [name, node] : dir->names) {
      entries.push_back(
          {name, node->directory ? os::FileType::kDirectory : os::FileType::kRegular});
    }
    return entries;
  }
  Result<os::FileStat> Stat(const std::string& path) override {
    MutexLock lock(mutex_);
    CKPT_ASSIGN_OR_RETURN(const NodePtr node, Find(path));
    os::FileStat stat;
    stat.type = node->directory ? os::FileType::kDirectory : os::FileType::kRegular;
    stat.bytes = node->bytes.size();
    return stat;
  }
  Status SyncDir(const std::string& path) override {
    CKPT_FAULT("disk.syncdir");
    MutexLock lock(mutex_);
    CKPT_ASSIGN_OR_RETURN(const NodePtr dir, FindDir(path));
    if (bugs_.dir_sync_lies) return OkStatus();
    dir->synced_names = dir->names;
    dir->pending.clear();
    return OkStatus();
  }

 private:
  struct Node;
  using NodePtr = std::shared_ptr<Node>;
  // One change of a directory: names removed and added together.
  struct Step {
    std::string remove;
    std::string add;
    NodePtr node;
  };
  struct Node {
    bool directory = false;
    std::string bytes, synced_bytes;
    std::map<std::string, NodePtr> names, synced_names;
    std::vector<Step> pending;
  };

  class OpenFile : public os::File {
   public:
    OpenFile(ForgetfulFs* fs, NodePtr node, std::string path, uint64_t boot)
        : fs_(fs), node_(std::move(node)), path_(std::move(path)), boot_(boot) {}
    Status PWrite(uint64_t offset, ByteSpan data) override {
      CKPT_FAULT("disk.write");
      MutexLock lock(fs_->mutex_);
      CKPT_RETURN_IF_ERROR(Usable());
      if (node_->bytes.size() < offset + data.size()) node_->bytes.resize(offset + data.size());
      std::copy_n(AsText(data).data(), data.size(), node_->bytes.data() + offset);
      return OkStatus();
    }
    Status PRead(uint64_t offset, MutableByteSpan out) override {
      CKPT_ASSIGN_OR_RETURN(const size_t n, PReadSome(offset, out));
      return n == out.size() ? OkStatus() : DataLoss(path_ + " ends too early");
    }
    Result<size_t> PReadSome(uint64_t offset, MutableByteSpan out) override {
      MutexLock lock(fs_->mutex_);
      CKPT_RETURN_IF_ERROR(Usable());
      if (offset >= node_->bytes.size()) return size_t{0};
      const size_t n = std::min<size_t>(out.size(), node_->bytes.size() - offset);
      std::copy_n(node_->bytes.data() + offset, n, reinterpret_cast<char*>(out.data()));
      return n;
    }
    Status Allocate(uint64_t) override { return OkStatus(); }
    Status Truncate(uint64_t bytes) override {
      CKPT_FAULT("disk.truncate");
      MutexLock lock(fs_->mutex_);
      CKPT_RETURN_IF_ERROR(Usable());
      node_->bytes.resize(bytes);
      return OkStatus();
    }
    Status Sync() override {
      CKPT_FAULT("disk.sync");
      MutexLock lock(fs_->mutex_);
      CKPT_RETURN_IF_ERROR(Usable());
      if (!fs_->bugs_.file_sync_lies) node_->synced_bytes = node_->bytes;
      return OkStatus();
    }
    Status Close() override {
      MutexLock lock(fs_->mutex_);
      return Usable();
    }
    Result<uint64_t> Size() override {
      MutexLock lock(fs_->mutex_);
      CKPT_RETURN_IF_ERROR(Usable());
      return static_cast<uint64_t>(node_->bytes.size());
    }
    Result<os::Transfer> StartWrite(uint64_t offset, ByteSpan data) override {
      if (!fs_->queued_) return os::File::StartWrite(offset, data);
      CKPT_FAULT("disk.start");
      return os::Transfer{1, true, offset, {const_cast<std::byte*>(data.data()), data.size()}};
    }
    Result<size_t> Await(const os::Transfer& transfer) override {
      if (transfer.number == 0) return os::File::Await(transfer);
      CKPT_RETURN_IF_ERROR(PWrite(transfer.offset, transfer.memory));
      return transfer.memory.size();
    }
    uint32_t depth() const override { return fs_->queued_ ? 4 : 1; }
    const std::string& path() const override { return path_; }

   private:
    Status Usable() const CKPT_NO_TSA {
      return fs_->powered_ && fs_->boot_ == boot_ ? OkStatus() : Off();
    }
    ForgetfulFs* const fs_;
    const NodePtr node_;
    const std::string path_;
    const uint64_t boot_;
  };

  static Status Off() { return Unavailable("the machine is off"); }

  std::unique_ptr<os::File> Handle(const NodePtr& node, const std::string& path)
      CKPT_REQUIRES(mutex_) {
    return std::make_unique<OpenFile>(this, node, path, boot_);
  }
  Result<NodePtr> Find(const std::string& path) CKPT_REQUIRES(mutex_) {
    if (!powered_) return Off();
    NodePtr node = root_;
    for (size_t begin = 1; begin < path.size();) {
      const size_t end = std::min(path.find('/', begin), path.size());
      const auto found = node->names.find(path.substr(begin, end - begin));
      if (found == node->names.end()) return NotFound(path);
      node = found->second;
      begin = end + 1;
    }
    return node;
  }
  Result<NodePtr> FindDir(const std::string& path) CKPT_REQUIRES(mutex_) {
    CKPT_ASSIGN_OR_RETURN(NodePtr node, Find(path));
    if (!node->directory) return NotFound(path + " is no directory");
    return node;
  }
  static void Apply(std::map<std::string, NodePtr>& names, const Step& step) {
    if (!step.remove.empty()) names.erase(step.remove);
    if (!step.add.empty()) names[step.add] = step.node;
  }
  static void Change(Node& dir, Step step) {
    Apply(dir.names, step);
    dir.pending.push_back(std::move(step));
  }
  Status MakeDirLocked(const std::string& path) CKPT_REQUIRES(mutex_) {
    CKPT_ASSIGN_OR_RETURN(const NodePtr dir, FindDir(os::ParentOf(path)));
    if (dir->names.contains(os::BaseName(path))) return AlreadyExists("creating " + path);
    const auto made = std::make_shared<Node>();
    made->directory = true;
    Change(*dir, {.add = os::BaseName(path), .node = made});
    return OkStatus();
  }
  Status Move(const std::string& from, const std::string& to, bool replace) {
    CKPT_FAULT("disk.rename");
    MutexLock lock(mutex_);
    CKPT_ASSIGN_OR_RETURN(const NodePtr node, Find(from));
    CKPT_ASSIGN_OR_RETURN(const NodePtr dir, FindDir(os::ParentOf(to)));
    if (os::ParentOf(from) != os::ParentOf(to)) return Unimplemented("renaming to elsewhere");
    if (!replace && dir->names.contains(os::BaseName(to)))
      return AlreadyExists("renaming to " + to);
    Change(*dir, {.remove = os::BaseName(from), .add = os::BaseName(to), .node = node});
    return OkStatus();
  }
  Status Remove(const std::string& path) {
    CKPT_FAULT("disk.remove");
    MutexLock lock(mutex_);
    CKPT_RETURN_IF_ERROR(Find(path).status());
    CKPT_ASSIGN_OR_RETURN(const NodePtr dir, FindDir(os::ParentOf(path)));
    Change(*dir, {.remove = os::BaseName(path)});
    return OkStatus();
  }

  // Directories are as shallow as the job's: no depth to fear.
  static void Forget(Node& node, std::mt19937_64& rng) {
    if (!node.directory) {
      node.bytes = Torn(node, rng);
      node.synced_bytes = node.bytes;
      return;
    }
    node.names = node.synced_names;
    for (const Step& step : node.pending) {
      const bool possible = step.remove.empty() || node.names.contains(step.remove);
      if (possible && rng() % 2 == 0) Apply(node.names, step);
    }
    node.synced_names = node.names;
    node.pending.clear();
    for (const auto& [name, child] : node.names) Forget(*child, rng);
  }
  static std::string Torn(const Node& node, std::mt19937_64& rng) {
    if (node.bytes == node.synced_bytes) return node.bytes;
    switch (rng() % 4) {
      case 0:
        return node.synced_bytes;
      case 1:
        return node.bytes;
      case 2:
        return node.bytes.substr(0, rng() % (node.bytes.size() + 1));
      default:
        return MixedSectors(node, rng);
    }
  }
  // The size of the newer content, and of each sector the old or the new, in no order.
  static std::string MixedSectors(const Node& node, std::mt19937_64& rng) {
    constexpr size_t kSector = 512;
    std::string mixed = node.bytes;
    for (size_t at = 0; at < mixed.size(); at += kSector) {
      if (rng() % 2 == 0) continue;
      for (size_t i = at; i < std::min(at + kSector, mixed.size()); ++i)
        mixed[i] = i < node.synced_bytes.size() ? node.synced_bytes[i] : '\0';
    }
    return mixed;
  }
  static NodePtr NewRoot() {
    auto root = std::make_shared<Node>();
    root->directory = true;
    return root;
  }

  const Bugs bugs_{};
  const bool queued_ = false;
  Mutex mutex_;
  const NodePtr root_ = NewRoot();
  bool powered_ CKPT_GUARDED_BY(mutex_) = true;
  uint64_t boot_ CKPT_GUARDED_BY(mutex_) = 0;
};

}  // namespace ckpt::testing
