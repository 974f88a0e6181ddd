// The coordinator's mind: a pure state machine. It starts operations and records outcomes; the
// gangs carry them out, so that its death interrupts nothing.
//
// Level-triggered: agents report whole snapshots, the core folds them into its records and derives
// what is still to be done from the records alone. So a restart is: load the records, raise the
// term, wait for the agents, go on. The tempting alternative, a coroutine per operation, would keep
// in a stack what must be on disk.
//
// I1  Slots of a node are never given twice: a live job holds its whole placement until no node has
//     a process of it (measured and reported), and an operation holds its reservation from its
//     first record until granted or aborted.
// I2  A new epoch is granted only when the old one is over on all its nodes, is higher than any
//     seen in a record, claim or report, and is stored before it is used.
// I3  A job whose newest copy is only in RAM is launched where that copy is, or not at all, unless
//     an operator who names the nodes says otherwise while that RAM is out of reach.
//     No launch resumes from an older copy than the newest that is known here, unless an operator
//     says so (`Resume::from_store`): it is told what to expect, refuses, and is tried again.
// I4  Every operation ends: done, or failed with what undoes each victim's state.
// I5  The same records and events give the same actions (tokens come from the injected source).
// I6  A complete copy that is only in RAM, and that no ckpt-run writes any more, is written by a
//     drain (drain.cc), again and again until it is durable, superseded, or its RAM is lost.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "coordinator/core/events.h"
#include "coordinator/core/types.h"
#include "libckpt/base/status.h"

namespace ckpt::core {

struct Options {
  std::function<std::string()> mint_token;  // 128 random bits as hex; required
  double requeue_seconds = 5;               // expected wait of a victim once there is room
  double preemption_base = 600;             // B of the price, GPU-seconds
  double dearer_max = 1.2;                  // Apply refuses a plan that became dearer
  int64_t kill_slack_ns = 5'000'000'000;    // after a deadline that the gang let pass
  int64_t silence_ns = 15'000'000'000;      // a restarted agent that says nothing of a job
  int64_t starvation_ns = 300'000'000'000;  // after this nobody passes the head of the queue
  int64_t operation_kept_ns = 7 * 86'400'000'000'000;
  uint32_t behind_max = 12;          // launches that find only an older copy than is known here
  int64_t quiet_ns = 4'000'000'000;  // a node that says nothing for so long may not hear either
  int64_t drain_retry_min_ns = 5'000'000'000;  // doubles with each failure
  int64_t drain_retry_max_ns = 300'000'000'000;
  int64_t drain_stall_ns = 120'000'000'000;  // without a byte written: it is begun again
  size_t plans_max = 64;
  size_t events_max = 10'000;
};

class Core {
 public:
  explicit Core(Options options);
  ~Core();

  // Takes over what a predecessor stored (nothing: a new cluster with `cluster_id`) and begins the
  // next term. Call once, first; commit the writes before anything else.
  // Errors: kDataLoss names a record that cannot be read.
  Result<Actions> Recover(Time now, const std::vector<Record>& records,
                          const std::string& cluster_id);

  Actions Step(Time now, const Event& event);

  // Views, for whoever calls Step: valid until the next one.
  const std::string& cluster_id() const;
  const std::string& data_token() const;
  uint64_t term() const;
  const std::map<std::string, Job>& jobs() const;
  const std::map<std::string, Node>& nodes() const;
  const std::map<uint64_t, Operation>& operations() const;
  const Job* FindJob(const std::string& name) const;
  const Operation* FindOperation(uint64_t op_id) const;
  // kUnknown while a node that runs it is out of reach.
  JobState VisibleState(const Job& job) const;
  std::string VisibleReason(const Job& job) const;
  // Why its copy in RAM is being written again, or when that is tried next; else empty.
  std::string DrainInWords(const Job& job) const;
  // Newest first, merged over the nodes.
  std::vector<CopyState> Copies(const Job& job) const;
  // What a newcomer could get now: neither occupied nor held.
  uint32_t FreeSlots(const std::string& node) const;
  std::vector<std::string> JobsOn(const std::string& node) const;
  std::vector<std::string> HoldsOn(const std::string& node) const;
  uint64_t revision() const;  // of the newest event; 0 none
  // The newest events, oldest first; at most Options::events_max are kept.
  std::vector<EventRecord> EventsSince(uint64_t revision, size_t max = SIZE_MAX) const;
  // True when something waits on a clock: the driver then calls Step(Tick) several times a second.
  bool NeedsTicks() const;

  class Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

Placement PlacementOf(const Job& job);

}  // namespace ckpt::core
