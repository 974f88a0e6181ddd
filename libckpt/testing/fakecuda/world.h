// What stands behind the calls of the fake driver: devices with streams and memory, registered host
// memory, planned failures.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "libckpt/device/cuda/driver_api.h"
#include "libckpt/device/host/async_device.h"
#include "libckpt/testing/planned_failures.h"

namespace ckpt::fakecuda {

using device::cuda::DevicePtr;
using device::cuda::MemHandle;
using device::cuda::Result32;

inline constexpr uint64_t kGranularity = uint64_t{2} << 20;

// One device. Memory is shared memory that is mapped twice: without any right where programs see
// it, and for the copy engine.
class FakeCuda final : public device::AsyncDevice {
 public:
  explicit FakeCuda(uint64_t memory_bytes);
  ~FakeCuda() override;

  device::DeviceInfo info() const override;
  Result<void*> Alloc(uint64_t) override { return Unimplemented("by the calls only"); }
  Status Free(void*) override { return Unimplemented("by the calls only"); }
  Status Park(void*) override { return Unimplemented("by the calls only"); }
  Status Unpark(void*) override { return Unimplemented("by the calls only"); }

  Result32 Reserve(DevicePtr* out, uint64_t bytes);
  Result32 Unreserve(DevicePtr at, uint64_t bytes);
  Result32 Create(MemHandle* out, uint64_t bytes);
  Result32 Release(MemHandle handle);
  Result32 Map(DevicePtr at, uint64_t bytes, uint64_t offset, MemHandle handle);
  Result32 Unmap(DevicePtr at, uint64_t bytes);
  Result32 Access(DevicePtr at, uint64_t bytes);
  Result32 FreeWhole(
      DevicePtr at);  // a mapping and the addresses that it fills, once the device is idle there
  bool Owns(DevicePtr at) const;
  // A kernel of the double: runs on the CPU when it is its turn on the stream. What it returns, if
  // not 0, breaks the device. It finds device memory by Alias.
  Result32 Launch(device::StreamHandle stream, std::function<Result32()> kernel);
  std::byte* Alias(DevicePtr at, uint64_t bytes) const;

  // The stream that a null handle stands for.
  device::StreamHandle default_stream() const { return default_; }
  // CUresult that sticks on this device; 0 none.
  Result32 broken() const;
  void SetCopyDelay(Nanos delay);
  void SetUploadDelay(Nanos delay);  // of copies to the device, besides
  void BreakAtCopy(uint64_t nth);
  uint64_t used_bytes() const;
  void Break(Result32 result);
  void
  Stop();  // at the end of the process: what is enqueued happens at once, and no thread is left

 private:
  struct Handle {
    int fd = -1;
    uint64_t bytes = 0;
    bool released = false;
    uint32_t mappings = 0;
  };
  struct Mapping {
    uint64_t bytes = 0, offset = 0;
    MemHandle handle = 0;
    std::byte* alias = nullptr;
    bool access = false;
  };
  Status CheckCopy(const Copy& copy) override;
  Status RunCopy(const Copy& copy) override;
  // Where the copy engine finds it; null: nothing is mapped there, or without access.
  std::byte* AliasOf(const std::byte* at, int64_t low, int64_t high) const CKPT_REQUIRES(mutex_);
  void DropIfUnused(MemHandle handle) CKPT_REQUIRES(mutex_);

  const uint64_t memory_bytes_;
  device::StreamHandle default_ = nullptr;
  mutable Mutex mutex_;
  CondVar delay_changed_;
  Nanos delay_ CKPT_GUARDED_BY(mutex_){0}, upload_delay_ CKPT_GUARDED_BY(mutex_){0};
  uint64_t used_ CKPT_GUARDED_BY(mutex_) = 0, copies_ CKPT_GUARDED_BY(mutex_) = 0,
                 break_at_ CKPT_GUARDED_BY(mutex_) = 0;
  Result32 broken_ CKPT_GUARDED_BY(mutex_) = 0;
  MemHandle last_handle_ CKPT_GUARDED_BY(mutex_) = 0;
  std::map<DevicePtr, uint64_t> reserved_ CKPT_GUARDED_BY(mutex_);
  std::map<MemHandle, Handle> handles_ CKPT_GUARDED_BY(mutex_);
  std::map<DevicePtr, Mapping> mappings_ CKPT_GUARDED_BY(mutex_);
};

// All of them, and what belongs to none.
class World {
 public:
  static World& Get();  // made by the first call; never destroyed

  int count() const { return static_cast<int>(devices_.size()); }
  FakeCuda* device(int ordinal) { return devices_[static_cast<size_t>(ordinal)].get(); }

  testing::PlannedFailures& failures() { return failures_; }

  Result32 Pin(const void* host, uint64_t bytes);
  Result32 Unpin(const void* host);
  bool Pinned(const void* host, uint64_t bytes);
  uint64_t pinned_bytes();

 private:
  World();
  std::vector<std::unique_ptr<FakeCuda>> devices_;
  testing::PlannedFailures failures_{"CKPT_FAKECUDA_FAIL"};
  Mutex mutex_;
  std::map<const std::byte*, uint64_t> pinned_ CKPT_GUARDED_BY(mutex_);
};

}  // namespace ckpt::fakecuda
