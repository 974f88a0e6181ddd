#include "coordinator/run/report.h"

#include "ckpt/v1/agent.pb.h"

namespace ckpt::run {
namespace {

constexpr size_t kCopiesMax = 4;

v1::NodeJobState StateOf(const ReportInput& in, const NodeStatus& status) {
  if (in.node->preparing()) return v1::NODE_JOB_STARTING;
  if (status.released) {
    if (status.phase == "released") return v1::NODE_JOB_RELEASED;
    return status.all_finished && !status.failed ? v1::NODE_JOB_FINISHED : v1::NODE_JOB_FAILED;
  }
  if (status.phase != "running" && status.phase != "starting") return v1::NODE_JOB_STOPPING;
  return status.running ? v1::NODE_JOB_RUNNING : v1::NODE_JOB_STARTING;
}

void AddCopies(const ReportInput& in, v1::JobReport* out) {
  const NodeLaunch* launch = in.node->current();
  const LeaderLaunch* leader = in.leader == nullptr ? nullptr : in.leader->current();
  std::vector<RamCopy> copies = launch->copies();
  size_t count = 0;
  for (auto it = copies.rbegin(); it != copies.rend() && count < kCopiesMax; ++it, ++count) {
    v1::CopyState* copy = out->add_copies();
    const uint32_t attempt = it->id.attempt.value();
    copy->set_epoch(it->id.epoch.value());
    copy->set_attempt(attempt);
    copy->set_step(it->id.step.value());
    copy->set_staged_gang(it->gang_complete);
    copy->set_durable(it->durable);
    uint64_t bytes = 0;
    for (const SlotPtr& slot : launch->slots()) {
      if (slot->region().info().id == it->id) bytes += slot->staged_bytes();
    }
    if (leader != nullptr && it->full) bytes = std::max(bytes, leader->stage_bytes());
    copy->set_bytes(bytes);
    const WriteProgress drain = launch->progress(attempt);
    copy->set_bytes_durable(it->durable ? bytes : drain.bytes_done);
    copy->set_bytes_to_write(it->durable ? bytes : drain.bytes_total);
    if (out->held_up().empty()) out->set_held_up(drain.trouble);
    if (leader == nullptr) continue;
    const auto failed = leader->not_durable().find(attempt);
    if (failed != leader->not_durable().end()) copy->set_failure(failed->second);
  }
}

void AddTimes(const ReportInput& in, const NodeStatus& status, v1::PhaseTimes* out) {
  out->set_stall_ns(status.stall_ns);
  out->set_released_ns(status.released_ns);
  if (status.stall_ns != 0) {
    out->set_staged_bytes(status.stage_bytes);
    out->set_memcpy_ratio(in.memcpy_ratio);
  }
  const LeaderLaunch* leader = in.leader == nullptr ? nullptr : in.leader->current();
  if (leader == nullptr) return;
  const LaunchTimes& times = leader->times();
  out->set_noticed_ns(times.noticed_ns);
  out->set_cut_ns(times.cut_ns);
  out->set_staged_ns(times.staged_ns);
  out->set_comms_down_ns(times.comms_down_ns);
  out->set_durable_ns(times.durable_ns);
  if (times.released_ns != 0) out->set_released_ns(times.released_ns);
  if (times.staged_ns != 0) out->set_staged_bytes(leader->stage_bytes());
}

void AddLaunch(const ReportInput& in, v1::JobReport* out) {
  const NodeLaunch* launch = in.node->current();
  const NodeStatus status = launch->status();
  out->set_state(StateOf(in, status));
  out->set_message(status.failure);
  out->set_step(status.step);
  out->set_step_seconds(static_cast<double>(status.step_time_ns) / 1e9);
  out->set_state_bytes(status.stage_bytes);
  out->set_first_step_ns(status.first_step_ns);
  out->set_staging_done(status.staging_done);
  out->set_staging_total(status.staging_total);
  for (const wire::Capability& method : status.methods) {
    v1::Method* line = out->add_methods();
    line->set_name(method.method);
    line->set_yes(method.yes);
    line->set_reason(method.reason);
  }
  for (const auto& [rank, pidfd] : launch->processes()) out->add_rank_pids(pidfd->pid());
  AddTimes(in, status, out->mutable_times());
  AddCopies(in, out);
}

void AddLeader(const ReportInput& in, v1::JobReport* out) {
  out->set_gang_address(in.gang_address);
  out->set_resumed_from(in.leader->resumed_from());
  out->set_behind(in.leader->behind());
  const LeaderLaunch* launch = in.leader->current();
  if (launch == nullptr) return;
  if (launch->agent_stop() != 0) out->set_op_id(launch->agent_stop());
  if (!launch->save_refusal().empty()) {
    out->set_refused_save(launch->agent_save());
    out->set_save_refusal(launch->save_refusal());
  }
  if (!launch->refusal().empty()) {
    out->set_suspend_failed(true);
    if (out->message().empty()) out->set_message(launch->refusal());  // else how it ended
  }
  if (out->message().empty()) out->set_message(launch->notice_text());
  if (const std::string held_up = launch->held_up(); !held_up.empty()) out->set_held_up(held_up);
  if (!launch->notice_text().empty()) out->set_held_up(launch->notice_text());
}

}  // namespace

std::string MakeReport(const ReportInput& in) {
  const Options& options = in.services->options;
  v1::AgentMsg msg;
  v1::JobReport* out = msg.mutable_job();
  const uint64_t claimed = in.node->welcome() ? in.node->welcome()->epoch : 0;
  out->set_job(options.job);
  out->set_epoch(options.epoch != 0 ? options.epoch : claimed);
  if (claimed > options.epoch) out->set_claimed_epoch(claimed);
  out->set_node_rank(options.node_rank);
  out->set_op_id(options.operation);
  out->set_state(v1::NODE_JOB_STARTING);
  if (in.node->welcome()) {
    const JobId& id = in.node->welcome()->job_id;
    out->set_job_id(id.bytes.data(), id.bytes.size());
  }
  if (in.node->current() != nullptr) AddLaunch(in, out);
  if (in.leader != nullptr) AddLeader(in, out);
  const bool over = in.exit_code == 1 || in.exit_code == 2;
  if (over && (in.node->current() == nullptr || in.node->current()->released())) {
    out->set_state(v1::NODE_JOB_FAILED);
  }
  if (!in.message.empty() && out->message().empty()) out->set_message(in.message);
  return msg.SerializeAsString();
}

std::string MakeDrainReport(const Services& services, const DrainNode& node,
                            const std::string& gang_address, const std::string& message) {
  v1::AgentMsg msg;
  v1::JobReport* out = msg.mutable_job();
  const Options& options = services.options;
  out->set_job(options.job);
  out->set_epoch(options.epoch);
  out->set_node_rank(options.node_rank);
  out->set_op_id(options.operation);
  out->set_state(v1::NODE_JOB_RELEASED);
  out->set_gang_address(gang_address);
  out->set_message(message);
  if (!node.job_id().IsZero()) {
    out->set_job_id(node.job_id().bytes.data(), node.job_id().bytes.size());
  }
  const std::vector<RamCopy> copies = node.copies();
  size_t count = 0;
  for (auto it = copies.rbegin(); it != copies.rend() && count < kCopiesMax; ++it, ++count) {
    v1::CopyState* copy = out->add_copies();
    copy->set_epoch(it->id.epoch.value());
    copy->set_attempt(it->id.attempt.value());
    copy->set_step(it->id.step.value());
    copy->set_staged_gang(it->gang_complete);
    copy->set_durable(it->durable);
    uint64_t bytes = 0;
    for (const SlotPtr& slot : node.slots()) {
      if (slot->region().info().id == it->id) bytes += slot->staged_bytes();
    }
    copy->set_bytes(bytes);
    const WriteProgress drain = node.progress(it->id.attempt.value());
    copy->set_bytes_durable(it->durable ? bytes : drain.bytes_done);
    if (out->held_up().empty()) out->set_held_up(drain.trouble);
  }
  return msg.SerializeAsString();
}

}  // namespace ckpt::run
