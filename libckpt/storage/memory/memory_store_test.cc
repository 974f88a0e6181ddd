#include "libckpt/storage/memory/memory_store.h"

#include "libckpt/testing/store_conformance.h"
#include "libckpt/testing/store_flaws.h"
#include "libckpt/testing/store_retention.h"

namespace ckpt::testing {
namespace {

class MemoryWorld : public StoreWorld {
 public:
  static constexpr uint64_t kStride = 3;  // of the steps tried when three actors meet
  std::unique_ptr<storage::Store> Actor() override {
    return storage::NewMemoryStore(job_, {.poll_min = std::chrono::milliseconds(1)});
  }
  void Plant(const std::string& key, const std::string& bytes) override {
    storage::PlantFile(*job_, key, bytes);
  }
  Status Rename(const std::string& from, const std::string& to) override {
    return storage::PlantRename(*job_, from, to);
  }
  Status Remove(const std::string& key) override { return storage::RemoveFile(*job_, key); }
  std::vector<std::string> Keys() override { return storage::AllKeys(*job_); }

 private:
  std::shared_ptr<storage::MemoryJob> job_ = storage::NewMemoryJob();
};

INSTANTIATE_TYPED_TEST_SUITE_P(Memory, StoreConformance, MemoryWorld);
INSTANTIATE_TYPED_TEST_SUITE_P(Memory, StoreFlaws, MemoryWorld);
INSTANTIATE_TYPED_TEST_SUITE_P(Memory, StoreRetention, MemoryWorld);

}  // namespace
}  // namespace ckpt::testing
