// A state store in memory that can fail, and whose content outlives it like a disk's.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "coordinator/store/state_store.h"

namespace ckpt::store {

class MemoryStore : public StateStore {
 public:
  using Disk = std::map<std::string, std::string>;
  explicit MemoryStore(std::shared_ptr<Disk> disk) : disk_(std::move(disk)) {}

  // The n-th commit from now (1 = next) fails, and nothing of it is kept.
  void FailCommit(uint64_t nth, Status status) {
    fail_in_ = nth;
    failure_ = std::move(status);
  }

  Status Commit(const std::vector<core::Write>& writes) override {
    if (fail_in_ != 0 && --fail_in_ == 0) return failure_;
    for (const core::Write& write : writes) {
      if (write.value) {
        (*disk_)[write.key] = *write.value;
      } else {
        disk_->erase(write.key);
      }
    }
    return OkStatus();
  }
  Result<std::vector<core::Record>> LoadAll() override {
    std::vector<core::Record> records;
    for (const auto& [key, value] : *disk_) records.push_back({key, value});
    return records;
  }

 private:
  std::shared_ptr<Disk> disk_;
  uint64_t fail_in_ = 0;
  Status failure_;
};

}  // namespace ckpt::store
