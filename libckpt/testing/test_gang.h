// A gang in one process for the engine's tests: ranks with real memory (the CPU's or a device's),
// their plan, their staging regions, and content that is a function of (tensor, element, step), so
// that any loaded element can be checked without having kept a copy.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "libckpt/base/rng.h"
#include "libckpt/engine/engine.h"
#include "libckpt/engine/strided.h"
#include "libckpt/storage/memory/memory_store.h"

namespace ckpt::engine::testing {

inline Deadline Soon() { return Deadline("test", std::chrono::seconds(60)); }

#define ASSERT_CKPT_OK(expr)                                             \
  do {                                                                   \
    const ::ckpt::Status ckpt_test_status_ = (expr);                     \
    ASSERT_TRUE(ckpt_test_status_.ok()) << ckpt_test_status_.ToString(); \
  } while (0)
#define EXPECT_CKPT_OK(expr)                                             \
  do {                                                                   \
    const ::ckpt::Status ckpt_test_status_ = (expr);                     \
    EXPECT_TRUE(ckpt_test_status_.ok()) << ckpt_test_status_.ToString(); \
  } while (0)

// Byte `byte` of element `element` (global, row-major) of a tensor at a step.
inline uint8_t ContentByte(uint64_t salt, int64_t step, uint64_t element, uint32_t byte) {
  Rng rng(salt ^ (static_cast<uint64_t>(step) * 0x100000001b3ull) ^ (element << 8 | byte / 8));
  return static_cast<uint8_t>(rng.Next() >> (8 * (byte % 8)));
}

// Zeroed memory at a page boundary.
class Pages {
 public:
  explicit Pages(uint64_t bytes) : bytes_(AlignUp(std::max<uint64_t>(bytes, 1), kPageBytes)) {
    memory_.reset(static_cast<std::byte*>(std::aligned_alloc(kPageBytes, bytes_)));
    std::memset(memory_.get(), 0, bytes_);
  }
  MutableByteSpan span() const { return {memory_.get(), bytes_}; }

 private:
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  uint64_t bytes_;
  std::unique_ptr<std::byte, Free> memory_;
};

// One tensor with memory of its own behind a strided view.
class TestTensor {
 public:
  // `strides` empty: row-major. `device` null: plain memory.
  TestTensor(format::TensorMeta meta, uint32_t rank, std::vector<int64_t> strides = {},
             device::Device* device = nullptr, device::StreamHandle stream = nullptr)
      : element_bytes_(format::ElementBytes(meta.dtype)) {
    salt_ = Hash64(AsBytes(meta.name));
    if (meta.placement == format::Placement::kPerRank) salt_ += 0x9e37 * (rank + 1);
    live_.meta = std::move(meta);
    live_.strides = std::move(strides);
    live_.device = device;
    live_.stream = stream;
    const auto view = live_.strides.empty() ? RowMajorStrides(shape()) : live_.strides;
    int64_t low = 0, high = 0;
    for (size_t d = 0; d < shape().size(); ++d) {
      const int64_t reach = (static_cast<int64_t>(shape()[d]) - 1) * view[d];
      (reach < 0 ? low : high) += reach;
    }
    shadow_.resize(live_.meta.local.Empty() ? 0 : (high - low + 1) * element_bytes_);
    first_ = -low * element_bytes_;
    if (device == nullptr) {
      live_.data = shadow_.empty() ? nullptr : shadow_.data() + first_;
    } else if (!shadow_.empty()) {
      auto memory = device->Alloc(shadow_.size());
      EXPECT_TRUE(memory.ok()) << memory.status().ToString();
      device_memory_ = memory.ok() ? static_cast<std::byte*>(memory.value()) : nullptr;
      live_.data = device_memory_ + first_;
    }
  }
  TestTensor(TestTensor&& other) noexcept
      : live_(std::move(other.live_)),
        element_bytes_(other.element_bytes_),
        salt_(other.salt_),
        shadow_(std::move(other.shadow_)),
        first_(other.first_),
        device_memory_(std::exchange(other.device_memory_, nullptr)) {}
  ~TestTensor() {
    if (device_memory_ != nullptr) live_.device->Free(device_memory_).IgnoreError();
  }

  const LiveTensor& live() const { return live_; }
  LiveTensor& live() { return live_; }
  const std::vector<uint64_t>& shape() const { return live_.meta.local.shape; }
  // Content is that of another tensor (tied ones).
  void SaltAs(const std::string& name) { salt_ = Hash64(AsBytes(name)); }

  // Enqueues the content of `step` on the tensor's stream (a device), or writes it at once.
  void Fill(int64_t step) {
    if (!live_.meta.tied_to.empty()) return;
    ForEachElement([&](std::byte* at, uint64_t element) {
      for (uint32_t b = 0; b < element_bytes_; ++b) {
        at[b] = std::byte{ContentByte(salt_, step, element, b)};
      }
    });
    if (device_memory_ == nullptr) return;
    EXPECT_CKPT_OK(live_.device->CopyToDevice(live_.stream, device_memory_, shadow_.data(),
                                              device::CopyShape{shadow_.size()}));
  }
  void Clear() {
    std::fill(shadow_.begin(), shadow_.end(), std::byte{0xEE});
    if (device_memory_ == nullptr) return;
    EXPECT_CKPT_OK(live_.device->CopyToDevice(live_.stream, device_memory_, shadow_.data(),
                                              device::CopyShape{shadow_.size()}));
    Settle();
  }
  // Waits for the tensor's stream.
  void Settle() {
    if (device_memory_ == nullptr) return;
    auto event = live_.device->RecordEvent(live_.stream);
    ASSERT_TRUE(event.ok()) << event.status().ToString();
    EXPECT_CKPT_OK(live_.device->Synchronize(event.value(), Soon()));
    live_.device->FreeEvent(event.value());
  }
  // Elements that are not what `step` made them.
  uint64_t CountWrong(int64_t step) {
    if (device_memory_ != nullptr) {
      EXPECT_CKPT_OK(live_.device->CopyToHost(live_.stream, shadow_.data(), device_memory_,
                                              device::CopyShape{shadow_.size()}));
      Settle();
    }
    uint64_t wrong = 0;
    ForEachElement([&](const std::byte* at, uint64_t element) {
      bool same = true;
      for (uint32_t b = 0; b < element_bytes_; ++b) {
        same = same && at[b] == std::byte{ContentByte(salt_, step, element, b)};
      }
      wrong += same ? 0 : 1;
    });
    return wrong;
  }

 private:
  template <typename Fn>
  void ForEachElement(Fn&& fn) {
    const auto view = live_.strides.empty() ? RowMajorStrides(shape()) : live_.strides;
    const auto global = RowMajorStrides(live_.meta.global_shape);
    const format::Box& local = live_.meta.local;
    const uint64_t count = local.ElementCount();
    for (uint64_t i = 0; i < count; ++i) {
      uint64_t rest = i, element = 0;
      int64_t at = 0;
      for (size_t d = shape().size(); d-- > 0;) {
        const uint64_t index = rest % shape()[d];
        rest /= shape()[d];
        at += static_cast<int64_t>(index) * view[d];
        element += (local.offset[d] + index) * static_cast<uint64_t>(global[d]);
      }
      fn(shadow_.data() + first_ + at * element_bytes_, element);
    }
  }

  LiveTensor live_;
  int64_t element_bytes_;
  uint64_t salt_ = 0;
  std::vector<std::byte> shadow_;
  int64_t first_ = 0;  // of element zero
  std::byte* device_memory_ = nullptr;
};

inline format::TensorMeta Meta(std::string name, format::DType dtype, format::Placement placement,
                               std::vector<uint64_t> global_shape) {
  format::TensorMeta meta;
  meta.name = std::move(name);
  meta.dtype = dtype;
  meta.placement = placement;
  meta.global_shape = global_shape;
  meta.local.offset.assign(global_shape.size(), 0);
  meta.local.shape = std::move(global_shape);
  return meta;
}
inline format::TensorMeta Shard(std::string name, format::DType dtype,
                                std::vector<uint64_t> global_shape, format::Box local) {
  format::TensorMeta meta =
      Meta(std::move(name), dtype, format::Placement::kSharded, std::move(global_shape));
  meta.local = std::move(local);
  return meta;
}
// Rows first … of dimension `dim` that rank `rank` of `world` holds (uneven on purpose).
inline format::Box Part(const std::vector<uint64_t>& shape, size_t dim, uint32_t rank,
                        uint32_t world) {
  format::Box box{std::vector<uint64_t>(shape.size(), 0), shape};
  const uint64_t each = CeilDiv(shape[dim], world);
  const uint64_t begin = std::min(shape[dim], each * rank);
  box.offset[dim] = begin;
  box.shape[dim] = std::min(shape[dim], begin + each) - begin;
  return box;
}

struct TestRank {
  std::vector<TestTensor> tensors;
  format::RankValues values;
  std::vector<LiveTensor> Live() const {
    std::vector<LiveTensor> live;
    for (const TestTensor& tensor : tensors) live.push_back(tensor.live());
    return live;
  }
};

// The whole way of a save over a store in RAM.
class TestGang {
 public:
  explicit TestGang(std::vector<TestRank> ranks, std::vector<uint32_t> node_of = {})
      : ranks_(std::move(ranks)), node_of_(std::move(node_of)) {
    if (node_of_.empty()) node_of_.assign(ranks_.size(), 0);
    for (uint32_t r = 0; r < ranks_.size(); ++r) {
      format::RankLayout layout;
      layout.rank = Rank(r);
      for (const TestTensor& tensor : ranks_[r].tensors)
        layout.tensors.push_back(tensor.live().meta);
      layouts_.push_back(std::move(layout));
    }
    auto plan = plan::MakePlan(layouts_, node_of_);
    EXPECT_TRUE(plan.ok()) << plan.status().ToString();
    if (plan.ok()) plan_ = std::move(plan).value();
  }

  // Regions for a job; needed before Stage.
  void MakeRegions(const JobId& job) {
    for (uint32_t r = 0; r < ranks_.size(); ++r) {
      pages_.push_back(
          std::make_unique<Pages>(StagingRegion::BytesNeeded(layouts_[r], plan_.ranks[r])));
      auto region = StagingRegion::Format(
          pages_.back()->span(),
          StagingIdentity{job, Rank(r), static_cast<uint32_t>(ranks_.size()), plan_.hash},
          layouts_[r], plan_.ranks[r]);
      ASSERT_TRUE(region.ok()) << region.status().ToString();
      regions_.push_back(std::move(region).value());
    }
  }

  void Fill(int64_t step) {
    for (TestRank& rank : ranks_) {
      for (TestTensor& tensor : rank.tensors) tensor.Fill(step);
    }
  }
  void Clear() {
    for (TestRank& rank : ranks_) {
      for (TestTensor& tensor : rank.tensors) tensor.Clear();
    }
  }

  Status Stage(const AttemptId& id, bool full) {
    ++generation_count_;
    for (uint32_t r = 0; r < ranks_.size(); ++r) {
      if (regions_[r].state() == GenerationState::kSealed) {
        regions_[r].set_state(GenerationState::kDurable);
      }
      regions_[r].Begin(GenerationInfo{generation_count_, id, 1, full});
      CKPT_RETURN_IF_ERROR(Capture(ranks_[r].Live(), &regions_[r], nullptr, Soon()));
      CKPT_RETURN_IF_ERROR(regions_[r].SetValues(ranks_[r].values));
      CKPT_RETURN_IF_ERROR(regions_[r].Seal(id.step));
    }
    return OkStatus();
  }

  Result<std::string> WriteAll(storage::Store* store, const JobId& job, const AttemptId& id,
                               const WriteOptions& options = {}) {
    CKPT_RETURN_IF_ERROR(store->BeginAttempt(id));
    std::vector<ShardReport> reports;
    for (StagingRegion& region : regions_) {
      CKPT_ASSIGN_OR_RETURN(ShardReport report, WriteShard(&region, store, options));
      // What travels is the encoded form.
      CKPT_ASSIGN_OR_RETURN(report, ShardReport::Decode(report.Encode()));
      reports.push_back(std::move(report));
    }
    return BuildManifest(job, id, layouts_, reports, /*managed=*/false);
  }

  Status Save(storage::Store* store, const JobId& job, const AttemptId& id, bool full = false,
              const WriteOptions& options = {}) {
    CKPT_RETURN_IF_ERROR(Stage(id, full));
    CKPT_ASSIGN_OR_RETURN(const std::string manifest, WriteAll(store, job, id, options));
    return store->Commit(id, manifest,
                         storage::CommitRecord{DigestOf(AsBytes(manifest)), id.epoch, ""}, Soon());
  }

  Status LoadAll(CheckpointReader* reader, const LoadOptions& options = {}) {
    LoadOptions mine = options;
    mine.world = static_cast<uint32_t>(ranks_.size());
    for (uint32_t r = 0; r < ranks_.size(); ++r) {
      CKPT_RETURN_IF_ERROR(reader->Load(Rank(r), ranks_[r].Live(), mine));
    }
    return OkStatus();
  }
  uint64_t CountWrong(int64_t step) {
    uint64_t wrong = 0;
    for (TestRank& rank : ranks_) {
      for (TestTensor& tensor : rank.tensors) {
        if (tensor.live().meta.tied_to.empty()) wrong += tensor.CountWrong(step);
      }
    }
    return wrong;
  }

  std::vector<TestRank>& ranks() { return ranks_; }
  std::vector<StagingRegion>& regions() { return regions_; }
  const std::vector<std::unique_ptr<Pages>>& pages() const { return pages_; }
  const std::vector<format::RankLayout>& layouts() const { return layouts_; }
  const plan::GangPlan& plan() const { return plan_; }

 private:
  std::vector<TestRank> ranks_;
  std::vector<uint32_t> node_of_;
  std::vector<format::RankLayout> layouts_;
  plan::GangPlan plan_;
  std::vector<std::unique_ptr<Pages>> pages_;
  std::vector<StagingRegion> regions_;
  uint32_t generation_count_ = 0;
};

// A job in a store in RAM, with epoch 1 claimed.
struct TestStore {
  std::shared_ptr<storage::MemoryJob> place = storage::NewMemoryJob();
  std::unique_ptr<storage::EpochStore> store = storage::NewMemoryStore(place);
  JobId job;
  Epoch epoch;

  TestStore() {
    auto opened = store->OpenJob(JobId{});
    EXPECT_TRUE(opened.ok()) << opened.status().ToString();
    if (opened.ok()) job = opened.value();
    auto claim = store->ClaimEpoch(Epoch(1), {}, {});
    EXPECT_TRUE(claim.ok()) << claim.status().ToString();
    if (claim.ok()) epoch = claim.value().epoch;
  }
  AttemptId Id(int64_t step, uint32_t attempt = 1) const {
    return AttemptId{epoch, Step(step), Attempt(attempt)};
  }
};

}  // namespace ckpt::engine::testing
