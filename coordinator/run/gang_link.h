// How the ckpt-runs of one gang talk: one stream from each to the leading one. Plain structs here,
// gRPC behind them; its threads only hand messages to the event loop, which owns all state. A gang
// of one node uses the same structs without a socket.
//
// I1  Messages of one stream are handed over in the order they were sent, then exactly one
// `closed`. I2  Nothing is handed over once the server or client is destroyed.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "libckpt/base/ids.h"
#include "libckpt/base/status.h"
#include "libckpt/os/event_loop.h"
#include "libckpt/os/socket.h"

namespace ckpt::run {

// A staged generation that a node holds in RAM for its ranks.
struct RamCopy {
  AttemptId id;
  bool gang_complete = false;
  bool full = false;  // a suspend's: the node's whole local state
  bool durable = false;
  uint32_t world = 0;  // ranks of the gang that staged it
  std::vector<uint32_t> ranks;
  bool operator==(const RamCopy&) const = default;
};

struct JoinMsg {
  std::string job, node;
  uint32_t node_rank = 0, node_count = 0, rank_count = 0;
  uint64_t epoch = 0;  // granted by a coordinator, or joined before; 0 unknown
  std::vector<RamCopy> ram;
  bool drain = false;  // starts no rank
};
struct WelcomeMsg {
  uint64_t epoch = 0;
  JobId job_id;
  uint32_t world = 0, first_rank = 0;
  std::string error;  // not empty: refused, and why
};
struct StartMsg {
  uint64_t epoch = 0;
  uint32_t resume_kind = 0;  // wire::ResumeKind
  RamCopy resume_from;
  std::string master_addr;
  uint32_t master_port = 0;
};
struct LayoutsMsg {
  uint32_t first_rank = 0;
  std::vector<std::string> layouts;  // RankLayout::Encode(), by rank from first_rank
};
struct PlanMsg {
  uint64_t hash = 0;
  uint32_t first_rank = 0;
  std::vector<std::string> plans;  // RankPlan::Encode(), by rank from first_rank
  std::string error;               // layouts contradict each other: no save is possible, and why
};
struct MachineMsg {  // coordinator/gang in its own encoding
  std::string bytes;
};
struct KvSetMsg {
  std::string scope, key, value;
};
struct KvWaitMsg {
  uint64_t id = 0;
  std::string scope, key;
};
struct KvValueMsg {
  uint64_t id = 0;
  std::string value;
};
struct PrepareMsg {};  // leader: end what is left of the older launch and join again
struct ReadyMsg {      // member: staging memory is there, or why no suspend is possible
  uint32_t slots = 0;
  std::string error;
  uint64_t stage_bytes = 0;
};
struct NoticeMsg {         // member: a notice reached it or one of its ranks
  uint64_t operation = 0;  // 0: the leader makes one
  uint32_t request = 0;    // gang::Request; none: of that operation nothing is asked any more
  int64_t left_ns = 0;     // until its deadline; 0 none
  bool hard = false;
  std::string source;
};
struct RestoredMsg {  // member: a rank has restored, or could not
  uint32_t rank = 0;
  int64_t step = 0;
  uint32_t code = 0;
  std::string message;
};
struct OutcomeMsg {  // leader: how the launch ended; members leave with this
  uint32_t exit_code = 0;
  std::string message;
};
struct DrainMsg {  // leader of a drain: write the shards of these ranks of this copy
  AttemptId id;
  std::vector<uint32_t> ranks;
};
struct DrainedMsg {  // member: they are written, or why not
  uint32_t code = 0;
  std::string message;
  std::string payload;               // EncodeShardReports(), as many as layouts
  std::vector<std::string> layouts;  // RankLayout::Encode()
};
using GangBody = std::variant<JoinMsg, WelcomeMsg, StartMsg, LayoutsMsg, PlanMsg, MachineMsg,
                              KvSetMsg, KvWaitMsg, KvValueMsg, PrepareMsg, ReadyMsg, NoticeMsg,
                              RestoredMsg, OutcomeMsg, DrainMsg, DrainedMsg>;

// `launch` counts what these ckpt-runs carry out together, from 1: restarts, a second try after a
// damaged checkpoint. What an older launch still says is told apart by it.
struct GangMessage {
  uint32_t launch = 0;
  GangBody body;
};

// The leader's end.
class GangServer {
 public:
  using PeerId = uint64_t;  // one stream; never 0, never used again
  struct Handler {
    std::function<void(PeerId, GangMessage)> message;
    std::function<void(PeerId)> closed;
  };

  // Serves on `address` (port 0: the kernel chooses) whoever shows `token`; of others no message is
  // read. Without TLS, loopback only.
  // Errors: kInvalidArgument for an address that is not loopback; kAlreadyExists if the port is in
  // use, naming it.
  static Result<std::unique_ptr<GangServer>> Listen(os::EventLoop* loop,
                                                    const os::HostPort& address,
                                                    const std::string& token, Handler handler);
  virtual ~GangServer() = default;  // Blocks: until all streams have ended, a second at most
  virtual std::string address() const = 0;  // HOST:PORT for --rendezvous
  // Queued. No effect once the peer is gone.
  virtual void Send(PeerId peer, const GangMessage& message) = 0;
  // Ends the stream after what was queued.
  virtual void Close(PeerId peer) = 0;
};

// A member's end.
class GangClient {
 public:
  struct Handler {
    std::function<void(GangMessage)> message;
    // Why; nothing comes after it. kPermissionDenied: the token is another, and will be.
    std::function<void(Status)> closed;
  };

  // Connects as soon as somebody serves there, retrying until then; the caller's deadline is its
  // own timer. What is sent before that is kept.
  static Result<std::unique_ptr<GangClient>> Connect(os::EventLoop* loop,
                                                     const std::string& address,
                                                     const std::string& token, Handler handler);
  virtual ~GangClient() = default;
  virtual void Send(const GangMessage& message) = 0;
};

}  // namespace ckpt::run
