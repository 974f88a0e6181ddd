// What a person at a terminal wants to know of a running ckpt-run, in one line.
#pragma once

#include <cstdint>
#include <string>

#include "coordinator/run/drain_node.h"
#include "coordinator/run/gang_leader.h"
#include "coordinator/run/node_host.h"
#include "libckpt/base/progress.h"

namespace ckpt::run {

struct RunView {
  std::string phase;  // running, starting, at cut, …
  int64_t step = 0;
  int64_t step_time_ns = 0;  // 0 not known
  uint32_t ranks_up = 0, ranks = 0;
  std::string durable;    // newest checkpoint in the store; empty: none
  std::string operation;  // suspend, save, …; empty: none
  std::string waits_for;  // of it
  // Of what is read, copied or written now; total 0: nothing is.
  std::string doing;  // restored, staged, written
  uint64_t done = 0, total = 0;
  double bytes_per_second = 0;
};

// "running, step 1200, 3.1 steps/s, durable s1100.e1.a2, 4 of 4 ranks up".
std::string StatusText(const RunView& view);

// The line as it changes; what is given outlives it. Loop's thread.
class StatusLine {
 public:
  StatusLine(const Options& options, const NodeHost& ranks, const GangLeader* leader)
      : options_(options), ranks_(&ranks), leader_(leader) {}
  StatusLine(const Options& options, const DrainNode& drain) : options_(options), drain_(&drain) {}

  std::string Now();

 private:
  RunView OfDrain() const;
  RunView OfRanks() const;
  void AddLaunch(const NodeLaunch& launch, RunView* view) const;
  void AddGang(const LeaderLaunch& launch, RunView* view) const;

  const Options& options_;
  const NodeHost* ranks_ = nullptr;
  const GangLeader* leader_ = nullptr;  // null: another node leads
  const DrainNode* drain_ = nullptr;
  RateMeter meter_;
  std::string metered_;  // what the meter is of
};

}  // namespace ckpt::run
