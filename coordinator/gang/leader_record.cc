// The leader's record in bytes: what it stores in its page before it says anything.
#include "coordinator/gang/enum_bytes.h"
#include "coordinator/gang/leader_impl.h"
#include "libckpt/base/bytes.h"

namespace ckpt::gang {
namespace {

constexpr uint32_t kRecordFormat = 2;

void PutCommand(ByteWriter* out, const Command& command) {
  out->Put(command.operation);
  PutEnum(out, command.request);
  out->Put(command.deadline_ns).PutBool(command.hard).PutString(command.source);
  out->PutArray(std::span<const uint32_t>(command.ranks));
  out->Put(command.noticed_ns);
}
Command GetCommand(ByteReader* in) {
  Command command;
  command.operation = in->Get<uint64_t>();
  command.request = GetEnum(in, Request::kKill);
  command.deadline_ns = in->Get<int64_t>();
  command.hard = GetBit(in);
  command.source = in->GetString();
  command.ranks = in->GetArray<uint32_t>();
  command.noticed_ns = in->Get<int64_t>();
  return command;
}

void PutGeneration(ByteWriter* out, const LeaderGeneration& gen) {
  out->Put(gen.generation).Put(gen.attempt).Put(gen.slot).Put(gen.operation);
  PutEnum(out, gen.request);
  out->Put(gen.step);
  PutEnum(out, gen.state);
  out->PutBool(gen.full).PutBool(gen.aborted).Put(gen.fill_deadline_ns);
  out->Put(gen.boundary).Put(gen.captured_ns);
}
LeaderGeneration GetGeneration(ByteReader* in) {
  LeaderGeneration gen;
  gen.generation = in->Get<uint32_t>();
  gen.attempt = in->Get<uint32_t>();
  gen.slot = in->Get<uint32_t>();
  gen.operation = in->Get<uint64_t>();
  gen.request = GetEnum(in, Request::kKill);
  gen.step = in->Get<int64_t>();
  gen.state = GetEnum(in, LeaderGeneration::State::kDropping);
  gen.full = GetBit(in);
  gen.aborted = GetBit(in);
  gen.fill_deadline_ns = in->Get<int64_t>();
  gen.boundary = in->Get<uint32_t>();
  gen.captured_ns = in->Get<int64_t>();
  return gen;
}

void PutAnswer(ByteWriter* out, const SaveAnswer& answer) {
  out->Put(answer.save.first)
      .Put(answer.save.second)
      .Put(answer.generation)
      .Put(answer.slot)
      .Put(answer.attempt);
  out->Put(answer.code).PutString(answer.text);
}
SaveAnswer GetAnswer(ByteReader* in) {
  SaveAnswer answer;
  answer.save.first = in->Get<uint32_t>();
  answer.save.second = in->Get<uint32_t>();
  answer.generation = in->Get<uint32_t>();
  answer.slot = in->Get<uint32_t>();
  answer.attempt = in->Get<uint32_t>();
  answer.code = in->Get<int32_t>();
  answer.text = in->GetString();
  return answer;
}

void PutDone(ByteWriter* out, const DoneOperation& done) {
  out->Put(done.operation);
  PutEnum(out, done.request);
  PutEnum(out, done.phase);
  out->Put(done.code).PutString(done.text).Put(done.attempt).Put(done.generation).Put(done.step);
}
DoneOperation GetDone(ByteReader* in) {
  DoneOperation done;
  done.operation = in->Get<uint64_t>();
  done.request = GetEnum(in, Request::kKill);
  done.phase = GetEnum(in, OpPhase::kTooLate);
  done.code = in->Get<int32_t>();
  done.text = in->GetString();
  done.attempt = in->Get<uint32_t>();
  done.generation = in->Get<uint32_t>();
  done.step = in->Get<int64_t>();
  return done;
}

template <typename T, typename Put>
void PutAll(ByteWriter* out, const std::vector<T>& all, Put put) {
  out->Put<uint32_t>(static_cast<uint32_t>(all.size()));
  for (const T& each : all) put(out, each);
}
template <typename T, typename Get>
void GetAll(ByteReader* in, std::vector<T>* all, Get get) {
  const uint32_t count = in->GetCount(16);
  for (uint32_t i = 0; i < count && !in->failed(); ++i) all->push_back(get(in));
}

}  // namespace

std::string LeaderRecord::Encode() const {
  ByteWriter out;
  out.Put(kRecordFormat).Put(incarnation).Put(round).Put(attempt).Put(generation).Put(rebuild);
  out.Put(operation);
  PutEnum(&out, stage);
  PutEnum(&out, decision);
  PutEnum(&out, kind);
  out.Put(op_attempt).Put(op_generation).Put(op_slot).Put(cut).Put(rounds).Put(op_rebuild);
  out.Put(step).Put(deadline_ns).Put(cut_deadline_ns);
  out.Put<int32_t>(static_cast<int32_t>(back_code)).PutString(back_text);
  out.PutBool(void_round).PutBool(ended).PutBool(released).PutBool(finished).PutBool(hurry);
  out.Put(started_ns).Put(extension).Put(noticed_ns);
  PutAll(&out, commands, PutCommand);
  PutAll(&out, queued, PutCommand);
  PutAll(&out, generations, PutGeneration);
  PutAll(&out, answers, PutAnswer);
  PutAll(&out, done, PutDone);
  return std::move(out).Take();
}

Result<LeaderRecord> LeaderRecord::Decode(std::string_view bytes) {
  ByteReader in(bytes);
  LeaderRecord r;
  if (in.Get<uint32_t>() != kRecordFormat) in.Fail();
  r.incarnation = in.Get<uint32_t>();
  r.round = in.Get<uint32_t>();
  r.attempt = in.Get<uint32_t>();
  r.generation = in.Get<uint32_t>();
  r.rebuild = in.Get<uint64_t>();
  r.operation = in.Get<uint64_t>();
  r.stage = GetEnum(&in, Stage::kMarking);
  r.decision = GetEnum(&in, Decision::kEnd);
  r.kind = GetEnum(&in, Kind::kSave);
  for (uint32_t* field : {&r.op_attempt, &r.op_generation, &r.op_slot, &r.cut, &r.rounds}) {
    *field = in.Get<uint32_t>();
  }
  r.op_rebuild = in.Get<uint64_t>();
  r.step = in.Get<int64_t>();
  r.deadline_ns = in.Get<int64_t>();
  r.cut_deadline_ns = in.Get<int64_t>();
  const int32_t code = in.Get<int32_t>();
  if (code < 0 || code > static_cast<int32_t>(Code::kUnauthenticated)) in.Fail();
  r.back_code = static_cast<Code>(code);
  r.back_text = in.GetString();
  for (bool* bit : {&r.void_round, &r.ended, &r.released, &r.finished, &r.hurry}) {
    *bit = GetBit(&in);
  }
  r.started_ns = in.Get<int64_t>();
  r.extension = in.Get<uint32_t>();
  r.noticed_ns = in.Get<int64_t>();
  GetAll(&in, &r.commands, GetCommand);
  GetAll(&in, &r.queued, GetCommand);
  GetAll(&in, &r.generations, GetGeneration);
  GetAll(&in, &r.answers, GetAnswer);
  GetAll(&in, &r.done, GetDone);
  CKPT_RETURN_IF_ERROR(in.Finish("the leader's record"));
  return r;
}

}  // namespace ckpt::gang
