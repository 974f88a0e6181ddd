// The device over whatever driver the loader finds: the fake one where ctest says so
// (CKPT_EXPECT_CUDA), a real one where there is one. Without either the tests say that they are
// skipped.
#include "libckpt/device/cuda/cuda_device.h"

#include <dlfcn.h>

#include <cstdlib>
#include <cstring>

#include "libckpt/base/limits.h"
#include "libckpt/testing/device_conformance.h"
#include "libckpt/testing/fakecuda/fakecuda.h"

namespace ckpt::testing {
namespace {

using device::CopyShape;
using device::CudaDevice;

std::unique_ptr<device::Device> Open() {
  Result<std::unique_ptr<CudaDevice>> device = CudaDevice::Open(0);
  if (device.ok()) return std::move(*device);
  EXPECT_EQ(std::getenv("CKPT_EXPECT_CUDA"), nullptr) << device.status().ToString();
  return nullptr;
}

INSTANTIATE_TEST_SUITE_P(Cuda, DeviceConformance, ::testing::Values(DeviceMaker{"cuda", Open}));

// What only the double can be told to do.
class FakeCuda : public ::testing::Test {
 protected:
  void SetUp() override {
    library_ = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library_ == nullptr || ::dlsym(library_, "fakecuda_fail") == nullptr) {
      ASSERT_EQ(std::getenv("CKPT_EXPECT_CUDA"), nullptr) << "the fake driver was not found";
      GTEST_SKIP() << "SKIPPED: this driver is not the fake one";
    }
    device_ = CudaDevice::Open(0).value();
  }
  template <typename... Arguments>
  void Control(const char* name, Arguments... arguments) {
    reinterpret_cast<void (*)(Arguments...)>(::dlsym(library_, name))(arguments...);
  }
  uint64_t Passages(const char* call) {
    return reinterpret_cast<uint64_t (*)(const char*)>(::dlsym(library_, "fakecuda_passages"))(
        call);
  }
  uint64_t UsedBytes() {
    return reinterpret_cast<uint64_t (*)(int)>(::dlsym(library_, "fakecuda_used_bytes"))(0);
  }
  uint64_t PinnedBytes() {
    return reinterpret_cast<uint64_t (*)()>(::dlsym(library_, "fakecuda_pinned_bytes"))();
  }
  void Fail(const char* call, int result, bool sticky = false) {
    Control("fakecuda_fail", call, uint64_t{1}, result, sticky ? 1 : 0);
  }

  void* library_ = nullptr;
  std::unique_ptr<CudaDevice> device_;
};

constexpr uint64_t kBytes = uint64_t{4} << 20;

// Every path of the device once; the first error. What it made, it gives back.
Status UseAll(CudaDevice* device) {
  const Deadline deadline("a use of the device", std::chrono::seconds(30));
  std::vector<std::byte> host(kBytes);
  CKPT_ASSIGN_OR_RETURN(const device::StreamHandle stream, device->CreateStream());
  void* memory = nullptr;
  Status status = [&]() -> Status {
    CKPT_ASSIGN_OR_RETURN(memory, device->Alloc(kBytes));
    CKPT_RETURN_IF_ERROR(device->CheckPointer(memory));
    CKPT_RETURN_IF_ERROR(device->RegisterHost(host.data(), host.size()));
    CKPT_RETURN_IF_ERROR(device->CopyToDevice(stream, memory, host.data(), CopyShape{kBytes}));
    CKPT_ASSIGN_OR_RETURN(device::Event * event, device->RecordEvent(nullptr));
    Status waits = device->StreamWait(stream, event);
    if (waits.ok()) waits = device->CopyToHost(stream, host.data(), memory, CopyShape{kBytes});
    if (waits.ok())
      waits = device->CopyToHost(stream, host.data(), memory, CopyShape{64, 8, 128, 64});
    device->FreeEvent(event);
    CKPT_RETURN_IF_ERROR(waits);
    CKPT_ASSIGN_OR_RETURN(device::Event * done, device->RecordEvent(stream));
    waits = device->Synchronize(done, deadline);
    device->FreeEvent(done);
    CKPT_RETURN_IF_ERROR(waits);
    CKPT_RETURN_IF_ERROR(device->Park(memory));
    return device->Unpark(memory);
  }();
  // What was enqueued before something failed still uses the memory.
  Result<device::Event*> last = device->RecordEvent(stream);
  if (!last.ok()) last = device->RecordEvent(stream);  // it failed once, as planned
  if (last.ok()) {
    while (!device->Synchronize(*last, deadline).ok() && !deadline.Expired()) {
    }
    device->FreeEvent(*last);
  }
  device->UnregisterHost(host.data()).IgnoreError();
  if (memory != nullptr) {
    const Status freed = device->Free(memory);
    if (status.ok()) status = freed;
  }
  const Status destroyed = device->DestroyStream(stream);
  return status.ok() ? destroyed : status;
}

TEST_F(FakeCuda, EachCallThatFailsOnceIsNamedAndTheNextUseWorks) {
  ASSERT_TRUE(UseAll(device_.get()).ok());
  for (const char* call :
       {"cuStreamCreate", "cuStreamWaitEvent", "cuEventCreate", "cuEventRecord", "cuEventQuery",
        "cuMemcpyDtoHAsync_v2", "cuMemcpyHtoDAsync_v2", "cuMemcpy2DAsync_v2",
        "cuMemHostRegister_v2", "cuPointerGetAttribute", "cuMemAddressReserve", "cuMemCreate",
        "cuMemMap", "cuMemSetAccess", "cuCtxPushCurrent_v2"}) {
    for (const int result : {device::cuda::kOutOfMemory, device::cuda::kInvalidHandle}) {
      Fail(call, result);
      const Status status = UseAll(device_.get());
      EXPECT_FALSE(status.ok()) << call;
      EXPECT_NE(status.message().find(call), std::string::npos) << status.ToString();
      EXPECT_NE(status.message().find("cuda:0"), std::string::npos) << status.ToString();
      EXPECT_EQ(status.code() == Code::kResourceExhausted, result == device::cuda::kOutOfMemory)
          << status.ToString();
      const Status again = UseAll(device_.get());
      EXPECT_TRUE(again.ok()) << call << ": " << again.ToString();
    }
  }
  EXPECT_EQ(UsedBytes(), 0u) << "what was made on the way is given back";
  EXPECT_EQ(PinnedBytes(), 0u);
}

// In a process of its own: it is of no use to the other tests any more.
TEST_F(FakeCuda, WhatSticksIsNamedByEveryLaterCall) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto broken = [&] {
    Result<void*> memory = device_->Alloc(kBytes);
    ASSERT_TRUE(memory.ok());
    std::vector<std::byte> host(kBytes);
    Control("fakecuda_break_at_copy", uint64_t{1});
    Status status = device_->CopyToHost(nullptr, host.data(), *memory, CopyShape{kBytes});
    EXPECT_EQ(status.code(), Code::kAborted)
        << "to pageable memory it is done when the call returns";
    EXPECT_NE(status.message().find("CUDA_ERROR_ILLEGAL_ADDRESS 700"), std::string::npos)
        << status.ToString();
    for (const Status& later :
         {device_->CreateStream().status(), device_->Alloc(kBytes).status(), device_->Park(*memory),
          device_->RegisterHost(host.data(), host.size())}) {
      EXPECT_EQ(later.code(), Code::kAborted);
      EXPECT_NE(later.message().find("cuMemcpyDtoHAsync_v2: CUDA_ERROR_ILLEGAL_ADDRESS"),
                std::string::npos)
          << later.ToString();
      EXPECT_NE(later.message().find("start it again"), std::string::npos);
    }
  };
  EXPECT_EXIT(
      {
        broken();
        std::exit(HasFailure() ? 1 : 0);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST_F(FakeCuda, MemoryIsGivenUpByParkAndComesBackByUnpark) {
  Result<void*> memory = device_->Alloc(kBytes);
  ASSERT_TRUE(memory.ok());
  EXPECT_EQ(UsedBytes(), kBytes);
  ASSERT_TRUE(device_->Park(*memory).ok());
  EXPECT_EQ(UsedBytes(), 0u);
  const uint64_t all = device_->info().memory_bytes;
  Result<void*> other = device_->Alloc(all - kBytes / 2);
  ASSERT_TRUE(other.ok()) << other.status().ToString();
  const Status no_room = device_->Unpark(*memory);
  EXPECT_EQ(no_room.code(), Code::kResourceExhausted) << no_room.ToString();
  EXPECT_NE(no_room.message().find("cuMemCreate"), std::string::npos);
  ASSERT_TRUE(device_->Free(*other).ok());
  EXPECT_TRUE(device_->Unpark(*memory).ok()) << "it was left parked";
  EXPECT_EQ(UsedBytes(), kBytes);
  EXPECT_TRUE(device_->Free(*memory).ok());
}

TEST_F(FakeCuda, MemoryThatCouldNotBeGivenUpIsGivenUpByTheNextTry) {
  const uint64_t before = UsedBytes();
  for (const char* call : {"cuMemUnmap", "cuMemRelease", "cuMemAddressFree"}) {
    SCOPED_TRACE(call);
    void* const memory = device_->Alloc(kBytes).value();
    Fail(call, device::cuda::kOutOfMemory);
    const Status failed = device_->Free(memory);
    EXPECT_NE(failed.message().find(call), std::string::npos) << failed.ToString();
    EXPECT_TRUE(device_->Free(memory).ok());
    EXPECT_EQ(UsedBytes(), before);
    EXPECT_EQ(device_->Free(memory).code(), Code::kInvalidArgument);
  }
  void* const memory = device_->Alloc(kBytes).value();
  Fail("cuMemRelease", device::cuda::kOutOfMemory);
  EXPECT_FALSE(device_->Park(memory).ok());
  EXPECT_TRUE(device_->Unpark(memory).ok());
  EXPECT_EQ(UsedBytes(), before + kBytes);  // once
  EXPECT_TRUE(device_->Free(memory).ok());
}

TEST_F(FakeCuda, HostMemoryIsPinnedInPieces) {
  const uint64_t bytes = 2 * kPinnedPieceBytes + 4096;
  void* const memory = std::aligned_alloc(4096, bytes);
  const uint64_t before = Passages("cuMemHostRegister_v2");
  ASSERT_TRUE(device_->RegisterHost(memory, bytes).ok());
  EXPECT_EQ(Passages("cuMemHostRegister_v2") - before, 3u);
  EXPECT_EQ(PinnedBytes(), bytes);
  ASSERT_TRUE(device_->UnregisterHost(memory).ok());
  EXPECT_EQ(PinnedBytes(), 0u);
  Control("fakecuda_fail", "cuMemHostRegister_v2", uint64_t{3},
          static_cast<int>(device::cuda::kOutOfMemory), 0);
  EXPECT_EQ(device_->RegisterHost(memory, bytes).code(), Code::kResourceExhausted);
  EXPECT_EQ(PinnedBytes(), 0u) << "no half of it stays";
  std::free(memory);
}

TEST_F(FakeCuda, AnAddressThatIsNoDeviceMemoryIsSaid) {
  int on_stack = 0;
  const Status status = device_->CheckPointer(&on_stack);
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_NE(status.message().find("no memory of cuda:0"), std::string::npos) << status.ToString();
}

TEST_F(FakeCuda, CopiesFromPinnedMemoryOverlapWithTheCaller) {
  Result<void*> memory = device_->Alloc(kBytes);
  Result<device::StreamHandle> stream = device_->CreateStream();
  ASSERT_TRUE(memory.ok() && stream.ok());
  std::vector<std::byte> host(kBytes);
  ASSERT_TRUE(device_->RegisterHost(host.data(), host.size()).ok());
  Control("fakecuda_copy_us", uint64_t{3'600'000'000});  // who waits for it waits an hour
  ASSERT_TRUE(device_->CopyToHost(*stream, host.data(), *memory, CopyShape{kBytes}).ok());
  Result<device::Event*> event = device_->RecordEvent(*stream);
  ASSERT_TRUE(event.ok());
  EXPECT_FALSE(device_->Query(*event).value());
  EXPECT_EQ(
      device_->Synchronize(*event, Deadline("a short wait", std::chrono::milliseconds(20))).code(),
      Code::kDeadlineExceeded);
  Control("fakecuda_copy_us", uint64_t{0});
  EXPECT_TRUE(device_->Synchronize(*event, Deadline("the copy", std::chrono::seconds(60))).ok());
  device_->FreeEvent(*event);
  EXPECT_TRUE(device_->UnregisterHost(host.data()).ok());
  EXPECT_TRUE(device_->DestroyStream(*stream).ok());
  EXPECT_TRUE(device_->Free(*memory).ok());
}

TEST_F(FakeCuda, TheHostMayNotTouchDeviceMemory) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        void* const memory = CudaDevice::Open(0).value()->Alloc(kBytes).value();
        *static_cast<volatile uint8_t*>(memory) = 1;
      },
      "");
}

TEST_F(FakeCuda, ADeviceThatIsNotThereIsNamed) {
  const Status status = CudaDevice::Open(7).status();
  EXPECT_EQ(status.code(), Code::kUnimplemented);
  EXPECT_NE(status.message().find("no cuda:7: the driver shows 1 devices"), std::string::npos)
      << status.ToString();
}

}  // namespace
}  // namespace ckpt::testing
