// Device memory against the copy engine's own speed: staging and restore of device tensors beside
// one plain pinned copy of the same bytes. Without a GPU, and over the double, it says so and
// measures nothing.
#include <cstdio>

#include "bench/bench_report.h"
#include "bench/bench_settings.h"
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

}  // namespace
}  // namespace ckpt::bench

int main(int argc, char** argv) {
  using namespace ckpt;
  const bench::Settings settings = bench::ParseSettings(argc, argv, 2048, 64);
  const Result<std::unique_ptr<device::CudaDevice>> device = device::CudaDevice::Open(0);
  const std::string why = device.ok() ? (*device)->info().name : device.status().message();
  if (!device.ok() || why.find("FAKE") != std::string::npos) {
    std::fprintf(stderr, "cuda_bench: skipped: %s\n", why.c_str());
    return 0;
  }
  bench::CudaBench(settings, device->get()).Run();
  return 0;
}
