// The engine against the machine's own speed: stall of a save and restore from staged memory
// against a parallel memcpy, durable writing against write and fsync of the same bytes, and the
// time to plan.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <thread>

#include "bench/bench_report.h"
#include "bench/bench_settings.h"
#include "libckpt/base/rng.h"
#include "libckpt/engine/engine.h"
#include "libckpt/format/manifest.h"
#include "libckpt/os/memfd.h"
#include "libckpt/storage/file/file_store.h"

namespace ckpt::bench {
namespace {

// What a training state looks like: many small tensors, most bytes in large ones.
class State {
 public:
  explicit State(uint64_t bytes) : memory_(Get(os::Mapping::Anonymous(bytes, true))) {
    uint64_t at = 0;
    for (int i = 0; at < bytes; ++i) {
      const uint64_t rows = i % 4 == 0 ? 4096 : 1;
      const uint64_t left = (bytes - at) / (4 * 1024);
      Add("layer." + std::to_string(i), std::min(rows, left), &at);
    }
    Rng rng(1);
    auto* words = reinterpret_cast<uint64_t*>(memory_.data());
    for (uint64_t i = 0; i < bytes / 8; ++i) words[i] = rng.Next();
  }
  const std::vector<engine::LiveTensor>& tensors() const { return tensors_; }
  const format::RankLayout& layout() const { return layout_; }
  std::byte* data() const { return memory_.data(); }
  uint64_t bytes() const { return memory_.size(); }

 private:
  void Add(std::string name, uint64_t rows, uint64_t* at) {
    engine::LiveTensor tensor;
    tensor.meta.name = std::move(name);
    tensor.meta.dtype = format::DType::kF32;
    tensor.meta.placement = format::Placement::kReplicated;
    tensor.meta.global_shape = {rows, 1024};
    tensor.meta.local = format::Box{{0, 0}, {rows, 1024}};
    tensor.data = memory_.data() + *at;
    *at += rows * 4096;
    layout_.tensors.push_back(tensor.meta);
    tensors_.push_back(std::move(tensor));
  }
  os::Mapping memory_;
  std::vector<engine::LiveTensor> tensors_;
  format::RankLayout layout_;
};

// The limit: two threads, half of the bytes each, into memory that is mapped and warm.
double ParallelMemcpy(std::byte* to, const std::byte* from, uint64_t bytes) {
  return Seconds([&] {
    std::thread other([&] { std::memcpy(to + bytes / 2, from + bytes / 2, bytes - bytes / 2); });
    std::memcpy(to, from, bytes / 2);
    other.join();
  });
}

class EngineBench {
 public:
  explicit EngineBench(const Settings& settings) : settings_(settings), state_(settings.bytes) {
    plan_ = Get(plan::MakePlan({state_.layout()}, {0}));
    memory_ = Get(os::Mapping::Anonymous(
        engine::StagingRegion::BytesNeeded(state_.layout(), plan_.ranks[0]), true));
    copy_ = Get(os::Mapping::Anonymous(state_.bytes(), true));
  }

  void Run() {
    store_dir_ = settings_.dir + "/engine_bench.tmp." + std::to_string(getpid());
    std::filesystem::create_directories(store_dir_);
    store_ = storage::OpenFileStore(store_dir_ + "/job");
    job_ = Get(store_->OpenJob(JobId{}));
    epoch_ = Get(store_->ClaimEpoch(Epoch(1), {}, {})).epoch;
    region_.emplace(Get(engine::StagingRegion::Format(
        memory_.bytes(), engine::StagingIdentity{job_, Rank(0), 1, plan_.hash}, state_.layout(),
        plan_.ranks[0])));
    Stall();
    Restore();
    std::filesystem::remove_all(store_dir_);
  }

 private:
  double CaptureOnce() {
    if (region_->state() != engine::GenerationState::kFree) {
      region_->set_state(engine::GenerationState::kDurable);
    }
    region_->Begin(engine::GenerationInfo{++generation_, Id(), 1, true});
    const double seconds = Seconds([&] {
      Check(engine::Capture(state_.tensors(), &*region_, nullptr,
                            Deadline("bench", std::chrono::minutes(5))));
      Check(region_->Seal(Step(generation_)));
    });
    return seconds;
  }

  void Stall() {
    ParallelMemcpy(copy_.data(), state_.data(), state_.bytes());
    Rounds first, rest;
    first.Add(CaptureOnce() * 1e3,
              ParallelMemcpy(copy_.data(), state_.data(), state_.bytes()) * 1e3);
    for (int i = 0; i < settings_.rounds; ++i) {
      const double limit = ParallelMemcpy(copy_.data(), state_.data(), state_.bytes());
      rest.Add(CaptureOnce() * 1e3, limit * 1e3);
    }
    Print("save_stall_first", first, 1.3, Better::kLower, "ms");
    Print("save_stall", rest, 1.15, Better::kLower, "ms");
  }

  double WriteOnce() {
    CaptureOnce();
    Check(store_->BeginAttempt(Id()));
    const double seconds = Seconds([&] { Get(engine::WriteShard(&*region_, store_.get(), {})); });
    return seconds;
  }

  void Restore() {
    WriteOnce();  // leaves the digests that a restore compares
    Check(store_->Abort(Id()));
    auto reader = Get(engine::OpenStaged({*region_}));
    Rounds rounds;
    for (int i = 0; i < settings_.rounds; ++i) {
      const double limit = ParallelMemcpy(copy_.data(), state_.data(), state_.bytes());
      const double ours = Seconds([&] { Check(reader->Load(Rank(0), state_.tensors(), {})); });
      rounds.Add(GigabytesPer(ours), GigabytesPer(limit));
    }
    Print("restore_staged_verified", rounds, 0.8, Better::kHigher, "GB/s");
  }

  AttemptId Id() const { return AttemptId{epoch_, Step(generation_), Attempt(generation_)}; }
  double GigabytesPer(double seconds) const {
    return static_cast<double>(state_.bytes()) * 1e-9 / seconds;
  }

  const Settings settings_;
  State state_;
  plan::GangPlan plan_;
  os::Mapping memory_, copy_;
  std::optional<engine::StagingRegion> region_;
  std::string store_dir_;
  std::unique_ptr<storage::Store> store_;
  JobId job_;
  Epoch epoch_;
  uint32_t generation_ = 0;
};

// Eight ranks a node; every tensor replicated, or every second one sharded by rows over all ranks.
std::vector<format::RankLayout> LayoutsOf(uint32_t world, uint32_t tensors, bool sharded) {
  std::vector<format::RankLayout> layouts(world);
  for (uint32_t r = 0; r < world; ++r) {
    layouts[r].rank = Rank(r);
    layouts[r].tensors.reserve(tensors);
    for (uint32_t t = 0; t < tensors; ++t) {
      format::TensorMeta meta;
      meta.name = "model.layers." + std::to_string(t) + ".weight";
      meta.dtype = format::DType::kBF16;
      const bool cut = sharded && t % 2 == 1;
      meta.placement = cut ? format::Placement::kSharded : format::Placement::kReplicated;
      meta.global_shape = {world * 64, 128};
      meta.local =
          cut ? format::Box{{r * 64, 0}, {64, 128}} : format::Box{{0, 0}, {world * 64, 128}};
      layouts[r].tensors.push_back(std::move(meta));
    }
  }
  return layouts;
}

// The leader has the hashes of what the ranks sent.
void PlanBench(uint32_t world, uint32_t tensors, bool sharded) {
  const std::string name = std::string("plan_") + std::to_string(world) + "x" +
                           std::to_string(tensors) + (sharded ? "" : "_all_replicated");
  std::vector<format::RankLayout> layouts = LayoutsOf(world, tensors, sharded);
  std::vector<uint32_t> node_of;
  std::vector<uint64_t> hashes;
  for (uint32_t r = 0; r < world; ++r) {
    node_of.push_back(r / 8);
    hashes.push_back(layouts[r].Hash());
  }
  std::vector<double> seconds, cached;
  for (int i = 0; i < 3; ++i) {
    std::optional<plan::GangPlan> plan;
    seconds.push_back(Seconds([&] { plan = Get(plan::MakePlan(layouts, node_of, hashes)); }));
    cached.push_back(Seconds([&] {
      if (plan::PlanHash(hashes, node_of) != plan->hash) Die("the plan has another hash");
    }));
  }
  Print(name, Median(seconds), 0, 0, 1.0, Better::kLower, "s");
  Print(name + "_cached", Median(cached) * 1e3, 0, 0, 10, Better::kLower, "ms");
  format::Manifest manifest;
  manifest.job = JobId::Random();
  manifest.id = {Epoch(1), Step(1), Attempt(1)};
  manifest.layouts = std::move(layouts);
  manifest.values.resize(world);
  const std::string bytes = Get(manifest.Encode());
  Print(name + "_manifest", static_cast<double>(bytes.size()) / (1 << 20), 0, 0, 64, Better::kLower,
        "MiB");
}

}  // namespace
}  // namespace ckpt::bench

int main(int argc, char** argv) {
  const auto settings = ckpt::bench::ParseSettings(argc, argv, 512, 1);
  ckpt::bench::EngineBench(settings).Run();
  ckpt::bench::PlanBench(4096, 2000, /*sharded=*/false);
  ckpt::bench::PlanBench(4096, 2000, /*sharded=*/true);
  return 0;
}
