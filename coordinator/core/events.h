// What goes into the core and what comes out of it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "coordinator/core/types.h"
#include "libckpt/base/status.h"

namespace ckpt::core {

// ---- in: requests. Each is answered in the Actions of its own step; what takes longer is an
// operation that the answer names.

struct PutJob {
  uint64_t op_id = 0;
  JobSpec spec;
};
struct Quote {
  std::string job;
  int64_t deadline_ms = 0;
};
struct Apply {
  uint64_t op_id = 0;
  std::string plan_id;
  int64_t deadline_ms = 0;
};
struct StopRequest {
  uint64_t op_id = 0;
  std::string job;
  uint64_t epoch = 0;  // 0: whichever is current
  int64_t deadline_ms = 0;
};
struct Suspend : StopRequest {};
struct Checkpoint : StopRequest {};
struct Cancel : StopRequest {};
struct Resume {
  uint64_t op_id = 0;
  std::string job;
  std::vector<std::string> nodes;  // empty: anywhere
  bool from_store = false;         // without the copies that are only in RAM, or that are not found
};
struct Migrate {
  uint64_t op_id = 0;
  std::string job;
  std::string from_node;
  std::string to_node;
  int64_t deadline_ms = 0;
};

struct Withdraw {
  uint64_t op_id = 0;  // of the operation that is taken back
};

// ---- in: what agents say, and time.

struct NodeConnected {
  NodeInfo info;
};
struct NodeLost {
  std::string node;
  std::string why;
};
struct JobReported {
  std::string node;
  JobReport report;
};
struct Fetched {
  std::string node;
  FetchReport report;
};
struct CommandAnswered {
  std::string node;
  CommandResult result;
};
struct StagingUsed {
  std::string node;
  uint64_t bytes = 0;
};
struct Tick {};

using Event =
    std::variant<PutJob, Quote, Apply, Suspend, Resume, Checkpoint, Migrate, Cancel, Withdraw,
                 NodeConnected, NodeLost, JobReported, Fetched, CommandAnswered, StagingUsed, Tick>;

// ---- out: commands to agents. All carry (job, epoch, op_id) and may be repeated; the sender adds
// cluster and term.

struct Launch {
  std::string job;
  uint64_t epoch = 0;
  uint64_t op_id = 0;
  JobSpec spec;
  NodePlacement place;
  uint32_t nnodes = 0;
  std::string leader_address;  // empty on the leader's own node
  std::string token;
  std::string listen_host;
  std::string job_id;
  bool drain = false;
  std::string expect;  // the newest copy that is known; it must not resume from an older one
};
struct Stop {
  std::string job;
  uint64_t epoch = 0;
  uint64_t op_id = 0;
  bool kill = false;
  int64_t deadline_ms = 0;
  std::string source;
  bool withdraw = false;  // the suspend of this op_id is not wanted any more
};
struct SaveNow {
  std::string job;
  uint64_t epoch = 0;
  uint64_t op_id = 0;
  int64_t deadline_ms = 0;
};
struct Fetch {
  std::string job;
  uint64_t op_id = 0;
  std::string from_data_address;
  std::string from_node;
  uint64_t epoch = 0;
  uint32_t attempt = 0;
  std::vector<uint32_t> ranks;
};
struct Forget {
  std::string job;
  uint64_t epoch = 0;
  bool drop_copies = false;
};
using Command = std::variant<Launch, Stop, SaveNow, Fetch, Forget>;

struct Send {
  std::string node;
  Command command;
};

// A record to store; no value deletes it.
struct Write {
  std::string key;
  std::optional<std::string> value;
};
struct Record {
  std::string key;
  std::string value;
};

// The answer to a request: an error, or what it names.
struct Reply {
  Status status;
  std::string job;     // PutJob
  uint64_t op_id = 0;  // Apply, Suspend, Resume, Checkpoint, Migrate, Cancel
  Plan plan;           // Quote
};

// The driver commits `writes` as one transaction first; only then may anything else be seen by
// anyone. A driver that dies before the commit has done nothing; one that dies after it sends again
// when the agents reconnect.
struct Actions {
  std::vector<Write> writes;
  std::vector<Send> sends;
  std::vector<EventRecord> events;
  std::optional<Reply> reply;
};

}  // namespace ckpt::core
