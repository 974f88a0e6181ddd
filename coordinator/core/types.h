// What the coordinator knows: jobs, nodes, copies, operations. Plain data with no clock, thread,
// socket or protobuf; ckptd converts from and to the wire. Times are nanoseconds, `_ns` of
// CLOCK_BOOTTIME unless the name says `wall`.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace ckpt::core {

struct Time {
  int64_t boot_ns = 0;
  int64_t wall_ns = 0;
};

// The order is the order of displacement: a class may displace itself and those before it.
enum class JobClass : uint32_t { kBatch = 0, kTraining = 1, kEvaluation = 2, kRealtime = 3 };

struct JobSpec {
  std::string name;
  std::vector<std::string> command;
  uint32_t ranks = 0;
  int32_t priority = 0;
  std::string job_class;  // empty: training
  bool not_preemptible = false;
  std::string store;
  std::map<std::string, std::string> env;
  std::string workdir;
  uint64_t state_bytes_per_rank = 0;
  uint32_t save_every = 0;
  uint64_t min_runtime_ms = 0;
  std::optional<uint32_t> restarts_max;  // absent: kRestartsDefault
  double max_price = 0;
  bool operator==(const JobSpec&) const = default;
};
inline constexpr uint32_t kRestartsDefault = 3;

// Numbers as in the proto.
enum class JobState : uint32_t {
  kUnspecified = 0,
  kPending = 1,
  kStarting = 2,
  kRunning = 3,
  kSuspending = 4,
  kSuspended = 5,
  kPreempted = 6,
  kFinished = 7,
  kFailed = 8,
  kCancelled = 9,
  kUnknown = 10,  // only a view: a live job with a node out of reach
};
std::string_view JobStateName(JobState state);
// Holds its whole placement: from the launch until no node has a process of it.
constexpr bool IsLive(JobState s) {
  return s == JobState::kStarting || s == JobState::kRunning || s == JobState::kSuspending;
}
// Waits for capacity and is launched by itself when there is room.
constexpr bool IsWaiting(JobState s) {
  return s == JobState::kPending || s == JobState::kPreempted;
}
constexpr bool IsEnded(JobState s) {
  return s == JobState::kFinished || s == JobState::kFailed || s == JobState::kCancelled;
}

enum class NodeJobState : uint32_t {
  kNone = 0,
  kStarting = 1,
  kRunning = 2,
  kStopping = 3,
  kReleased = 4,
  kFinished = 5,
  kFailed = 6,
};
// No process of the job is left on the node.
constexpr bool IsOver(NodeJobState s) {
  return s == NodeJobState::kReleased || s == NodeJobState::kFinished || s == NodeJobState::kFailed;
}

// A gang-wide copy. `staged_gang` and `durable` are facts of their own.
struct CopyState {
  uint64_t epoch = 0;
  uint32_t attempt = 0;
  int64_t step = 0;
  bool staged_gang = false;
  std::vector<std::string> ram_nodes;
  bool durable = false;
  uint64_t bytes = 0;
  uint64_t bytes_durable = 0;
  std::string failure;
  bool lost = false;            // it was in this node's RAM, and that is gone
  uint64_t bytes_to_write = 0;  // not stored: of a drain in progress

  std::array<int64_t, 3> Key() const { return {static_cast<int64_t>(epoch), step, attempt}; }
  bool operator==(const CopyState&) const = default;
};

struct PhaseTimes {
  int64_t noticed_ns = 0;
  int64_t cut_ns = 0;
  int64_t staged_ns = 0;
  int64_t comms_down_ns = 0;
  int64_t released_ns = 0;
  int64_t durable_ns = 0;
  int64_t stall_ns = 0;
  uint64_t staged_bytes = 0;
  double memcpy_ratio = 0;
  bool operator==(const PhaseTimes&) const = default;
};

struct Method {
  std::string name;
  bool yes = false;
  std::string reason;
  bool operator==(const Method&) const = default;
};

struct NodeInfo {
  std::string name;
  std::string address;
  uint32_t slots = 0;
  uint64_t staging_budget_bytes = 0;
  uint64_t staging_used_bytes = 0;
  std::string data_address;
  uint64_t boot_ns = 0;
  double memcpy_gbps = 0;
  double disk_gbps = 0;
  std::string cluster_id;
  uint64_t term = 0;
};

struct JobReport {
  std::string job;
  uint64_t epoch = 0;
  uint32_t node_rank = 0;
  NodeJobState state = NodeJobState::kNone;
  uint64_t op_id = 0;
  std::string gang_address;
  std::vector<CopyState> copies;
  PhaseTimes times;
  int64_t step = 0;
  double step_seconds = 0;
  uint64_t state_bytes = 0;
  std::string message;
  std::vector<Method> methods;
  uint64_t claimed_epoch = 0;
  std::string job_id;  // 16 bytes, or empty
  uint32_t rank_count = 0;
  bool suspend_failed = false;
  std::string resumed_from;
  int64_t first_step_ns = 0;
  bool run_ended = false;
  uint64_t drain_op = 0;
  uint64_t staging_done = 0;
  uint64_t staging_total = 0;
  bool behind = false;
  std::string run_silent;  // in words: its ckpt-run does not answer
  std::string held_up;     // what holds up a copy or a notice, and until when
  uint64_t refused_save = 0;
  std::string save_refusal;
};

struct FetchReport {
  std::string job;
  uint64_t op_id = 0;
  bool done = false;
  std::string error;
  uint64_t bytes_done = 0;
  uint64_t bytes_total = 0;
  int64_t started_ns = 0;
  int64_t done_ns = 0;
};

struct CommandResult {
  uint64_t op_id = 0;
  std::string job;
  uint64_t epoch = 0;
  bool accepted = false;
  std::string error;
};

// Consecutive ranks of a job on one node.
struct NodePlacement {
  std::string node;
  uint32_t node_rank = 0;
  uint32_t first_rank = 0;
  uint32_t rank_count = 0;
  bool operator==(const NodePlacement&) const = default;
};
using Placement = std::vector<NodePlacement>;

// A node's part in the current epoch of a job.
struct Member {
  NodePlacement place;
  NodeJobState state = NodeJobState::kNone;
  uint64_t boot_ns = 0;   // of the agent that the launch went to
  bool launched = false;  // the launch was sent at least once
  std::string message;
  // Not stored:
  std::vector<Method> methods;
  bool heard = false;           // reported since its node connected
  int64_t silent_since_ns = 0;  // its node is back, but says nothing of it
  uint64_t staging_done = 0;    // of the cut in progress; total 0: none is
  uint64_t staging_total = 0;
  bool behind = false;  // it did not start: only an older copy than is known here was found
};

// Making a copy durable whose ckpt-runs ended before it was: the same gang of ckpt-runs, without
// ranks.
struct Drain {
  std::array<int64_t, 3> copy{};  // its key
  uint64_t op = 0;                // of the launch; 0: none is under way
  std::string token;
  std::string gang_address;
  std::vector<Member> members;
  uint32_t failures = 0;  // so far, of this copy
  std::string failure;    // the newest
  int64_t wait_ns = 0;    // until the next try; re-armed in full after a restart
  // Not stored:
  int64_t until_ns = 0;     // of that wait
  int64_t progress_ns = 0;  // something was written last
  uint64_t bytes_seen = 0;
};

// What its own stops and starts have taken, the newest of each; 0: not measured yet.
struct Measured {
  double stage_bytes_per_second = 0;  // of the busiest node, from the cut until all have staged
  double exit_seconds = 0;            // communicators down -> no process left
  double restore_seconds = 0;         // launch -> first step, of a launch that resumed
  double step_seconds = 0;            // of the launch before
  bool operator==(const Measured&) const = default;
};

// What is to become of a live job once no process of it is left.
enum class StopPurpose : uint32_t {
  kNone = 0,
  kSuspend = 1,  // SUSPENDED
  kPreempt = 2,  // PREEMPTED
  kMigrate = 3,  // moved by its operation
  kCancel = 4,   // CANCELLED
  kCrash = 5,    // launched again in its place, or FAILED
  kUndo = 6,     // its operation was aborted or withdrawn: launched again in its place
};

struct Job {
  JobSpec spec;
  std::string job_id;
  std::string token;  // of the current epoch: who may join its gang
  JobState state = JobState::kPending;
  std::string reason;
  uint64_t put_op_id = 0;
  uint64_t epoch = 0;       // of the newest launch; 0 never launched
  uint64_t epoch_seen = 0;  // the highest in any record, claim or report
  uint64_t launch_op = 0;
  std::vector<Member> members;  // current epoch, or the last one
  std::string gang_address;
  StopPurpose stop = StopPurpose::kNone;
  uint64_t stop_op = 0;  // names the order to the agents
  uint64_t kill_op = 0;  // likewise, of the kill that overrides it
  bool stop_kill = false;
  int64_t stop_budget_ns = 0;    // re-armed in full after a restart
  int64_t stop_deadline_ns = 0;  // not stored
  uint64_t op_id = 0;            // the operation in progress that this job is part of
  uint64_t last_op_id = 0;       // the one whose times `last_stop` holds
  uint64_t last_stop_epoch = 0;
  PhaseTimes last_stop;
  bool last_stop_clean = false;  // released by its gang, not killed or crashed
  // What each node said of its copies, by (node, epoch).
  std::map<std::pair<std::string, uint64_t>, std::vector<CopyState>> copies;
  // The keys of those whose ckpt-run has ended.
  std::set<std::pair<std::string, uint64_t>> run_ended;
  // Not stored: by the same key, those that do not answer, in words.
  std::map<std::pair<std::string, uint64_t>, std::string> run_silent;
  Drain drain;
  std::vector<Method> methods;
  std::string resumed_from;
  uint64_t state_bytes = 0;
  uint32_t preempted_count = 0;
  uint32_t restart_count = 0;
  double lost_gpu_seconds = 0;
  int64_t lost_steps = 0;
  int64_t submitted_wall_ns = 0;
  int64_t waiting_since_wall_ns = 0;
  int64_t running_since_ns = 0;
  int64_t last_copy_ns = 0;
  // Not stored: what holds up a copy or a notice, as a node's ckpt-run of an epoch said last.
  std::map<std::pair<std::string, uint64_t>, std::string> held_up;
  std::map<std::string, uint64_t> member_bytes;  // staged by each node in the newest stop
  std::set<std::array<int64_t, 3>> given_up;     // keys of copies that an operator goes on without
  std::set<std::array<int64_t, 3>> left_behind;  // keys of copies whose steps are booked as lost
  Measured measured;
  // Not stored:
  int64_t step = 0;
  double step_seconds = 0;
  uint32_t starts_failed = 0;  // in a row, before all ranks had registered
  uint32_t behind_count = 0;   // in a row, that only an older copy than is known here was found
  int64_t launched_ns = 0;
  int64_t start_after_ns = 0;  // not launched before: what failed at once will fail again at once
};

struct Node {
  NodeInfo info;
  bool connected = false;                                        // not stored
  int64_t heard_ns = 0;                                          // not stored
  std::map<std::pair<std::string, uint64_t>, uint32_t> foreign;  // ranks of jobs not on record
};

enum class OperationState : uint32_t { kUnspecified = 0, kRunning = 1, kDone = 2, kFailed = 3 };

enum class OperationKind : uint32_t {
  kPreempt = 0,
  kSuspend = 1,
  kResume = 2,
  kCheckpoint = 3,
  kMigrate = 4,
  kCancel = 5,
};
std::string_view OperationKindName(OperationKind kind);

// Ordered: an operation is as far as its last victim.
enum class Phase : uint32_t {
  kPlanned = 0,
  kReserved = 1,
  kNotified = 2,
  kQuiesced = 3,
  kStaged = 4,
  kReleased = 5,
  kFetched = 6,
  kGranted = 7,
  kDone = 8,
  kAborted = 9,
};
std::string_view PhaseName(Phase phase);

struct VictimProgress {
  std::string job;
  uint64_t epoch = 0;
  Phase phase = Phase::kReserved;
  PhaseTimes times;
  Placement placement;  // where it goes back to when the operation is aborted
  double lost_gpu_seconds = 0;
  int64_t lost_steps = 0;
};

// A stored transaction, and its stored result for whoever repeats the op_id.
struct Operation {
  uint64_t op_id = 0;
  OperationKind kind = OperationKind::kSuspend;
  std::string job;
  OperationState state = OperationState::kRunning;
  Phase phase = Phase::kPlanned;
  std::string message;
  std::vector<VictimProgress> victims;
  int64_t started_ns = 0;
  int64_t granted_ns = 0;
  int64_t done_ns = 0;
  int64_t done_wall_ns = 0;
  int64_t budget_ns = 0;
  int64_t deadline_ns = 0;  // not stored: re-armed in full after a restart
  Placement placement;      // of the newcomer, or where the job moves to
  uint64_t command_op = 0;  // fetch or save, as the agents know it
  uint64_t epoch = 0;       // granted by it; for a checkpoint: that it is asked of
  std::string from_node;
  std::string to_node;
  std::array<int64_t, 3> newest_before{};  // checkpoint: a copy must be newer than this
  uint64_t fetch_done = 0;                 // not stored: bytes, of a migration
  uint64_t fetch_total = 0;
};

// Price of stopping a job, in GPU-seconds and its parts in seconds.
struct VictimQuote {
  std::string job;
  uint64_t epoch = 0;
  uint32_t ranks = 0;
  double price = 0;
  double lost_seconds = 0;
  double stage_seconds = 0;
  double restore_seconds = 0;
  double requeue_seconds = 0;
  double exit_seconds = 0;
  bool measured = false;  // staging and exit: by its own stops, not by assumption
  uint32_t times_preempted = 0;
  std::vector<std::string> nodes;
};

struct Plan {
  std::string id;
  std::string job;
  std::vector<VictimQuote> victims;
  double price = 0;
  double grant_seconds = 0;
  Placement placement;
  std::vector<std::string> rejected;
  std::vector<std::string> warnings;
};

// One line of the timeline.
struct EventRecord {
  uint64_t revision = 0;
  int64_t wall_ns = 0;
  int64_t boottime_ns = 0;
  std::string job;
  std::string node;
  uint64_t epoch = 0;
  uint64_t op_id = 0;
  std::string kind;
  std::string message;
  std::map<std::string, std::string> data;
};

}  // namespace ckpt::core
