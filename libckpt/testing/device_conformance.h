// What every Device must do, run by each implementation:
//
//   INSTANTIATE_TEST_SUITE_P(Host, DeviceConformance, ::testing::Values(DeviceMaker{…}));
//
// Include it in one test file of a binary. A device that is not there makes the tests skip.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <thread>
#include <vector>

#include "libckpt/base/rng.h"
#include "libckpt/device/device.h"

namespace ckpt::testing {

struct DeviceMaker {
  std::string name;
  std::function<std::unique_ptr<device::Device>()> make;  // null: skip
};
// So that a test is called the same in each run.
inline void PrintTo(const DeviceMaker& maker, std::ostream* out) { *out << maker.name; }

class DeviceConformance : public ::testing::TestWithParam<DeviceMaker> {
 protected:
  using Bytes = std::vector<uint8_t>;

  void SetUp() override {
    device_ = GetParam().make();
    if (device_ == nullptr) GTEST_SKIP() << "SKIPPED: no such device here";
  }

  static Deadline Soon() { return Deadline("conformance", std::chrono::seconds(60)); }

  device::StreamHandle NewStream() {
    auto stream = device_->CreateStream();
    EXPECT_TRUE(stream.ok()) << stream.status().ToString();
    return stream.ok() ? stream.value() : nullptr;
  }
  uint8_t* NewMemory(uint64_t bytes) {
    auto memory = device_->Alloc(bytes);
    EXPECT_TRUE(memory.ok()) << memory.status().ToString();
    return memory.ok() ? static_cast<uint8_t*>(memory.value()) : nullptr;
  }
  void Finish(device::StreamHandle stream) {
    auto event = device_->RecordEvent(stream);
    ASSERT_TRUE(event.ok()) << event.status().ToString();
    const Status done = device_->Synchronize(event.value(), Soon());
    EXPECT_TRUE(done.ok()) << done.ToString();
    device_->FreeEvent(event.value());
  }
  void Put(device::StreamHandle stream, uint8_t* to, const Bytes& from) {
    const Status status =
        device_->CopyToDevice(stream, to, from.data(), device::CopyShape{from.size()});
    ASSERT_TRUE(status.ok()) << status.ToString();
  }
  void Get(device::StreamHandle stream, Bytes* to, const uint8_t* from) {
    const Status status =
        device_->CopyToHost(stream, to->data(), from, device::CopyShape{to->size()});
    ASSERT_TRUE(status.ok()) << status.ToString();
  }
  static Bytes Pattern(size_t size, uint64_t seed) {
    Rng rng(seed);
    Bytes bytes(size);
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(rng.Next());
    return bytes;
  }

  std::unique_ptr<device::Device> device_;
};

TEST_P(DeviceConformance, SaysWhatItIs) {
  const device::DeviceInfo info = device_->info();
  EXPECT_FALSE(info.kind.empty());
  EXPECT_FALSE(info.name.empty());
  EXPECT_GT(info.memory_bytes, 0u);
}

TEST_P(DeviceConformance, BytesComeBack) {
  const Bytes sent = Pattern(1 << 20, 1);
  for (const device::StreamHandle stream : {device::StreamHandle{nullptr}, NewStream()}) {
    uint8_t* memory = NewMemory(sent.size());
    Bytes received(sent.size());
    Put(stream, memory, sent);
    Get(stream, &received, memory);
    Finish(stream);
    EXPECT_EQ(sent, received);
    EXPECT_TRUE(device_->Free(memory).ok());
  }
}

TEST_P(DeviceConformance, CopiesTakeEffectInStreamOrder) {
  const device::StreamHandle stream = NewStream();
  uint8_t* memory = NewMemory(64 << 10);
  std::vector<Bytes> sent, received(50, Bytes(64 << 10));
  for (int i = 0; i < 50; ++i) sent.push_back(Pattern(64 << 10, i));
  for (int i = 0; i < 50; ++i) {
    Put(stream, memory, sent[i]);
    Get(stream, &received[i], memory);
  }
  Finish(stream);
  for (int i = 0; i < 50; ++i) EXPECT_EQ(sent[i], received[i]) << i;
}

TEST_P(DeviceConformance, RowsKeepTheirPitches) {
  constexpr uint64_t kRow = 24, kRows = 17;
  constexpr int64_t kDevicePitch = 40, kHostPitch = 64;
  const device::StreamHandle stream = NewStream();
  uint8_t* memory = NewMemory(kDevicePitch * kRows);
  const Bytes background = Pattern(kDevicePitch * kRows, 2), sent = Pattern(kHostPitch * kRows, 3);
  Put(stream, memory, background);
  const device::CopyShape shape{kRow, kRows, kDevicePitch, kHostPitch};
  ASSERT_TRUE(device_->CopyToDevice(stream, memory, sent.data(), shape).ok());
  Bytes whole(background.size()), back(sent.size(), 0xEE);
  Get(stream, &whole, memory);
  ASSERT_TRUE(device_->CopyToHost(stream, back.data(), memory, shape).ok());
  Finish(stream);
  for (uint64_t row = 0; row < kRows; ++row) {
    for (int64_t at = 0; at < kDevicePitch; ++at) {
      const bool copied = at < static_cast<int64_t>(kRow);
      EXPECT_EQ(whole[row * kDevicePitch + at],
                copied ? sent[row * kHostPitch + at] : background[row * kDevicePitch + at]);
    }
    for (int64_t at = 0; at < kHostPitch; ++at) {
      const bool copied = at < static_cast<int64_t>(kRow);
      EXPECT_EQ(back[row * kHostPitch + at], copied ? sent[row * kHostPitch + at] : 0xEE);
    }
  }
}

TEST_P(DeviceConformance, NothingToCopyIsNoError) {
  EXPECT_TRUE(device_->CopyToHost(nullptr, nullptr, nullptr, device::CopyShape{0, 1}).ok());
  EXPECT_TRUE(device_->CopyToDevice(nullptr, nullptr, nullptr, device::CopyShape{4, 0}).ok());
}

// Each stream may run only after the other's last event; any slip mixes up the values.
TEST_P(DeviceConformance, EventsOrderStreams) {
  const device::StreamHandle left = NewStream(), right = NewStream();
  uint8_t* memory = NewMemory(256 << 10);
  constexpr int kRounds = 40;
  std::vector<Bytes> sent, received(kRounds, Bytes(256 << 10));
  for (int i = 0; i < kRounds; ++i) sent.push_back(Pattern(256 << 10, 100 + i));
  for (int i = 0; i < kRounds; ++i) {
    Put(left, memory, sent[i]);
    auto written = device_->RecordEvent(left);
    ASSERT_TRUE(written.ok());
    ASSERT_TRUE(device_->StreamWait(right, written.value()).ok());
    device_->FreeEvent(written.value());  // those who wait keep it
    Get(right, &received[i], memory);
    auto read = device_->RecordEvent(right);
    ASSERT_TRUE(read.ok());
    ASSERT_TRUE(device_->StreamWait(left, read.value()).ok());
    device_->FreeEvent(read.value());
  }
  Finish(right);
  for (int i = 0; i < kRounds; ++i) EXPECT_EQ(sent[i], received[i]) << i;
}

TEST_P(DeviceConformance, AnEventOfAnIdleStreamFires) {
  const device::StreamHandle stream = NewStream();
  auto event = device_->RecordEvent(stream);
  ASSERT_TRUE(event.ok());
  EXPECT_TRUE(device_->Synchronize(event.value(), Soon()).ok());
  auto fired = device_->Query(event.value());
  ASSERT_TRUE(fired.ok());
  EXPECT_TRUE(fired.value());
  device_->FreeEvent(event.value());
}

TEST_P(DeviceConformance, WorkBeforeDestroyStreamStillHappens) {
  const device::StreamHandle stream = NewStream();
  const Bytes sent = Pattern(1 << 20, 4);
  uint8_t* memory = NewMemory(sent.size());
  Put(stream, memory, sent);
  auto event = device_->RecordEvent(stream);
  ASSERT_TRUE(event.ok());
  ASSERT_TRUE(device_->DestroyStream(stream).ok());
  ASSERT_TRUE(device_->Synchronize(event.value(), Soon()).ok());
  Bytes received(sent.size());
  Get(nullptr, &received, memory);
  Finish(nullptr);
  EXPECT_EQ(sent, received);
}

TEST_P(DeviceConformance, UnknownHandlesAreErrors) {
  int on_stack = 0;
  EXPECT_FALSE(device_->Free(&on_stack).ok());
  EXPECT_FALSE(device_->Park(&on_stack).ok());
  EXPECT_FALSE(device_->Unpark(&on_stack).ok());
  EXPECT_FALSE(device_->UnregisterHost(&on_stack).ok());
}

TEST_P(DeviceConformance, RegisteringTwiceIsNoError) {
  std::vector<uint8_t> host(64 << 10);
  ASSERT_TRUE(device_->RegisterHost(host.data(), host.size()).ok());
  EXPECT_TRUE(device_->RegisterHost(host.data(), host.size()).ok());
  EXPECT_TRUE(device_->UnregisterHost(host.data()).ok());
  EXPECT_FALSE(device_->UnregisterHost(host.data()).ok());
}

TEST_P(DeviceConformance, ParkedMemoryKeepsItsAddressAndRefusesCopies) {
  const Bytes sent = Pattern(1 << 20, 5);
  uint8_t* memory = NewMemory(sent.size());
  Put(nullptr, memory, sent);
  Finish(nullptr);
  ASSERT_TRUE(device_->Park(memory).ok());
  EXPECT_TRUE(device_->Park(memory).ok());
  Bytes received(sent.size());
  EXPECT_FALSE(
      device_->CopyToHost(nullptr, received.data(), memory + 4096, device::CopyShape{1}).ok());
  EXPECT_FALSE(device_->CopyToDevice(nullptr, memory, sent.data(), device::CopyShape{1}).ok());
  ASSERT_TRUE(device_->Unpark(memory).ok());
  EXPECT_TRUE(device_->Unpark(memory).ok());
  Put(nullptr, memory, sent);
  Get(nullptr, &received, memory);
  Finish(nullptr);
  EXPECT_EQ(sent, received);
  EXPECT_TRUE(device_->Free(memory).ok());
}

TEST_P(DeviceConformance, ParkedMemoryCanBeFreed) {
  uint8_t* memory = NewMemory(1 << 20);
  ASSERT_TRUE(device_->Park(memory).ok());
  EXPECT_TRUE(device_->Free(memory).ok());
  EXPECT_FALSE(device_->Free(memory).ok());
}

TEST_P(DeviceConformance, ThreadsShareIt) {
  constexpr int kThreads = 4;
  std::vector<std::thread> threads;
  std::vector<int> good(kThreads, 0);
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      const device::StreamHandle stream = NewStream();
      const Bytes sent = Pattern(128 << 10, 200 + t);
      uint8_t* memory = NewMemory(sent.size());
      for (int i = 0; i < 20; ++i) {
        Bytes received(sent.size());
        Put(stream, memory, sent);
        Get(stream, &received, memory);
        Finish(stream);
        good[t] += received == sent ? 1 : 0;
      }
      EXPECT_TRUE(device_->DestroyStream(stream).ok());
      EXPECT_TRUE(device_->Free(memory).ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(good, std::vector<int>(kThreads, 20));
}

}  // namespace ckpt::testing
