// Frames between a ckpt-run and the agent of its node, on the agent's own socket. Framing as in
// frames.h (u16 type, u16 version, u32 request, fields), types from 0x100. docs/protocol.md is
// normative.
//
//   ckpt-run                                  agent
//   Attach{identity, no descriptors, last} →                      first frame of a connection
//                                           ← Adopt{…} …          last one has last=true, maybe
//                                           empty
//   Attach{staging, pages, pidfds} →                              whenever there are new ones
//   Detach{rank, slot} →                                          a slot that ckpt-run gave up
//   Report{AgentMsg} →                                            full snapshot, after each change
//                                           ← Command{CoordinatorMsg}
//   Report{AgentMsg: CommandResult} →                             answers the command's request
//   number
//
// I1  Descriptor i of a datagram belongs to entry i of its list; more than kFrameFdsMax go in
//     several frames of the same kind, each complete in itself.
// I2  Attach names (job, epoch, rank, slot): one that comes again replaces the older descriptor.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "libckpt/base/ids.h"
#include "libckpt/base/status.h"

namespace ckpt::wire {

inline constexpr uint16_t kAgentFrameVersion = 1;

enum class AttachedKind : uint32_t {
  kStaging = 1,    // sealed memfd with an engine::StagingRegion
  kPage = 2,       // control page of a rank
  kRankPidfd = 3,  // pidfd of a rank, `pid` its number
};

struct AttachedFd {
  AttachedKind kind = AttachedKind::kStaging;
  uint32_t rank = 0;
  uint32_t slot = 0;   // staging only
  uint64_t bytes = 0;  // staging and page: the sealed size
  int64_t pid = 0;     // pidfd only
  bool operator==(const AttachedFd&) const = default;
};

struct Attach {
  std::string job;
  JobId job_id;  // zero until the store's is known
  uint64_t epoch = 0;
  uint32_t node_rank = 0;
  int64_t pid = 0;    // of the ckpt-run
  std::string token;  // of the launch (CKPT_TOKEN_FILE's content)
  std::vector<AttachedFd> fds;
  bool last = true;  // of a batch
};

struct Detach {
  std::string job;
  uint64_t epoch = 0;
  uint32_t rank = 0;
  uint32_t slot = 0;
};

struct Report {
  std::string message;  // ckpt.v1.AgentMsg with `job` or `result`
};

struct Command {
  std::string message;  // ckpt.v1.CoordinatorMsg with `stop`, `save`
};

// Regions of older epochs of this job that are held on this node, gang-complete as far as known.
struct AdoptedFd {
  uint32_t rank = 0;
  uint32_t slot = 0;
  uint64_t bytes = 0;
  AttemptId id;  // as the region's header says
  bool operator==(const AdoptedFd&) const = default;
};

struct Adopt {
  std::string job;
  std::vector<AdoptedFd> fds;
  bool last = true;
};

using AgentBody = std::variant<Attach, Detach, Report, Command, Adopt>;
struct AgentFrame {
  uint32_t request = 0;
  AgentBody body;
};

// As EncodeFrame and DecodeFrame.
Result<std::string> EncodeAgentFrame(const AgentFrame& frame);
Result<AgentFrame> DecodeAgentFrame(std::string_view datagram);
std::string_view AgentFrameName(const AgentBody& body);
// How many descriptors must come with it.
size_t AgentFrameFdCount(const AgentBody& body);

}  // namespace ckpt::wire
