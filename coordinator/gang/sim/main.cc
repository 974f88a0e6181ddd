// gang_sim: runs schedules and says how many a second; replays one with its history.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>

#include "coordinator/gang/sim/sim.h"

namespace {

int Replay(uint64_t seed) {
  ckpt::gang::sim::SimOptions options;
  options.seed = seed;
  options.history = true;
  const ckpt::gang::sim::SimResult result = ckpt::gang::sim::RunSchedule(options);
  for (const std::string& line : result.history) std::printf("%s\n", line.c_str());
  std::printf("seed %llu: %s\n", static_cast<unsigned long long>(seed),
              result.ok() ? "all held" : result.violation.c_str());
  return result.ok() ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  uint64_t first = 1, count = 2000;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--seed") == 0 && i + 1 < argc) {
      return Replay(std::strtoull(argv[++i], nullptr, 10));
    }
    if (std::strcmp(argv[i], "--from") == 0 && i + 1 < argc) {
      first = std::strtoull(argv[++i], nullptr, 10);
    } else if (std::strcmp(argv[i], "--count") == 0 && i + 1 < argc) {
      count = std::strtoull(argv[++i], nullptr, 10);
    } else {
      std::fprintf(stderr, "usage: gang_sim [--seed N] [--from N] [--count N]\n");
      return 2;
    }
  }
  const std::clock_t start = std::clock();
  uint64_t events = 0, failed = 0;
  ckpt::gang::sim::SimResult sum;
  for (uint64_t seed = first; seed < first + count; ++seed) {
    ckpt::gang::sim::SimOptions options;
    options.seed = seed;
    const ckpt::gang::sim::SimResult result = ckpt::gang::sim::RunSchedule(options);
    events += result.events;
    sum.suspended += result.suspended;
    sum.saved += result.saved;
    sum.durable += result.durable;
    sum.rolled_back += result.rolled_back;
    sum.ended += result.ended;
    sum.finished += result.finished;
    sum.rebuilt += result.rebuilt;
    sum.restarts += result.restarts;
    sum.superseded += result.superseded;
    sum.refused += result.refused;
    if (result.ok()) continue;
    ++failed;
    std::printf("seed %llu: %s: %s\n", static_cast<unsigned long long>(seed),
                result.violation.c_str(), result.detail.c_str());
  }
  const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  std::printf(
      "%llu schedules, %llu events, %.0f schedules/s of one core, %llu failed; released %u saved "
      "%u durable %u "
      "rolled back %u rebuilt %u ended %u finished %u refused %u restarts %u superseded %u\n",
      static_cast<unsigned long long>(count), static_cast<unsigned long long>(events),
      static_cast<double>(count) / seconds, static_cast<unsigned long long>(failed), sum.suspended,
      sum.saved, sum.durable, sum.rolled_back, sum.rebuilt, sum.ended, sum.finished, sum.refused,
      sum.restarts, sum.superseded);
  return failed == 0 ? 0 : 1;
}
