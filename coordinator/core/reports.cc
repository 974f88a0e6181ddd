// What agents say: full snapshots, folded into the records. Everything here may come twice.
#include <algorithm>

#include "coordinator/core/impl.h"
#include "libckpt/base/clock.h"
#include "libckpt/base/log.h"

namespace ckpt::core {
namespace {

constexpr int64_t kPruneEveryNs = 60 * kSecondNs;

Member* MemberOn(Job& job, const std::string& node) {
  for (Member& member : job.members) {
    if (member.place.node == node) return &member;
  }
  return nullptr;
}

// A method is supported when every node supports it.
std::vector<Method> MergeMethods(const Job& job) {
  std::map<std::string, Method> merged;
  for (const Member& member : job.members) {
    for (const Method& method : member.methods) {
      auto [it, fresh] = merged.try_emplace(method.name, method);
      if (it->second.yes && !method.yes) it->second = method;
    }
  }
  std::vector<Method> methods;
  for (auto& [name, method] : merged) methods.push_back(method);
  return methods;
}

}  // namespace

std::map<std::string, std::string> TimesData(const PhaseTimes& times) {
  std::map<std::string, std::string> data;
  const auto put = [&](const char* name, int64_t value) {
    if (value != 0) data[name] = std::to_string(value);
  };
  put("noticed_ns", times.noticed_ns);
  put("cut_ns", times.cut_ns);
  put("staged_ns", times.staged_ns);
  put("comms_down_ns", times.comms_down_ns);
  put("released_ns", times.released_ns);
  put("durable_ns", times.durable_ns);
  put("stall_ns", times.stall_ns);
  put("staged_bytes", static_cast<int64_t>(times.staged_bytes));
  if (times.memcpy_ratio > 0) data["memcpy_ratio"] = std::to_string(times.memcpy_ratio);
  return data;
}

// ---- nodes come and go

void Core::Impl::Heard(const std::string& node) {
  const auto it = nodes_.find(node);
  if (it != nodes_.end()) it->second.heard_ns = now_.boot_ns;
}

void Core::Impl::On(const NodeConnected& event) {
  const NodeInfo& info = event.info;
  Node& node = nodes_[info.name];
  const bool back = !node.connected || node.info.boot_ns != info.boot_ns;
  node.info = info;
  node.connected = true;
  node.heard_ns = now_.boot_ns;
  dirty_nodes_.insert(info.name);
  settle_ = true;
  if (info.term > term_) {
    // These records are older than what the cluster has seen: rule from above it.
    term_ = info.term + 1;
    meta_dirty_ = true;
    Emit("term_raised", nullptr,
         "node " + info.name + " has seen term " + std::to_string(info.term) + "; ruling as " +
             std::to_string(term_));
  }
  if (!back) return;
  node.foreign.clear();
  Emit("node_up", nullptr,
       Plural(info.slots, "slot") + ", staging budget " + FormatBytes(info.staging_budget_bytes))
      .node = info.name;
  for (auto& [name, job] : jobs_) {
    Member* member = IsLive(job.state) ? MemberOn(job, info.name) : nullptr;
    if (member != nullptr) ReconcileMember(job, *member);
    if (job.drain.op == 0) continue;
    for (Member& each : job.drain.members) {
      if (each.place.node == info.name) each.launched = false;  // ordered again, if it is not over
    }
    SendDrains(job);
  }
  for (const uint64_t op_id : running_ops_) {
    Operation& op = EditOp(op_id);
    if (op.kind == OperationKind::kMigrate && op.phase == Phase::kReleased &&
        op.to_node == info.name) {
      StartFetch(op);
    } else if (op.kind == OperationKind::kCheckpoint && op.phase == Phase::kNotified) {
      SendSave(op);
    }
  }
}

// A node is back: what was ordered is ordered again, under the same numbers.
void Core::Impl::ReconcileMember(Job& job, Member& member) {
  if (IsOver(member.state)) return;
  const uint64_t boot_ns = nodes_.at(member.place.node).info.boot_ns;
  // An agent that restarted may have started it already and not know it yet: ask later, by probe.
  const bool repeat = member.launched && member.state == NodeJobState::kNone &&
                      member.boot_ns == boot_ns && job.stop == StopPurpose::kNone;
  if (repeat) SendLaunch(job, member);
  member.heard = false;
  member.silent_since_ns = now_.boot_ns;
  stopping_.insert(job.spec.name);
  if (job.stop != StopPurpose::kNone) SendStop(job, member);
  LaunchMembers(job);
}

void Core::Impl::On(const NodeLost& event) {
  const auto it = nodes_.find(event.node);
  if (it == nodes_.end() || !it->second.connected) return;
  it->second.connected = false;
  settle_ = true;
  Emit("node_lost", nullptr, event.why).node = event.node;
  for (auto& [name, job] : jobs_) {
    Member* member = IsLive(job.state) ? MemberOn(job, event.node) : nullptr;
    if (member == nullptr || IsOver(member->state)) continue;
    member->heard = false;
    Emit("unknown", &job, "node " + event.node + " is out of reach").node = event.node;
  }
}

void Core::Impl::On(const StagingUsed& event) {
  Heard(event.node);
  const auto it = nodes_.find(event.node);
  if (it != nodes_.end()) it->second.info.staging_used_bytes = event.bytes;
}

// ---- reports

void Core::Impl::On(const JobReported& event) {
  Heard(event.node);
  const JobReport& report = event.report;
  Job* job = Find(report.job);
  if (job == nullptr) {
    ReportOfUnknownJob(event.node, report);
    return;
  }
  const uint64_t seen = std::max(report.epoch, report.claimed_epoch);
  if (seen > job->epoch_seen) Edit(report.job).epoch_seen = seen;
  if (report.epoch > job->epoch) {
    AdoptEpoch(*job, event.node, report);
  }
  if (report.epoch != job->epoch) {
    ReportOfOldEpoch(*job, event.node, report);
    return;
  }
  Member* member = MemberOn(*job, event.node);
  if (member == nullptr) member = AdoptMember(*job, event.node, report);
  if (member != nullptr) FoldMember(*job, *member, report);
  FoldHeldUp(*job, event.node, report);
  FoldTimes(*job, report);
  FoldCopies(*job, event.node, report);
  FoldDrain(*job, event.node, report);
  if (member == nullptr) return;
  const bool rolled_back = report.suspend_failed && job->stop != StopPurpose::kNone &&
                           !job->stop_kill && report.op_id == job->stop_op &&
                           job->stop != StopPurpose::kCrash;
  if (rolled_back && !IsOver(report.state)) SuspendFailed(*job, report.message);
  SaveRefused(*job, report);
  LaunchMembers(*job);
  FoldGang(*job);
  ForgetSuperseded(*job);
}

// Nothing else would end the operation before its time, and it is in the way of every other one.
void Core::Impl::SaveRefused(const Job& job, const JobReport& report) {
  if (report.refused_save == 0) return;
  const auto it = std::find_if(running_ops_.begin(), running_ops_.end(), [&](uint64_t op_id) {
    const Operation& op = ops_.at(op_id);
    return op.kind == OperationKind::kCheckpoint && op.job == job.spec.name &&
           op.epoch == report.epoch && op.command_op == report.refused_save;
  });
  if (it == running_ops_.end()) return;
  Operation& op = EditOp(*it);
  FinishOp(op, OperationState::kFailed, op.phase, report.save_refusal + "; " + op.job + " runs on");
}

// Left alone: somebody else's records know it. Its slots are not given away.
void Core::Impl::ReportOfUnknownJob(const std::string& node, const JobReport& report) {
  const auto it = nodes_.find(node);
  if (it == nodes_.end()) return;
  const auto key = std::make_pair(report.job, report.epoch);
  const bool known = it->second.foreign.contains(key);
  if (IsOver(report.state)) {
    it->second.foreign.erase(key);
    settle_ = settle_ || known;
    return;
  }
  it->second.foreign[key] = std::max<uint32_t>(1, report.rank_count);
  if (known) return;
  EventRecord& line = Emit("foreign_job", nullptr,
                           "runs there but is not on record here: left alone, its slots count");
  line.job = report.job;
  line.node = node;
}

void Core::Impl::ReportOfOldEpoch(Job& job, const std::string& node, const JobReport& report) {
  FoldHeldUp(job, node, report);
  FoldTimes(job, report);
  FoldCopies(job, node, report);
  FoldDrain(job, node, report);
  if (!IsOver(report.state) && report.state != NodeJobState::kNone) {
    SendTo(node, Stop{job.spec.name, report.epoch, MintOpId(), true, 1000, "fenced"});
  }
  ForgetSuperseded(job);
}

// The agents hold the truth about running ranks: these records are older than they are.
void Core::Impl::AdoptEpoch(Job& job, const std::string& node, const JobReport& report) {
  if (IsOver(report.state)) return;
  Edit(job.spec.name);
  job.epoch = report.epoch;
  job.members.clear();
  job.state = JobState::kStarting;
  job.stop = StopPurpose::kNone;
  job.stop_kill = false;
  job.reason.clear();
  settle_ = true;
  Emit("adopted", &job,
       "epoch " + std::to_string(report.epoch) + " runs on node " + node +
           " and is not on record here")
      .node = node;
}

// A node's part of an adopted epoch; null when the placement is on record and the node is not in
// it.
Member* Core::Impl::AdoptMember(Job& job, const std::string& node, const JobReport& report) {
  uint32_t known = 0;
  for (const Member& member : job.members) known += member.place.rank_count;
  if (known >= job.spec.ranks || IsOver(report.state)) return nullptr;
  Edit(job.spec.name);
  job.members.push_back({{node, report.node_rank, 0, std::max<uint32_t>(1, report.rank_count)}});
  std::sort(job.members.begin(), job.members.end(),
            [](const Member& a, const Member& b) { return a.place.node_rank < b.place.node_rank; });
  uint32_t first = 0;
  for (Member& member : job.members) {
    member.place.first_rank = first;
    first += member.place.rank_count;
  }
  return MemberOn(job, node);
}

void Core::Impl::FoldMember(Job& job, Member& member, const JobReport& report) {
  member.heard = true;
  member.staging_done = report.staging_done;
  member.staging_total = report.staging_total;
  member.behind = report.behind;
  const bool news = member.state != report.state && report.state != NodeJobState::kNone;
  const bool back_in_time = IsOver(member.state) || (report.state == NodeJobState::kStarting &&
                                                     member.state == NodeJobState::kRunning);
  if (news && !back_in_time) {
    Edit(job.spec.name);
    member.state = report.state;
    member.launched = true;
    member.message = report.message;
  }
  if (!report.methods.empty()) member.methods = report.methods;
  // What one node has not said yet, the gang has not said.
  const bool all_said = std::all_of(job.members.begin(), job.members.end(),
                                    [](const Member& m) { return !m.methods.empty(); });
  const auto methods = all_said ? MergeMethods(job) : std::vector<Method>();
  if (!methods.empty() && methods != job.methods) Edit(job.spec.name).methods = methods;
  if (!report.job_id.empty() && report.job_id != job.job_id) {
    Edit(job.spec.name).job_id = report.job_id;
  }
  if (!report.resumed_from.empty() && job.resumed_from != report.resumed_from) {
    Edit(job.spec.name).resumed_from = report.resumed_from;
    if (job.state == JobState::kRunning) BookFallBack(job);  // it found the newer one damaged
  }
  if (report.node_rank == 0 && !report.gang_address.empty() &&
      report.gang_address != job.gang_address) {
    Edit(job.spec.name).gang_address = report.gang_address;
  }
  if (report.state_bytes != 0 && job.member_bytes[member.place.node] != report.state_bytes) {
    Edit(job.spec.name).member_bytes[member.place.node] = report.state_bytes;
    uint64_t total = 0;
    for (const auto& [node, bytes] : job.member_bytes) total += bytes;
    job.state_bytes =
        std::max(job.member_bytes.size() == job.members.size() ? 0 : job.state_bytes, total);
  }
  if (report.node_rank != 0) return;  // one clock of steps: the leader's
  if (report.step != 0) job.step = report.step;
  if (report.step_seconds > 0) job.step_seconds = report.step_seconds;
  const bool resumed = !job.resumed_from.empty() && report.first_step_ns != 0;
  if (resumed && job.launched_ns != 0) {  // on this clock: a report is soon here
    Edit(job.spec.name).measured.restore_seconds =
        static_cast<double>(now_.boot_ns - std::exchange(job.launched_ns, 0)) / 1e9;
  }
}

// Also of an epoch before: its copy may still be on its way to the store.
void Core::Impl::FoldHeldUp(Job& job, const std::string& node, const JobReport& report) {
  const auto key = std::make_pair(node, report.epoch);
  const auto it = job.held_up.find(key);
  const std::string before = it == job.held_up.end() ? "" : it->second;
  if (before == report.held_up) return;
  if (report.held_up.empty()) return void(job.held_up.erase(it));
  job.held_up[key] = report.held_up;
  EventRecord& event = Emit("held_up", &job, "node " + node + ": " + report.held_up);
  event.epoch = report.epoch;
}

// The leader's times hold for the gang; "released" is the last of all nodes.
void Core::Impl::FoldTimes(Job& job, const JobReport& report) {
  const bool mine = report.epoch == job.last_stop_epoch && job.stop_op != 0 &&
                    (report.op_id == job.stop_op || IsOver(report.state));
  if (!mine) return;
  const PhaseTimes before = job.last_stop;
  PhaseTimes& times = job.last_stop;
  if (report.node_rank == 0) {
    times = report.times;
    times.stall_ns = std::max(before.stall_ns, times.stall_ns);
  } else {
    times.stall_ns = std::max(times.stall_ns, report.times.stall_ns);
  }
  times.released_ns = std::max(before.released_ns, report.times.released_ns);
  if (times == before) return;
  Edit(job.spec.name);
  settle_ = true;
  const auto line = [&](const char* kind, int64_t was_ns, int64_t at_ns) {
    if (was_ns != 0 || at_ns == 0) return;
    EventRecord& event = Emit(kind, &job, "");
    event.epoch = report.epoch;
    event.op_id = job.last_op_id;
    event.boottime_ns = at_ns;
    event.data = TimesData(times);
  };
  Measure(job);
  line("cut", before.cut_ns, times.cut_ns);
  line("staged", before.staged_ns, times.staged_ns);
  Operation* op = FindOp(job.last_op_id);
  if (op == nullptr) return;
  for (VictimProgress& victim : EditOp(op->op_id).victims) {
    if (victim.job == job.spec.name && victim.epoch == job.last_stop_epoch) victim.times = times;
  }
}

// For the next quote.
void Core::Impl::Measure(Job& job) {
  const PhaseTimes& times = job.last_stop;
  uint32_t most = 0;
  for (const Member& member : job.members) most = std::max(most, member.place.rank_count);
  if (times.cut_ns != 0 && times.staged_ns > times.cut_ns && times.staged_bytes != 0) {
    const double bytes = static_cast<double>(times.staged_bytes) / job.spec.ranks * most;
    job.measured.stage_bytes_per_second =
        bytes * 1e9 / static_cast<double>(times.staged_ns - times.cut_ns);
  }
  if (times.comms_down_ns != 0 && times.released_ns > times.comms_down_ns) {
    job.measured.exit_seconds = static_cast<double>(times.released_ns - times.comms_down_ns) / 1e9;
  }
}

// A ckpt-run that is stopped, or stuck: its agent answers for it.
void Core::Impl::FoldSilence(Job& job, const std::string& node, const JobReport& report) {
  const std::pair<std::string, uint64_t> key{node, report.epoch};
  const auto known = job.run_silent.find(key);
  if (report.run_silent.empty() || report.run_ended) {
    if (known == job.run_silent.end()) return;
    job.run_silent.erase(known);
    if (!report.run_ended) {
      Emit("run_answers", &job, "the ckpt-run of epoch " + std::to_string(report.epoch)).node =
          node;
    }
  } else if (job.run_silent.insert_or_assign(key, report.run_silent).second) {
    EventRecord& line = Emit("run_silent", &job, report.run_silent);
    line.node = node;
    line.epoch = report.epoch;
  }
  settle_ = true;
}

void Core::Impl::On(const Fetched& event) {
  const FetchReport& report = event.report;
  for (const uint64_t op_id : std::set<uint64_t>(running_ops_)) {
    Operation& op = ops_.at(op_id);
    if (op.kind != OperationKind::kMigrate || op.command_op != report.op_id ||
        op.phase != Phase::kReleased) {
      continue;
    }
    if (!report.error.empty()) {
      MoveBack(EditOp(op_id), "node " + op.to_node + " could not fetch the copy: " + report.error);
      continue;
    }
    op.fetch_done = report.bytes_done;
    op.fetch_total = report.bytes_total;
    op.message = "fetched " + FormatBytes(report.bytes_done) + " of " +
                 FormatBytes(report.bytes_total) + " to " + op.to_node;
    if (!report.done) continue;
    Job& job = Edit(op.job);
    const auto copies = MergedCopies(job);
    if (!copies.empty()) {
      CopyState copy = copies.front();
      copy.ram_nodes = {op.to_node};
      job.copies[{op.to_node, copy.epoch}] = {copy};
      job.run_ended.insert({op.to_node, copy.epoch});  // none ever was there
    }
    EventRecord& line = Emit("fetched", &job, op.message);
    line.node = op.to_node;
    line.data["bytes"] = std::to_string(report.bytes_done);
    line.data["started_ns"] = std::to_string(report.started_ns);
    line.data["done_ns"] = std::to_string(report.done_ns);
    SetPhase(EditOp(op_id), Phase::kFetched);
    settle_ = true;
  }
}

void Core::Impl::On(const CommandAnswered& event) {
  Heard(event.node);
  const CommandResult& result = event.result;
  Job* job = Find(result.job);
  if (job != nullptr && job->drain.op != 0 && result.op_id == job->drain.op) {
    return DrainAnswered(*job, event.node, result);
  }
  Member* member = job == nullptr ? nullptr : MemberOn(*job, event.node);
  const bool current = member != nullptr && result.epoch == job->epoch;
  if (current && result.accepted) member->heard = true;
  if (result.accepted) return;
  for (const uint64_t op_id : std::set<uint64_t>(running_ops_)) {
    if (ops_.at(op_id).command_op != result.op_id || result.op_id == 0) continue;
    Operation& op = EditOp(op_id);
    const std::string why = "node " + event.node + " refused: " + result.error;
    if (op.kind == OperationKind::kMigrate) {
      MoveBack(op, why);
    } else {
      FinishOp(op, OperationState::kFailed, op.phase, why);
    }
    return;
  }
  if (!current || !IsLive(job->state)) return;
  if (result.op_id == job->launch_op) {
    MemberFailed(*job, *member, "refused to start: " + result.error);
  } else if (result.op_id == job->kill_op) {
    MemberFailed(*job, *member, "no process of it is left there: " + result.error);
  } else if (result.op_id == job->stop_op && job->stop != StopPurpose::kNone && !job->stop_kill &&
             member->place.node_rank == 0) {
    SuspendFailed(*job, "node " + event.node + " refused: " + result.error);
  }
  FoldGang(*job);
}

// ---- time

void Core::Impl::On(const Tick&) {
  OverdueJobs();
  std::erase_if(delayed_, [this](const std::string& name) {
    const Job* job = Find(name);
    const bool due = job == nullptr || now_.boot_ns >= job->start_after_ns;
    settle_ = settle_ || due;
    return due;
  });
  if (!draining_.empty()) Drains();
  for (const uint64_t op_id : std::set<uint64_t>(running_ops_)) Overdue(ops_.at(op_id));
  if (now_.boot_ns - pruned_ns_ > kPruneEveryNs) {
    pruned_ns_ = now_.boot_ns;
    PruneOperations();
    settle_ = true;  // a waiting job may have become the one that nobody passes
  }
}

void Core::Impl::ProbeSilentMembers(Job& job) {
  for (Member& member : job.members) {
    const bool silent = member.launched && !member.heard && !IsOver(member.state) &&
                        Connected(member.place.node) &&
                        now_.boot_ns - member.silent_since_ns > options_.silence_ns;
    if (!silent) continue;
    if (job.kill_op == 0 || !job.stop_kill) Edit(job.spec.name).kill_op = MintOpId();
    member.silent_since_ns = now_.boot_ns;
    Emit("silent", &job, "node " + member.place.node + " says nothing of it: ended there").node =
        member.place.node;
    SendTo(member.place.node,
           Stop{job.spec.name, job.epoch, job.kill_op, true, 1000, "silent after a restart"});
  }
}

}  // namespace ckpt::core
