#include "libckpt/storage/memory/memory_store.h"

#include <algorithm>
#include <map>

#include "libckpt/base/fault.h"

namespace ckpt::storage {

class MemoryJob {
 public:
  using Bytes = std::shared_ptr<std::string>;

  mutable Mutex mutex;
  // By directory ("" is the job's), then by name.
  std::map<std::string, std::map<std::string, Bytes>> directories CKPT_GUARDED_BY(mutex);
};

namespace {

std::pair<std::string, std::string> Split(const std::string& key) {
  const size_t slash = key.find('/');
  if (slash == std::string::npos) return {"", key};
  return {key.substr(0, slash), key.substr(slash + 1)};
}

class MemoryWriter : public FileWriter {
 public:
  MemoryWriter(std::shared_ptr<MemoryJob> job, MemoryJob::Bytes bytes, std::string where)
      : job_(std::move(job)), bytes_(std::move(bytes)), where_(std::move(where)) {}

  Status Write(uint64_t offset, ByteSpan data) override {
    CKPT_RETURN_IF_ERROR(Step("store.file.write"));
    MutexLock lock(job_->mutex);
    if (bytes_->size() < offset + data.size()) bytes_->resize(offset + data.size());
    std::copy_n(AsText(data).data(), data.size(), bytes_->data() + offset);
    return OkStatus();
  }
  Status Finish() override {
    CKPT_RETURN_IF_ERROR(Step("store.file.sync"));
    MutexLock lock(job_->mutex);
    failed_ = FailedPrecondition(where_ + " is finished");
    return OkStatus();
  }

 private:
  static Status Pass([[maybe_unused]] std::string_view point) {
    CKPT_FAULT(point);
    return OkStatus();
  }
  // One failure is the last word. Others may come and go while a fault point holds this one.
  Status Step(std::string_view point) {
    {
      MutexLock lock(job_->mutex);
      CKPT_RETURN_IF_ERROR(failed_);
    }
    Status passed = Pass(point);
    if (passed.ok()) return passed;
    MutexLock lock(job_->mutex);
    failed_ = passed;
    return passed;
  }
  const std::shared_ptr<MemoryJob> job_;
  const MemoryJob::Bytes bytes_;
  const std::string where_;
  Status failed_;  // guarded by the job's mutex, as the bytes are
};

class MemoryReader : public FileReader {
 public:
  MemoryReader(std::shared_ptr<MemoryJob> job, MemoryJob::Bytes bytes, std::string where)
      : job_(std::move(job)), bytes_(std::move(bytes)), where_(std::move(where)) {}
  uint64_t size() const override {
    MutexLock lock(job_->mutex);
    return bytes_->size();
  }
  Status Read(uint64_t offset, MutableByteSpan out) const override {
    MutexLock lock(job_->mutex);
    if (offset > bytes_->size() || out.size() > bytes_->size() - offset)
      return DataLoss(where_ + " ends before byte " + std::to_string(offset) + " + " +
                      std::to_string(out.size()));
    std::copy_n(bytes_->data() + offset, out.size(), reinterpret_cast<char*>(out.data()));
    return OkStatus();
  }

 private:
  const std::shared_ptr<MemoryJob> job_;
  const MemoryJob::Bytes bytes_;
  const std::string where_;
};

class MemoryDirectory : public JobDirectory {
 public:
  explicit MemoryDirectory(std::shared_ptr<MemoryJob> job) : job_(std::move(job)) {}

  Status Create() override {
    MutexLock lock(job_->mutex);
    job_->directories[""];
    return OkStatus();
  }
  Result<std::vector<NamedEntry>> List() override {
    MutexLock lock(job_->mutex);
    const auto root = job_->directories.find("");
    if (root == job_->directories.end()) return NotFound(Describe() + ": no such job");
    std::vector<NamedEntry> entries;
    for (const auto& [name, bytes] : root->second) entries.push_back({name, false, true});
    for (const auto& [name, files] : job_->directories)
      if (!name.empty()) entries.push_back({name, true, false});
    return entries;
  }
  Result<std::string> Get(const std::string& key, uint64_t bytes_max) override {
    CKPT_ASSIGN_OR_RETURN(const MemoryJob::Bytes bytes, Find(key));
    MutexLock lock(job_->mutex);
    if (bytes->size() > bytes_max) return ResourceExhausted(Where(key) + " is too long");
    return *bytes;
  }
  Status PutNew(const std::string& key, std::string_view bytes) override {
    CKPT_FAULT("store.put.after_temp");
    CKPT_RETURN_IF_ERROR(Insert(key, bytes));
    return Sync(key);
  }
  Status Replace(const std::string& key, std::string_view bytes) override {
    CKPT_FAULT("store.put.after_temp");
    const auto [dir, name] = Split(key);
    MutexLock lock(job_->mutex);
    job_->directories[dir][name] = std::make_shared<std::string>(bytes);
    return OkStatus();
  }
  Status Sync(const std::string&) override {
    const auto sync = []() -> Status {
      CKPT_FAULT("store.put.before_sync");
      return OkStatus();
    };
    Status status = sync();
    return status.ok() ? status : std::move(status).MaybeApplied();
  }
  Status MakeDir(const std::string& name) override {
    MutexLock lock(job_->mutex);
    if (!job_->directories.contains(""))
      return NotFound(Where(name) + ": the job's directory is gone");
    if (!job_->directories.try_emplace(name).second) return AlreadyExists(Where(name) + " exists");
    return OkStatus();
  }
  Status RenameDir(const std::string& from, const std::string& to) override {
    return PlantRename(*job_, from, to);
  }
  Status RemoveDir(const std::string& name) override {
    MutexLock lock(job_->mutex);
    job_->directories.erase(name);
    return OkStatus();
  }
  Result<std::vector<NamedEntry>> ListDir(const std::string& name) override {
    MutexLock lock(job_->mutex);
    const auto found = job_->directories.find(name);
    if (found == job_->directories.end()) return NotFound(Where(name) + ": no such directory");
    std::vector<NamedEntry> entries;
    for (const auto& [file, bytes] : found->second) entries.push_back({file, false, true});
    return entries;
  }
  Result<DirectorySize> Measure(const std::string& name) override {
    MutexLock lock(job_->mutex);
    const auto found = job_->directories.find(name);
    if (found == job_->directories.end()) return NotFound(Where(name) + ": no such directory");
    DirectorySize size;
    for (const auto& [file, bytes] : found->second) {
      ++size.files;
      size.bytes += bytes->size();
    }
    return size;
  }
  Result<int64_t> ModifiedNs(const std::string&) override { return int64_t{0}; }
  Result<std::unique_ptr<FileWriter>> CreateFile(const std::string& key, uint64_t) override {
    const auto [dir, name] = Split(key);
    MutexLock lock(job_->mutex);
    const auto found = job_->directories.find(dir);
    if (found == job_->directories.end()) return NotFound(Where(dir) + ": no such attempt");
    const auto bytes = std::make_shared<std::string>();
    if (!found->second.try_emplace(name, bytes).second)
      return AlreadyExists(Where(key) + " exists");
    return std::unique_ptr<FileWriter>(std::make_unique<MemoryWriter>(job_, bytes, Where(key)));
  }
  Result<std::unique_ptr<FileReader>> OpenFile(const std::string& key) override {
    CKPT_ASSIGN_OR_RETURN(const MemoryJob::Bytes bytes, Find(key));
    return std::unique_ptr<FileReader>(std::make_unique<MemoryReader>(job_, bytes, Where(key)));
  }
  std::string Describe() const override { return "memory:"; }

 private:
  std::string Where(std::string_view key) const { return JobDirectory::Describe(key); }

  Result<MemoryJob::Bytes> Find(const std::string& key) {
    const auto [dir, name] = Split(key);
    MutexLock lock(job_->mutex);
    const auto found = job_->directories.find(dir);
    if (found == job_->directories.end() || !found->second.contains(name))
      return NotFound(Where(key) + ": no such file");
    return found->second.at(name);
  }
  Status Insert(const std::string& key, std::string_view bytes) {
    const auto [dir, name] = Split(key);
    MutexLock lock(job_->mutex);
    const auto found = job_->directories.find(dir);
    if (found == job_->directories.end()) return NotFound(Where(dir) + ": no such directory");
    const auto [place, fresh] =
        found->second.try_emplace(name, std::make_shared<std::string>(bytes));
    if (!fresh && *place->second != bytes) return AlreadyExists(Where(key) + " exists");
    return OkStatus();
  }

  const std::shared_ptr<MemoryJob> job_;
};

}  // namespace

std::shared_ptr<MemoryJob> NewMemoryJob() { return std::make_shared<MemoryJob>(); }

std::unique_ptr<EpochStore> NewMemoryStore(std::shared_ptr<MemoryJob> job,
                                           EpochStoreOptions options) {
  return std::make_unique<EpochStore>(std::make_unique<MemoryDirectory>(std::move(job)), options);
}

void PlantFile(MemoryJob& job, const std::string& key, std::string bytes) {
  const auto [dir, name] = Split(key);
  MutexLock lock(job.mutex);
  job.directories[dir][name] = std::make_shared<std::string>(std::move(bytes));
}

Status RemoveFile(MemoryJob& job, const std::string& key) {
  const auto [dir, name] = Split(key);
  MutexLock lock(job.mutex);
  return job.directories[dir].erase(name) == 1 ? OkStatus() : NotFound(key);
}

Status PlantRename(MemoryJob& job, const std::string& from, const std::string& to) {
  MutexLock lock(job.mutex);
  if (!job.directories.contains(from)) return NotFound("memory:/" + from + ": no such directory");
  if (job.directories.contains(to)) return AlreadyExists("memory:/" + to + " exists");
  auto node = job.directories.extract(from);
  node.key() = to;
  job.directories.insert(std::move(node));
  return OkStatus();
}

std::vector<std::string> AllKeys(const MemoryJob& job) {
  MutexLock lock(job.mutex);
  std::vector<std::string> keys;
  for (const auto& [dir, files] : job.directories) {
    for (const auto& [name, bytes] : files) keys.push_back(dir.empty() ? name : dir + "/" + name);
  }
  return keys;
}

}  // namespace ckpt::storage
