// Who would have to stop for a newcomer, and at what price.
//
// The whole placement of the newcomer is proven for every set that is considered. The set is the
// cheapest one where all sets can be tried (up to kExactCandidatesMax candidates), else the best of
// three greedy orders; either way it is pruned: no victim could be left out.
#include <algorithm>
#include <limits>

#include "coordinator/core/impl.h"
#include "libckpt/base/clock.h"

namespace ckpt::core {
namespace {

constexpr size_t kExactCandidatesMax = 12;
constexpr size_t kRejectedMax = 32;
constexpr double kBytesPerRankAssumed = double{1ull << 30};  // of a job that has not said
constexpr double kGbpsAssumed = 5;
constexpr double kExitSecondsPerByte = 0.07 / double{1ull << 30};
constexpr double kProcessStartSeconds = 1;
constexpr double kRoundTripSeconds = 0.1;

int ClassRank(const std::string& name) {
  if (name == "batch") return 0;
  if (name == "evaluation") return 2;
  if (name == "realtime") return 3;
  return 1;  // training
}

double ExitSecondsAssumed(const Job& job, uint64_t bytes_per_rank) {
  uint32_t most = 0;
  for (const Member& member : job.members) most = std::max(most, member.place.rank_count);
  return static_cast<double>(bytes_per_rank) * most * kExitSecondsPerByte;
}

std::string Number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f", value);
  return text;
}

}  // namespace

VictimQuote Core::Impl::PriceOf(const Job& victim, int64_t budget_ns) const {
  VictimQuote quote;
  quote.job = victim.spec.name;
  quote.epoch = victim.epoch;
  quote.ranks = victim.spec.ranks;
  quote.times_preempted = victim.preempted_count;
  quote.requeue_seconds = options_.requeue_seconds;
  for (const Member& member : victim.members) quote.nodes.push_back(member.place.node);
  quote.stage_seconds = StageSecondsOf(victim);
  quote.restore_seconds = quote.stage_seconds + kProcessStartSeconds;
  quote.stage_seconds += victim.step_seconds;
  quote.exit_seconds = ExitSecondsAssumed(victim, BytesPerRank(victim));
  const Measured& measured = victim.measured;
  if (measured.exit_seconds > 0) quote.exit_seconds = measured.exit_seconds;
  if (measured.restore_seconds > 0) quote.restore_seconds = measured.restore_seconds;
  quote.measured = measured.exit_seconds > 0 && measured.stage_bytes_per_second > 0;
  if (budget_ns == 0) budget_ns = DefaultBudgetNs(victim);
  const double budget_seconds = static_cast<double>(budget_ns) / 1e9;
  if (quote.stage_seconds > budget_seconds) {
    const int64_t since_ns = std::max(victim.last_copy_ns, victim.running_since_ns);
    quote.lost_seconds = static_cast<double>(now_.boot_ns - since_ns) / 1e9;
  }
  quote.price = quote.ranks * (quote.lost_seconds + quote.stage_seconds + quote.restore_seconds +
                               quote.requeue_seconds) +
                options_.preemption_base * (1 + quote.times_preempted);
  return quote;
}

// As its newest stop did, else as fast as its nodes copy.
double Core::Impl::StageSecondsOf(const Job& victim) const {
  const uint64_t known = BytesPerRank(victim);
  const double per_rank = known == 0 ? kBytesPerRankAssumed : static_cast<double>(known);
  double seconds = 0;
  for (const Member& member : victim.members) {
    const auto node = nodes_.find(member.place.node);
    const double gbps = node == nodes_.end() ? 0 : node->second.info.memcpy_gbps;
    double rate = victim.measured.stage_bytes_per_second;
    if (rate <= 0) rate = (gbps > 0 ? gbps : kGbpsAssumed) * 1e9;
    seconds = std::max(seconds, per_rank * member.place.rank_count / rate);
  }
  return seconds;
}

std::string Core::Impl::TooShort(const Job& victim, int64_t budget_ns) const {
  if (budget_ns == 0) return "";
  const double stage_seconds = PriceOf(victim, budget_ns).stage_seconds;
  if (stage_seconds * 1e9 <= static_cast<double>(budget_ns)) return "";
  return "job " + victim.spec.name + " needs about " + Number(stage_seconds) +
         " s to stop and stage, more than its deadline of " + FormatDuration(Nanos(budget_ns)) +
         ": it may be killed then, and " + FallbackOf(victim);
}

std::string Core::Impl::WhyNot(const Job& victim, const Job& newcomer) const {
  const JobSpec& spec = victim.spec;
  const std::string state(JobStateName(VisibleState(victim)));
  if (VisibleState(victim) != JobState::kRunning) return "is " + state;
  if (victim.op_id != 0) return "is part of an operation in progress";
  if (spec.not_preemptible) return "is not preemptible";
  if (spec.priority >= newcomer.spec.priority) {
    return "has priority " + std::to_string(spec.priority) + ", not below " +
           std::to_string(newcomer.spec.priority);
  }
  if (ClassRank(spec.job_class) > ClassRank(newcomer.spec.job_class)) {
    return "is of class " + spec.job_class + ", which " + newcomer.spec.job_class +
           " may not displace";
  }
  const auto ran_ms = static_cast<uint64_t>((now_.boot_ns - victim.running_since_ns) / 1'000'000);
  if (ran_ms < spec.min_runtime_ms) {
    return "has run for " + FormatDuration(std::chrono::milliseconds(ran_ms)) + " of the " +
           FormatDuration(std::chrono::milliseconds(spec.min_runtime_ms)) + " that it is promised";
  }
  const Status can = CheckCanSuspend(victim);
  return can.ok() ? "" : can.message();
}

std::vector<Core::Impl::Candidate> Core::Impl::CandidatesFor(const Job& newcomer, int64_t budget_ns,
                                                             std::vector<std::string>* rejected) {
  std::vector<Candidate> candidates;
  for (const auto& [name, job] : jobs_) {
    if (!IsLive(job.state)) continue;
    const std::string why_not = WhyNot(job, newcomer);
    if (why_not.empty()) {
      candidates.push_back({&job, PriceOf(job, budget_ns)});
    } else if (rejected->size() < kRejectedMax) {
      rejected->push_back(name + " " + why_not);
    }
  }
  return candidates;
}

// Victims give slots back; their copies keep the staging RAM.
std::optional<Placement> Core::Impl::PlacementWithout(
    const Job& newcomer, const std::vector<const Candidate*>& victims) const {
  std::vector<Room> rooms = base_rooms_;
  for (const Candidate* victim : victims) {
    for (const Member& member : victim->job->members) {
      const auto room =
          std::lower_bound(rooms.begin(), rooms.end(), member.place.node,
                           [](const Room& r, const std::string& node) { return r.node < node; });
      if (room != rooms.end() && room->node == member.place.node) {
        room->slots += member.place.rank_count;
      }
    }
  }
  auto place = PlaceJob(newcomer, rooms);
  if (!place.ok()) return std::nullopt;
  return std::move(place).value();
}

double Core::Impl::GrantSeconds(const std::vector<VictimQuote>& victims) const {
  double seconds = 0;
  for (const VictimQuote& victim : victims) {
    seconds = std::max(seconds, victim.stage_seconds + victim.exit_seconds + kRoundTripSeconds);
  }
  return seconds;
}

namespace {

using Set = std::vector<const Core::Impl::Candidate*>;

double PriceOfSet(const Set& set) {
  double price = 0;
  for (const auto* candidate : set) price += candidate->quote.price;
  return price;
}

// Cheaper, or as cheap with fewer victims.
bool Better(const Set& a, const Set& b) {
  const double pa = PriceOfSet(a);
  const double pb = PriceOfSet(b);
  return pa != pb ? pa < pb : a.size() < b.size();
}

// Leaves out whoever is not needed, the dearest first.
template <typename Fits>
Set Prune(Set set, const Fits& fits) {
  std::stable_sort(set.begin(), set.end(),
                   [](auto* a, auto* b) { return a->quote.price > b->quote.price; });
  for (size_t i = 0; i < set.size();) {
    Set without = set;
    without.erase(without.begin() + static_cast<ptrdiff_t>(i));
    if (fits(without)) {
      set = std::move(without);
    } else {
      ++i;
    }
  }
  return set;
}

template <typename Fits>
std::optional<Set> CheapestOfAll(const Set& all, const Fits& fits) {
  std::optional<Set> best;
  for (uint32_t bits = 0; bits < (1u << all.size()); ++bits) {
    Set set;
    for (size_t i = 0; i < all.size(); ++i) {
      if (bits >> i & 1) set.push_back(all[i]);
    }
    if (best && !Better(set, *best)) continue;
    if (fits(set)) best = std::move(set);
  }
  return best;
}

// The shortest prefix of `order` that is enough, found by halving (more victims never fit less).
template <typename Fits>
Set Prefix(const Set& order, const Fits& fits) {
  size_t low = 0;
  size_t high = order.size();
  while (low < high) {
    const size_t middle = (low + high) / 2;
    if (fits(Set(order.begin(), order.begin() + static_cast<ptrdiff_t>(middle)))) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return Set(order.begin(), order.begin() + static_cast<ptrdiff_t>(low));
}

template <typename Fits>
std::optional<Set> CheapestGreedy(Set all, const Fits& fits) {
  if (!fits(all)) return std::nullopt;
  std::optional<Set> best;
  const auto try_order = [&](auto less) {
    std::stable_sort(all.begin(), all.end(), less);
    Set set = Prune(Prefix(all, fits), fits);
    if (!best || Better(set, *best)) best = std::move(set);
  };
  try_order([](auto* a, auto* b) { return a->quote.price < b->quote.price; });
  for (const auto* candidate : all) {  // now cheapest first: one that is enough by itself
    if (!fits({candidate})) continue;
    if (Better({candidate}, *best)) best = Set{candidate};
    break;
  }
  try_order([](auto* a, auto* b) {
    return a->quote.price * b->quote.ranks < b->quote.price * a->quote.ranks;
  });
  try_order([](auto* a, auto* b) { return a->quote.ranks > b->quote.ranks; });
  return best;
}

}  // namespace

Result<Plan> Core::Impl::MakePlan(const Job& newcomer, int64_t budget_ns) {
  base_rooms_ = Rooms();
  Plan plan;
  plan.job = newcomer.spec.name;
  const std::vector<Candidate> candidates = CandidatesFor(newcomer, budget_ns, &plan.rejected);
  Set all;
  for (const Candidate& candidate : candidates) all.push_back(&candidate);
  const auto fits = [&](const Set& set) { return PlacementWithout(newcomer, set).has_value(); };
  std::optional<Set> chosen;
  if (all.size() <= kExactCandidatesMax) {
    chosen = CheapestOfAll(all, fits);
  } else {
    chosen = CheapestGreedy(all, fits);
  }
  if (!chosen) {
    std::string why = PlaceJob(newcomer, base_rooms_).status().message();
    for (const std::string& each : plan.rejected) why += "\n  " + each;
    return FailedPrecondition("no set of victims makes room for " + plan.job + ": " + why);
  }
  plan.price = PriceOfSet(*chosen);
  for (const Candidate& candidate : candidates) {
    const bool victim = std::find(chosen->begin(), chosen->end(), &candidate) != chosen->end();
    if (victim) {
      plan.victims.push_back(candidate.quote);
      const std::string warning = TooShort(*candidate.job, budget_ns);
      if (!warning.empty()) plan.warnings.push_back(warning);
    } else if (plan.rejected.size() < kRejectedMax) {
      plan.rejected.push_back(
          candidate.quote.job + " (" + Plural(candidate.quote.ranks, "slot") + ", price " +
          Number(candidate.quote.price) + ") " +
          (fits({&candidate}) ? "would be enough, but costs more" : "is not needed"));
    }
  }
  if (newcomer.spec.max_price > 0 && plan.price > newcomer.spec.max_price) {
    return FailedPrecondition("the cheapest way to make room for " + plan.job + " costs " +
                              Number(plan.price) + " GPU-seconds, more than its max_price " +
                              Number(newcomer.spec.max_price));
  }
  plan.placement = *PlacementWithout(newcomer, *chosen);
  plan.grant_seconds = GrantSeconds(plan.victims);
  plan.id = "p" + std::to_string(term_) + "-" + std::to_string(++plan_counter_);
  return plan;
}

// A plan is as good as what it was made from: it is proven again, at today's prices.
Status Core::Impl::Revalidate(const PlanEntry& entry, int64_t deadline_ms, Plan* fresh) {
  const std::string again = "; `ckptctl quote " + entry.plan.job + "` makes a new plan";
  const Job* newcomer = Find(entry.plan.job);
  if (newcomer == nullptr || !IsWaiting(newcomer->state) || newcomer->op_id != 0 ||
      newcomer->epoch != entry.job_epoch) {
    return FailedPrecondition("plan " + entry.plan.id + " no longer holds: " + entry.plan.job +
                              " does not wait for it any more" + again);
  }
  // At the deadline of the quote, unless the apply names its own: that one is the caller's
  // decision.
  const int64_t budget_ns = deadline_ms > 0 ? 0 : entry.budget_ns;
  *fresh = entry.plan;
  fresh->victims.clear();
  fresh->price = 0;
  std::vector<Candidate> victims;
  for (const VictimQuote& quoted : entry.plan.victims) {
    const Job* job = Find(quoted.job);
    std::string why = job == nullptr ? "is gone" : WhyNot(*job, *newcomer);
    if (why.empty() && job->epoch != quoted.epoch) {
      why = "has been launched anew (epoch " + std::to_string(job->epoch) + ")";
    }
    if (!why.empty()) {
      return FailedPrecondition("plan " + entry.plan.id + " no longer holds: victim " + quoted.job +
                                " " + why + again);
    }
    victims.push_back({job, PriceOf(*job, budget_ns)});
    fresh->price += victims.back().quote.price;
    fresh->victims.push_back(victims.back().quote);
  }
  if (fresh->price > entry.plan.price * options_.dearer_max) {
    return FailedPrecondition("plan " + entry.plan.id + " costs " + Number(fresh->price) +
                              " GPU-seconds now, not " + Number(entry.plan.price) + again);
  }
  base_rooms_ = Rooms();
  Set set;
  for (const Candidate& victim : victims) set.push_back(&victim);
  const auto place = PlacementWithout(*newcomer, set);
  if (!place) {
    return FailedPrecondition("plan " + entry.plan.id + " no longer holds: " +
                              PlaceJob(*newcomer, base_rooms_).status().message() + again);
  }
  fresh->placement = *place;
  return OkStatus();
}

}  // namespace ckpt::core
