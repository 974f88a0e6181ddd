#include "coordinator/run/gang_codec.h"

#include <algorithm>

#include "coordinator/gang/messages.h"
#include "libckpt/base/limits.h"

namespace ckpt::run {
namespace {

void Put(const RamCopy& copy, v1::RamGeneration* out) {
  out->set_epoch(copy.id.epoch.value());
  out->set_attempt(copy.id.attempt.value());
  out->set_step(copy.id.step.value());
  out->set_gang_complete(copy.gang_complete);
  out->set_full(copy.full);
  out->set_durable(copy.durable);
  out->set_world(copy.world);
  for (const uint32_t rank : copy.ranks) out->add_ranks(rank);
}

RamCopy Get(const v1::RamGeneration& in) {
  RamCopy copy;
  copy.id = AttemptId{Epoch(in.epoch()), Step(in.step()), Attempt(in.attempt())};
  copy.gang_complete = in.gang_complete();
  copy.full = in.full();
  copy.durable = in.durable();
  copy.world = std::min(in.world(), kRanksMax);
  copy.ranks.assign(in.ranks().begin(), in.ranks().end());
  return copy;
}

struct Encoder {
  v1::GangMsg* out;

  void operator()(const JoinMsg& m) const {
    v1::GangJoin* join = out->mutable_join();
    join->set_job(m.job);
    join->set_node(m.node);
    join->set_node_rank(m.node_rank);
    join->set_nnodes(m.node_count);
    join->set_rank_count(m.rank_count);
    join->set_epoch(m.epoch);
    join->set_drain(m.drain);
    for (const RamCopy& copy : m.ram) Put(copy, join->add_ram());
  }
  void operator()(const WelcomeMsg& m) const {
    v1::GangWelcome* welcome = out->mutable_welcome();
    welcome->set_epoch(m.epoch);
    welcome->set_job_id(m.job_id.bytes.data(), m.job_id.bytes.size());
    welcome->set_world(m.world);
    welcome->set_first_rank(m.first_rank);
    welcome->set_error(m.error);
  }
  void operator()(const StartMsg& m) const {
    v1::GangStart* start = out->mutable_start();
    start->set_epoch(m.epoch);
    start->set_resume_kind(m.resume_kind);
    Put(m.resume_from, start->mutable_resume_from());
    start->set_master_addr(m.master_addr);
    start->set_master_port(m.master_port);
  }
  void operator()(const LayoutsMsg& m) const {
    out->mutable_layouts()->set_first_rank(m.first_rank);
    for (const std::string& layout : m.layouts) out->mutable_layouts()->add_layouts(layout);
  }
  void operator()(const PlanMsg& m) const {
    v1::GangPlan* plan = out->mutable_plan();
    plan->set_hash(m.hash);
    plan->set_first_rank(m.first_rank);
    plan->set_error(m.error);
    for (const std::string& piece : m.plans) plan->add_plans(piece);
  }
  void operator()(const MachineMsg& m) const { out->set_msg(m.bytes); }
  void operator()(const KvSetMsg& m) const {
    out->mutable_kv_set()->set_scope(m.scope);
    out->mutable_kv_set()->set_key(m.key);
    out->mutable_kv_set()->set_value(m.value);
  }
  void operator()(const KvWaitMsg& m) const {
    out->mutable_kv_wait()->set_id(m.id);
    out->mutable_kv_wait()->set_scope(m.scope);
    out->mutable_kv_wait()->set_key(m.key);
  }
  void operator()(const KvValueMsg& m) const {
    out->mutable_kv_value()->set_id(m.id);
    out->mutable_kv_value()->set_value(m.value);
  }
  void operator()(const PrepareMsg&) const { out->mutable_prepare(); }
  void operator()(const ReadyMsg& m) const {
    out->mutable_ready()->set_slots(m.slots);
    out->mutable_ready()->set_error(m.error);
    out->mutable_ready()->set_stage_bytes(m.stage_bytes);
  }
  void operator()(const NoticeMsg& m) const {
    v1::GangNotice* notice = out->mutable_notice();
    notice->set_operation(m.operation);
    notice->set_request(m.request);
    notice->set_left_ns(m.left_ns);
    notice->set_hard(m.hard);
    notice->set_source(m.source);
  }
  void operator()(const RestoredMsg& m) const {
    out->mutable_restored()->set_rank(m.rank);
    out->mutable_restored()->set_step(m.step);
    out->mutable_restored()->set_code(m.code);
    out->mutable_restored()->set_message(m.message);
  }
  void operator()(const OutcomeMsg& m) const {
    out->mutable_outcome()->set_exit_code(m.exit_code);
    out->mutable_outcome()->set_message(m.message);
  }
  void operator()(const DrainMsg& m) const {
    Put(RamCopy{.id = m.id, .ranks = m.ranks}, out->mutable_drain()->mutable_copy());
  }
  void operator()(const DrainedMsg& m) const {
    v1::GangDrained* drained = out->mutable_drained();
    drained->set_code(m.code);
    drained->set_message(m.message);
    drained->set_payload(m.payload);
    for (const std::string& layout : m.layouts) drained->add_layouts(layout);
  }
};

Result<GangBody> DecodeJoin(const v1::GangJoin& in) {
  if (in.nnodes() > kMembersMax || in.node_rank() >= in.nnodes() || in.rank_count() == 0 ||
      in.rank_count() > kRanksMax) {
    return InvalidArgument("a join of node " + std::to_string(in.node_rank()) + " of " +
                           std::to_string(in.nnodes()) + " with " +
                           std::to_string(in.rank_count()) + " ranks");
  }
  JoinMsg join{.job = in.job(),
               .node = in.node(),
               .node_rank = in.node_rank(),
               .node_count = in.nnodes(),
               .rank_count = in.rank_count(),
               .epoch = in.epoch(),
               .ram = {},
               .drain = in.drain()};
  for (const v1::RamGeneration& copy : in.ram()) join.ram.push_back(Get(copy));
  return GangBody(std::move(join));
}

Result<GangBody> DecodeWelcome(const v1::GangWelcome& in) {
  WelcomeMsg welcome{
      .epoch = in.epoch(), .world = in.world(), .first_rank = in.first_rank(), .error = in.error()};
  if (in.job_id().size() != welcome.job_id.bytes.size() || in.world() > kRanksMax) {
    return InvalidArgument("a gang welcome without a job id or with an impossible world");
  }
  std::copy(in.job_id().begin(), in.job_id().end(), welcome.job_id.bytes.begin());
  return GangBody(std::move(welcome));
}

Result<GangBody> DecodeStart(const v1::GangStart& in) {
  if (in.master_port() > 65535 || in.resume_kind() > 2) {
    return InvalidArgument("a gang start with an impossible port or resume kind");
  }
  return GangBody(StartMsg{in.epoch(), in.resume_kind(), Get(in.resume_from()), in.master_addr(),
                           in.master_port()});
}

Result<GangBody> DecodeBody(const v1::GangMsg& in) {
  switch (in.kind_case()) {
    case v1::GangMsg::kJoin:
      return DecodeJoin(in.join());
    case v1::GangMsg::kWelcome:
      return DecodeWelcome(in.welcome());
    case v1::GangMsg::kStart:
      return DecodeStart(in.start());
    case v1::GangMsg::kLayouts:
      return GangBody(LayoutsMsg{in.layouts().first_rank(),
                                 {in.layouts().layouts().begin(), in.layouts().layouts().end()}});
    case v1::GangMsg::kPlan:
      return GangBody(PlanMsg{in.plan().hash(),
                              in.plan().first_rank(),
                              {in.plan().plans().begin(), in.plan().plans().end()},
                              in.plan().error()});
    case v1::GangMsg::kMsg:
      return GangBody(MachineMsg{in.msg()});
    case v1::GangMsg::kKvSet:
      return GangBody(KvSetMsg{in.kv_set().scope(), in.kv_set().key(), in.kv_set().value()});
    case v1::GangMsg::kKvWait:
      return GangBody(KvWaitMsg{in.kv_wait().id(), in.kv_wait().scope(), in.kv_wait().key()});
    case v1::GangMsg::kKvValue:
      return GangBody(KvValueMsg{in.kv_value().id(), in.kv_value().value()});
    case v1::GangMsg::kPrepare:
      return GangBody(PrepareMsg{});
    case v1::GangMsg::kReady:
      return GangBody(ReadyMsg{in.ready().slots(), in.ready().error(), in.ready().stage_bytes()});
    case v1::GangMsg::kNotice:
      return GangBody(NoticeMsg{in.notice().operation(), in.notice().request(),
                                std::min(in.notice().left_ns(), gang::kLeftNsMax),
                                in.notice().hard(), in.notice().source()});
    case v1::GangMsg::kRestored:
      return GangBody(RestoredMsg{in.restored().rank(), in.restored().step(), in.restored().code(),
                                  in.restored().message()});
    case v1::GangMsg::kOutcome:
      return GangBody(OutcomeMsg{in.outcome().exit_code(), in.outcome().message()});
    case v1::GangMsg::kDrain:
      return GangBody(DrainMsg{Get(in.drain().copy()).id, Get(in.drain().copy()).ranks});
    case v1::GangMsg::kDrained:
      return GangBody(DrainedMsg{in.drained().code(),
                                 in.drained().message(),
                                 in.drained().payload(),
                                 {in.drained().layouts().begin(), in.drained().layouts().end()}});
    case v1::GangMsg::KIND_NOT_SET:
      break;
  }
  return InvalidArgument("a gang message of a kind that this version does not know");
}

}  // namespace

v1::GangMsg ToProto(const GangMessage& message) {
  v1::GangMsg out;
  out.set_launch(message.launch);
  std::visit(Encoder{&out}, message.body);
  return out;
}

Result<GangMessage> FromProto(const v1::GangMsg& in) {
  CKPT_ASSIGN_OR_RETURN(GangBody body, DecodeBody(in));
  return GangMessage{in.launch(), std::move(body)};
}

}  // namespace ckpt::run
