// gang_sim: runs schedules and says how many a second; replays one with its history.
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string>

#include "coordinator/gang/sim/sim.h"

namespace {

using ckpt::gang::sim::RunSchedule;
using ckpt::gang::sim::SimOptions;
using ckpt::gang::sim::SimResult;
using ull = unsigned long long;

struct Options {
  uint64_t first = 1, count = 2000, only = 0;
  double minutes = 0;  // not 0: as many as fit, instead of `count`
  uint32_t members = 0;
};

int Replay(const SimOptions& options) {
  const SimResult result = RunSchedule(options);
  for (const std::string& line : result.history) std::printf("%s\n", line.c_str());
  std::printf("seed %llu: %s\n", static_cast<ull>(options.seed),
              result.ok() ? "all held" : result.violation.c_str());
  return result.ok() ? 0 : 1;
}

double Seconds(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

void Add(const SimResult& one, SimResult* sum) {
  sum->events += one.events;
  sum->suspended += one.suspended;
  sum->saved += one.saved;
  sum->durable += one.durable;
  sum->rolled_back += one.rolled_back;
  sum->ended += one.ended;
  sum->finished += one.finished;
  sum->rebuilt += one.rebuilt;
  sum->restarts += one.restarts;
  sum->superseded += one.superseded;
  sum->losses += one.losses;
  sum->fallbacks += one.fallbacks;
  sum->deferred += one.deferred;
  sum->withdrawn += one.withdrawn;
  sum->kills += one.kills;
  sum->drained += one.drained;
}

void Summarize(const Options& options, uint64_t count, double seconds, const SimResult& sum) {
  std::printf(
      "%llu schedules from seed %llu held, %llu events, %.0f schedules/s of one core\n"
      "  released %u saved %u durable %u rolled back %u rebuilt %u ended %u finished %u\n"
      "  leaders restarted %u superseded %u losses booked %u fallbacks %u deferred %u withdrawn %u "
      "kills %u drains %u\n",
      static_cast<ull>(count), static_cast<ull>(options.first), static_cast<ull>(sum.events),
      static_cast<double>(count) / seconds, sum.suspended, sum.saved, sum.durable, sum.rolled_back,
      sum.rebuilt, sum.ended, sum.finished, sum.restarts, sum.superseded, sum.losses, sum.fallbacks,
      sum.deferred, sum.withdrawn, sum.kills, sum.drained);
}

// Until the first that fails.
int RunMany(const Options& options, const char* program) {
  const double start = Seconds(CLOCK_PROCESS_CPUTIME_ID), wall = Seconds(CLOCK_MONOTONIC);
  double said = wall;
  SimResult sum;
  uint64_t count = 0;
  for (;; ++count) {
    const double now = Seconds(CLOCK_MONOTONIC);
    if (options.minutes > 0 ? now - wall >= options.minutes * 60 : count >= options.count) break;
    if (now - said >= 60) {
      said = now;
      std::printf("%llu schedules held, %.0f/s of one core\n", static_cast<ull>(count),
                  static_cast<double>(count) / (Seconds(CLOCK_PROCESS_CPUTIME_ID) - start));
      std::fflush(stdout);
    }
    SimOptions schedule;
    schedule.seed = options.first + count;
    schedule.members = options.members;
    const SimResult result = RunSchedule(schedule);
    Add(result, &sum);
    if (result.ok()) continue;
    const std::string members =
        options.members == 0 ? "" : " --members " + std::to_string(options.members);
    std::printf("seed %llu FAILED, %s: %s\nreplay: %s --seed %llu%s\n",
                static_cast<ull>(schedule.seed), result.violation.c_str(), result.detail.c_str(),
                program, static_cast<ull>(schedule.seed), members.c_str());
    return 1;
  }
  Summarize(options, count, Seconds(CLOCK_PROCESS_CPUTIME_ID) - start, sum);
  return 0;
}

bool Parse(int argc, char** argv, Options* out) {
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    const char* value = argv[i + 1];
    if (name == "--seed") {
      out->only = std::strtoull(value, nullptr, 10);
    } else if (name == "--from") {
      out->first = std::strtoull(value, nullptr, 10);
    } else if (name == "--count") {
      out->count = std::strtoull(value, nullptr, 10);
    } else if (name == "--minutes") {
      out->minutes = std::strtod(value, nullptr);
    } else if (name == "--members") {
      out->members = static_cast<uint32_t>(std::strtoul(value, nullptr, 10));
    } else {
      return false;
    }
  }
  return argc % 2 == 1 && out->members <= 8;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  if (!Parse(argc, argv, &options)) {
    std::fprintf(
        stderr,
        "usage: gang_sim [--seed N | --from N [--count N | --minutes M]] [--members 1..8]\n");
    return 2;
  }
  if (options.only == 0) return RunMany(options, argv[0]);
  SimOptions schedule;
  schedule.seed = options.only;
  schedule.members = options.members;
  schedule.history = true;
  return Replay(schedule);
}
