#include "libckpt/device/host/host_device.h"

#include <sys/mman.h>

#include <cstring>

#include "libckpt/testing/device_conformance.h"
#include "libckpt/testing/fake_device.h"

namespace ckpt::testing {
namespace {

INSTANTIATE_TEST_SUITE_P(Host, DeviceConformance,
                         ::testing::Values(DeviceMaker{"host", device::CreateHostDevice}));

// The double that stands for a GPU in other tests keeps the same rules.
INSTANTIATE_TEST_SUITE_P(
    Fake, DeviceConformance,
    ::testing::Values(DeviceMaker{"fake", [] { return std::make_unique<FakeDevice>(); }},
                      DeviceMaker{"slow fake", [] {
                                    return std::make_unique<FakeDevice>(FakeDeviceOptions{
                                        uint64_t{1} << 30, std::chrono::microseconds(300)});
                                  }}));

uint64_t ResidentPages(void* memory, uint64_t bytes) {
  std::vector<unsigned char> pages(bytes / kPageBytes);
  EXPECT_EQ(mincore(memory, bytes, pages.data()), 0);
  uint64_t resident = 0;
  for (const unsigned char page : pages) resident += page & 1;
  return resident;
}

TEST(HostDevice, ParkGivesPagesBack) {
  device::HostDevice device;
  auto memory = device.Alloc(8 << 20);
  ASSERT_TRUE(memory.ok());
  std::memset(memory.value(), 7, 8 << 20);
  EXPECT_EQ(ResidentPages(memory.value(), 8 << 20), 2048u);
  ASSERT_TRUE(device.Park(memory.value()).ok());
  EXPECT_EQ(ResidentPages(memory.value(), 8 << 20), 0u);
  ASSERT_TRUE(device.Unpark(memory.value()).ok());
  std::memset(memory.value(), 8, 8 << 20);
  EXPECT_EQ(ResidentPages(memory.value(), 8 << 20), 2048u);
}

TEST(HostDevice, TakesMemoryThatItDidNotAllocate) {
  device::HostDevice device;
  std::vector<uint8_t> from(1000, 42), to(1000);
  ASSERT_TRUE(
      device.CopyToHost(nullptr, to.data(), from.data(), device::CopyShape{from.size()}).ok());
  EXPECT_EQ(from, to);
}

TEST(HostDevice, CountsWhatIsRegistered) {
  device::HostDevice device;
  std::vector<uint8_t> a(4096), b(4096);
  ASSERT_TRUE(device.RegisterHost(a.data(), a.size()).ok());
  ASSERT_TRUE(device.RegisterHost(b.data(), b.size()).ok());
  EXPECT_EQ(device.registered_count(), 2u);
  ASSERT_TRUE(device.UnregisterHost(a.data()).ok());
  EXPECT_EQ(device.registered_count(), 1u);
}

TEST(HostDevice, UsingADestroyedStreamIsAnError) {
  device::HostDevice device;
  auto stream = device.CreateStream();
  ASSERT_TRUE(stream.ok());
  ASSERT_TRUE(device.DestroyStream(stream.value()).ok());
  EXPECT_EQ(device.DestroyStream(stream.value()).code(), Code::kInvalidArgument);
  EXPECT_FALSE(device.RecordEvent(stream.value()).ok());
}

TEST(FakeDevice, HoldsItsBudget) {
  FakeDevice device(FakeDeviceOptions{8 << 20});
  auto first = device.Alloc(6 << 20);
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(device.Alloc(4 << 20).status().code(), Code::kResourceExhausted);
  ASSERT_TRUE(device.Park(first.value()).ok());
  EXPECT_EQ(device.allocated_bytes(), 0u);
  auto second = device.Alloc(4 << 20);
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(device.Unpark(first.value()).code(), Code::kResourceExhausted);
  uint8_t byte = 0;
  EXPECT_FALSE(device.CopyToHost(nullptr, &byte, first.value(), device::CopyShape{1}).ok());
  ASSERT_TRUE(device.Free(second.value()).ok());
  EXPECT_TRUE(device.Unpark(first.value()).ok());
}

TEST(FakeDevice, ErrorsStick) {
  FakeDevice device;
  auto stream = device.CreateStream();
  auto memory = device.Alloc(4096);
  ASSERT_TRUE(stream.ok() && memory.ok());
  device.BreakAtCopy(2);
  std::vector<uint8_t> bytes(4096);
  const device::CopyShape shape{bytes.size()};
  ASSERT_TRUE(device.CopyToDevice(stream.value(), memory.value(), bytes.data(), shape).ok());
  auto before = device.RecordEvent(stream.value());
  ASSERT_TRUE(before.ok());
  EXPECT_TRUE(device.Synchronize(before.value(), Deadline("test", std::chrono::seconds(60))).ok());
  ASSERT_TRUE(device.CopyToHost(stream.value(), bytes.data(), memory.value(), shape).ok());
  // Whether the next call still gets through depends on the stream; soon none does.
  auto after = device.RecordEvent(stream.value());
  if (after.ok()) {
    EXPECT_EQ(device.Synchronize(after.value(), Deadline("test", std::chrono::seconds(60))).code(),
              Code::kAborted);
  } else {
    EXPECT_EQ(after.status().code(), Code::kAborted);
  }
  EXPECT_EQ(device.CopyToHost(nullptr, bytes.data(), memory.value(), shape).code(), Code::kAborted);
  EXPECT_EQ(device.CreateStream().status().code(), Code::kAborted);
  EXPECT_EQ(device.Alloc(4096).status().code(), Code::kAborted);
}

TEST(FakeDevice, DelaysShowWhoDoesNotWait) {
  FakeDevice device;
  auto stream = device.CreateStream();
  auto memory = device.Alloc(4096);
  ASSERT_TRUE(stream.ok() && memory.ok());
  device.SetCopyDelay(std::chrono::hours(1));
  uint8_t byte = 1;
  ASSERT_TRUE(
      device.CopyToDevice(stream.value(), memory.value(), &byte, device::CopyShape{1}).ok());
  auto event = device.RecordEvent(stream.value());
  ASSERT_TRUE(event.ok());
  auto fired = device.Query(event.value());
  ASSERT_TRUE(fired.ok());
  EXPECT_FALSE(fired.value());
  const Status late =
      device.Synchronize(event.value(), Deadline("a short wait", std::chrono::milliseconds(20)));
  EXPECT_EQ(late.code(), Code::kDeadlineExceeded);
  EXPECT_NE(late.message().find("a short wait"), std::string::npos);
  device.SetCopyDelay(Nanos(0));
}

TEST(FakeDeviceDeathTest, TheCpuMayNotTouchItsMemory) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  FakeDevice device;
  auto memory = device.Alloc(4096);
  ASSERT_TRUE(memory.ok());
  EXPECT_DEATH(*static_cast<volatile uint8_t*>(memory.value()) = 1, "");
}

}  // namespace
}  // namespace ckpt::testing
