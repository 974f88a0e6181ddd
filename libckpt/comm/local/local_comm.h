// A communicator whose ranks are threads of one process: real collectives over shared memory, with
// peers that block, deadlines, and an abort that wakes everyone. For single-process jobs and tests.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "libckpt/base/bytes.h"
#include "libckpt/base/mutex.h"
#include "libckpt/comm/comm.h"

namespace ckpt::comm {

class LocalHub;  // what the ranks of one incarnation share

// The gang's key-value channel within a process. Keys are set once.
class LocalKeyValue : public KeyValue {
 public:
  Status Set(const std::string& key, const std::string& value) override;
  Result<std::string> Wait(const std::string& key, const Deadline& deadline) override;

 private:
  Mutex mutex_;
  CondVar changed_;
  std::vector<std::pair<std::string, std::string>> pairs_ CKPT_GUARDED_BY(mutex_);
};

// Threads: collectives from one thread at a time; the Communicator calls from any.
class LocalCommunicator : public Communicator {
 public:
  LocalCommunicator(std::string name, uint32_t rank, uint32_t world);
  ~LocalCommunicator() override;

  std::string name() const override { return name_; }
  Status Quiesce(const Deadline& deadline) override;
  Status Down(const Deadline& deadline) override;
  Status Up(const std::string& fresh_id, KeyValue* kv, const Deadline& deadline) override;
  Status Verify(const Deadline& deadline) override;

  // Everyone's bytes, by rank. All ranks call their collectives in the same order.
  // Errors: kFailedPrecondition while down or quiesced; kDeadlineExceeded naming who is missing;
  // kAborted once any rank has taken its side down or timed out (no later operation can succeed).
  Result<std::vector<std::string>> AllGather(std::string_view mine, const Deadline& deadline);
  // The sums over all ranks, added in rank order: bit for bit the same everywhere.
  Status AllReduceSum(std::span<double> values, const Deadline& deadline);
  Status Barrier(const Deadline& deadline);
  // Collectives of this rank that are under way.
  uint32_t in_flight();

 private:
  Result<std::shared_ptr<LocalHub>> Enter();
  void Leave();
  Result<std::vector<std::string>> Gather(const std::shared_ptr<LocalHub>& hub,
                                          std::string_view mine, const Deadline& deadline);

  const std::string name_;
  const uint32_t rank_, world_;
  Mutex mutex_;
  CondVar idle_;
  std::shared_ptr<LocalHub> hub_ CKPT_GUARDED_BY(mutex_);  // null: down
  bool quiesced_ CKPT_GUARDED_BY(mutex_) = false;
  uint32_t in_flight_ CKPT_GUARDED_BY(mutex_) = 0;
  uint64_t sequence_ CKPT_GUARDED_BY(mutex_) = 0;  // of the next collective
};

}  // namespace ckpt::comm
