#include "libckpt/wire/page.h"

#include <bit>
#include <new>
#include <string>

#include "libckpt/base/limits.h"

namespace ckpt::wire {
namespace {

static_assert(std::endian::native == std::endian::little, "the page is little-endian memory");

// A writer holds the line for some ten stores; if it is odd for so long, its process died there.
constexpr int kLoadTries = 100'000;

Order ReadFields(const ControlPage& page) {
  constexpr auto relaxed = std::memory_order_relaxed;
  return Order{
      .operation = page.operation.load(relaxed),
      .round = page.round.load(relaxed),
      .attempt = page.attempt.load(relaxed),
      .request = static_cast<Request>(page.request.load(relaxed)),
      .outcome = static_cast<PageOutcome>(page.outcome.load(relaxed)),
      .notice_id = page.notice_id.load(relaxed),
      .deadline_boottime_ns = page.deadline_boottime_ns.load(relaxed),
      .generation = page.generation.load(relaxed),
      .slot = page.slot.load(relaxed),
  };
}

}  // namespace

void InitPage(ControlPage* page, uint64_t epoch, uint32_t rank, uint32_t world) {
  new (page) ControlPage();  // value-initialized: all zero
  page->version = kPageVersion;
  page->size = kPageBytes;
  page->epoch = epoch;
  page->rank = rank;
  page->world = world;
  page->magic = kPageMagic;
}

Status CheckPage(const ControlPage& page) {
  if (page.magic != kPageMagic) {
    return FailedPrecondition(
        "the control page has no magic number: it is not one, or its "
        "ckpt-run is of another make");
  }
  if (page.version != kPageVersion || page.size != kPageBytes) {
    return FailedPrecondition("the control page has version " + std::to_string(page.version) +
                              " and " + std::to_string(page.size) +
                              " bytes, this library knows version " + std::to_string(kPageVersion) +
                              " with " + std::to_string(kPageBytes));
  }
  if (page.world == 0 || page.rank >= page.world) {
    return FailedPrecondition("the control page names rank " + std::to_string(page.rank) + " of " +
                              std::to_string(page.world));
  }
  return OkStatus();
}

// I3. The fences order the sequence against the fields, which are relaxed.
void StoreOrder(ControlPage* page, const Order& order) {
  constexpr auto relaxed = std::memory_order_relaxed;
  // Odd whatever it was: a ckpt-run that died while writing left it odd.
  const uint32_t before = page->order_seq.load(relaxed);
  page->order_seq.store(before | 1, relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  page->operation.store(order.operation, relaxed);
  page->round.store(order.round, relaxed);
  page->attempt.store(order.attempt, relaxed);
  page->request.store(static_cast<uint32_t>(order.request), relaxed);
  page->outcome.store(static_cast<uint32_t>(order.outcome), relaxed);
  page->notice_id.store(order.notice_id, relaxed);
  page->deadline_boottime_ns.store(order.deadline_boottime_ns, relaxed);
  page->generation.store(order.generation, relaxed);
  page->slot.store(order.slot, relaxed);
  page->order_seq.store((before | 1) + 1, std::memory_order_release);
}

Result<Order> LoadOrder(const ControlPage& page) {
  for (int i = 0; i < kLoadTries; ++i) {
    const uint32_t before = page.order_seq.load(std::memory_order_acquire);
    if ((before & 1) != 0) continue;
    const Order order = ReadFields(page);
    std::atomic_thread_fence(std::memory_order_acquire);
    if (page.order_seq.load(std::memory_order_relaxed) == before) return order;
  }
  return Unavailable(
      "the control page's order line is being changed all the time: its ckpt-run "
      "may have died while it wrote");
}

}  // namespace ckpt::wire
