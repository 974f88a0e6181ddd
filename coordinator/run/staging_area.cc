#include "coordinator/run/staging_area.h"

#include <algorithm>

#include "libckpt/base/clock.h"
#include "libckpt/base/limits.h"
#include "libckpt/os/memory_room.h"

namespace ckpt::run {

Status StagingBudget::Take(uint64_t bytes) {
  uint64_t used = used_bytes_.load();
  do {
    if (bytes > total_bytes_ || used > total_bytes_ - bytes) {
      return ResourceExhausted("staging budget " + FormatBytes(total_bytes_) +
                               (used == 0 ? "" : " with " + FormatBytes(used) + " in use") +
                               " is too small for " + FormatBytes(bytes) +
                               " more; raise --staging-budget");
    }
  } while (!used_bytes_.compare_exchange_weak(used, used + bytes));
  return OkStatus();
}

void StagingBudget::Give(uint64_t bytes) { used_bytes_.fetch_sub(bytes); }

uint64_t SlotBytes(const format::RankLayout& layout, const plan::RankPlan& plan) {
  return AlignUp(engine::StagingRegion::BytesNeeded(layout, plan), kPageBytes);
}

namespace {

std::string Left(const os::MemoryRoom& room) {
  return FormatBytes(room.bytes) + " are left of " + FormatBytes(room.limit_bytes) + ", " +
         room.limit + "; raise that, track less, or run fewer ranks on this node";
}

// Memory that is not there is found out before it is taken: the kernel would not refuse it, but
// kill somebody.
Status RoomFor(uint64_t bytes) {
  const Result<os::MemoryRoom> room = os::AvailableMemory();
  if (!room.ok() || bytes <= room->bytes) return OkStatus();
  return ResourceExhausted(FormatBytes(bytes) + " more are wanted, but only " + Left(*room));
}

Status Reserve(os::Memfd* memfd, const format::RankLayout& layout, const plan::RankPlan& plan) {
  CKPT_ASSIGN_OR_RETURN(const auto parts, engine::StagingRegion::FilledParts(layout, plan));
  Status reserved;
  for (size_t i = 0; i < parts.size() && reserved.ok(); ++i) {
    reserved = memfd->Reserve(parts[i].offset, parts[i].bytes);
  }
  const Result<os::MemoryRoom> room = os::AvailableMemory();
  if (reserved.ok() || !room.ok()) return reserved;
  return Status(reserved.code(), reserved.message() + "; " + Left(*room));
}

}  // namespace

Result<SlotPtr> StagingSlot::Create(std::shared_ptr<StagingBudget> budget,
                                    const engine::StagingIdentity& identity, uint32_t slot,
                                    const format::RankLayout& layout, const plan::RankPlan& plan) {
  const uint64_t bytes = SlotBytes(layout, plan);
  CKPT_RETURN_IF_ERROR(budget->Take(bytes));
  if (Status room = RoomFor(bytes); !room.ok()) {
    budget->Give(bytes);
    return room;
  }
  const std::string name =
      "ckpt-stage-r" + std::to_string(identity.rank.value()) + "-" + std::to_string(slot);
  auto made = [&]() -> Result<SlotPtr> {
    CKPT_ASSIGN_OR_RETURN(os::Memfd memfd, os::Memfd::Create(name, bytes));
    CKPT_RETURN_IF_ERROR(Reserve(&memfd, layout, plan));
    CKPT_ASSIGN_OR_RETURN(os::Mapping mapping, memfd.Map());
    CKPT_ASSIGN_OR_RETURN(engine::StagingRegion region,
                          engine::StagingRegion::Format(mapping.bytes(), identity, layout, plan));
    return SlotPtr(new StagingSlot(std::move(memfd), std::move(mapping), std::move(region), slot));
  }();
  if (made.ok()) {
    (*made)->budget_ = std::move(budget);
  } else {
    budget->Give(bytes);
  }
  return made;
}

Result<SlotPtr> StagingSlot::Adopt(os::UniqueFd fd, uint64_t bytes, uint32_t slot,
                                   const JobId& job) {
  CKPT_ASSIGN_OR_RETURN(os::Memfd memfd, os::Memfd::FromFd(std::move(fd), bytes));
  CKPT_ASSIGN_OR_RETURN(os::Mapping mapping, memfd.Map());
  CKPT_ASSIGN_OR_RETURN(engine::StagingRegion region, engine::StagingRegion::Open(mapping.bytes()));
  if (job != JobId() && region.identity().job != job) {
    return FailedPrecondition("it is of job " + region.identity().job.ToString() + ", not " +
                              job.ToString());
  }
  return SlotPtr(new StagingSlot(std::move(memfd), std::move(mapping), std::move(region), slot));
}

StagingSlot::~StagingSlot() {
  if (budget_) budget_->Give(bytes());
}

uint64_t StagingSlot::staged_bytes() const {
  const plan::RankPlan& plan = region_.plan();
  return region_.info().full ? plan.StageBytes(region_.layout())
                             : plan.WriteBytes(region_.layout());
}

bool HoldsGeneration(const engine::StagingRegion& region) {
  const engine::GenerationState state = region.state();
  return state == engine::GenerationState::kSealed ||
         state == engine::GenerationState::kGangComplete ||
         state == engine::GenerationState::kDurable;
}

std::vector<RamCopy> Inventory(const std::vector<SlotPtr>& slots) {
  std::map<AttemptId, RamCopy> copies;
  for (const SlotPtr& slot : slots) {
    if (!HoldsGeneration(slot->region())) continue;
    const engine::GenerationInfo info = slot->region().info();
    RamCopy fresh{.id = info.id, .full = true, .world = slot->region().identity().world};
    RamCopy& copy = copies.try_emplace(info.id, fresh).first->second;
    const engine::GenerationState state = slot->region().state();
    copy.durable = copy.durable || state == engine::GenerationState::kDurable;
    copy.gang_complete =
        copy.gang_complete || copy.durable || state == engine::GenerationState::kGangComplete;
    copy.full = copy.full && info.full;
    copy.ranks.push_back(slot->rank());
  }
  std::vector<RamCopy> list;
  for (auto& [id, copy] : copies) {
    std::sort(copy.ranks.begin(), copy.ranks.end());
    list.push_back(std::move(copy));
  }
  return list;
}

}  // namespace ckpt::run
