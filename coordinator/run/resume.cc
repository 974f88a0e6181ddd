#include "coordinator/run/resume.h"

#include <algorithm>
#include <map>

namespace ckpt::run {
namespace {

// One staged generation as the nodes together hold it.
struct GangCopy {
  bool complete = false;   // all ranks of the gang that staged it have sealed it
  bool restorable = true;  // every node can restore its own ranks from its RAM
  bool durable = false;
  bool writable = false;  // every rank's part is in some node's RAM
  RamCopy copy;
};

bool Holds(const RamCopy& copy, const std::vector<uint32_t>& ranks) {
  return copy.full && std::all_of(ranks.begin(), ranks.end(), [&copy](uint32_t rank) {
           return std::find(copy.ranks.begin(), copy.ranks.end(), rank) != copy.ranks.end();
         });
}

bool EveryRankIsHeld(const AttemptId& id, const std::vector<NodeCopies>& nodes) {
  std::set<uint32_t> wanted, held;
  for (const NodeCopies& node : nodes) {
    wanted.insert(node.ranks.begin(), node.ranks.end());
    for (const RamCopy& copy : node.ram) {
      if (copy.id == id) held.insert(copy.ranks.begin(), copy.ranks.end());
    }
  }
  return std::includes(held.begin(), held.end(), wanted.begin(), wanted.end());
}

std::map<AttemptId, GangCopy> Collect(const std::vector<NodeCopies>& nodes) {
  std::map<AttemptId, GangCopy> copies;
  for (const NodeCopies& node : nodes) {
    for (const RamCopy& copy : node.ram) {
      GangCopy& gang = copies[copy.id];
      gang.copy = copy;
      gang.complete = gang.complete || copy.gang_complete;
      gang.durable = gang.durable || copy.durable;
    }
  }
  for (auto& [id, gang] : copies) {
    for (const NodeCopies& node : nodes) {
      gang.restorable =
          gang.restorable && std::any_of(node.ram.begin(), node.ram.end(), [&](const RamCopy& c) {
            return c.id == id && Holds(c, node.ranks);
          });
    }
    gang.writable = EveryRankIsHeld(id, nodes);
    // Every rank's sealed copy is there: complete, though nobody lived to hear it.
    gang.complete = gang.complete || gang.restorable;
  }
  return copies;
}

const storage::CheckpointInfo* NewestVisible(const ResumeInput& input) {
  const storage::CheckpointInfo* newest = nullptr;
  for (const storage::CheckpointInfo& info : input.checkpoints) {
    if (!info.visible || !info.committed || input.damaged.contains(info.id)) continue;
    if (newest == nullptr || newest->id < info.id) newest = &info;
  }
  return newest;
}

// What may still become durable and is newer than `floor`.
std::optional<ResumeDecision> Pending(const ResumeInput& input,
                                      const std::map<AttemptId, GangCopy>& copies,
                                      const AttemptId& floor) {
  std::optional<ResumeDecision> wait;
  const auto consider = [&](const AttemptId& id, bool alive) {
    if (id <= floor || input.damaged.contains(id)) return;
    if (wait && id <= wait->copy.id) return;
    wait = ResumeDecision{.kind = ResumeDecision::Kind::kWait, .drain_alive = alive};
    wait->copy.id = id;
  };
  for (const auto& [id, gang] : copies) {
    // A node that lost its memory has taken a part of it along: nobody can write that any more.
    if (gang.complete && !gang.durable) consider(id, gang.writable);
  }
  for (const storage::CheckpointInfo& info : input.checkpoints) {
    if (info.draining && !info.committed) {
      const auto copy = copies.find(info.id);
      consider(info.id, copy != copies.end() && copy->second.writable);
    }
  }
  return wait;
}

std::string FreshMessage(const ResumeInput& input) {
  for (const storage::CheckpointInfo& info : input.checkpoints) {
    if (info.committed) {
      return "no checkpoint is usable (" + info.id.ToString() +
             (input.damaged.contains(info.id) ? " is damaged)" : " is fenced off)") +
             "; starting from the beginning";
    }
  }
  return "";
}

}  // namespace

ResumeDecision DecideResume(const ResumeInput& input) {
  const std::map<AttemptId, GangCopy> copies = Collect(input.nodes);
  const storage::CheckpointInfo* stored = NewestVisible(input);
  ResumeDecision best;
  if (stored != nullptr) {
    best.kind = ResumeDecision::Kind::kStore;
    best.copy.id = stored->id;
  }
  for (const auto& [id, gang] : copies) {
    if (!gang.complete || !gang.restorable || input.damaged.contains(id)) continue;
    if (best.kind == ResumeDecision::Kind::kFresh || best.copy.id <= id) {
      best.kind = ResumeDecision::Kind::kRam;
      best.copy = gang.copy;
    }
  }
  if (input.may_wait) {
    if (std::optional<ResumeDecision> wait = Pending(input, copies, best.copy.id)) return *wait;
  }
  const bool fresh = best.kind == ResumeDecision::Kind::kFresh;
  const bool behind = input.expect && !input.damaged.contains(*input.expect) &&
                      (fresh || best.copy.id < *input.expect);
  if (behind && input.may_wait) {  // a store may be slow to show it
    best = ResumeDecision{.kind = ResumeDecision::Kind::kWait};
    best.copy.id = *input.expect;
    return best;
  }
  if (behind) {
    best.kind = ResumeDecision::Kind::kBehind;
    best.message = input.expect->ToString() + " is neither in the agents' memory nor in the store" +
                   (fresh ? ", nor is any other copy"
                          : "; the newest that was found is " + best.copy.id.ToString());
    return best;
  }
  if (best.kind == ResumeDecision::Kind::kFresh) best.message = FreshMessage(input);
  return best;
}

int64_t WaitNs(const ResumeInput& input, const ResumeDecision& decision) {
  constexpr int64_t kUnknownNs = 3'000'000'000;
  constexpr int64_t kSeenToNs = 30'000'000'000;
  if (!decision.drain_alive) return kUnknownNs;
  return input.expect ? kSeenToNs : kDrainWaitNs;
}

std::vector<AttemptId> AdoptableAttempts(const std::vector<NodeCopies>& nodes) {
  std::vector<AttemptId> adopt;
  for (const auto& [id, gang] : Collect(nodes)) {
    if (gang.complete && !gang.durable) adopt.push_back(id);
  }
  return adopt;
}

}  // namespace ckpt::run
