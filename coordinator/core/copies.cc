// The copies of a job: what the nodes say that they hold, what became durable, what was lost, what
// may be forgotten.
#include <algorithm>

#include "coordinator/core/impl.h"
#include "libckpt/base/clock.h"

namespace ckpt::core {
namespace {

constexpr size_t kCopiesPerReportMax = 8;

const CopyState* FindCopy(const std::vector<CopyState>& copies, const CopyState& like) {
  for (const CopyState& copy : copies) {
    if (copy.Key() == like.Key()) return &copy;
  }
  return nullptr;
}

bool IsBehindDurable(const CopyState& copy, const std::vector<CopyState>& known) {
  return std::any_of(known.begin(), known.end(), [&](const CopyState& other) {
    return other.durable && other.Key() >= copy.Key();
  });
}

}  // namespace

// What is durable is in the store, also when no agent speaks of it any more, or one that was killed
// remembers less of it.
void Core::Impl::RememberDurable(Job& job, const std::vector<CopyState>& before) {
  for (const CopyState& copy : before) {
    if (!copy.durable) continue;
    const auto now = MergedCopies(job);
    const CopyState* known = FindCopy(now, copy);
    if (known == nullptr || !known->durable) {
      CopyState stored = copy;
      stored.staged_gang = false;
      stored.ram_nodes.clear();
      job.copies[{"", copy.epoch}] = {stored};
    }
    return;
  }
}

void Core::Impl::FoldCopies(Job& job, const std::string& node, const JobReport& report) {
  FoldSilence(job, node, report);
  const auto before = MergedCopies(job);
  std::vector<CopyState> copies = report.copies;
  if (copies.size() > kCopiesPerReportMax) copies.resize(kCopiesPerReportMax);
  for (CopyState& copy : copies) {
    if (copy.staged_gang && copy.ram_nodes.empty()) copy.ram_nodes = {node};
  }
  const std::pair<std::string, uint64_t> key{node, report.epoch};
  if (report.run_ended ? job.run_ended.insert(key).second : job.run_ended.erase(key) != 0) {
    Edit(job.spec.name);
    settle_ = true;
  }
  auto& held = job.copies[key];
  if (held == copies) return;
  const std::string fallback = FallbackOf(job);
  held = std::move(copies);
  Edit(job.spec.name);
  settle_ = true;
  RememberDurable(job, before);
  CopiesLost(job, before);
  if (!IsLive(job.state) && job.reason.ends_with(fallback)) {
    job.reason.replace(job.reason.size() - fallback.size(), fallback.size(), FallbackOf(job));
  }
  for (const CopyState& copy : MergedCopies(job)) {
    const CopyState* old = FindCopy(before, copy);
    // Something newer is durable: what a node says late of an older one is no news.
    const bool stale = (old == nullptr || !old->durable) && IsBehindDurable(copy, before);
    const bool newly_staged = copy.staged_gang && !stale && (old == nullptr || !old->staged_gang);
    const bool newly_durable = copy.durable && !stale && (old == nullptr || !old->durable);
    if (newly_staged || newly_durable) job.last_copy_ns = now_.boot_ns;
    const std::string name = "step " + std::to_string(copy.step) + ", " + FormatBytes(copy.bytes);
    if (newly_durable) {
      EventRecord& event = Emit("durable", &job, name);
      event.epoch = copy.epoch;
      const bool of_stop = copy.epoch == job.last_stop_epoch && job.last_stop.durable_ns != 0;
      if (of_stop) event.boottime_ns = job.last_stop.durable_ns;
      if (of_stop) event.data = TimesData(job.last_stop);
      event.data["step"] = std::to_string(copy.step);
      event.data["attempt"] = std::to_string(copy.attempt);
    }
    if (!copy.failure.empty() && !copy.durable && !stale &&
        (old == nullptr || old->failure.empty())) {
      Emit("drain_failed", &job, name + ": " + copy.failure).epoch = copy.epoch;
    }
  }
}

// The newest copy there was is gone, and an older one counts.
void Core::Impl::CopiesLost(Job& job, const std::vector<CopyState>& before) {
  const auto newest = [](const std::vector<CopyState>& copies) -> const CopyState* {
    for (const CopyState& copy : copies) {
      if (copy.durable || copy.staged_gang) return &copy;
    }
    return nullptr;
  };
  const auto after = MergedCopies(job);
  const CopyState* old = newest(before);
  const CopyState* now = newest(after);
  if (old == nullptr || old->durable || (now != nullptr && now->Key() >= old->Key())) return;
  const CopyState* same = FindCopy(after, *old);
  if (same == nullptr || !same->lost || job.state == JobState::kCancelled) return;
  std::string where;
  for (const std::string& node : old->ram_nodes) where += " " + node;
  const int64_t steps = old->step - (now == nullptr ? 0 : now->step);
  EventRecord& line = Emit("copy_lost", &job,
                           "step " + std::to_string(old->step) + " was only in RAM of" + where +
                               ": " + same->failure + "; " + FallbackOf(job));
  line.epoch = old->epoch;
  if (IsLive(job.state)) return;  // it has what it resumed from
  BookLoss(job, steps, static_cast<double>(steps) * job.step_seconds, "left behind with that copy");
}

// A copy may go when a newer one stands in for it and nothing of it is still being written.
void Core::Impl::ForgetSuperseded(Job& job) {
  const auto all = MergedCopies(job);
  const auto newer = [&](const CopyState& than, bool durable_only) {
    return std::any_of(all.begin(), all.end(), [&](const CopyState& copy) {
      return copy.Key() > than.Key() &&
             (copy.durable || (!durable_only && copy.staged_gang && copy.epoch == job.epoch));
    });
  };
  for (auto it = job.copies.begin(); it != job.copies.end();) {
    const auto& [node, epoch] = it->first;
    const auto& copies = it->second;
    const bool drained = std::all_of(copies.begin(), copies.end(), [&](const CopyState& copy) {
      const bool never = copy.lost || (!copy.staged_gang && !copy.failure.empty());
      return copy.durable || never || newer(copy, true);
    });
    const bool replaced = std::all_of(copies.begin(), copies.end(),
                                      [&](const CopyState& copy) { return newer(copy, false); });
    const bool ended =
        job.state == JobState::kCancelled || (job.state == JobState::kFinished && drained);
    const bool forget = ended || (epoch != job.epoch && drained && replaced);
    if (!forget || (!node.empty() && !Connected(node))) {
      ++it;
      continue;
    }
    Edit(job.spec.name);
    settle_ = true;
    if (!node.empty()) SendTo(node, Forget{job.spec.name, epoch, true});
    job.run_ended.erase(it->first);
    it = job.copies.erase(it);
  }
  if (IsEnded(job.state)) RememberDurable(job, all);
}

}  // namespace ckpt::core
