#include "coordinator/gang/messages.h"

#include <algorithm>

#include "coordinator/gang/enum_bytes.h"
#include "libckpt/base/bytes.h"
#include "libckpt/base/limits.h"

namespace ckpt::gang {
namespace {

constexpr uint8_t kFormat = 2;

bool IsType(uint8_t value) { return (value >= 1 && value <= 9) || (value >= 20 && value <= 23); }

}  // namespace

Code CodeOf(int32_t code) {
  const bool known = code >= 0 && code <= static_cast<int32_t>(Code::kUnauthenticated);
  return known ? static_cast<Code>(code) : Code::kInternal;
}

std::string Encode(const Msg& msg) {
  ByteWriter out;
  out.Put<uint8_t>(kFormat);
  PutEnum(&out, msg.type);
  out.Put(msg.from).Put(msg.operation).Put(msg.round).Put(msg.attempt).Put(msg.generation);
  out.Put(msg.slot).Put(msg.cut).Put(msg.boundary).Put(msg.sequence).Put(msg.rank);
  out.Put(msg.extension);
  PutEnum(&out, msg.kind);
  PutEnum(&out, msg.request);
  PutEnum(&out, msg.decision);
  PutEnum(&out, msg.vote);
  PutEnum(&out, msg.fact);
  out.Put(msg.step);
  for (const int64_t left_ns : {msg.left_ns, msg.total_ns}) {
    out.Put(std::clamp(left_ns, -kLeftNsMax, kLeftNsMax));
  }
  out.Put(msg.number).Put(msg.code);
  out.PutString(msg.text).PutString(msg.payload);
  out.Put<uint32_t>(static_cast<uint32_t>(msg.places.size()));
  for (const Place& place : msg.places) {
    out.Put(place.rank).Put(place.boundary).PutBool(place.finished);
  }
  out.PutArray(std::span<const uint64_t>(msg.numbers));
  return std::move(out).Take();
}

Result<Msg> Decode(std::string_view bytes) {
  ByteReader in(bytes);
  Msg msg;
  if (in.Get<uint8_t>() != kFormat) in.Fail();
  const uint8_t type = in.Get<uint8_t>();
  if (!IsType(type)) in.Fail();
  msg.type = static_cast<MsgType>(type);
  msg.from = in.Get<uint32_t>();
  msg.operation = in.Get<uint64_t>();
  for (uint32_t* field : {&msg.round, &msg.attempt, &msg.generation, &msg.slot, &msg.cut,
                          &msg.boundary, &msg.sequence, &msg.rank, &msg.extension}) {
    *field = in.Get<uint32_t>();
  }
  msg.kind = GetEnum(&in, Kind::kSave);
  msg.request = GetEnum(&in, Request::kKill);
  msg.decision = GetEnum(&in, Decision::kEnd);
  msg.vote = GetEnum(&in, Vote::kForward);
  msg.fact = GetEnum(&in, FactKind::kLate);
  msg.step = in.Get<int64_t>();
  for (int64_t* left_ns : {&msg.left_ns, &msg.total_ns}) {
    *left_ns = in.Get<int64_t>();
    if (*left_ns < -kLeftNsMax || *left_ns > kLeftNsMax) in.Fail();
  }
  msg.number = in.Get<uint64_t>();
  msg.code = in.Get<int32_t>();
  msg.text = in.GetString(kMsgPayloadBytesMax);
  msg.payload = in.GetString(kMsgPayloadBytesMax);
  const uint32_t places = in.GetCount(9);
  for (uint32_t i = 0; i < places && !in.failed(); ++i) {
    Place place;
    place.rank = in.Get<uint32_t>();
    place.boundary = in.Get<uint32_t>();
    const uint8_t finished = in.Get<uint8_t>();
    if (finished > 1 || place.rank >= kRanksMax) in.Fail();
    place.finished = finished == 1;
    msg.places.push_back(place);
  }
  msg.numbers = in.GetArray<uint64_t>();
  CKPT_RETURN_IF_ERROR(in.Finish("gang message"));
  return msg;
}

std::string_view Name(MsgType type) {
  switch (type) {
    case MsgType::kAsk:
      return "ask";
    case MsgType::kPropose:
      return "propose";
    case MsgType::kCommit:
      return "commit";
    case MsgType::kWithdraw:
      return "withdraw";
    case MsgType::kDecision:
      return "decision";
    case MsgType::kSaveAnswer:
      return "save-answer";
    case MsgType::kGeneration:
      return "generation";
    case MsgType::kDrop:
      return "drop";
    case MsgType::kAck:
      return "ack";
    case MsgType::kPlaces:
      return "places";
    case MsgType::kVote:
      return "vote";
    case MsgType::kDropped:
      return "dropped";
    case MsgType::kFact:
      return "fact";
  }
  return "?";
}

std::string_view Name(Decision decision) {
  switch (decision) {
    case Decision::kNone:
      return "none";
    case Decision::kStage:
      return "stage";
    case Decision::kCommsDown:
      return "comms-down";
    case Decision::kRelease:
      return "release";
    case Decision::kBack:
      return "back";
    case Decision::kUp:
      return "up";
    case Decision::kEnd:
      return "end";
  }
  return "?";
}

std::string_view Name(Vote vote) {
  switch (vote) {
    case Vote::kNone:
      return "none";
    case Vote::kAccepted:
      return "accepted";
    case Vote::kRefused:
      return "refused";
    case Vote::kQuiesced:
      return "quiesced";
    case Vote::kSealed:
      return "sealed";
    case Vote::kCommsDown:
      return "comms-down";
    case Vote::kReleased:
      return "released";
    case Vote::kFailed:
      return "failed";
    case Vote::kBack:
      return "back";
    case Vote::kCommsUp:
      return "comms-up";
    case Vote::kForward:
      return "forward";
  }
  return "?";
}

std::string_view Name(FactKind fact) {
  switch (fact) {
    case FactKind::kNone:
      return "none";
    case FactKind::kExited:
      return "exited";
    case FactKind::kFinished:
      return "finished";
    case FactKind::kWantsSave:
      return "wants-save";
    case FactKind::kSealed:
      return "sealed";
    case FactKind::kStageFailed:
      return "stage-failed";
    case FactKind::kShards:
      return "shards";
    case FactKind::kReleased:
      return "released";
    case FactKind::kPhase:
      return "phase";
    case FactKind::kLate:
      return "late";
  }
  return "?";
}

std::string_view Name(Request request) {
  switch (request) {
    case Request::kNone:
      return "none";
    case Request::kSave:
      return "save";
    case Request::kSuspend:
      return "suspend";
    case Request::kPark:
      return "park";
    case Request::kMigrate:
      return "migrate";
    case Request::kKill:
      return "kill";
  }
  return "?";
}

std::string ToString(const Msg& msg) {
  std::string line(Name(msg.type));
  const auto add = [&line](std::string_view name, int64_t value) {
    if (value != 0) line.append(" ").append(name).append(" ").append(std::to_string(value));
  };
  if (msg.decision != Decision::kNone) line.append(" ").append(Name(msg.decision));
  if (msg.vote != Vote::kNone) line.append(" ").append(Name(msg.vote));
  if (msg.fact != FactKind::kNone) line.append(" ").append(Name(msg.fact));
  if (msg.type == MsgType::kPropose) line.append(msg.kind == Kind::kSave ? " save" : " stop");
  add("op", static_cast<int64_t>(msg.operation));
  add("round", msg.round);
  add("cut", msg.cut);
  add("boundary", msg.boundary);
  add("save", msg.sequence);
  add("attempt", msg.attempt);
  add("generation", msg.generation);
  if (msg.type == MsgType::kPropose || msg.type == MsgType::kSaveAnswer) {
    line.append(" slot ").append(std::to_string(msg.slot));
  }
  if (msg.type == MsgType::kFact) line.append(" rank ").append(std::to_string(msg.rank));
  add("step", msg.step);
  add("number", static_cast<int64_t>(msg.number));
  add("code", msg.code);
  for (const Place& place : msg.places) {
    line.append(" ").append(std::to_string(place.rank)).append("@");
    line.append(place.finished ? "finished" : std::to_string(place.boundary));
  }
  if (!msg.text.empty()) line.append(" \"").append(msg.text).append("\"");
  return line;
}

}  // namespace ckpt::gang
