#include "libckpt/session/slots.h"

#include "libckpt/base/limits.h"
#include "libckpt/base/log.h"

namespace ckpt::session {
namespace {

Result<std::shared_ptr<StagingSlots::Slot>> MakeSlot(const engine::StagingIdentity& identity,
                                                     const format::RankLayout& layout,
                                                     const plan::RankPlan& plan) {
  const uint64_t bytes = AlignUp(engine::StagingRegion::BytesNeeded(layout, plan), kPageBytes);
  auto slot = std::make_shared<StagingSlots::Slot>();
  CKPT_ASSIGN_OR_RETURN(slot->memory, os::Mapping::Anonymous(bytes));
  CKPT_ASSIGN_OR_RETURN(
      engine::StagingRegion region,
      engine::StagingRegion::Format(slot->memory.bytes(), identity, layout, plan));
  slot->region = std::make_unique<engine::StagingRegion>(std::move(region));
  return slot;
}

}  // namespace

Result<std::shared_ptr<StagingSlots>> StagingSlots::Create(
    const engine::StagingIdentity& identity, const format::RankLayout& layout,
    const plan::RankPlan& plan, const std::vector<device::Device*>& devices) {
  auto slots = std::make_shared<StagingSlots>();
  for (uint32_t i = 0; i < kStagingSlotsMax; ++i) {
    Result<std::shared_ptr<Slot>> slot = MakeSlot(identity, layout, plan);
    if (!slot.ok() && slots->slots_.empty())
      return std::move(slot).status().Annotate("staging memory");
    if (!slot.ok()) {
      LogWarning("memory for one staging slot only, so a save waits for the one before it: " +
                 slot.status().message());
      break;
    }
    slots->slots_.push_back(std::move(*slot));
  }
  for (const std::shared_ptr<Slot>& slot : slots->slots_) {
    // Not owned: who warms it keeps it.
    slots->warmer_->Warm(
        slot, slot->memory.bytes(), slot->region->UsedParts(),
        [raw = slot.get(), devices] { raw->pinned.Pin(raw->memory.bytes(), devices); });
  }
  return slots;
}

StagingSlots::Slot* StagingSlots::Take(const Deadline& deadline) {
  MutexLock lock(mutex_);
  for (;;) {
    for (const std::shared_ptr<Slot>& slot : slots_) {
      if (slot->taken) continue;
      slot->taken = true;
      return slot.get();
    }
    if (deadline.Expired()) return nullptr;
    freed_.WaitUntil(mutex_, deadline);
  }
}

void StagingSlots::Give(Slot* slot) {
  MutexLock lock(mutex_);
  slot->taken = false;
  freed_.NotifyAll();
}

void StagingSlots::Leak() {
  MutexLock lock(mutex_);
  for (const std::shared_ptr<Slot>& slot : slots_) slot->memory.Leak();
}

}  // namespace ckpt::session
