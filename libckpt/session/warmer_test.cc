#include "libckpt/session/warmer.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <functional>
#include <thread>
#include <vector>

#include "libckpt/base/clock.h"
#include "libckpt/base/limits.h"
#include "libckpt/os/memfd.h"

namespace ckpt::session {
namespace {

constexpr uint64_t kMib = uint64_t{1} << 20;

bool Touched(const os::Mapping& memory, uint64_t offset, uint64_t bytes) {
  std::vector<unsigned char> pages(bytes / kPageBytes);
  EXPECT_EQ(mincore(memory.data() + offset, bytes, pages.data()), 0);
  return std::all_of(pages.begin(), pages.end(), [](unsigned char page) { return page & 1; });
}
bool Eventually(const std::function<bool()>& what) {
  const Deadline deadline("the warmer", std::chrono::seconds(60));
  while (!what()) {
    if (deadline.Expired()) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

TEST(Warmer, TouchesThePartsAndChangesNothing) {
  auto memory = std::make_shared<os::Mapping>(os::Mapping::Anonymous(32 * kMib).value());
  memory->data()[kMib] = std::byte{7};
  Warmer warmer;
  warmer.Warm(memory, memory->bytes(), {{0, 9 * kMib}, {20 * kMib, 12 * kMib}});
  EXPECT_TRUE(Eventually([&] { return Touched(*memory, 0, 9 * kMib); }));
  EXPECT_TRUE(Eventually([&] { return Touched(*memory, 20 * kMib, 12 * kMib); }));
  EXPECT_FALSE(Touched(*memory, 10 * kMib, 8 * kMib)) << "no part of it";
  EXPECT_EQ(memory->data()[kMib], std::byte{7});
}

TEST(Warmer, WorksAgainAfterItWasThrough) {
  Warmer warmer;
  for (int i = 0; i < 3; ++i) {
    auto memory = std::make_shared<os::Mapping>(os::Mapping::Anonymous(8 * kMib).value());
    warmer.Warm(memory, memory->bytes(), {{0, 8 * kMib}});
    EXPECT_TRUE(Eventually([&] { return Touched(*memory, 0, 8 * kMib); }));
    EXPECT_TRUE(Eventually([&] { return memory.use_count() == 1; })) << "it holds nothing on";
  }
}

TEST(Warmer, EndsInTheMiddle) {
  auto memory = std::make_shared<os::Mapping>(os::Mapping::Anonymous(512 * kMib).value());
  {
    Warmer warmer;
    warmer.Warm(memory, memory->bytes(), {{0, 512 * kMib}});
  }
  EXPECT_EQ(memory.use_count(), 1);
}

}  // namespace
}  // namespace ckpt::session
