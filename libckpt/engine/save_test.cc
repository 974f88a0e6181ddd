// What a save promises: one boundary's bytes, a typed error or success, and nothing in between.
#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <thread>

#include "libckpt/base/fault.h"
#include "libckpt/device/host/host_device.h"
#include "libckpt/engine/engine.h"
#include "libckpt/testing/fake_device.h"
#include "libckpt/testing/sanitizer.h"
#include "libckpt/testing/test_gang.h"

namespace ckpt::engine {
namespace {

using format::Box;
using format::DType;
using format::Placement;
using testing::Meta;
using testing::Part;
using testing::Shard;
using testing::Soon;
using testing::TestGang;
using testing::TestRank;
using testing::TestStore;

struct DeviceKind {
  std::string name;
  std::function<std::unique_ptr<device::Device>()> make;
};

class OnDevice : public ::testing::TestWithParam<DeviceKind> {
 protected:
  void SetUp() override {
    device_ = GetParam().make();
    if (device_ == nullptr) return;
    for (device::StreamHandle& stream : streams_) {
      auto made = device_->CreateStream();
      ASSERT_TRUE(made.ok());
      stream = made.value();
    }
  }
  // Two ranks, tensors on two streams and, where there is a device, one on the CPU.
  std::vector<TestRank> Ranks() {
    std::vector<TestRank> ranks(2);
    for (uint32_t r = 0; r < 2; ++r) {
      auto& tensors = ranks[r].tensors;
      device::Device* device = device_.get();
      const std::vector<uint64_t> shape{640, 500};
      tensors.emplace_back(Shard("rows", DType::kF32, shape, Part(shape, 0, r, 2)), r,
                           std::vector<int64_t>{}, device, streams_[0]);
      tensors.emplace_back(Shard("columns", DType::kF32, shape, Part(shape, 1, r, 2)), r,
                           std::vector<int64_t>{600, 1}, device, streams_[1]);
      tensors.emplace_back(Meta("fortran", DType::kBF16, Placement::kReplicated, {30, 40}), r,
                           std::vector<int64_t>{1, 30}, device, streams_[1]);
      tensors.emplace_back(Meta("backwards", DType::kF64, Placement::kReplicated, {12, 10}), r,
                           std::vector<int64_t>{-10, 1}, device, nullptr);
      tensors.emplace_back(Meta("on the cpu", DType::kI64, Placement::kPerRank, {100}), r);
      tensors.emplace_back(Meta("nothing", DType::kF32, Placement::kReplicated, {0}), r,
                           std::vector<int64_t>{}, device, streams_[0]);
    }
    return ranks;
  }
  std::unique_ptr<device::Device> device_;
  device::StreamHandle streams_[2] = {nullptr, nullptr};
};

TEST_P(OnDevice, CaptureIsOrderedAfterTheCallersStreams) {
  TestStore store;
  TestGang gang(Ranks());
  gang.MakeRegions(store.job);
  for (int64_t step = 1; step <= 3; ++step) {
    gang.Fill(step);  // enqueued, not awaited
    ASSERT_CKPT_OK(gang.Save(store.store.get(), store.job, store.Id(step)));
  }
  for (int64_t step = 1; step <= 3; ++step) {
    auto reader = OpenCheckpoint(store.store.get(), store.Id(step));
    ASSERT_TRUE(reader.ok()) << reader.status().ToString();
    gang.Clear();
    ASSERT_CKPT_OK(gang.LoadAll(reader.value().get()));
    EXPECT_EQ(gang.CountWrong(step), 0u);
  }
}

TEST_P(OnDevice, RestoresFromStagedMemory) {
  TestStore store;
  TestGang gang(Ranks(), {0, 1});
  gang.MakeRegions(store.job);
  gang.Fill(5);
  ASSERT_CKPT_OK(gang.Stage(store.Id(5), /*full=*/true));
  gang.Clear();
  for (uint32_t r = 0; r < 2; ++r) {  // each node by itself
    auto reader = OpenStaged({gang.regions()[r]});
    ASSERT_TRUE(reader.ok()) << reader.status().ToString();
    ASSERT_CKPT_OK(reader.value()->Load(Rank(r), gang.ranks()[r].Live(), {}));
  }
  EXPECT_EQ(gang.CountWrong(5), 0u);
}

INSTANTIATE_TEST_SUITE_P(
    Devices, OnDevice,
    ::testing::Values(DeviceKind{"plain memory", [] { return nullptr; }},
                      DeviceKind{"host", device::CreateHostDevice},
                      DeviceKind{"fake",
                                 [] {
                                   return std::make_unique<ckpt::testing::FakeDevice>(
                                       ckpt::testing::FakeDeviceOptions{
                                           uint64_t{1} << 30, std::chrono::microseconds(200)});
                                 }}),
    [](const auto& info) { return info.param.name.substr(0, info.param.name.find(' ')); });

class Capturing : public ::testing::Test {
 protected:
  void MakeGang(device::Device* device) {
    std::vector<TestRank> ranks(1);
    for (int i = 0; i < 4; ++i) {
      ranks[0].tensors.emplace_back(
          Meta("w" + std::to_string(i), DType::kF32, Placement::kReplicated, {200, 50}), 0,
          std::vector<int64_t>{}, device);
    }
    gang_ = std::make_unique<TestGang>(std::move(ranks));
    gang_->MakeRegions(store_.job);
    gang_->Fill(1);
    region().Begin(GenerationInfo{1, store_.Id(1), 1, false});
  }
  StagingRegion& region() { return gang_->regions()[0]; }
  TestStore store_;
  std::unique_ptr<TestGang> gang_;
};

TEST_F(Capturing, ABrokenDeviceLeavesTheRegionFilling) {
  ckpt::testing::FakeDevice device;
  MakeGang(&device);
  device.BreakAtCopy(2);
  const Status status = Capture(gang_->ranks()[0].Live(), &region(), nullptr, Soon());
  EXPECT_EQ(status.code(), Code::kAborted) << status.ToString();
  EXPECT_NE(status.message().find("rank 0"), std::string::npos) << status.ToString();
  EXPECT_NE(status.message().find("'w"), std::string::npos) << status.ToString();
  EXPECT_EQ(region().state(), GenerationState::kFilling);
  gang_.reset();  // its memory is the device's
}

TEST_F(Capturing, TheDeadlineIsNamedAndNothingIsWrittenAfterIt) {
  ckpt::testing::FakeDevice device;
  MakeGang(&device);
  device.SetCopyDelay(std::chrono::milliseconds(60));
  const Status status = Capture(gang_->ranks()[0].Live(), &region(), nullptr,
                                Deadline("staging", std::chrono::milliseconds(30)));
  EXPECT_EQ(status.code(), Code::kDeadlineExceeded) << status.ToString();
  EXPECT_NE(status.message().find("staging"), std::string::npos);
  EXPECT_EQ(region().state(), GenerationState::kFilling);
  const uint64_t copies = device.copies_done();
  EXPECT_EQ(copies, 8u);  // four fills, four captures: all had ended
  gang_.reset();
}

TEST_F(Capturing, ExpiredDeadlineOnPlainMemory) {
  MakeGang(nullptr);
  const Status status =
      Capture(gang_->ranks()[0].Live(), &region(), nullptr, Deadline("staging", Nanos(-1)));
  EXPECT_EQ(status.code(), Code::kDeadlineExceeded);
  // One of those that its threads had come to.
  EXPECT_NE(status.message().find("staging tensor 'w"), std::string::npos) << status.ToString();
  EXPECT_EQ(region().state(), GenerationState::kFilling);
}

TEST_F(Capturing, RefusesAStateThatChanged) {
  MakeGang(nullptr);
  auto live = gang_->ranks()[0].Live();
  live[2].meta.name = "another";
  const Status renamed = Capture(live, &region(), nullptr, Soon());
  EXPECT_EQ(renamed.code(), Code::kInvalidArgument);
  EXPECT_NE(renamed.message().find("'another'"), std::string::npos) << renamed.ToString();
  live.pop_back();
  EXPECT_EQ(Capture(live, &region(), nullptr, Soon()).code(), Code::kInvalidArgument);
  live = gang_->ranks()[0].Live();
  live[0].data = nullptr;
  EXPECT_EQ(Capture(live, &region(), nullptr, Soon()).code(), Code::kInvalidArgument);
  EXPECT_EQ(region().state(), GenerationState::kFilling);
}

TEST_F(Capturing, NeedsAFillingRegion) {
  MakeGang(nullptr);
  ASSERT_CKPT_OK(Capture(gang_->ranks()[0].Live(), &region(), nullptr, Soon()));
  ASSERT_CKPT_OK(region().Seal(Step(1)));
  EXPECT_EQ(Capture(gang_->ranks()[0].Live(), &region(), nullptr, Soon()).code(),
            Code::kFailedPrecondition);
  EXPECT_EQ(region().Seal(Step(1)).code(), Code::kFailedPrecondition);
}

TEST_F(Capturing, ProgressAddsUp) {
  MakeGang(nullptr);
  std::atomic<uint64_t> most{0};
  ASSERT_CKPT_OK(Capture(
      gang_->ranks()[0].Live(), &region(),
      [&](uint64_t done) {
        uint64_t seen = most.load();
        while (done > seen && !most.compare_exchange_weak(seen, done)) {
        }
      },
      Soon()));
  EXPECT_EQ(most.load(), 4u * 200 * 50 * 4);
}

std::vector<TestRank> SmallGang(uint32_t world) {
  std::vector<TestRank> ranks(world);
  for (uint32_t r = 0; r < world; ++r) {
    const std::vector<uint64_t> shape{96, 32};
    ranks[r].tensors.emplace_back(Meta("w", DType::kF32, Placement::kReplicated, {600, 300}), r);
    ranks[r].tensors.emplace_back(Shard("s", DType::kBF16, shape, Part(shape, 0, r, world)), r);
    ranks[r].tensors.emplace_back(Meta("rng", DType::kU64, Placement::kPerRank, {4}), r);
    format::TensorMeta tied = Meta("head", DType::kF32, Placement::kReplicated, {600, 300});
    tied.tied_to = "w";
    ranks[r].tensors.emplace_back(tied, r);
  }
  return ranks;
}

TEST(Save, NeverMixesSteps) {
  TestStore store;
  TestGang gang(SmallGang(2));
  gang.MakeRegions(store.job);
  for (int64_t step = 1; step <= 6; ++step) {
    gang.Fill(step);
    ASSERT_CKPT_OK(gang.Stage(store.Id(step), step % 2 == 0));
    std::atomic<bool> done{false};
    Result<std::string> manifest = Internal("not written");
    std::thread writing([&] {
      manifest = gang.WriteAll(store.store.get(), store.job, store.Id(step));
      done = true;
    });
    int64_t later = 1000 * step;
    do gang.Fill(++later);  // training goes on while the shard is written
    while (!done);
    writing.join();
    ASSERT_TRUE(manifest.ok()) << manifest.status().ToString();
    ASSERT_CKPT_OK(store.store->Commit(
        store.Id(step), manifest.value(),
        storage::CommitRecord{DigestOf(AsBytes(manifest.value())), store.epoch, ""}, Soon()));
  }
  for (int64_t step = 1; step <= 6; ++step) {
    auto reader = OpenCheckpoint(store.store.get(), store.Id(step));
    ASSERT_TRUE(reader.ok()) << reader.status().ToString();
    gang.Clear();
    ASSERT_CKPT_OK(gang.LoadAll(reader.value().get()));
    EXPECT_EQ(gang.CountWrong(step), 0u) << step;
  }
}

TEST(Save, CanBeCancelledBetweenChunks) {
  TestStore store;
  TestGang gang(SmallGang(1));
  gang.MakeRegions(store.job);
  ASSERT_CKPT_OK(gang.Stage(store.Id(1), false));
  WriteOptions options;
  int polls = 0;
  options.cancelled = [&] { return ++polls > 1; };
  EXPECT_EQ(gang.WriteAll(store.store.get(), store.job, store.Id(1), options).status().code(),
            Code::kCancelled);
}

TEST(Save, OtherChunkSizesReadBack) {
  TestStore store;
  TestGang gang(SmallGang(3));
  gang.MakeRegions(store.job);
  gang.Fill(1);
  int64_t step = 0;
  for (const uint64_t chunk :
       {uint64_t{16}, uint64_t{4096}, uint64_t{100 * 16}, uint64_t{4} << 20}) {
    WriteOptions options;
    options.chunk_bytes = chunk;
    gang.Fill(++step);
    ASSERT_CKPT_OK(gang.Save(store.store.get(), store.job, store.Id(step), false, options));
    auto reader = OpenNewest(store.store.get(), nullptr);
    ASSERT_TRUE(reader.ok()) << reader.status().ToString();
    gang.Clear();
    ASSERT_CKPT_OK(gang.LoadAll(reader.value().get()));
    EXPECT_EQ(gang.CountWrong(step), 0u) << chunk;
  }
}

TEST(Save, RanksWithoutTensorsAndRanksThatWriteNothing) {
  TestStore store;
  std::vector<TestRank> ranks(3);
  ranks[1].tensors.emplace_back(Meta("w", DType::kF32, Placement::kUnsharded, {3}), 1);
  ranks[2].tensors.emplace_back(Shard("e", DType::kF32, {4}, Box{{4}, {0}}), 2);
  ranks[1].tensors.emplace_back(Shard("e", DType::kF32, {4}, Box{{0}, {4}}), 1);
  TestGang gang(std::move(ranks));
  gang.MakeRegions(store.job);
  gang.Fill(3);
  ASSERT_CKPT_OK(gang.Save(store.store.get(), store.job, store.Id(3)));
  auto reader = OpenNewest(store.store.get(), nullptr);
  ASSERT_TRUE(reader.ok()) << reader.status().ToString();
  gang.Clear();
  ASSERT_CKPT_OK(gang.LoadAll(reader.value().get()));
  EXPECT_EQ(gang.CountWrong(3), 0u);
}

uint64_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  uint64_t size = 0, resident = 0;
  statm >> size >> resident;
  return resident * 4096;
}

TEST(Save, MemoryStaysFlatOverFiftySaves) {
  if (kAddressSanitizer) GTEST_SKIP() << "what is freed is kept by the sanitizer";
  TestStore store;
  std::vector<TestRank> ranks(1);
  ranks[0].tensors.emplace_back(Meta("w", DType::kF32, Placement::kReplicated, {512, 1024}), 0);
  TestGang gang(std::move(ranks));
  gang.MakeRegions(store.job);
  uint64_t after_warm_up = 0;
  for (int64_t step = 1; step <= 50; ++step) {
    ASSERT_CKPT_OK(gang.Stage(store.Id(step), false));
    auto manifest = gang.WriteAll(store.store.get(), store.job, store.Id(step));
    ASSERT_TRUE(manifest.ok()) << manifest.status().ToString();
    ASSERT_CKPT_OK(store.store->Abort(store.Id(step)));  // the store in RAM would grow
    if (step == 10) after_warm_up = ResidentBytes();
  }
  // The writing threads' blocks, wherever the allocator keeps them; one copy left behind a save
  // would be 80 MiB.
  EXPECT_LT(ResidentBytes(), after_warm_up + (uint64_t{24} << 20));
}

#if defined(CKPT_FAULTS)
// Every fault point on the way of a save, one after the other: an error each time, the older
// checkpoint intact, and the next save works.
TEST(Save, FailsCleanlyAtEveryPoint) {
  TestStore store;
  TestGang gang(SmallGang(2));
  gang.MakeRegions(store.job);
  gang.Fill(1);
  ASSERT_CKPT_OK(gang.Save(store.store.get(), store.job, store.Id(1)));
  int fired = 0;
  for (uint64_t n = 1;; ++n) {
    gang.Fill(2);
    Status status;
    {
      const ArmedFault fault("*", Unavailable("armed"), n);
      status = gang.Save(store.store.get(), store.job, store.Id(2, static_cast<uint32_t>(n)));
      if (!fault.fired()) break;
    }
    ++fired;
    for (StagingRegion& region : gang.regions()) {
      EXPECT_NE(region.state(), GenerationState::kFree);
      region.set_state(GenerationState::kAborted);
    }
    if (status.ok()) continue;  // a point whose error the store repaired
    gang.Clear();
    auto reader = OpenCheckpoint(store.store.get(), store.Id(1));
    ASSERT_TRUE(reader.ok()) << reader.status().ToString();
    ASSERT_CKPT_OK(gang.LoadAll(reader.value().get()));
    EXPECT_EQ(gang.CountWrong(1), 0u);
  }
  EXPECT_GT(fired, 12);
  auto reader = OpenNewest(store.store.get(), nullptr);
  ASSERT_TRUE(reader.ok()) << reader.status().ToString();
  gang.Clear();
  ASSERT_CKPT_OK(gang.LoadAll(reader.value().get()));
  EXPECT_EQ(gang.CountWrong(2), 0u);
}

TEST(Save, AFailedCaptureLeavesTheRegionFilling) {
  for (const char* point : {"engine.capture.begin", "engine.capture.copy", "engine.capture.end"}) {
    TestStore store;
    TestGang gang(SmallGang(1));
    gang.MakeRegions(store.job);
    gang.regions()[0].Begin(GenerationInfo{1, store.Id(1), 1, true});
    const ArmedFault fault(point, Unavailable("armed"));
    const Status status = Capture(gang.ranks()[0].Live(), &gang.regions()[0], nullptr, Soon());
    EXPECT_EQ(status.code(), Code::kUnavailable) << point;
    EXPECT_TRUE(fault.fired()) << point;
    EXPECT_EQ(gang.regions()[0].state(), GenerationState::kFilling) << point;
  }
}
#endif

}  // namespace
}  // namespace ckpt::engine
