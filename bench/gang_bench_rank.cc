// The rank of gang_bench.py: a state of so many MiB, steps of so many milliseconds, and the moments
// (CLOCK_BOOTTIME) of what it does, a line each.
//
//   gang_bench_rank MIB STEP_MS FILE
#include <unistd.h>

#include <ckpt/ckpt.hpp>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "libckpt/base/clock.h"

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: gang_bench_rank MIB STEP_MS FILE\n");
    return 2;
  }
  std::FILE* out = std::fopen((std::string(argv[3]) + "." + std::getenv("RANK")).c_str(), "a");
  if (out == nullptr) return 1;
  const auto say = [out](const char* what) {
    std::fprintf(out, "%s %lld\n", what, static_cast<long long>(ckpt::BoottimeNs()));
    std::fflush(out);
  };
  say("main");
  std::vector<uint64_t> words(std::strtoull(argv[1], nullptr, 10) << 17, 1);
  const std::chrono::milliseconds pause(std::atoi(argv[2]));
  int64_t step = 0;
  ckpt::State state;
  state.Tensor("words", words.data(), {words.size()}, ckpt::Placement::kPerRank);
  state.Value("step", &step);
  ckpt::Session session;
  session.Track(state);
  say("restoring");
  if (session.Restore()) say("restored");
  for (bool first = true;; first = false) {
    const ckpt::Request request = session.Step(++step);
    if (first) say("stepped");
    if (request.stop()) return session.exit_code();
    std::this_thread::sleep_for(pause);
  }
}
