#include "libckpt/storage/retention.h"

#include <algorithm>
#include <map>
#include <set>

namespace ckpt::storage {
namespace {

using Reasons = std::map<AttemptId, std::string>;

// The oldest of the newest `last` that are whole; none if nothing is.
std::optional<AttemptId> KeepLast(const std::vector<Retained>& checkpoints, uint32_t last,
                                  Reasons* reasons) {
  std::optional<AttemptId> oldest;
  const uint32_t wanted = std::max(1u, last);
  uint32_t count = 0;
  for (const Retained& checkpoint : checkpoints) {
    if (!checkpoint.whole || count == wanted) continue;
    ++count;
    oldest = checkpoint.id;
    reasons->emplace(checkpoint.id, "one of the newest " + std::to_string(wanted));
  }
  return oldest;
}

void KeepByHours(const std::vector<Retained>& checkpoints, std::chrono::hours every,
                 Reasons* reasons) {
  const int64_t period_ns = std::chrono::nanoseconds(every).count();
  if (period_ns <= 0) return;
  std::set<int64_t> seen;
  for (const Retained& checkpoint : checkpoints) {
    if (checkpoint.whole && seen.insert(checkpoint.committed_ns / period_ns).second) {
      reasons->emplace(checkpoint.id,
                       "the newest of its " + std::to_string(every.count()) + " hours");
    }
  }
}

// At a multiple, or the first one after it: after a stop saves come at other steps than before.
void KeepBySteps(const std::vector<Retained>& checkpoints, uint64_t every, Reasons* reasons) {
  if (every == 0) return;
  std::set<uint64_t> seen;
  for (auto it = checkpoints.rbegin(); it != checkpoints.rend(); ++it) {
    if (!it->whole || it->id.step.value() < 0) continue;
    const auto step = static_cast<uint64_t>(it->id.step.value());
    if (step < every && step != 0) continue;
    if (seen.insert(step / every).second) {
      reasons->emplace(it->id, "the first of " + std::to_string(every) + " steps");
    }
  }
}

void KeepByRule(const std::vector<Retained>& checkpoints, const KeepRules& rules,
                const AttemptId& oldest, Reasons* reasons) {
  for (const Retained& checkpoint : checkpoints) {
    const auto keep = [&](std::string why) { reasons->emplace(checkpoint.id, std::move(why)); };
    const auto& pins = rules.pinned;
    if (checkpoint.pinned || std::find(pins.begin(), pins.end(), checkpoint.id) != pins.end())
      keep("pinned");
    if (!checkpoint.whole && oldest < checkpoint.id) keep("damaged, and newer than what is whole");
  }
  KeepBySteps(checkpoints, rules.every_steps, reasons);
  KeepByHours(checkpoints, rules.every_hours, reasons);
}

void KeepOrigins(const std::vector<Retained>& checkpoints, const std::vector<AttemptId>& needed,
                 Reasons* reasons) {
  for (const AttemptId& id : needed) reasons->emplace(id, "a save in progress refers to it");
  for (const Retained& checkpoint : checkpoints) {
    if (!reasons->contains(checkpoint.id)) continue;
    for (const AttemptId& origin : checkpoint.origins)
      reasons->emplace(origin, checkpoint.id.ToString() + " refers to it");
  }
}

}  // namespace

Result<std::optional<KeepRules>> MakeKeepRules(uint64_t last, uint64_t every_steps,
                                               uint64_t every_hours) {
  constexpr uint64_t kLastMax = 1'000'000, kHoursMax = 1'000'000;
  if (last == 0 && every_steps == 0 && every_hours == 0) return std::optional<KeepRules>();
  if (last == 0)
    return InvalidArgument(
        "checkpoints to be kept by step or by hours, but not how many of the newest: set keep-last "
        "(--keep-last, CKPT_KEEP_LAST), 1 at least");
  if (last > kLastMax || every_hours > kHoursMax)
    return InvalidArgument("keep-last " + std::to_string(last) + " and keep-hours " +
                           std::to_string(every_hours) + " may be 1000000 at most");
  KeepRules rules;
  rules.last = static_cast<uint32_t>(last);
  rules.every_steps = every_steps;
  rules.every_hours = std::chrono::hours(every_hours);
  return std::optional<KeepRules>(std::move(rules));
}

uint64_t PrunePlan::RemoveBytes() const {
  uint64_t bytes = 0;
  for (const PruneEntry& entry : remove) bytes += entry.bytes;
  return bytes;
}

PrunePlan DecidePrune(const std::vector<Retained>& checkpoints,
                      const std::vector<AttemptId>& needed, const KeepRules& rules) {
  PrunePlan plan;
  Reasons reasons;
  const std::optional<AttemptId> oldest = KeepLast(checkpoints, rules.last, &reasons);
  if (oldest) {
    KeepByRule(checkpoints, rules, *oldest, &reasons);
  } else {
    for (const Retained& checkpoint : checkpoints)
      reasons.emplace(checkpoint.id, "no checkpoint is whole");
  }
  KeepOrigins(checkpoints, needed, &reasons);
  for (const Retained& checkpoint : checkpoints) {
    const auto reason = reasons.find(checkpoint.id);
    if (reason != reasons.end())
      plan.keep.push_back({checkpoint.id, reason->second});
    else
      plan.remove.push_back({checkpoint.id, "no rule keeps it"});
  }
  return plan;
}

}  // namespace ckpt::storage
