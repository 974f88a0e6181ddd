// A CUDA device, through the driver. All calls are made in its primary context, which frameworks
// use too, and leave the caller's current context as it was.
//
// Streams are our own and non-blocking: they wait for the caller's by events only, never for the
// legacy default stream. Waits poll an event, since the driver's own have no deadline. Host memory
// is registered in pieces, so that no call holds the driver's lock for long. Memory of Alloc is a
// mapping of physical memory into reserved addresses: parking gives up the one and keeps the other.
//
// I1  An error that the driver does not recover from (device.h, I3) is returned by every later
// call, with the call it came from. I2  A region whose registration fails half-way is not
// registered at all.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "libckpt/base/mutex.h"
#include "libckpt/device/cuda/driver.h"
#include "libckpt/device/device.h"

namespace ckpt::device {

class CudaDevice : public Device {
 public:
  // Errors: kUnimplemented without a driver or such a device; kResourceExhausted, kUnavailable if
  // it gives no context (exclusive mode, no memory).
  static Result<std::unique_ptr<CudaDevice>> Open(int ordinal);
  static Result<int> Count();
  // Releases the primary context; memory of Alloc is freed.
  ~CudaDevice() override;

  DeviceInfo info() const override;
  // What else decides about what can be done with it.
  struct Limits {
    int driver_version = 0;  // 12080 is CUDA 12.8
    int compute_mode = 0;    // cuda::kComputeMode…
    bool multicast = false;
  };
  Result<Limits> limits() const;
  // OK if `memory` is device memory of this device. Errors: kInvalidArgument, which says what it
  // is.
  Status CheckPointer(const void* memory) const;
  // Runs `body` with the device's context current on this thread: for libraries over CUDA.
  Status InItsContext(const std::function<Status()>& body) const;

  Result<StreamHandle> CreateStream() override;
  Status DestroyStream(StreamHandle stream) override;
  Result<Event*> RecordEvent(StreamHandle stream) override;
  Status StreamWait(StreamHandle stream, Event* event) override;
  Result<bool> Query(Event* event) override;
  Status Synchronize(Event* event, const Deadline& deadline) override;
  void FreeEvent(Event* event) override;
  Status CopyToHost(StreamHandle stream, void* host, const void* device,
                    const CopyShape& shape) override;
  Status CopyToDevice(StreamHandle stream, void* device, const void* host,
                      const CopyShape& shape) override;
  Status RegisterHost(void* host, uint64_t bytes) override;
  Status UnregisterHost(void* host) override;
  Result<void*> Alloc(uint64_t bytes) override;
  Status Free(void* device) override;
  Status Park(void* device) override;
  Status Unpark(void* device) override;

 private:
  class InContext;
  struct Allocation {
    uint64_t bytes = 0;
    cuda::MemHandle handle = 0;
    bool parked = false;
  };

  CudaDevice(const cuda::Driver* driver, int ordinal);
  Status Begin();  // the primary context, and what is known of the device
  // The status of a call; one that sticks is kept (I1).
  Status Check(cuda::Result32 result, const char* call) const;
  Status Sticky() const;
  // Parked memory of ours cannot be copied; the driver would break the context.
  Status CheckRange(const void* device, const CopyShape& shape) const;
  Status Copy2D(StreamHandle stream, const void* device, void* host, const CopyShape& shape,
                bool to_host);
  // Pre: reserved. Physical memory behind it, or nothing has changed.
  Status Back(void* device, Allocation* allocation) CKPT_REQUIRES(mutex_);
  Status Unback(void* device, Allocation* allocation) CKPT_REQUIRES(mutex_);
  cuda::AllocationProp Properties() const;

  const cuda::Driver* const driver_;
  const int ordinal_;
  cuda::Ordinal device_ = 0;
  cuda::ContextPtr context_ = nullptr;
  DeviceInfo info_;
  uint64_t granularity_ = 0;  // 0: no virtual memory management
  mutable Mutex mutex_;
  mutable Status sticky_ CKPT_GUARDED_BY(mutex_);
  std::map<void*, Allocation> allocations_ CKPT_GUARDED_BY(mutex_);
  std::map<void*, std::vector<std::byte*>> registered_
      CKPT_GUARDED_BY(mutex_);  // pieces of each region
};

}  // namespace ckpt::device
