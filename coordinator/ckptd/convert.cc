#include "coordinator/ckptd/convert.h"

#include <type_traits>

namespace ckpt::ckptd {
namespace {

constexpr double kStepSecondsMax = 3600;

core::CopyState FromProto(const v1::CopyState& in) {
  core::CopyState copy;
  copy.epoch = in.epoch();
  copy.attempt = in.attempt();
  copy.step = in.step();
  copy.staged_gang = in.staged_gang();
  copy.ram_nodes.assign(in.ram_nodes().begin(), in.ram_nodes().end());
  copy.durable = in.durable();
  copy.bytes = in.bytes();
  copy.bytes_durable = in.bytes_durable();
  copy.failure = in.failure();
  copy.lost = in.lost();
  copy.bytes_to_write = in.bytes_to_write();
  return copy;
}

core::PhaseTimes FromProto(const v1::PhaseTimes& in) {
  core::PhaseTimes times;
  times.noticed_ns = in.noticed_ns();
  times.cut_ns = in.cut_ns();
  times.staged_ns = in.staged_ns();
  times.comms_down_ns = in.comms_down_ns();
  times.released_ns = in.released_ns();
  times.durable_ns = in.durable_ns();
  times.stall_ns = in.stall_ns();
  times.staged_bytes = in.staged_bytes();
  times.memcpy_ratio = in.memcpy_ratio();
  return times;
}

}  // namespace

core::JobSpec FromProto(const v1::JobSpec& in) {
  core::JobSpec spec;
  spec.name = in.name();
  spec.command.assign(in.command().begin(), in.command().end());
  spec.ranks = in.ranks();
  spec.priority = in.priority();
  spec.job_class = in.job_class();
  spec.not_preemptible = in.not_preemptible();
  spec.store = in.store();
  spec.env.insert(in.env().begin(), in.env().end());
  spec.workdir = in.workdir();
  spec.state_bytes_per_rank = in.state_bytes_per_rank();
  spec.save_every = in.save_every();
  spec.min_runtime_ms = in.min_runtime_ms();
  if (in.has_restarts_max()) spec.restarts_max = in.restarts_max();
  spec.max_price = in.max_price();
  return spec;
}

core::NodeInfo FromProto(const v1::NodeInfo& in) {
  core::NodeInfo info;
  info.name = in.name();
  info.address = in.address();
  info.slots = in.slots();
  info.staging_budget_bytes = in.staging_budget_bytes();
  info.staging_used_bytes = in.staging_used_bytes();
  info.data_address = in.data_address();
  info.boot_ns = in.boot_ns();
  info.memcpy_gbps = in.memcpy_gbps();
  info.disk_gbps = in.disk_gbps();
  info.cluster_id = in.cluster_id();
  info.term = in.term();
  return info;
}

core::JobReport FromProto(const v1::JobReport& in) {
  core::JobReport report;
  report.job = in.job();
  report.epoch = in.epoch();
  report.node_rank = in.node_rank();
  report.state = static_cast<core::NodeJobState>(in.state());
  report.op_id = in.op_id();
  report.gang_address = in.gang_address();
  for (const v1::CopyState& copy : in.copies()) report.copies.push_back(FromProto(copy));
  report.times = FromProto(in.times());
  report.step = in.step();
  // From a page that ranks write: whatever stands there, sums of it stay numbers.
  report.step_seconds = in.step_seconds() > 0 ? std::min(in.step_seconds(), kStepSecondsMax) : 0;
  report.state_bytes = in.state_bytes();
  report.message = in.message();
  for (const v1::Method& m : in.methods())
    report.methods.push_back({m.name(), m.yes(), m.reason()});
  report.claimed_epoch = in.claimed_epoch();
  report.job_id = in.job_id();
  report.rank_count = static_cast<uint32_t>(in.rank_pids_size());
  report.suspend_failed = in.suspend_failed();
  report.resumed_from = in.resumed_from();
  report.first_step_ns = in.first_step_ns();
  report.run_ended = in.run_ended();
  report.drain_op = in.drain_op();
  report.staging_done = in.staging_done();
  report.staging_total = in.staging_total();
  report.behind = in.behind();
  report.run_silent = in.run_silent();
  report.held_up = in.held_up();
  report.refused_save = in.refused_save();
  report.save_refusal = in.save_refusal();
  return report;
}

core::FetchReport FromProto(const v1::FetchReport& in) {
  return {in.job(),        in.op_id(),       in.done(),       in.error(),
          in.bytes_done(), in.bytes_total(), in.started_ns(), in.done_ns()};
}

core::CommandResult FromProto(const v1::CommandResult& in) {
  return {in.op_id(), in.job(), in.epoch(), in.accepted(), in.error()};
}

void ToProto(const core::JobSpec& spec, v1::JobSpec* out) {
  out->set_name(spec.name);
  for (const std::string& word : spec.command) out->add_command(word);
  out->set_ranks(spec.ranks);
  out->set_priority(spec.priority);
  out->set_job_class(spec.job_class);
  out->set_not_preemptible(spec.not_preemptible);
  out->set_store(spec.store);
  out->mutable_env()->insert(spec.env.begin(), spec.env.end());
  out->set_workdir(spec.workdir);
  out->set_state_bytes_per_rank(spec.state_bytes_per_rank);
  out->set_save_every(spec.save_every);
  out->set_min_runtime_ms(spec.min_runtime_ms);
  if (spec.restarts_max) out->set_restarts_max(*spec.restarts_max);
  out->set_max_price(spec.max_price);
}

void ToProto(const core::CopyState& copy, v1::CopyState* out) {
  out->set_epoch(copy.epoch);
  out->set_attempt(copy.attempt);
  out->set_step(copy.step);
  out->set_staged_gang(copy.staged_gang);
  for (const std::string& node : copy.ram_nodes) out->add_ram_nodes(node);
  out->set_durable(copy.durable);
  out->set_bytes(copy.bytes);
  out->set_bytes_durable(copy.bytes_durable);
  out->set_failure(copy.failure);
  out->set_lost(copy.lost);
  out->set_bytes_to_write(copy.bytes_to_write);
}

void ToProto(const core::PhaseTimes& times, v1::PhaseTimes* out) {
  out->set_noticed_ns(times.noticed_ns);
  out->set_cut_ns(times.cut_ns);
  out->set_staged_ns(times.staged_ns);
  out->set_comms_down_ns(times.comms_down_ns);
  out->set_released_ns(times.released_ns);
  out->set_durable_ns(times.durable_ns);
  out->set_stall_ns(times.stall_ns);
  out->set_staged_bytes(times.staged_bytes);
  out->set_memcpy_ratio(times.memcpy_ratio);
}

void ToProto(const core::Placement& placement, v1::Placement* out) {
  for (const core::NodePlacement& place : placement) {
    v1::NodePlacement* node = out->add_nodes();
    node->set_node(place.node);
    node->set_node_rank(place.node_rank);
    node->set_first_rank(place.first_rank);
    node->set_rank_count(place.rank_count);
  }
}

namespace {

void AddProgress(const std::string& job, const char* what, uint64_t done, uint64_t total,
                 v1::Operation* out) {
  if (total == 0) return;
  v1::Progress* progress = out->add_progress();
  progress->set_job(job);
  progress->set_what(what);
  progress->set_bytes_done(std::min(done, total));
  progress->set_bytes_total(total);
}

// What is being copied into staging memory, and what is being written of the copies that this epoch
// made: the newest, if it is newer than `newer_than` and `staged` says that it is this operation's.
void AddJobProgress(const core::Core& core, const std::string& name, uint64_t epoch,
                    const std::array<int64_t, 3>& newer_than, bool staged, v1::Operation* out) {
  const core::Job* job = core.FindJob(name);
  if (job == nullptr) return;
  uint64_t done = 0;
  uint64_t total = 0;
  for (const core::Member& member : job->members) {
    if (job->epoch != epoch) break;
    done += member.staging_done;
    total += member.staging_total;
  }
  AddProgress(name, "staged", done, total, out);
  for (const core::CopyState& copy : core.Copies(*job)) {
    if (!staged) break;
    if (copy.epoch != epoch || copy.Key() <= newer_than) continue;
    return AddProgress(name, "written", copy.bytes_durable, copy.bytes_to_write, out);
  }
}

}  // namespace

void ToProto(const core::Core& core, const core::Operation& operation, v1::Operation* out) {
  out->set_op_id(operation.op_id);
  out->set_kind(std::string(core::OperationKindName(operation.kind)));
  out->set_job(operation.job);
  out->set_state(static_cast<v1::OperationState>(operation.state));
  out->set_phase(std::string(core::PhaseName(operation.phase)));
  out->set_message(operation.message);
  for (const core::VictimProgress& victim : operation.victims) {
    v1::VictimProgress* progress = out->add_victims();
    progress->set_job(victim.job);
    progress->set_phase(std::string(core::PhaseName(victim.phase)));
    ToProto(victim.times, progress->mutable_times());
    progress->set_lost_gpu_seconds(victim.lost_gpu_seconds);
    progress->set_lost_steps(victim.lost_steps);
  }
  out->set_started_ns(operation.started_ns);
  out->set_granted_ns(operation.granted_ns);
  out->set_done_ns(operation.done_ns);
  for (const core::VictimProgress& victim : operation.victims) {
    AddJobProgress(core, victim.job, victim.epoch, {}, victim.times.staged_ns != 0, out);
  }
  if (operation.kind == core::OperationKind::kCheckpoint) {
    AddJobProgress(core, operation.job, operation.epoch, operation.newest_before, true, out);
  }
  AddProgress(operation.job, "fetched", operation.fetch_done, operation.fetch_total, out);
}

void ToProto(const core::Plan& plan, v1::Plan* out) {
  out->set_id(plan.id);
  out->set_job(plan.job);
  for (const core::VictimQuote& quote : plan.victims) {
    v1::Victim* victim = out->add_victims();
    victim->set_job(quote.job);
    victim->set_epoch(quote.epoch);
    victim->set_ranks(quote.ranks);
    victim->set_price(quote.price);
    victim->set_lost_seconds(quote.lost_seconds);
    victim->set_stage_seconds(quote.stage_seconds);
    victim->set_restore_seconds(quote.restore_seconds);
    victim->set_requeue_seconds(quote.requeue_seconds);
    victim->set_times_preempted(quote.times_preempted);
    victim->set_exit_seconds(quote.exit_seconds);
    victim->set_measured(quote.measured);
    for (const std::string& node : quote.nodes) victim->add_nodes(node);
  }
  out->set_price(plan.price);
  out->set_grant_seconds(plan.grant_seconds);
  ToProto(plan.placement, out->mutable_placement());
  for (const std::string& why : plan.rejected) out->add_rejected(why);
  for (const std::string& warning : plan.warnings) out->add_warnings(warning);
}

void ToProto(const core::EventRecord& event, v1::Event* out) {
  out->set_revision(event.revision);
  out->set_wall_ns(event.wall_ns);
  out->set_boottime_ns(event.boottime_ns);
  out->set_job(event.job);
  out->set_node(event.node);
  out->set_epoch(event.epoch);
  out->set_op_id(event.op_id);
  out->set_kind(event.kind);
  out->set_message(event.message);
  out->mutable_data()->insert(event.data.begin(), event.data.end());
}

void ToProto(const os::Finding& finding, v1::Finding* out) {
  out->set_name(finding.name);
  out->set_level(static_cast<v1::FindingLevel>(finding.level));
  out->set_message(finding.message);
  out->set_remedy(finding.remedy);
}

void ToProto(const core::Core& core, const core::Job& job, v1::Job* out) {
  ToProto(job.spec, out->mutable_spec());
  if (job.job_id.size() == 16) {
    JobId id;
    std::copy(job.job_id.begin(), job.job_id.end(), id.bytes.begin());
    out->set_job_id(id.ToString());
  }
  out->set_state(static_cast<v1::JobState>(core.VisibleState(job)));
  out->set_epoch(job.epoch);
  ToProto(core::PlacementOf(job), out->mutable_placement());
  out->set_reason(core.VisibleReason(job));
  for (const core::CopyState& copy : core.Copies(job)) ToProto(copy, out->add_copies());
  out->set_step(job.step);
  out->set_step_seconds(job.step_seconds);
  out->set_preempted_count(job.preempted_count);
  out->set_restart_count(job.restart_count);
  out->set_lost_gpu_seconds(job.lost_gpu_seconds);
  ToProto(job.last_stop, out->mutable_last_stop());
  for (const core::Method& method : job.methods) {
    v1::Method* m = out->add_methods();
    m->set_name(method.name);
    m->set_yes(method.yes);
    m->set_reason(method.reason);
  }
  out->set_submitted_ns(job.submitted_wall_ns);
  out->set_resumed_from(job.resumed_from);
  out->set_state_bytes(job.state_bytes);
  out->set_op_id(job.op_id);
  out->set_lost_steps(job.lost_steps);
  out->set_drain(core.DrainInWords(job));
  v1::Measured* measured = out->mutable_measured();
  measured->set_stage_bytes_per_second(job.measured.stage_bytes_per_second);
  measured->set_exit_seconds(job.measured.exit_seconds);
  measured->set_restore_seconds(job.measured.restore_seconds);
}

void ToProto(const core::Core& core, const core::Node& node, v1::Node* out) {
  v1::NodeInfo* info = out->mutable_info();
  info->set_name(node.info.name);
  info->set_address(node.info.address);
  info->set_slots(node.info.slots);
  info->set_staging_budget_bytes(node.info.staging_budget_bytes);
  info->set_staging_used_bytes(node.info.staging_used_bytes);
  info->set_data_address(node.info.data_address);
  info->set_boot_ns(node.info.boot_ns);
  info->set_memcpy_gbps(node.info.memcpy_gbps);
  info->set_disk_gbps(node.info.disk_gbps);
  info->set_cluster_id(node.info.cluster_id);
  info->set_term(node.info.term);
  out->set_connected(node.connected);
  out->set_slots_free(core.FreeSlots(node.info.name));
  for (const std::string& job : core.JobsOn(node.info.name)) out->add_jobs(job);
  for (const std::string& hold : core.HoldsOn(node.info.name)) out->add_holds(hold);
}

namespace {

void Fill(const core::Launch& launch, const std::string&, v1::CoordinatorMsg* msg) {
  v1::Launch* out = msg->mutable_launch();
  out->set_job(launch.job);
  out->set_epoch(launch.epoch);
  out->set_op_id(launch.op_id);
  ToProto(launch.spec, out->mutable_spec());
  out->set_node_rank(launch.place.node_rank);
  out->set_nnodes(launch.nnodes);
  out->set_first_rank(launch.place.first_rank);
  out->set_rank_count(launch.place.rank_count);
  out->set_leader_address(launch.leader_address);
  out->set_token(launch.token);
  out->set_listen_host(launch.listen_host);
  out->set_job_id(launch.job_id);
  out->set_drain(launch.drain);
  out->set_expect(launch.expect);
}

void Fill(const core::Stop& stop, const std::string&, v1::CoordinatorMsg* msg) {
  v1::Stop* out = msg->mutable_stop();
  out->set_job(stop.job);
  out->set_epoch(stop.epoch);
  out->set_op_id(stop.op_id);
  out->set_kind(stop.kill ? v1::STOP_KILL : stop.withdraw ? v1::STOP_WITHDRAW : v1::STOP_SUSPEND);
  out->set_deadline_ms(stop.deadline_ms);
  out->set_source(stop.source);
}

void Fill(const core::SaveNow& save, const std::string&, v1::CoordinatorMsg* msg) {
  v1::SaveNow* out = msg->mutable_save();
  out->set_job(save.job);
  out->set_epoch(save.epoch);
  out->set_op_id(save.op_id);
  out->set_deadline_ms(save.deadline_ms);
}

void Fill(const core::Fetch& fetch, const std::string& data_token, v1::CoordinatorMsg* msg) {
  v1::Fetch* out = msg->mutable_fetch();
  out->set_job(fetch.job);
  out->set_op_id(fetch.op_id);
  out->set_from_data_address(fetch.from_data_address);
  out->set_from_node(fetch.from_node);
  out->set_epoch(fetch.epoch);
  out->set_attempt(fetch.attempt);
  for (const uint32_t rank : fetch.ranks) out->add_ranks(rank);
  out->set_token(data_token);
}

void Fill(const core::Forget& forget, const std::string&, v1::CoordinatorMsg* msg) {
  v1::Forget* out = msg->mutable_forget();
  out->set_job(forget.job);
  out->set_epoch(forget.epoch);
  out->set_drop_copies(forget.drop_copies);
}

}  // namespace

void ToProto(const core::Command& command, const std::string& data_token, v1::CoordinatorMsg* out) {
  std::visit([&](const auto& each) { Fill(each, data_token, out); }, command);
}

}  // namespace ckpt::ckptd
