// What a step boundary costs when nothing is asked: ckpt_session_step in a loop, against the same
// loop without it (target: 20 ns more), and against the one atomic add that it is made of, which a
// crowded machine makes slow by itself.
#include <ckpt/ckpt.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>

#include "bench/bench_report.h"

namespace {

constexpr int64_t kSteps = 2'000'000;
constexpr int kRounds = 11;

volatile int64_t g_sink;

template <typename Body>
double NanosecondsPerStep(Body&& body) {
  return ckpt::bench::Seconds([&] {
           for (int64_t step = 0; step < kSteps; ++step) body(step);
         }) *
         1e9 / static_cast<double>(kSteps);
}

}  // namespace

int main() {
  unsetenv("CKPT_RUN");
  unsetenv("CKPT_SAVE_EVERY");
  char directory[] = "/tmp/ckpt-bench-XXXXXX";
  if (mkdtemp(directory) == nullptr) return 1;
  ckpt_session_options_t options{};
  options.struct_size = sizeof options;
  options.store = directory;
  options.rank = 0;
  options.world_size = 1;
  ckpt_session_t* session = nullptr;
  if (ckpt_error_t* error = ckpt_session_open(&options, &session)) {
    std::fprintf(stderr, "step_bench: %s\n", ckpt_error_message(error));
    return 1;
  }
  ckpt_request_t request;
  alignas(64) static std::atomic<uint64_t> word{0};
  ckpt::bench::Rounds over_add;
  for (int round = 0; round < kRounds; ++round) {
    const double empty_ns = NanosecondsPerStep([](int64_t step) { g_sink = step; });
    const double add_ns = NanosecondsPerStep([](int64_t step) {
      g_sink = step;
      word.fetch_add(uint64_t{1} << 32);
    });
    const double step_ns = NanosecondsPerStep([&](int64_t step) {
      g_sink = step;
      ckpt_error_free(ckpt_session_step(session, step, &request));
    });
    over_add.Add(step_ns - empty_ns, add_ns - empty_ns);
  }
  ckpt_error_free(ckpt_session_close(session, 0));
  rmdir(directory);
  using ckpt::bench::Better;
  ckpt::bench::Print("step", *std::min_element(over_add.values.begin(), over_add.values.end()), 0,
                     0, 20.0, Better::kLower, "ns over an empty loop");
  ckpt::bench::Print("step_over_fetch_add", over_add, 2.0, Better::kLower, "ns");
  return 0;
}
