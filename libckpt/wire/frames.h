// Frames between a rank and its ckpt-run over a Unix SEQPACKET socket: one datagram ≤
// kFrameBytesMax each, larger things as sealed memfds beside it. Encoding: u16 type, u16 version,
// u32 request id (0: none; an answer repeats it), then fields little-endian as ByteWriter puts
// them, in the order of the struct. Unknown trailing bytes are an error within a version; versions
// are negotiated in HELLO. docs/protocol.md is normative.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "libckpt/base/ids.h"
#include "libckpt/base/status.h"
#include "libckpt/format/types.h"

namespace ckpt::wire {

inline constexpr uint16_t kFrameVersion = 1;

// One answer of the capability report: a method is there, or the reason why not.
struct Capability {
  std::string method;  // checkpoint suspend park migrate transparent
  bool yes = false;
  std::string reason;
  bool operator==(const Capability&) const = default;
};

// rank → ckpt-run
// ---------------------------------------------------------------------------------------------------
struct Hello {
  std::string token, job;
  uint32_t rank = 0, world = 0, version_min = kFrameVersion, version_max = kFrameVersion;
  std::vector<Capability> methods;
};
struct Layout {  // fd 0: sealed memfd with RankLayout::Encode()
  uint64_t bytes = 0, hash = 0;
};
// The program wants a save at this boundary, its sequence-th one there, from 1 (all ranks ask for
// the same ones). Answer: Staging or Failed.
struct StagingGet {
  uint32_t boundary = 0, sequence = 0;
  bool wait = false;  // wait for a free slot instead of RESOURCE_EXHAUSTED
  int64_t deadline_boottime_ns = 0;
};
struct Sealed {
  uint32_t generation = 0, slot = 0, attempt = 0;
  int64_t step = 0;
};
struct StageFailed {
  uint32_t generation = 0, attempt = 0;
  uint32_t code = 0;
  std::string message;
};
struct CommsDown {  // after barrier 2: communicators are down, or why not
  uint64_t operation = 0;
  uint32_t round = 0, code = 0;
  std::string message;
};
struct CommsUp {  // after a roll back: communicators rebuilt and verified, or why not
  uint64_t operation = 0;
  uint32_t code = 0;
  std::string message;
};
struct Notice {  // a signal reached this rank
  uint32_t signal = 0;
};
struct KvSet {
  std::string scope, key, value;
};
struct KvWait {  // answer: KvValue or Failed
  std::string scope, key;
  int64_t deadline_boottime_ns = 0;
};
struct SaveQuery {  // answer: SaveState now, and again at each change of level
  uint32_t attempt = 0;
};
struct RestoreOpen {};  // answer: ReadMap…, one a region, the last with last=true
struct Restored {
  int64_t step = 0;
  uint32_t code = 0;
  std::string message;
};
struct Finished {};
struct Bye {};
struct Describe {};  // answer: Description

// ckpt-run → rank
// ---------------------------------------------------------------------------------------------------
enum class ResumeKind : uint32_t { kNone = 0, kRam = 1, kStore = 2 };
struct Welcome {  // fd 0: the control page
  uint32_t version = kFrameVersion;
  uint64_t epoch = 0;
  JobId job_id;
  ResumeKind resume = ResumeKind::kNone;
  AttemptId resume_from;
  std::string store;       // where a rank reads from itself
  uint64_t notice_id = 0;  // a notice that was waiting for this rank
};
// A staging slot, formatted and allocated (fd 0, once for each slot and layout), or a grant for
// StagingGet (no fd).
struct Staging {
  uint32_t slot = 0, generation = 0, attempt = 0;
  uint64_t bytes = 0;
};
struct BarrierReleased {  // B2 "staged": take communicators down; B3 "released": leave
  uint64_t operation = 0;
  uint32_t round = 0, barrier = 0;
};
struct RolledBack {  // run on; rebuild communicators first if they are down
  uint64_t operation = 0;
  uint32_t round = 0;
  bool rebuild = false;
  uint64_t rebuild_id = 0;  // number of the rebuild: scope of its key-value pairs
  std::string why;
};
struct KvValue {
  std::string value;
};
struct SaveState {
  uint32_t attempt = 0,
           level = 0;  // Level of ckpt.h: 0 none 1 staged(rank) 2 staged(gang) 3 durable(shared)
  uint64_t bytes_done = 0, bytes_total = 0;
  uint32_t code = 0;  // not 0: the save failed
  std::string message;
};
struct ReadMap {  // fd 0: a staging region of this node, to be mapped read-only
  uint32_t rank = 0;
  uint64_t bytes = 0;
  bool last = false;
};
struct Failed {  // the answer to a request that could not be met
  uint32_t code = 0;
  bool maybe_applied = false;
  std::string message;
};
struct Description {
  std::string json;
};

using Body = std::variant<Hello, Layout, StagingGet, Sealed, StageFailed, CommsDown, CommsUp,
                          Notice, KvSet, KvWait, SaveQuery, RestoreOpen, Restored, Finished, Bye,
                          Describe, Welcome, Staging, BarrierReleased, RolledBack, KvValue,
                          SaveState, ReadMap, Failed, Description>;
struct Frame {
  uint32_t request = 0;
  Body body;
};

// kInvalidArgument if it would not fit one datagram.
Result<std::string> EncodeFrame(const Frame& frame);
// kDataLoss for anything that is not a whole, known frame; kFailedPrecondition for another version.
Result<Frame> DecodeFrame(std::string_view datagram);
// For logs: "HELLO", "STAGING" …
std::string_view FrameName(const Body& body);

}  // namespace ckpt::wire
