// Background writing of shards from staging memory to the store, on a few threads; one job for each
// attempt, all ranks of this node.
//
// I1  done() is said exactly once for each Start, on the loop, after the last thread has left the
//     regions: also after Stop, also on errors.
// I2  While the owner insists, shards that could not be written are written again: ten tries, with
//     pauses that grow to ten seconds.
// I3  While the ranks train on, writing takes a share of the time that follows their steps.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "coordinator/run/staging_area.h"
#include "libckpt/engine/drain_pace.h"
#include "libckpt/engine/engine.h"
#include "libckpt/os/event_loop.h"
#include "libckpt/os/thread.h"
#include "libckpt/storage/store.h"

namespace ckpt::run {

// What one node reports of an attempt: its ranks' shards.
std::string EncodeShardReports(const std::vector<engine::ShardReport>& reports);
Result<std::vector<engine::ShardReport>> DecodeShardReports(std::string_view bytes);

struct WriteProgress {
  uint64_t bytes_done = 0, bytes_total = 0;
  std::string trouble;  // what failed, and when it is tried again; empty: nothing
};

class ShardWriters {
 public:
  using Done = std::function<void(uint32_t attempt, Status, std::string payload)>;
  // Asked after a failure that may pass: true while the copy in RAM is all that will ever be, so
  // that it is worth waiting for the store.
  using Insists = std::function<bool()>;

  // `pool` outlives this. `store_dir` is where the store's attempts lie: what a try that failed has
  // left there is removed before the next. `done` is called on the loop.
  ShardWriters(os::EventLoop* loop, os::WorkerPool* pool, std::shared_ptr<storage::Store> store,
               std::string store_dir, std::shared_ptr<engine::DrainPace> pace, Done done,
               Insists insists);
  // Cancels; nothing is said after it. The threads hold memory and store until they are through.
  ~ShardWriters();

  // Of what is started from now on.
  void UseSettings(const engine::WriteSettings& settings) { settings_ = settings; }
  // Pre: every slot holds the sealed generation of `id`. `tag`: engine::WriteOptions::tag.
  void Start(const AttemptId& id, const SlotSet& slots, const std::string& tag = "");
  // Cancelled between chunks. No effect if that attempt is not being written.
  void Stop(uint32_t attempt);
  bool writing(uint32_t attempt) const { return jobs_.contains(attempt); }
  // Also of the newest attempts that are written already.
  WriteProgress progress(uint32_t attempt) const;

 private:
  struct Job;
  void WriteOne(const std::shared_ptr<Job>& job, size_t index);
  void WriteAll(const std::shared_ptr<Job>& job, const std::vector<size_t>& indices);
  bool TryAgain(const std::shared_ptr<Job>& job);
  void Finish(const std::shared_ptr<Job>& job);

  os::EventLoop* const loop_;
  os::WorkerPool* const pool_;
  const std::shared_ptr<storage::Store> store_;
  const std::string store_dir_;
  const std::shared_ptr<engine::DrainPace> pace_;
  const Done done_;
  const Insists insists_;
  engine::WriteSettings settings_;
  std::map<uint32_t, std::shared_ptr<Job>> jobs_;
  std::map<uint32_t, uint64_t> written_;  // bytes, of the newest attempts that succeeded
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace ckpt::run
