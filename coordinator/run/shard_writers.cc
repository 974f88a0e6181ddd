#include "coordinator/run/shard_writers.h"

#include "libckpt/base/limits.h"
#include "libckpt/base/log.h"
#include "libckpt/format/names.h"
#include "libckpt/os/file.h"

namespace ckpt::run {
namespace {

constexpr uint32_t kTriesMax = 10;
constexpr size_t kWrittenMax = 8;
constexpr int64_t kPauseMinNs = 100'000'000;
constexpr int64_t kPauseMaxNs = 10'000'000'000;

// A store that is full, read-only, failing or away may come back; what is wrong stays wrong.
bool MayPass(const Status& status) {
  switch (status.code()) {
    case Code::kCancelled:
    case Code::kInvalidArgument:
    case Code::kFailedPrecondition:
    case Code::kAborted:
    case Code::kUnimplemented:
      return false;
    default:
      return true;
  }
}

// Files of an attempt are created once: what a failed try left is in the way of the next. Nobody
// was told of them, so nobody reads them.
void RemoveRemains(const std::string& directory, Rank rank, const std::string& tag) {
  os::FileSystem& fs = os::PosixFileSystem();
  for (const std::string& name :
       {format::ShardFileName(rank, tag), format::IndexFileName(rank, tag)}) {
    fs.Unlink(os::JoinPath(directory, name)).IgnoreError();  // most often it is not there
  }
}

// A drain begins: what others have left of this rank's shard takes the room that it needs. They are
// gone (the agent of this node has seen the end of the process before, that of node 0 the end of
// who could have committed it), and no MANIFEST names what they wrote.
void RemoveRemainsOfOthers(storage::Store* store, const AttemptId& id, const std::string& directory,
                           Rank rank, const std::string& tag) {
  if (store->ReadManifest(id).status().code() != Code::kNotFound) return;
  os::FileSystem& fs = os::PosixFileSystem();
  const Result<std::vector<os::DirEntry>> entries = fs.List(directory);
  if (!entries.ok()) return;
  const std::string plain = format::ShardFileName(rank, "");
  const std::string of_rank = plain.substr(0, plain.find('.') + 1);
  for (const os::DirEntry& entry : *entries) {
    if (!entry.name.starts_with(of_rank) || entry.name.starts_with(of_rank + tag + ".")) continue;
    fs.Unlink(os::JoinPath(directory, entry.name)).IgnoreError();
  }
}

}  // namespace

std::string EncodeShardReports(const std::vector<engine::ShardReport>& reports) {
  ByteWriter out;
  out.Put<uint32_t>(static_cast<uint32_t>(reports.size()));
  for (const engine::ShardReport& report : reports) out.PutString(report.Encode());
  return std::move(out).Take();
}

Result<std::vector<engine::ShardReport>> DecodeShardReports(std::string_view bytes) {
  ByteReader in(bytes);
  std::vector<engine::ShardReport> reports;
  const uint32_t count = in.GetCount(4);
  for (uint32_t i = 0; i < count && !in.failed(); ++i) {
    CKPT_ASSIGN_OR_RETURN(engine::ShardReport report, engine::ShardReport::Decode(in.GetString()));
    reports.push_back(std::move(report));
  }
  CKPT_RETURN_IF_ERROR(in.Finish("a node's shard reports"));
  return reports;
}

struct ShardWriters::Job {
  AttemptId id;
  SlotSet slots;
  std::string tag;
  std::atomic<bool> cancelled{false};
  std::atomic<size_t> left{0};
  // One element for each slot, touched by one thread each.
  std::vector<Status> statuses;
  std::vector<engine::ShardReport> reports;
  std::unique_ptr<std::atomic<uint64_t>[]> bytes_done;
  uint64_t bytes_total = 0;
  uint32_t tries = 1;
  std::string trouble;  // while the next try is waited for, and until it has succeeded
};

ShardWriters::ShardWriters(os::EventLoop* loop, os::WorkerPool* pool,
                           std::shared_ptr<storage::Store> store, std::string store_dir,
                           std::shared_ptr<engine::DrainPace> pace, Done done, Insists insists)
    : loop_(loop),
      pool_(pool),
      store_(std::move(store)),
      store_dir_(std::move(store_dir)),
      pace_(std::move(pace)),
      done_(std::move(done)),
      insists_(std::move(insists)) {}

ShardWriters::~ShardWriters() {
  *alive_ = false;
  for (const auto& [attempt, job] : jobs_) job->cancelled = true;
  // The threads hold the job and the store, not this object: nothing to wait for.
}

void ShardWriters::Start(const AttemptId& id, const SlotSet& slots, const std::string& tag) {
  auto job = std::make_shared<Job>();
  job->id = id;
  job->slots = slots;
  job->tag = tag;
  job->statuses.resize(slots.size());
  job->reports.resize(slots.size());
  job->bytes_done = std::make_unique<std::atomic<uint64_t>[]>(slots.size());
  for (const SlotPtr& slot : slots) {
    job->bytes_total += slot->region().plan().WriteBytes(slot->region().layout());
  }
  jobs_[id.attempt.value()] = job;
  pace_->Begin();
  std::vector<size_t> all(slots.size());
  for (size_t i = 0; i < all.size(); ++i) all[i] = i;
  WriteAll(job, all);
}

void ShardWriters::WriteAll(const std::shared_ptr<Job>& job, const std::vector<size_t>& indices) {
  job->left = indices.size();
  for (const size_t index : indices) WriteOne(job, index);
}

// Arms the next try of the shards that failed; false if there is none.
bool ShardWriters::TryAgain(const std::shared_ptr<Job>& job) {
  std::vector<size_t> failed;
  for (size_t i = 0; i < job->statuses.size(); ++i) {
    if (job->statuses[i].ok()) continue;
    if (!MayPass(job->statuses[i])) return false;
    failed.push_back(i);
  }
  if (failed.empty() || job->cancelled || job->tries >= kTriesMax || !insists_()) return false;
  const Nanos pause(std::min(kPauseMaxNs, kPauseMinNs << (job->tries - 1)));
  ++job->tries;
  job->trouble = "writing " + job->id.ToString() + ": " + job->statuses[failed[0]].message() +
                 "; the copy stays in RAM, try " + std::to_string(job->tries) + " of " +
                 std::to_string(kTriesMax) + " in " + FormatDuration(pause);
  LogWarning(job->trouble);
  loop_->AddTimer(pause, [this, job, failed, alive = alive_] {
    if (*alive) WriteAll(job, failed);
  });
  return true;
}

void ShardWriters::WriteOne(const std::shared_ptr<Job>& job, size_t index) {
  const auto write = [job, index, store = store_, loop = loop_, alive = alive_, this,
                      again = job->tries > 1, settings = settings_, pace = pace_,
                      directory = os::JoinPath(store_dir_, job->id.ToString())] {
    engine::WriteOptions options{settings};
    options.progress = [&job, index](uint64_t done, uint64_t) { job->bytes_done[index] = done; };
    options.cancelled = [&job] { return job->cancelled.load(); };
    options.tag = job->tag;
    options.pace = engine::PacedBy(pace, {}, options.cancelled);
    // The leader gives each attempt number once: a directory that is there was made for this one.
    Status begun = store->BeginAttempt(job->id);
    if (begun.ok() || begun.code() == Code::kAlreadyExists) {
      const Rank rank = job->slots[index]->region().identity().rank;
      if (again) {
        RemoveRemains(directory, rank, job->tag);
      } else if (!job->tag.empty()) {
        RemoveRemainsOfOthers(store.get(), job->id, directory, rank, job->tag);
      }
      Result<engine::ShardReport> report =
          engine::WriteShard(&job->slots[index]->region(), store.get(), options);
      job->statuses[index] = report.ok() ? OkStatus() : report.status();
      if (report.ok()) job->reports[index] = std::move(report).value();
    } else {
      job->statuses[index] = std::move(begun);
    }
    if (job->left.fetch_sub(1) != 1) return;
    loop->Post([this, job, alive] {
      if (*alive) Finish(job);
    });
  };
  const Status queued = pool_->TrySubmit(write);
  if (queued.ok()) return;
  job->statuses[index] = queued;
  if (job->left.fetch_sub(1) != 1) return;
  loop_->Post([this, job, alive = alive_] {
    if (*alive) Finish(job);
  });
}

void ShardWriters::Finish(const std::shared_ptr<Job>& job) {
  if (TryAgain(job)) return;
  jobs_.erase(job->id.attempt.value());
  pace_->End();
  for (size_t i = 0; i < job->slots.size(); ++i) {
    Status& status = job->statuses[i];
    if (status.ok()) continue;
    status.Annotate("writing the shard of rank " + std::to_string(job->slots[i]->rank()) + " of " +
                    job->id.ToString());
    return done_(job->id.attempt.value(), status, "");
  }
  written_[job->id.attempt.value()] = job->bytes_total;
  if (written_.size() > kWrittenMax) written_.erase(written_.begin());
  done_(job->id.attempt.value(), OkStatus(), EncodeShardReports(job->reports));
}

void ShardWriters::Stop(uint32_t attempt) {
  if (const auto it = jobs_.find(attempt); it != jobs_.end()) it->second->cancelled = true;
}

WriteProgress ShardWriters::progress(uint32_t attempt) const {
  WriteProgress progress;
  const auto it = jobs_.find(attempt);
  if (it == jobs_.end()) {
    if (const auto whole = written_.find(attempt); whole != written_.end()) {
      progress.bytes_done = progress.bytes_total = whole->second;
    }
    return progress;
  }
  progress.bytes_total = it->second->bytes_total;
  progress.trouble = it->second->trouble;
  for (size_t i = 0; i < it->second->slots.size(); ++i) {
    progress.bytes_done += it->second->bytes_done[i].load();
  }
  return progress;
}

}  // namespace ckpt::run
