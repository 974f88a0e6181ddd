// The CPU as a device: any memory of the process may be copied from and to. Streams and events work
// as on a GPU, so that code written against this device is ordered correctly on one.
#pragma once

#include <map>
#include <memory>

#include "libckpt/device/host/async_device.h"

namespace ckpt::device {

class HostDevice : public AsyncDevice {
 public:
  HostDevice() = default;
  ~HostDevice() override;

  DeviceInfo info() const override;
  // Whole pages. Parked memory keeps its addresses and holds no page; touching it is a fault.
  Result<void*> Alloc(uint64_t bytes) override;
  Status Free(void* device) override;
  Status Park(void* device) override;
  Status Unpark(void* device) override;

 private:
  struct Allocation {
    uint64_t bytes = 0;
    bool parked = false;
  };
  Status CheckCopy(const Copy& copy) override;
  Status RunCopy(const Copy& copy) override;

  Mutex mutex_;
  std::map<std::byte*, Allocation> allocations_ CKPT_GUARDED_BY(mutex_);
};

std::unique_ptr<Device> CreateHostDevice();

}  // namespace ckpt::device
