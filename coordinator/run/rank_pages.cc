#include "coordinator/run/rank_pages.h"

#include <algorithm>

#include "libckpt/base/clock.h"
#include "libckpt/base/limits.h"
#include "libckpt/os/futex.h"

namespace ckpt::run {

// A step is believed to take at most this long: it only sets how far ahead a cut is proposed.
constexpr int64_t kStepNsMax = int64_t{3600} * 1'000'000'000;

Result<std::unique_ptr<RankPages>> RankPages::Create(uint64_t epoch, uint32_t first_rank,
                                                     uint32_t rank_count, uint32_t world) {
  std::unique_ptr<RankPages> pages(new RankPages(first_rank));
  for (uint32_t i = 0; i < rank_count; ++i) {
    Page page;
    CKPT_ASSIGN_OR_RETURN(
        page.memfd, os::Memfd::Create("ckpt-page-r" + std::to_string(first_rank + i), kPageBytes));
    CKPT_ASSIGN_OR_RETURN(page.mapping, page.memfd.Map({.populate = true}));
    pages->pages_.push_back(std::move(page));
    wire::InitPage(pages->At(first_rank + i), epoch, first_rank + i, world);
  }
  return pages;
}

wire::ControlPage* RankPages::At(uint32_t rank) const {
  return reinterpret_cast<wire::ControlPage*>(pages_[rank - first_rank_].mapping.data());
}

Word RankPages::Load(Rank rank) { return wire::LoadWord(*At(rank.value())); }

bool RankPages::Cas(Rank rank, Word expected, Word desired) {
  // Taken before, for the rank may be done by the time this thread runs again.
  const int64_t now_ns = BoottimeNs();
  if (!wire::CasWord(At(rank.value()), expected, desired)) return false;
  if (desired.state == WordState::kStaging) {
    pages_[rank.value() - first_rank_].staging_since_ns = now_ns;
  }
  return true;
}

void RankPages::StoreOrder(Rank rank, const gang::RankOrder& order) {
  wire::StoreOrder(At(rank.value()),
                   wire::Order{.operation = order.operation,
                               .round = order.round,
                               .attempt = order.attempt,
                               .request = static_cast<wire::Request>(order.request),
                               .outcome = static_cast<wire::PageOutcome>(order.outcome),
                               .deadline_boottime_ns = order.deadline_ns,
                               .generation = order.generation,
                               .slot = order.slot});
}

void RankPages::Wake(Rank rank) { os::FutexWakeAll(wire::FutexOf(*At(rank.value()))); }

int64_t RankPages::StepNs(Rank rank) {
  const int64_t ns = At(rank.value())->step_time_ns.load(std::memory_order_relaxed);
  return std::clamp<int64_t>(ns, 0, kStepNsMax);
}

}  // namespace ckpt::run
