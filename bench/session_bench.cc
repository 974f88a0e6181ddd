// What a session costs the loop that it is a guest of: at rest, while it saves, while a save
// drains.
#include <unistd.h>

#include <atomic>
#include <ckpt/ckpt.hpp>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include "bench/bench_report.h"
#include "bench/bench_settings.h"

namespace ckpt::bench {
namespace {

namespace fs = std::filesystem;

// One field of /proc/self/status, in its own unit.
uint64_t Self(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    uint64_t value = 0;
    if (word == field + ":" && status >> value) return value;
  }
  return 0;
}
double ResidentMib() { return static_cast<double>(Self("VmRSS")) / 1024; }

// Work that stays in the core's cache, on so many threads.
void Compute(unsigned threads, double seconds) {
  const auto work = [seconds] {
    thread_local std::vector<float> data(4096, 1.0f);
    const int64_t end_ns = BoottimeNs() + static_cast<int64_t>(seconds * 1e9);
    while (BoottimeNs() < end_ns)
      for (float& x : data) x = x * 0.999f + 0.001f;
  };
  std::vector<std::thread> others;
  for (unsigned i = 1; i < threads; ++i) others.emplace_back(work);
  work();
  for (std::thread& other : others) other.join();
}

// The same amount of work each time, split over all cores: what a step of a CPU training is.
class FixedWork {
 public:
  explicit FixedWork(double seconds) {
    // Until it takes long: waking an idle core is part of it, and must not be what is measured.
    double took = 0;
    for (passes_ = 1000; took < 10 * seconds; passes_ *= 2) took = Seconds([this] { Run(); });
    passes_ = std::max(1, static_cast<int>(passes_ / 2 * seconds / took));
  }
  void Run() const {
    const auto work = [this] {
      thread_local std::vector<float> data(4096, 1.0f);
      for (int pass = 0; pass < passes_; ++pass)
        for (float& x : data) x = x * 0.999f + 0.001f;
    };
    std::vector<std::thread> others;
    for (unsigned i = 1; i < std::thread::hardware_concurrency(); ++i) others.emplace_back(work);
    work();
    for (std::thread& other : others) other.join();
  }

 private:
  int passes_ = 0;
};

class SessionBench {
 public:
  SessionBench(const Settings& settings, uint64_t bytes)
      : settings_(settings), words_(bytes / 8, 1), store_(fs::path(settings.dir) / Name()) {
    fs::create_directories(store_);
    state_.Tensor("w", words_.data(), {words_.size()});
  }
  ~SessionBench() {
    if (session_) session_->Close();
    fs::remove_all(store_);
  }

  void Open() {
    Options options;
    options.store = store_.string();
    options.rank = 0;
    options.world_size = 1;
    session_.emplace(options);
    session_->Track(state_);
    session_->Step(step_);
  }

  // The memory of both slots has been touched, as it is a while after the start.
  void OpenAndSettle() {
    const double wanted_mib = ResidentMib() + StagingMib();
    Open();
    const int64_t until_ns = BoottimeNs() + 60'000'000'000;
    while (ResidentMib() < wanted_mib && BoottimeNs() < until_ns)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }

  // Beside a plain copy by two threads into memory that is there.
  void FirstStall(Rounds* rounds) {
    std::vector<uint64_t> copy(words_.size(), 1);
    OpenAndSettle();
    ParallelCopy(&copy);
    const double limit = Seconds([&] { ParallelCopy(&copy); });
    rounds->Add(Seconds([&] { save_.emplace(session_->BeginSave(++step_)); }) * 1e3, limit * 1e3);
    Forget();
  }

  void AtRest() {
    const double before_mib = ResidentMib();
    const uint64_t before_threads = Self("Threads");
    OpenAndSettle();
    for (int i = 0; i < 1000; ++i) session_->Step(++step_);
    const double staging_mib = StagingMib();
    Print("at_rest_threads", static_cast<double>(Self("Threads") - before_threads), 0, 0, 2,
          Better::kLower, "threads of the library");
    Print("at_rest_rss", std::max(0.0, ResidentMib() - before_mib - staging_mib), 0, 0, 20,
          Better::kLower, "MiB beside staging");
  }

  void RssOverSaves(int saves) {
    Open();
    double settled_mib = 0;
    for (int i = 0; i < saves; ++i) {
      SaveAndForget();
      if (i == 4) settled_mib = ResidentMib();
    }
    Print("rss_growth_over_" + std::to_string(saves) + "_saves",
          std::max(0.0, ResidentMib() - settled_mib), 0, 0, 8, Better::kLower, "MiB");
  }

  // One core is left free, as beside a GPU: with none free, the copy is made at the fence.
  void Overlap() {
    Rounds rounds;
    for (int i = -1; i < settings_.rounds; ++i) {
      const double blocking = Seconds([&] { save_.emplace(session_->BeginSave(++step_)); });
      Forget();
      const double begin =
          Seconds([&] { save_.emplace(session_->BeginSave(++step_, /*overlap=*/true)); });
      Compute(1, 6 * blocking);
      const double fence = Seconds([&] { session_->Fence(); });
      Forget();
      if (i >= 0) rounds.Add((begin + fence) * 1e3, blocking * 1e3);
    }
    Print("overlap_stall", rounds, 0.10, Better::kLower, "ms of the loop");
  }

  void UpdateWhileDraining() {
    Rounds rounds;
    for (int i = -1; i < settings_.rounds; ++i) {
      const double alone = Seconds([&] { Update(); });
      session_->Step(++step_);
      save_.emplace(session_->BeginSave(++step_));
      const double draining = Seconds([&] { Update(); });
      Forget();
      if (i >= 0) rounds.Add(draining * 1e3, alone * 1e3);
    }
    Print("update_while_draining", rounds, 1.1, Better::kLower, "ms");
  }

  // The first round learns the pace; it counts like the others.
  void TrainWhileDraining() {
    const FixedWork work(0.01);
    Rounds rounds;
    for (int i = 0; i < settings_.rounds; ++i) {
      const double alone = StepTime(work, [steps = 0]() mutable { return ++steps > 150; });
      save_.emplace(session_->BeginSave(++step_));
      const double draining = StepTime(work, [this] { return save_->level() == Level::kShared; });
      Forget();
      rounds.Add(draining * 1e3, alone * 1e3);
    }
    Print("train_while_draining", rounds, 1.05, Better::kLower, "ms a step");
  }

 private:
  static std::string Name() {
    static int number = 0;
    return "session_bench.tmp." + std::to_string(getpid()) + "." + std::to_string(number++);
  }

  // Two slots.
  double StagingMib() const { return 2 * static_cast<double>(words_.size() * 8) / (1 << 20); }

  void ParallelCopy(std::vector<uint64_t>* to) {
    const size_t half = words_.size() / 2;
    std::thread other(
        [&] { std::memcpy(to->data() + half, words_.data() + half, (words_.size() - half) * 8); });
    std::memcpy(to->data(), words_.data(), half * 8);
    other.join();
  }

  // In place, by two threads.
  void Update() {
    const auto half = [this](size_t begin, size_t end) {
      for (size_t i = begin; i < end; ++i) words_[i] += 3;
    };
    std::thread other(half, words_.size() / 2, words_.size());
    half(0, words_.size() / 2);
    other.join();
  }

  double StepTime(const FixedWork& work, const std::function<bool()>& enough) {
    int steps = 0;
    const double seconds = Seconds([&] {
      do {
        work.Run();
        session_->Step(++step_);
        ++steps;
      } while (!enough());
    });
    return seconds / steps;
  }

  void SaveAndForget() {
    save_.emplace(session_->BeginSave(++step_));
    Forget();
  }
  // Durable, and its bytes are off the disk again.
  void Forget() {
    save_->Wait(Level::kShared);
    for (const fs::directory_entry& entry : fs::directory_iterator(store_)) {
      if (entry.is_directory() && entry.path().filename().string()[0] == 's')
        fs::remove_all(entry.path());
    }
  }

  const Settings settings_;
  std::vector<uint64_t> words_;
  const fs::path store_;
  State state_;
  std::optional<Session> session_;
  std::optional<Save> save_;
  int64_t step_ = 0;
};

}  // namespace
}  // namespace ckpt::bench

int main(int argc, char** argv) {
  using namespace ckpt::bench;
  unsetenv("CKPT_RUN");
  unsetenv("CKPT_SAVE_EVERY");
  const Settings settings = ParseSettings(argc, argv, 512, 16);
  try {
    {
      SessionBench bench(settings, settings.bytes);
      bench.AtRest();
      bench.Overlap();
      bench.UpdateWhileDraining();
    }
    Rounds first;
    for (int i = 0; i < settings.rounds; ++i) {
      SessionBench(settings, settings.bytes).FirstStall(&first);
    }
    Print("first_save_stall", first, 1.3, Better::kLower, "ms");
    SessionBench(settings, settings.bytes / 16).RssOverSaves(50);
    SessionBench slow(settings, settings.bytes / 2);
    slow.Open();
    slow.TrainWhileDraining();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "session_bench: %s\n", error.what());
    return 1;
  }
  return 0;
}
