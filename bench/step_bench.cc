// What a step boundary costs when nothing is asked: ckpt_session_step in a loop, against the same
// loop without it. The limit is the empty loop; the target is 20 ns over it.
#include <ckpt/ckpt.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>

#include "bench/bench_report.h"

namespace {

constexpr int64_t kSteps = 5'000'000;
constexpr int kRepeats = 7;

volatile int64_t g_sink;

template <typename Body>
double NanosecondsPerStep(Body&& body) {
  double best = 1e9;
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    const auto began = std::chrono::steady_clock::now();
    for (int64_t step = 0; step < kSteps; ++step) body(step);
    const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - began;
    best = std::min(best, took.count() / static_cast<double>(kSteps));
  }
  return best;
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
  const double empty_ns = NanosecondsPerStep([](int64_t step) { g_sink = step; });
  const double step_ns = NanosecondsPerStep([&](int64_t step) {
    g_sink = step;
    ckpt_error_free(ckpt_session_step(session, step, &request));
  });
  ckpt_error_free(ckpt_session_close(session, 0));
  rmdir(directory);
  const double cost_ns = step_ns - empty_ns;
  ckpt::bench::Print("step", cost_ns, 0, cost_ns / empty_ns, 20.0, ckpt::bench::Better::kLower,
                     "ns over an empty loop");
  return 0;
}
