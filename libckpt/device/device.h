// What the engine needs of a device: memory the CPU may not touch, streams, events, asynchronous
// copies ordered by them, registered host memory, and memory that can be given up while its
// addresses stay. device/host is the CPU; CUDA fits behind the same interface. One conformance
// suite (libckpt/testing/device_conformance.h) runs on every implementation.
//
// I1  A copy is enqueued on a stream and takes effect in stream order; it has happened only once an
// event recorded after
//     it has fired.
// I2  Nothing here blocks but Synchronize, Alloc, Free, Park and Unpark, and those take a deadline
// where they may wait. I3  Errors are sticky where the hardware's are: after kAborted from a device
// every later call on it fails the same way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "libckpt/base/clock.h"
#include "libckpt/base/status.h"

namespace ckpt::device {

using StreamHandle = void*;  // the vendor's stream (cudaStream_t); null is the default stream
class Event;                 // opaque, owned by its device

struct DeviceInfo {
  std::string kind;  // "host", "cuda"
  std::string name;  // "NVIDIA H100 80GB HBM3"
  std::string uuid;  // read afresh after every resume; never persisted as identity
  uint64_t memory_bytes = 0;
  bool host_accessible = false;  // the CPU may touch its memory directly
};

// A two-dimensional copy: `rows` rows of `row_bytes`, rows apart by the pitches.
struct CopyShape {
  uint64_t row_bytes = 0;
  uint64_t rows = 1;
  int64_t device_pitch = 0;
  int64_t host_pitch = 0;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual DeviceInfo info() const = 0;

  virtual Result<StreamHandle> CreateStream() = 0;
  virtual Status DestroyStream(StreamHandle stream) = 0;
  virtual Result<Event*> RecordEvent(StreamHandle stream) = 0;
  virtual Status StreamWait(StreamHandle stream, Event* event) = 0;
  // True once everything before the event has happened.
  virtual Result<bool> Query(Event* event) = 0;
  virtual Status Synchronize(Event* event, const Deadline& deadline) = 0;
  virtual void FreeEvent(Event* event) = 0;

  virtual Status CopyToHost(StreamHandle stream, void* host, const void* device,
                            const CopyShape& shape) = 0;
  virtual Status CopyToDevice(StreamHandle stream, void* device, const void* host,
                              const CopyShape& shape) = 0;

  // Pins host memory for fast asynchronous copies; registering it twice is not an error. The host
  // device does nothing.
  virtual Status RegisterHost(void* host, uint64_t bytes) = 0;
  virtual Status UnregisterHost(void* host) = 0;

  // Memory that can be parked: physical memory given up, address kept.
  virtual Result<void*> Alloc(uint64_t bytes) = 0;
  virtual Status Free(void* device) = 0;
  virtual Status Park(void* device) = 0;    // idempotent; contents are lost unless staged
  virtual Status Unpark(void* device) = 0;  // idempotent; kResourceExhausted leaves it parked
};

}  // namespace ckpt::device
