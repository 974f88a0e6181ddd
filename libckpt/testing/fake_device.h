// A device in software with the traits of a GPU that a CPU does not have: memory that the CPU may
// not touch (its addresses are mapped without any right; copies go through a second mapping), a
// budget, delays between enqueueing and effect, and errors that stick.
#pragma once

#include <map>
#include <memory>

#include "libckpt/device/host/async_device.h"

namespace ckpt::testing {

struct FakeDeviceOptions {
  uint64_t memory_bytes = uint64_t{1} << 30;
  // Time that passes on a stream before each copy takes effect: who does not wait reads old bytes.
  Nanos copy_delay{0};
};

class FakeDevice : public device::AsyncDevice {
 public:
  explicit FakeDevice(FakeDeviceOptions options = {});
  ~FakeDevice() override;

  device::DeviceInfo info() const override;
  Result<void*> Alloc(uint64_t bytes) override;
  Status Free(void* device) override;
  Status Park(void* device) override;
  Status Unpark(void* device) override;

  // The n-th copy from now (1: the next) breaks the device: kAborted from there on.
  void BreakAtCopy(uint64_t nth);
  // How long copies take to have an effect from now on.
  void SetCopyDelay(Nanos delay);
  uint64_t allocated_bytes() const;
  uint64_t copies_done() const;

 private:
  struct Allocation {
    int fd = -1;
    uint64_t bytes = 0;
    std::byte* alias = nullptr;  // the same pages, for the "copy engine"
    bool parked = false;
  };
  Status CheckCopy(const Copy& copy) override;
  Status RunCopy(const Copy& copy) override;
  // Where the copy engine finds [pointer + low, pointer + high); null if it is not device memory.
  Result<std::byte*> AliasOf(const std::byte* pointer, int64_t low, int64_t high);
  static void Release(std::byte* memory, const Allocation& allocation);

  const FakeDeviceOptions options_;
  mutable Mutex mutex_;
  CondVar delay_changed_;
  Nanos copy_delay_ CKPT_GUARDED_BY(mutex_);
  std::map<std::byte*, Allocation> allocations_ CKPT_GUARDED_BY(mutex_);
  uint64_t allocated_bytes_ CKPT_GUARDED_BY(mutex_) = 0;
  uint64_t copies_done_ CKPT_GUARDED_BY(mutex_) = 0;
  uint64_t break_at_ CKPT_GUARDED_BY(mutex_) = 0;  // a value of copies_done_; 0 never
};

}  // namespace ckpt::testing
