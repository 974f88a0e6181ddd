// Room, and who gets it.
#include <algorithm>

#include "coordinator/core/impl.h"
#include "libckpt/base/clock.h"

namespace ckpt::core {

// Slots of connected nodes that are neither occupied (I1) nor held by an operation other than
// `without_op`.
std::vector<Room> Core::Impl::Rooms(uint64_t without_op) const {
  std::map<std::string, std::pair<uint64_t, uint64_t>> used;  // slots, staging bytes
  for (const auto& [name, job] : jobs_) {
    if (IsLive(job.state)) {
      for (const Member& m : job.members) {
        used[m.place.node].first += m.place.rank_count;
        used[m.place.node].second += BytesPerRank(job) * m.place.rank_count;
      }
    } else {
      std::set<std::string> nodes;
      for (const auto& [from, copies] : job.copies) nodes.insert(from.first);
      for (const std::string& node : nodes) used[node].second += StagingUse(job, node);
    }
  }
  for (const uint64_t op_id : running_ops_) {
    if (op_id == without_op) continue;
    for (const auto& [node, slots] : HoldsOf(ops_.at(op_id))) used[node].first += slots;
  }
  std::vector<Room> rooms;
  for (const auto& [name, node] : nodes_) {
    if (!node.connected) continue;
    auto [slots, staging] = used[name];
    for (const auto& [job, ranks] : node.foreign) slots += ranks;
    const uint64_t budget = node.info.staging_budget_bytes;
    rooms.push_back({name,
                     node.info.slots > slots ? node.info.slots - static_cast<uint32_t>(slots) : 0,
                     budget > staging ? budget - staging : 0});
  }
  return rooms;
}

// What `op` keeps for its newcomer, and for its victims should it be aborted, beyond what the
// victims still occupy themselves.
std::map<std::string, uint32_t> Core::Impl::HoldsOf(const Operation& op) const {
  std::map<std::string, uint32_t> need;
  const bool preempt = op.kind == OperationKind::kPreempt && op.phase < Phase::kGranted;
  const bool migrate = op.kind == OperationKind::kMigrate;
  if (op.state != OperationState::kRunning || (!preempt && !migrate)) return need;
  for (const VictimProgress& victim : op.victims) {
    for (const NodePlacement& place : victim.placement) need[place.node] += place.rank_count;
  }
  for (const NodePlacement& place : op.placement) {
    need[place.node] = std::max(need[place.node], place.rank_count);
  }
  for (const VictimProgress& victim : op.victims) {
    const auto it = jobs_.find(victim.job);
    if (it == jobs_.end() || !IsLive(it->second.state)) continue;
    for (const Member& member : it->second.members) {
      uint32_t& left = need[member.place.node];
      left -= std::min(left, member.place.rank_count);
    }
  }
  return need;
}

uint64_t Core::Impl::BytesPerRank(const Job& job) const {
  const uint64_t measured = job.spec.ranks == 0 ? 0 : job.state_bytes / job.spec.ranks;
  return std::max(job.spec.state_bytes_per_rank, measured);
}

// What the staged copies of a job that does not run take on `node`.
uint64_t Core::Impl::StagingUse(const Job& job, const std::string& node) const {
  uint64_t bytes = 0;
  for (const CopyState& copy : MergedCopies(job)) {
    const auto& nodes = copy.ram_nodes;
    if (std::find(nodes.begin(), nodes.end(), node) != nodes.end()) {
      bytes = std::max(bytes, copy.bytes / nodes.size());
    }
  }
  return bytes;
}

std::optional<Placement> Core::Impl::OldPlace(const Job& job,
                                              const std::vector<Room>& rooms) const {
  if (job.members.empty()) return std::nullopt;
  uint32_t ranks = 0;
  for (const Member& member : job.members) {
    const bool fits = std::any_of(rooms.begin(), rooms.end(), [&](const Room& room) {
      return room.node == member.place.node && room.slots >= member.place.rank_count;
    });
    if (!fits) return std::nullopt;
    ranks += member.place.rank_count;
  }
  if (ranks != job.spec.ranks) return std::nullopt;
  return PlacementOf(job);
}

// I3: to launch it elsewhere would throw away the newest copy.
bool Core::Impl::BoundToRam(const Job& job) const {
  const auto newest = Expected(job);
  return newest && !newest->durable;
}

Result<Placement> Core::Impl::PlaceJob(const Job& job, const std::vector<Room>& rooms) const {
  if (const auto place = OldPlace(job, rooms)) return *place;
  if (BoundToRam(job)) {
    return ResourceExhausted("waits for its old place: " + FallbackOf(job));
  }
  if (const auto place = Place(job.spec.ranks, BytesPerRank(job), rooms)) return *place;
  return ResourceExhausted(WhatIsShort(job, rooms));
}

std::string Core::Impl::WhatIsShort(const Job& job, const std::vector<Room>& rooms) const {
  uint64_t total = 0;
  for (const auto& [name, node] : nodes_) total += node.connected ? node.info.slots : 0;
  uint64_t free = 0;
  std::string staging;
  for (const Room& room : rooms) {
    free += room.slots;
    staging += (staging.empty() ? "" : ", ") + room.node + " " + FormatBytes(room.staging_bytes);
  }
  if (free >= job.spec.ranks) {
    return "needs " + FormatBytes(BytesPerRank(job)) + " of staging RAM a rank; free: " + staging;
  }
  return "needs " + Plural(job.spec.ranks, "slot") + ", " + std::to_string(free) + " of " +
         std::to_string(total) + " free; `ckptctl quote " + job.spec.name +
         "` shows what it would cost to make room";
}

void Core::Impl::SetReason(Job& job, std::string reason) {
  if (job.reason == reason) return;
  Edit(job.spec.name).reason = std::move(reason);
  settle_ = true;
}

// By priority, then age. A later one may use what an earlier one cannot, until the earlier one has
// waited too long.
void Core::Impl::Schedule() {
  std::vector<Job*> waiting;
  for (auto& [name, job] : jobs_) {
    const Operation* op = FindOp(job.op_id);
    const bool held = op != nullptr && op->kind == OperationKind::kPreempt;
    const bool delayed = now_.boot_ns < job.start_after_ns;
    if (IsWaiting(job.state) && !held && !delayed) waiting.push_back(&job);
  }
  if (waiting.empty()) return;
  std::stable_sort(waiting.begin(), waiting.end(), [](const Job* a, const Job* b) {
    if (a->spec.priority != b->spec.priority) return a->spec.priority > b->spec.priority;
    return a->submitted_wall_ns < b->submitted_wall_ns;
  });
  std::vector<Room> rooms = Rooms();
  for (Job* job : waiting) {
    const auto place = PlaceJob(*job, rooms);
    if (place.ok()) {
      LaunchAt(*job, *place);
      rooms = Rooms();
      continue;
    }
    const bool preempted = job->state == JobState::kPreempted;
    if (job->reason.empty()) Emit("pending", job, place.status().message());
    SetReason(*job, (preempted ? "preempted; " : "") + place.status().message());
    const int64_t waited_ns = now_.wall_ns - job->waiting_since_wall_ns;
    if (waited_ns > options_.starvation_ns && CheckFitsCluster(job->spec).ok()) break;
  }
}

}  // namespace ckpt::core
