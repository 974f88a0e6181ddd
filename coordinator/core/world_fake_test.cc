// The inside of the world (see world_fake.h).
#include "coordinator/core/world_fake.h"

#include <algorithm>

#include "libckpt/base/digest.h"
#include "libckpt/base/ids.h"

namespace ckpt::core {

// ---- the coordinator's life

void World::Restart() {
  ++life_;
  Options options;
  options.mint_token = [this] { return std::to_string(rng_()); };
  core_ = std::make_unique<Core>(std::move(options));
  std::vector<Record> records;
  for (const auto& [key, value] : disk_) records.push_back({key, value});
  auto actions = core_->Recover({now_, now_}, records, "cluster");
  if (!actions.ok()) {
    Violation("records cannot be read: " + actions.status().ToString());
    return;
  }
  for (const Write& write : actions->writes) {
    if (write.value) disk_[write.key] = *write.value;
  }
  for (auto& [name, agent] : agents_) {
    if (!agent.connected) continue;
    agent.connected = false;
    ++agent.connection;
    const std::string node = name;
    After(Delay(), [this, node] {
      if (!agents_.at(node).connected) Connect(node);
    });
  }
  TickForEver(life_);
}

void World::TickForEver(uint64_t life) {
  After(100 * kMs, [this, life] {
    if (life != life_) return;
    std::vector<std::string> alive;
    for (const auto& [name, agent] : agents_) {
      if (agent.connected) alive.push_back(name);
    }
    for (const std::string& name : alive) Step(StagingUsed{name, 0});
    if (life == life_ && core_->NeedsTicks()) Step(Tick{});
    if (life == life_) TickForEver(life);
  });
}

std::optional<Reply> World::Step(const Event& event) {
  Actions actions = core_->Step({now_, now_}, event);
  const bool commit = !actions.writes.empty();
  const bool die = commit && (++commits_ == options_.die_at_commit || Chance(options_.die_chance));
  const bool after = options_.die_at_commit != 0 ? options_.die_after : Chance(0.5);
  if (!die || after) {
    for (const Write& write : actions.writes) {
      if (write.value) {
        disk_[write.key] = *write.value;
        trace_ = Hash64(AsBytes(write.key + *write.value), trace_);
      } else {
        disk_.erase(write.key);
      }
    }
  }
  if (die) {
    ++deaths_;
    Restart();
    return std::nullopt;
  }
  for (const Send& send : actions.sends) Deliver(send);
  CheckHolds();
  return actions.reply;
}

// ---- commands on their way to agents

void World::Deliver(const Send& send) {
  const FakeAgent& agent = agents_.at(send.node);
  if (!agent.connected) return;
  const uint64_t connection = agent.connection;
  int64_t& last = stream_time_[send.node + "<"];
  last = std::max(last + 1, now_ + Delay());
  const bool twice = Chance(options_.duplicate);
  After(last - now_, [this, send, connection, twice] {
    const FakeAgent& a = agents_.at(send.node);
    if (!a.connected || a.connection != connection) return;
    OnCommand(send.node, send.command);
    if (twice) OnCommand(send.node, send.command);
  });
}

void World::OnCommand(const std::string& node, const Command& command) {
  std::visit(
      [&](const auto& each) {
        if constexpr (requires { each.op_id; }) {
          auto& results = agents_.at(node).results;
          const auto stored = results.find(each.op_id);
          if (stored != results.end()) {
            ToCore(node, CommandAnswered{node, stored->second});
            return;
          }
        }
        Obey(node, each);
      },
      command);
  CheckTruth();
}

void World::Answer(const std::string& node, uint64_t op_id, const RunKey& key, bool accepted,
                   std::string error) {
  const CommandResult result{op_id, key.first, key.second, accepted, std::move(error)};
  agents_.at(node).results[op_id] = result;
  ToCore(node, CommandAnswered{node, result});
}

void World::Obey(const std::string& node, const Launch& launch) {
  const RunKey key{launch.job, launch.epoch};
  if (launch.drain) return ObeyDrain(node, launch);
  if (RunOf(node, key) != nullptr) return Answer(node, launch.op_id, key, true, "");
  if (launch.place.node_rank != 0 && launch.leader_address.empty()) {
    Violation("a member was launched without its leader's address");
  }
  FakeRun& run = agents_.at(node).runs[key];
  run.launch = launch;
  Answer(node, launch.op_id, key, true, "");
  Report(node, key);
  TryStartGang(key);
}

// The same gang, without ranks, writes what its agents hold.
void World::ObeyDrain(const std::string& node, const Launch& launch) {
  const RunKey key{launch.job, launch.epoch};
  FakeRun* run = RunOf(node, key);
  if (run == nullptr || !IsOver(run->state)) {
    Violation("a drain of " + launch.job + " where it still runs, or never did");
    return Answer(node, launch.op_id, key, false, "no such job here");
  }
  Answer(node, launch.op_id, key, true, "");
  if (run->drain_op == launch.op_id) return;
  run->drain_op = launch.op_id;
  run->run_ended = false;
  Report(node, key);
  const auto nodes = NodesOf(key);
  for (const std::string& each : nodes) {
    if (RunOf(each, key)->drain_op != launch.op_id) return;
  }
  if (nodes.size() != launch.nnodes) return;
  ++drains_;
  for (const FakeCopy& copy : copies_[key.first]) {
    if (copy.epoch == key.second && !copy.durable) Drain(key.first, copy.epoch, copy.attempt);
  }
}

void World::Obey(const std::string& node, const Stop& stop) {
  const RunKey key{stop.job, stop.epoch};
  FakeRun* run = RunOf(node, key);
  if (stop.withdraw) return;
  if (run == nullptr || (IsOver(run->state) && stop.kill)) {
    return Answer(node, stop.op_id, key, false, "no such job here");
  }
  Answer(node, stop.op_id, key, true, "");
  if (stop.kill) {
    if (IsOver(run->state)) return;
    run->message = "killed";
    After(Delay(), [this, node, key] {
      FakeRun* r = RunOf(node, key);
      if (r != nullptr && !IsOver(r->state)) SetState(node, key, NodeJobState::kFailed);
    });
    return;
  }
  run->stop_op = stop.op_id;
  run->suspend_failed = false;
  if (run->launch.place.node_rank == 0 && run->state == NodeJobState::kRunning && !run->stopping) {
    run->stopping = true;
    SuspendGang(key);
  }
}

void World::Obey(const std::string& node, const SaveNow& save) {
  const RunKey key{save.job, save.epoch};
  const FakeRun* run = RunOf(node, key);
  const bool runs = run != nullptr && run->state == NodeJobState::kRunning;
  Answer(node, save.op_id, key, runs, runs ? "" : "it does not run");
  if (runs) SaveGang(key);
}

void World::Obey(const std::string& node, const Fetch& fetch) {
  FakeCopy* found = nullptr;
  for (FakeCopy& copy : copies_[fetch.job]) {
    if (copy.epoch == fetch.epoch && copy.attempt == fetch.attempt &&
        copy.holders.contains(fetch.from_node)) {
      found = &copy;
    }
  }
  FetchReport report;
  report.job = fetch.job;
  report.op_id = fetch.op_id;
  report.done = true;
  if (found == nullptr || fetch.ranks.empty()) {
    report.error = "no such copy";
  } else {
    found->holders[node] = {fetch.ranks.front(), static_cast<uint32_t>(fetch.ranks.size())};
  }
  ToCore(node, Fetched{node, report});
}

void World::Obey(const std::string& node, const Forget& forget) {
  const FakeRun* run = RunOf(node, {forget.job, forget.epoch});
  if (run != nullptr && !IsOver(run->state)) {
    Violation("a running epoch of " + forget.job + " was to be forgotten");
    return;
  }
  agents_.at(node).runs.erase({forget.job, forget.epoch});
  const Job* job = core_->FindJob(forget.job);
  const bool ended = job != nullptr && IsEnded(job->state) && job->state != JobState::kFailed;
  for (FakeCopy& copy : copies_[forget.job]) {
    if (copy.epoch != forget.epoch || !copy.holders.contains(node)) continue;
    const FakeCopy* newest = Newest(forget.job, false);
    if (!ended && !copy.durable && newest == &copy) {
      Violation("the only copy of the newest state of " + forget.job + " was dropped");
    }
    copy.holders.erase(node);
  }
}

// ---- reports on their way to the coordinator

void World::Report(const std::string& node, const RunKey& key) {
  const FakeAgent& agent = agents_.at(node);
  const FakeRun& run = agent.runs.at(key);
  if (!agent.connected) return;
  JobReport report;
  report.job = key.first;
  report.epoch = key.second;
  report.node_rank = run.launch.place.node_rank;
  report.state = run.state;
  report.op_id = run.stop_op;
  report.message = run.message;
  report.times = run.times;
  report.step = run.step;
  report.step_seconds = 0.01;
  report.rank_count = run.launch.place.rank_count;
  report.suspend_failed = run.suspend_failed;
  report.run_ended = run.run_ended;
  report.drain_op = run.drain_op;
  report.resumed_from = run.resumed_from;
  report.behind = run.behind;
  report.first_step_ns = run.stepped ? 1 : 0;
  report.methods = {{"suspend", true, ""}};
  if (report.node_rank == 0) report.gang_address = node + ":7000";
  const auto& copies = copies_[key.first];
  for (auto it = copies.rbegin(); it != copies.rend(); ++it) {
    if (it->epoch != key.second) continue;
    CopyState copy{it->epoch, it->attempt, it->step, it->holders.contains(node)};
    if (copy.staged_gang) copy.ram_nodes = {node};
    copy.durable = it->durable;
    copy.bytes = 1 << 20;
    report.copies.push_back(copy);
  }
  ToCore(node, JobReported{node, report});
  if (Chance(options_.duplicate)) ToCore(node, JobReported{node, report});
}

void World::SetState(const std::string& node, const RunKey& key, NodeJobState state) {
  agents_.at(node).runs.at(key).state = state;
  Report(node, key);
}

// ---- gangs

std::vector<std::string> World::NodesOf(const RunKey& key) {
  std::vector<std::string> nodes;
  for (const auto& [name, agent] : agents_) {
    if (agent.runs.contains(key)) nodes.push_back(name);
  }
  return nodes;
}

const FakeCopy* World::Newest(const std::string& job, bool durable_only) const {
  const FakeCopy* newest = nullptr;
  const auto it = copies_.find(job);
  if (it == copies_.end()) return nullptr;
  for (const FakeCopy& copy : it->second) {
    const bool whole = copy.durable || (!durable_only && !copy.holders.empty());
    if (whole && (newest == nullptr || copy.step >= newest->step)) newest = &copy;
  }
  return newest;
}

// When all members are there they resume from the newest copy that they can read.
void World::TryStartGang(const RunKey& key) {
  const auto nodes = NodesOf(key);
  const uint32_t nnodes = RunOf(nodes.front(), key)->launch.nnodes;
  if (nodes.size() != nnodes) return;
  for (const std::string& node : nodes) {
    if (RunOf(node, key)->state != NodeJobState::kStarting) return;
  }
  int64_t step = 0;
  int64_t best = 0;
  AttemptId from;
  for (const FakeCopy& copy : copies_[key.first]) {
    bool whole_ram = true;
    for (const std::string& node : nodes) {
      const NodePlacement& place = RunOf(node, key)->launch.place;
      const auto held = copy.holders.find(node);
      whole_ram = whole_ram && held != copy.holders.end() &&
                  held->second == std::pair(place.first_rank, place.rank_count);
    }
    if (copy.durable || whole_ram) {
      step = std::max(step, copy.step);
      from = std::max(from,
                      AttemptId{Epoch(copy.epoch), ckpt::Step(copy.step), Attempt(copy.attempt)});
    }
    if (copy.durable || !copy.holders.empty()) best = std::max(best, copy.step);
  }
  const auto expect = AttemptId::Parse(RunOf(nodes.front(), key)->launch.expect);
  if (expect.ok() && from < *expect) {
    Violation(key.first + " is to resume from " + expect->ToString() + ", but it is not there");
    RunOf(nodes.front(), key)->behind = true;
    return SetState(nodes.front(), key, NodeJobState::kFailed);
  }
  if (step < best && !may_lose_.contains(key.first)) {
    Violation(key.first + " resumed from step " + std::to_string(step) + " though a copy of step " +
              std::to_string(best) + " exists");
  }
  for (const std::string& node : nodes) {
    RunOf(node, key)->step = step;
    if (from != AttemptId()) RunOf(node, key)->resumed_from = "ram " + from.ToString();
    After(Delay(), [this, node, key] {
      FakeRun* run = RunOf(node, key);
      if (run != nullptr && run->state == NodeJobState::kStarting) {
        SetState(node, key, NodeJobState::kRunning);
      }
    });
  }
  After(options_.delay_max, [this, key] { GangStep(key); });
}

// Ten steps at a time, until something stops it or it is done.
void World::GangStep(const RunKey& key) {
  const auto nodes = NodesOf(key);
  bool finished = false;
  for (const std::string& node : nodes) {
    FakeRun* run = RunOf(node, key);
    if (run->state != NodeJobState::kRunning) return;
    if (run->stopping) {
      After(100 * kMs, [this, key] { GangStep(key); });
      return;
    }
    run->step += 10;
    run->stepped = true;
    finished = run->step >= options_.steps_to_finish;
  }
  if (nodes.empty()) return;
  const int64_t step = RunOf(nodes.front(), key)->step;
  if (step % 50 == 0) SaveGang(key);
  for (const std::string& node : nodes) {
    if (finished) {
      SetState(node, key, NodeJobState::kFinished);
    } else {
      Report(node, key);
    }
  }
  if (!finished) After(100 * kMs, [this, key] { GangStep(key); });
}

void World::SaveGang(const RunKey& key) {
  FakeCopy copy;
  copy.epoch = key.second;
  copy.attempt = ++attempts_[key.first];
  for (const std::string& node : NodesOf(key)) {
    const FakeRun* run = RunOf(node, key);
    copy.step = run->step;
    copy.holders[node] = {run->launch.place.first_rank, run->launch.place.rank_count};
  }
  copies_[key.first].push_back(copy);
  Drain(key.first, copy.epoch, copy.attempt);
}

void World::Drain(const std::string& job, uint64_t epoch, uint32_t attempt) {
  After(20 * Delay(), [this, job, epoch, attempt] {
    const bool runs = std::any_of(agents_.begin(), agents_.end(), [&](const auto& entry) {
      const auto run = entry.second.runs.find({job, epoch});
      return run != entry.second.runs.end() && !IsOver(run->second.state);
    });
    const bool dies = !runs && (die_draining_ > 0 || Chance(options_.die_draining));
    if (dies && die_draining_ > 0) --die_draining_;
    for (const std::string& node : NodesOf({job, epoch})) {
      RunOf(node, {job, epoch})->run_ended = !runs;
    }
    if (dies) {
      for (const std::string& node : NodesOf({job, epoch})) Report(node, {job, epoch});
      return;
    }
    for (FakeCopy& copy : copies_[job]) {
      if (copy.epoch == epoch && copy.attempt == attempt && !copy.holders.empty()) {
        copy.durable = true;
      }
    }
    for (const std::string& node : NodesOf({job, epoch})) Report(node, {job, epoch});
  });
}

void World::SuspendGang(const RunKey& key) {
  const int64_t noticed = now_;
  if (Chance(options_.suspend_fails)) {
    After(Delay(), [this, key] {
      for (const std::string& node : NodesOf(key)) {
        FakeRun* run = RunOf(node, key);
        run->suspend_failed = true;
        run->stopping = false;
        run->message = "barrier B1: rank 1 did not arrive";
        Report(node, key);
      }
    });
    return;
  }
  After(Delay(), [this, key, noticed] { FinishSuspend(key, noticed); });
}

void World::FinishSuspend(const RunKey& key, int64_t noticed) {
  const auto nodes = NodesOf(key);
  for (const std::string& node : nodes) {
    if (IsOver(RunOf(node, key)->state)) return;  // something else came first
  }
  if (Chance(options_.crash_in_stop)) {
    for (const std::string& node : nodes) {
      RunOf(node, key)->message = "rank 0 died while it stopped";
      SetState(node, key, NodeJobState::kFailed);
    }
    return;
  }
  SaveGang(key);
  for (const std::string& node : nodes) {
    FakeRun* run = RunOf(node, key);
    run->times.noticed_ns = noticed;
    run->times.cut_ns = now_ - stage_ns_;
    run->times.staged_ns = run->times.comms_down_ns = now_;
    uint64_t ranks = 0;
    for (const std::string& each : nodes) ranks += RunOf(each, key)->launch.place.rank_count;
    run->times.staged_bytes = ranks * run->launch.spec.state_bytes_per_rank;
    SetState(node, key, NodeJobState::kStopping);
    After(Delay() + exit_ns_, [this, node, key] {
      FakeRun* r = RunOf(node, key);
      if (r == nullptr || IsOver(r->state)) return;
      r->times.released_ns = now_;
      SetState(node, key, NodeJobState::kReleased);
    });
  }
}

// ---- invariants

// What really runs: slots, and one epoch of a job at a time.
void World::CheckTruth() {
  std::map<std::string, std::set<uint64_t>> epochs;
  for (const auto& [name, agent] : agents_) {
    uint32_t used = 0;
    for (const auto& [key, run] : agent.runs) {
      if (IsOver(run.state)) continue;
      used += run.launch.place.rank_count;
      epochs[key.first].insert(key.second);
    }
    if (used > agent.info.slots) {
      Violation("node " + name + " runs " + std::to_string(used) + " ranks on " +
                std::to_string(agent.info.slots) + " slots");
    }
  }
  for (const auto& [job, running] : epochs) {
    if (running.size() > 1) {
      Violation(job + " runs as epochs " + std::to_string(*running.begin()) + " and " +
                std::to_string(*running.rbegin()));
    }
  }
}

// What is held for a newcomer is not given to anybody else.
void World::CheckHolds() {
  for (const auto& [name, node] : core_->nodes()) {
    uint64_t used = 0;
    for (const auto& [job_name, job] : core_->jobs()) {
      if (!IsLive(job.state)) continue;
      for (const Member& member : job.members) {
        if (member.place.node == name) used += member.place.rank_count;
      }
    }
    for (const auto& [op_id, op] : core_->operations()) {
      const bool holds = op.state == OperationState::kRunning &&
                         op.kind == OperationKind::kPreempt && op.phase < Phase::kGranted;
      if (!holds) continue;
      for (const NodePlacement& place : op.placement) {
        if (place.node == name) used += place.rank_count;
      }
      for (const VictimProgress& victim : op.victims) {
        const Job* job = core_->FindJob(victim.job);
        if (job == nullptr || !IsLive(job->state)) continue;
        for (const Member& member : job->members) {
          if (member.place.node == name) used -= std::min<uint64_t>(used, member.place.rank_count);
        }
      }
    }
    if (used > node.info.slots) Violation("what is held on node " + name + " was given away");
  }
}

}  // namespace ckpt::core
