// The control page: whatever the other side has written, looking at it is safe and ends.
#include <cstring>

#include "libckpt/base/limits.h"
#include "libckpt/wire/page.h"
#include "tests/fuzz/fuzz.h"

using ckpt::wire::ControlPage;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  alignas(ckpt::kPageBytes) static std::byte memory[ckpt::kPageBytes];
  std::memset(memory, 0, sizeof memory);
  if (size != 0) std::memcpy(memory, data, std::min(size, sizeof memory));
  auto* page = reinterpret_cast<ControlPage*>(memory);
  if (ckpt::wire::CheckPage(*page).ok()) FUZZ_CHECK(page->rank < page->world);
  const ckpt::Word word = ckpt::wire::LoadWord(*page);
  FUZZ_CHECK(word.Pack() == page->word.load());
  FUZZ_CHECK(ckpt::AtOrPast(word.boundary, word.boundary & ckpt::kCutMask));
  const auto order = ckpt::wire::LoadOrder(*page);
  FUZZ_CHECK(order.ok() == (page->order_seq.load() % 2 == 0));
  if (!order.ok()) return 0;
  // What was read is written and read again as it was, whatever the sequence stood at.
  ckpt::wire::StoreOrder(page, *order);
  const auto again = ckpt::wire::LoadOrder(*page);
  FUZZ_CHECK(again.ok() && again->operation == order->operation && again->slot == order->slot &&
             again->deadline_boottime_ns == order->deadline_boottime_ns);
  return 0;
}
