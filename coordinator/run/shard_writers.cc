#include "coordinator/run/shard_writers.h"

#include "libckpt/base/limits.h"

namespace ckpt::run {

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
  std::atomic<bool> cancelled{false};
  std::atomic<size_t> left{0};
  // One element for each slot, touched by one thread each.
  std::vector<Status> statuses;
  std::vector<engine::ShardReport> reports;
  std::unique_ptr<std::atomic<uint64_t>[]> bytes_done;
  uint64_t bytes_total = 0;
};

ShardWriters::ShardWriters(os::EventLoop* loop, os::WorkerPool* pool,
                           std::shared_ptr<storage::Store> store, Done done)
    : loop_(loop), pool_(pool), store_(std::move(store)), done_(std::move(done)) {}

ShardWriters::~ShardWriters() {
  *alive_ = false;
  for (const auto& [attempt, job] : jobs_) job->cancelled = true;
  // The threads hold the job and the store, not this object: nothing to wait for.
}

void ShardWriters::Start(const AttemptId& id, const SlotSet& slots) {
  auto job = std::make_shared<Job>();
  job->id = id;
  job->slots = slots;
  job->left = slots.size();
  job->statuses.resize(slots.size());
  job->reports.resize(slots.size());
  job->bytes_done = std::make_unique<std::atomic<uint64_t>[]>(slots.size());
  for (const SlotPtr& slot : slots) {
    job->bytes_total += slot->region().plan().WriteBytes(slot->region().layout());
  }
  jobs_[id.attempt.value()] = job;
  for (size_t i = 0; i < slots.size(); ++i) WriteOne(job, i);
}

void ShardWriters::WriteOne(const std::shared_ptr<Job>& job, size_t index) {
  const auto write = [job, index, store = store_, loop = loop_, alive = alive_, this] {
    engine::WriteOptions options;
    options.progress = [&job, index](uint64_t done, uint64_t) { job->bytes_done[index] = done; };
    options.cancelled = [&job] { return job->cancelled.load(); };
    // The leader gives each attempt number once: a directory that is there was made for this one.
    Status begun = store->BeginAttempt(job->id);
    if (begun.ok() || begun.code() == Code::kAlreadyExists) {
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
  jobs_.erase(job->id.attempt.value());
  for (size_t i = 0; i < job->slots.size(); ++i) {
    Status& status = job->statuses[i];
    if (status.ok()) continue;
    status.Annotate("writing the shard of rank " + std::to_string(job->slots[i]->rank()) + " of " +
                    job->id.ToString());
    return done_(job->id.attempt.value(), status, "");
  }
  done_(job->id.attempt.value(), OkStatus(), EncodeShardReports(job->reports));
}

void ShardWriters::Stop(uint32_t attempt) {
  if (const auto it = jobs_.find(attempt); it != jobs_.end()) it->second->cancelled = true;
}

WriteProgress ShardWriters::progress(uint32_t attempt) const {
  WriteProgress progress;
  const auto it = jobs_.find(attempt);
  if (it == jobs_.end()) return progress;
  progress.bytes_total = it->second->bytes_total;
  for (size_t i = 0; i < it->second->slots.size(); ++i) {
    progress.bytes_done += it->second->bytes_done[i].load();
  }
  return progress;
}

}  // namespace ckpt::run
