#include "coordinator/agent/held_copies.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <set>

namespace ckpt::agent {

using engine::GenerationState;

namespace {

constexpr size_t kDropsMax = 64;  // waiting; beyond that the caller frees

}  // namespace

bool RegionInfo::Whole() const {
  return state == GenerationState::kSealed || state == GenerationState::kGangComplete ||
         state == GenerationState::kDurable;
}

Result<RegionInfo> InspectRegion(const os::Memfd& memory) {
  // Writable: its atomics are loaded through it; no page is touched but those of the header.
  CKPT_ASSIGN_OR_RETURN(const os::Mapping mapping, memory.Map());
  CKPT_ASSIGN_OR_RETURN(engine::StagingRegion region, engine::StagingRegion::Open(mapping.bytes()));
  RegionInfo info;
  info.job_id = region.identity().job;
  info.rank = region.identity().rank.value();
  info.world = region.identity().world;
  const engine::GenerationInfo generation = region.info();
  info.id = generation.id;
  info.full = generation.full;
  info.state = region.state();
  info.data_offset = mapping.size();
  for (uint32_t i = 0; i < region.staged_count(); ++i) {
    const ByteSpan data = std::as_const(region).piece_data(i);
    info.staged_bytes += data.size();
    const auto offset = static_cast<uint64_t>(data.data() - mapping.data());
    if (!data.empty()) info.data_offset = std::min(info.data_offset, offset);
  }
  return info;
}

HeldCopies::HeldCopies() : freer_("ckpt-free", 1, kDropsMax) {}

void HeldCopies::Put(HeldRegion region) {
  MutexLock lock(mutex_);
  for (HeldRegion& held : regions_) {
    if (held.key == region.key && held.fetched == region.fetched) {
      held = std::move(region);
      return;
    }
  }
  regions_.push_back(std::move(region));
}

void HeldCopies::Drop(const HeldKey& key) {
  MutexLock lock(mutex_);
  std::erase_if(regions_, [&](const HeldRegion& held) { return held.key == key && !held.fetched; });
}

uint64_t HeldCopies::DropEpoch(const std::string& job, uint64_t epoch) {
  const uint64_t before = UsedBytes();
  const auto dropped = std::make_shared<std::vector<HeldRegion>>();
  {
    MutexLock lock(mutex_);
    const auto first = std::stable_partition(
        regions_.begin(), regions_.end(),
        [&](const HeldRegion& held) { return held.key.job != job || held.key.epoch != epoch; });
    std::move(first, regions_.end(), std::back_inserter(*dropped));
    regions_.erase(first, regions_.end());
  }
  const uint64_t after = UsedBytes();
  freer_.TrySubmit([dropped] { dropped->clear(); }).IgnoreError();  // else here and now
  return before > after ? before - after : 0;
}

uint64_t HeldCopies::UsedBytes() const { return UsedBytes(""); }

uint64_t HeldCopies::UsedBytes(const std::string& job) const {
  MutexLock lock(mutex_);
  std::set<uint64_t> seen;
  uint64_t bytes = 0;
  for (const HeldRegion& held : regions_) {
    if (!job.empty() && held.key.job != job) continue;
    if (seen.insert(held.memory.inode()).second) bytes += held.memory.bytes();
  }
  return bytes;
}

// So that regions are mapped and read outside the lock.
std::vector<HeldRegion> HeldCopies::Duplicates(const std::string& job) const {
  MutexLock lock(mutex_);
  std::vector<HeldRegion> copies;
  std::set<uint64_t> seen;
  for (const HeldRegion& held : regions_) {
    if (held.key.job != job || !seen.insert(held.memory.inode()).second) continue;
    Result<os::Memfd> memory = held.memory.Dup();
    if (memory.ok()) copies.push_back({held.key, std::move(*memory), held.fetched});
  }
  return copies;
}

std::vector<HeldCopies::Whole> HeldCopies::WholeOf(const std::string& job) const {
  std::vector<Whole> whole;
  for (HeldRegion& held : Duplicates(job)) {
    const Result<RegionInfo> info = InspectRegion(held.memory);
    if (info.ok() && info->Whole()) whole.push_back({held.key, *info, std::move(held.memory)});
  }
  std::stable_sort(whole.begin(), whole.end(), [](const Whole& a, const Whole& b) {
    return a.info.id != b.info.id ? b.info.id < a.info.id : a.info.rank < b.info.rank;
  });
  return whole;
}

Result<HeldCopies::Whole> HeldCopies::Find(const std::string& job, uint64_t epoch, uint32_t attempt,
                                           uint32_t rank) const {
  std::string held;
  for (Whole& whole : WholeOf(job)) {
    const AttemptId& id = whole.info.id;
    const bool epoch_fits = epoch == 0 || id.epoch.value() == epoch;
    const bool attempt_fits = attempt == 0 || id.attempt.value() == attempt;
    if (whole.info.rank == rank && epoch_fits && attempt_fits) return std::move(whole);
    held += (held.empty() ? "" : ", ") + id.ToString() + " rank " + std::to_string(whole.info.rank);
  }
  return NotFound("job " + job + ": no copy of rank " + std::to_string(rank) + ", epoch " +
                  std::to_string(epoch) + ", attempt " + std::to_string(attempt) +
                  " is held here; held: " + (held.empty() ? "nothing" : held));
}

}  // namespace ckpt::agent
