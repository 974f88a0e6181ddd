#include "libckpt/wire/frames.h"

#include "libckpt/wire/fields.h"

namespace ckpt::wire {
namespace {

constexpr uint16_t kFirstType = 1;
constexpr size_t kTokenMax = 256, kJobMax = 128, kMethodMax = 32, kMethodsMax = 16;
constexpr size_t kMessageMax = 4096, kScopeMax = 256, kKeyMax = 512, kValueMax = 48 * 1024;
constexpr size_t kPathMax = 4096, kJsonMax = 60 * 1024;
constexpr uint64_t kCodeMax = 16, kRankMax = kRanksMax - 1, kSlotMax = kStagingSlotsMax - 1;
constexpr uint64_t kLevelMax = 3, kSignalMax = 64, kBarrierMax = 3;

}  // namespace

// Not in the unnamed namespace: they are found by the types of their arguments.

template <typename V>
void Fields(V& v, Hello& f) {
  v.String(f.token, kTokenMax);
  v.String(f.job, kJobMax);
  v.Number(f.rank, kRankMax);
  v.Number(f.world, kRanksMax);
  v.Number(f.version_min);
  v.Number(f.version_max);
  v.List(f.methods, kMethodsMax, 9, [&](Capability& method) {
    v.String(method.method, kMethodMax);
    v.Bool(method.yes);
    v.String(method.reason, kMessageMax);
  });
}
template <typename V>
void Fields(V& v, Layout& f) {
  v.Number(f.bytes);
  v.Number(f.hash);
}
template <typename V>
void Fields(V& v, StagingGet& f) {
  v.Number(f.boundary);
  v.Number(f.sequence);
  v.Bool(f.wait);
  v.Number(f.deadline_boottime_ns);
}
template <typename V>
void Fields(V& v, Sealed& f) {
  v.Number(f.generation);
  v.Number(f.slot, kSlotMax);
  v.Number(f.attempt);
  v.Number(f.step);
}
template <typename V>
void Fields(V& v, StageFailed& f) {
  v.Number(f.generation);
  v.Number(f.attempt);
  v.Number(f.code, kCodeMax);
  v.String(f.message, kMessageMax);
}
template <typename V>
void Fields(V& v, CommsDown& f) {
  v.Number(f.operation);
  v.Number(f.round);
  v.Number(f.code, kCodeMax);
  v.String(f.message, kMessageMax);
}
template <typename V>
void Fields(V& v, CommsUp& f) {
  v.Number(f.operation);
  v.Number(f.code, kCodeMax);
  v.String(f.message, kMessageMax);
}
template <typename V>
void Fields(V& v, Notice& f) {
  v.Number(f.signal, kSignalMax);
}
template <typename V>
void Fields(V& v, KvSet& f) {
  v.String(f.scope, kScopeMax);
  v.String(f.key, kKeyMax);
  v.String(f.value, kValueMax);
}
template <typename V>
void Fields(V& v, KvWait& f) {
  v.String(f.scope, kScopeMax);
  v.String(f.key, kKeyMax);
  v.Number(f.deadline_boottime_ns);
}
template <typename V>
void Fields(V& v, SaveQuery& f) {
  v.Number(f.attempt);
}
template <typename V>
void Fields(V&, RestoreOpen&) {}
template <typename V>
void Fields(V& v, Restored& f) {
  v.Number(f.step);
  v.Number(f.code, kCodeMax);
  v.String(f.message, kMessageMax);
}
template <typename V>
void Fields(V&, Finished&) {}
template <typename V>
void Fields(V&, Bye&) {}
template <typename V>
void Fields(V&, Describe&) {}
template <typename V>
void Fields(V& v, Welcome& f) {
  v.Number(f.version);
  v.Number(f.epoch);
  v.Id(f.job_id);
  v.Number(f.resume, static_cast<uint64_t>(ResumeKind::kStore));
  AttemptField(v, f.resume_from);
  v.String(f.store, kPathMax);
  v.Number(f.notice_id);
}
template <typename V>
void Fields(V& v, Staging& f) {
  v.Number(f.slot, kSlotMax);
  v.Number(f.generation);
  v.Number(f.attempt);
  v.Number(f.bytes);
}
template <typename V>
void Fields(V& v, BarrierReleased& f) {
  v.Number(f.operation);
  v.Number(f.round);
  v.Number(f.barrier, kBarrierMax);
}
template <typename V>
void Fields(V& v, RolledBack& f) {
  v.Number(f.operation);
  v.Number(f.round);
  v.Bool(f.rebuild);
  v.Number(f.rebuild_id);
  v.String(f.why, kMessageMax);
}
template <typename V>
void Fields(V& v, KvValue& f) {
  v.String(f.value, kValueMax);
}
template <typename V>
void Fields(V& v, SaveState& f) {
  v.Number(f.attempt);
  v.Number(f.level, kLevelMax);
  v.Number(f.bytes_done);
  v.Number(f.bytes_total);
  v.Number(f.code, kCodeMax);
  v.String(f.message, kMessageMax);
}
template <typename V>
void Fields(V& v, ReadMap& f) {
  v.Number(f.rank, kRankMax);
  v.Number(f.bytes);
  v.Bool(f.last);
}
template <typename V>
void Fields(V& v, Failed& f) {
  v.Number(f.code, kCodeMax);
  v.Bool(f.maybe_applied);
  v.String(f.message, kMessageMax);
}
template <typename V>
void Fields(V& v, Description& f) {
  v.String(f.json, kJsonMax);
}

Result<std::string> EncodeFrame(const Frame& frame) {
  return EncodeBody(kFirstType, kFrameVersion, frame.request, frame.body, FrameName(frame.body));
}

Result<Frame> DecodeFrame(std::string_view datagram) {
  Frame frame;
  CKPT_RETURN_IF_ERROR(
      DecodeBody(datagram, kFirstType, kFrameVersion, &frame.request, &frame.body));
  return frame;
}

std::string_view FrameName(const Body& body) {
  static constexpr std::string_view kNames[] = {
      "HELLO",      "LAYOUT",       "STAGING_GET", "SEALED",           "STAGE_FAILED",
      "COMMS_DOWN", "COMMS_UP",     "NOTICE",      "KV_SET",           "KV_WAIT",
      "SAVE_QUERY", "RESTORE_OPEN", "RESTORED",    "FINISHED",         "BYE",
      "DESCRIBE",   "WELCOME",      "STAGING",     "BARRIER_RELEASED", "ROLLED_BACK",
      "KV_VALUE",   "SAVE_STATE",   "READ_MAP",    "FAILED",           "DESCRIPTION"};
  static_assert(std::size(kNames) == std::variant_size_v<Body>);
  return kNames[body.index()];
}

}  // namespace ckpt::wire
