#include "libckpt/wire/agent_frames.h"

#include "libckpt/wire/fields.h"

namespace ckpt::wire {
namespace {

constexpr uint16_t kFirstType = 0x100;
constexpr size_t kJobMax = 128, kTokenMax = 256, kMessageMax = 60 * 1024;
constexpr uint64_t kRankMax = kRanksMax - 1, kSlotMax = kStagingSlotsMax - 1;

}  // namespace

// Not in the unnamed namespace: they are found by the types of their arguments.

template <typename V>
void Fields(V& v, Attach& f) {
  v.String(f.job, kJobMax);
  v.Id(f.job_id);
  v.Number(f.epoch);
  v.Number(f.node_rank, kMembersMax - 1);
  v.Number(f.pid, INT32_MAX);
  v.String(f.token, kTokenMax);
  v.List(f.fds, kFrameFdsMax, 28, [&](AttachedFd& fd) {
    v.Number(fd.kind, static_cast<uint64_t>(AttachedKind::kRankPidfd));
    v.Check(fd.kind >= AttachedKind::kStaging);
    v.Number(fd.rank, kRankMax);
    v.Number(fd.slot, kSlotMax);
    v.Number(fd.bytes);
    v.Number(fd.pid, INT32_MAX);
  });
  v.Bool(f.last);
}
template <typename V>
void Fields(V& v, Detach& f) {
  v.String(f.job, kJobMax);
  v.Number(f.epoch);
  v.Number(f.rank, kRankMax);
  v.Number(f.slot, kSlotMax);
}
template <typename V>
void Fields(V& v, Report& f) {
  v.String(f.message, kMessageMax);
}
template <typename V>
void Fields(V& v, Command& f) {
  v.String(f.message, kMessageMax);
}
template <typename V>
void Fields(V& v, Adopt& f) {
  v.String(f.job, kJobMax);
  v.List(f.fds, kFrameFdsMax, 36, [&](AdoptedFd& fd) {
    v.Number(fd.rank, kRankMax);
    v.Number(fd.slot, kSlotMax);
    v.Number(fd.bytes);
    AttemptField(v, fd.id);
  });
  v.Bool(f.last);
}

Result<std::string> EncodeAgentFrame(const AgentFrame& frame) {
  return EncodeBody(kFirstType, kAgentFrameVersion, frame.request, frame.body,
                    AgentFrameName(frame.body));
}

Result<AgentFrame> DecodeAgentFrame(std::string_view datagram) {
  AgentFrame frame;
  CKPT_RETURN_IF_ERROR(
      DecodeBody(datagram, kFirstType, kAgentFrameVersion, &frame.request, &frame.body));
  return frame;
}

std::string_view AgentFrameName(const AgentBody& body) {
  static constexpr std::string_view kNames[] = {"ATTACH", "DETACH", "REPORT", "COMMAND", "ADOPT"};
  static_assert(std::size(kNames) == std::variant_size_v<AgentBody>);
  return kNames[body.index()];
}

size_t AgentFrameFdCount(const AgentBody& body) {
  if (const auto* attach = std::get_if<Attach>(&body)) return attach->fds.size();
  if (const auto* adopt = std::get_if<Adopt>(&body)) return adopt->fds.size();
  return 0;
}

}  // namespace ckpt::wire
