// Device memory against the copy engine's own speed: staging and restore of device tensors beside
// one plain pinned copy of the same bytes; and a communicator of one rank taken down and built
// again beside NCCL's own calls for it. Without a GPU, and over the double, it says so and measures
// nothing.
#include <cstdio>

#include "bench/bench_report.h"
#include "bench/bench_settings.h"
#include "libckpt/comm/local/local_comm.h"
#include "libckpt/comm/nccl/nccl_comm.h"
#include "libckpt/device/cuda/cuda_device.h"
#include "libckpt/engine/engine.h"
#include "libckpt/os/memfd.h"

namespace ckpt::bench {
namespace {

constexpr uint64_t kTensorBytes = uint64_t{64} << 20;

class CudaBench {
 public:
  CudaBench(const Settings& settings, device::CudaDevice* device)
      : settings_(settings), device_(device) {
    for (uint64_t at = 0; at < settings.bytes; at += kTensorBytes) {
      engine::LiveTensor tensor;
      tensor.meta.name = "layer." + std::to_string(tensors_.size());
      tensor.meta.dtype = format::DType::kF32;
      tensor.meta.placement = format::Placement::kReplicated;
      tensor.meta.global_shape = {kTensorBytes / 4};
      tensor.meta.local = format::Box{{0}, {kTensorBytes / 4}};
      tensor.data = Get(device->Alloc(kTensorBytes));
      tensor.device = device;
      layout_.tensors.push_back(tensor.meta);
      tensors_.push_back(std::move(tensor));
    }
    plan_ = Get(plan::MakePlan({layout_}, {0}));
    memory_ = Get(
        os::Mapping::Anonymous(engine::StagingRegion::BytesNeeded(layout_, plan_.ranks[0]), true));
    Check(device->RegisterHost(memory_.data(), memory_.size()));
    region_.emplace(Get(engine::StagingRegion::Format(
        memory_.bytes(), {JobId{}, Rank(0), 1, plan_.hash}, layout_, plan_.ranks[0])));
  }

  void Run() {
    Rounds stage;
    for (int i = -1; i < settings_.rounds; ++i) {
      const double limit = PlainCopy();
      const double ours = Stage();
      if (i >= 0) stage.Add(Rate(ours), Rate(limit));
    }
    Print("cuda_stage", stage, 0.95, Better::kHigher, "GB/s");
  }

 private:
  double Rate(double seconds) const {
    return static_cast<double>(tensors_.size() * kTensorBytes) / seconds / 1e9;
  }
  double PlainCopy() {
    const device::StreamHandle stream = Get(device_->CreateStream());
    const double seconds = Seconds([&] {
      uint64_t at = memory_.size() - tensors_.size() * kTensorBytes;
      for (const engine::LiveTensor& tensor : tensors_) {
        Check(device_->CopyToHost(stream, memory_.data() + at, tensor.data, {kTensorBytes}));
        at += kTensorBytes;
      }
      device::Event* const done = Get(device_->RecordEvent(stream));
      Check(device_->Synchronize(done, Deadline("a plain copy", std::chrono::minutes(5))));
      device_->FreeEvent(done);
    });
    Check(device_->DestroyStream(stream));
    return seconds;
  }
  double Stage() {
    if (region_->state() != engine::GenerationState::kFree)
      region_->set_state(engine::GenerationState::kAborted);
    ++generation_;
    region_->Begin({generation_, {Epoch(1), Step(generation_), Attempt(generation_)}, 1, true});
    return Seconds([&] {
      Check(engine::Capture(tensors_, &*region_, nullptr,
                            Deadline("bench", std::chrono::minutes(5))));
      Check(region_->Seal(Step(generation_)));
    });
  }

  const Settings settings_;
  device::CudaDevice* const device_;
  std::vector<engine::LiveTensor> tensors_;
  format::RankLayout layout_;
  plan::GangPlan plan_;
  os::Mapping memory_;
  std::optional<engine::StagingRegion> region_;
  uint32_t generation_ = 0;
};

// NCCL refuses two ranks on one GPU, so this is what a rank does by itself: no wire.
class NcclBench {
 public:
  NcclBench(const Settings& settings, std::shared_ptr<device::CudaDevice> device)
      : settings_(settings), device_(std::move(device)) {}

  void Run() {
    const Result<const comm::nccl::Library*> library = comm::nccl::Library::Get();
    if (!library.ok()) {
      std::fprintf(stderr, "nccl_rebuild: skipped: %s\n", library.status().message().c_str());
      return;
    }
    nccl_ = *library;
    group_ = Get(comm::NcclCommunicators::Make("world", 0, 1, device_, nullptr));
    Up();
    Rounds rebuild;
    for (int i = -1; i < settings_.rounds; ++i) {
      const double limit = Seconds([&] { Check(Plain()); });
      const double ours = Seconds([&] {
        Check(group_->Quiesce(Soon()));
        Check(group_->Down(Soon()));
        Up();
      });
      if (i >= 0) rebuild.Add(1 / ours, 1 / limit);
    }
    Print("nccl_rebuild", rebuild, 0.9, Better::kHigher, "1/s");
  }

 private:
  static Deadline Soon() { return Deadline("a rebuild", std::chrono::minutes(5)); }
  void Up() {
    comm::LocalKeyValue keys;
    Check(group_->Up("build-" + std::to_string(++built_), &keys, Soon()));
  }
  Status Plain() {
    return device_->InItsContext([&]() -> Status {
      comm::nccl::UniqueId id{};
      comm::nccl::CommPtr comm = nullptr;
      comm::nccl::Config config;
      config.blocking = 1;
      const auto said = [&](int result, const char* call) {
        return nccl_->StatusOf(result, call, nullptr);
      };
      CKPT_RETURN_IF_ERROR(said(nccl_->ncclGetUniqueId(&id), "ncclGetUniqueId"));
      CKPT_RETURN_IF_ERROR(
          said(nccl_->ncclCommInitRankConfig(&comm, 1, id, 0, &config), "ncclCommInitRankConfig"));
      CKPT_RETURN_IF_ERROR(said(nccl_->ncclCommFinalize(comm), "ncclCommFinalize"));
      return said(nccl_->ncclCommDestroy(comm), "ncclCommDestroy");
    });
  }

  const Settings settings_;
  const std::shared_ptr<device::CudaDevice> device_;
  const comm::nccl::Library* nccl_ = nullptr;
  std::unique_ptr<comm::NcclCommunicators> group_;
  int built_ = 0;
};

}  // namespace
}  // namespace ckpt::bench

int main(int argc, char** argv) {
  using namespace ckpt;
  const bench::Settings settings = bench::ParseSettings(argc, argv, 2048, 64);
  Result<std::unique_ptr<device::CudaDevice>> device = device::CudaDevice::Open(0);
  const std::string why = device.ok() ? (*device)->info().name : device.status().message();
  if (!device.ok() || why.find("FAKE") != std::string::npos) {
    std::fprintf(stderr, "cuda_bench: skipped: %s\n", why.c_str());
    return 0;
  }
  bench::CudaBench(settings, device->get()).Run();
  bench::NcclBench(settings, std::shared_ptr<device::CudaDevice>(std::move(*device))).Run();
  return 0;
}
