#include "libckpt/device/cuda/cuda_device.h"

#include <poll.h>
#include <sched.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "libckpt/base/bytes.h"
#include "libckpt/base/limits.h"
#include "libckpt/base/log.h"

namespace ckpt::device {

using cuda::DevicePtr;
using cuda::EventPtr;
using cuda::Result32;
using cuda::StreamPtr;

namespace {

constexpr int kSpins = 200;  // of a wait, before it lets the core go

DevicePtr Address(const void* memory) { return reinterpret_cast<uintptr_t>(memory); }
StreamPtr Stream(StreamHandle stream) { return static_cast<StreamPtr>(stream); }
EventPtr ToCuda(Event* event) { return reinterpret_cast<EventPtr>(event); }

std::string UuidText(const cuda::Uuid& uuid) {
  std::string text = "GPU-";
  for (int i = 0; i < 16; ++i) {
    char byte[4];
    std::snprintf(byte, sizeof byte, "%02x", static_cast<unsigned char>(uuid.bytes[i]));
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += byte;
  }
  return text;
}

Status BadEvent() { return InvalidArgument("event: null"); }

}  // namespace

#define CKPT_CUDA(call, ...) Check(driver_->call(__VA_ARGS__), #call)

// The caller's current context is what it was when this goes.
class CudaDevice::InContext {
 public:
  explicit InContext(const CudaDevice* device) : device_(device) {
    status_ = device->Sticky();
    if (!status_.ok()) return;
    status_ = device->Check(device->driver_->cuCtxPushCurrent_v2(device->context_),
                            "cuCtxPushCurrent_v2");
    pushed_ = status_.ok();
  }
  ~InContext() {
    cuda::ContextPtr ours = nullptr;
    if (pushed_)
      device_->Check(device_->driver_->cuCtxPopCurrent_v2(&ours), "cuCtxPopCurrent_v2")
          .IgnoreError();
  }
  InContext(const InContext&) = delete;
  InContext& operator=(const InContext&) = delete;
  const Status& status() const { return status_; }

 private:
  const CudaDevice* const device_;
  Status status_;
  bool pushed_ = false;
};

#define CKPT_IN_CONTEXT()           \
  const InContext in_context(this); \
  if (!in_context.status().ok()) return Status(in_context.status())

Result<int> CudaDevice::Count() {
  CKPT_ASSIGN_OR_RETURN(const cuda::Driver* driver, cuda::Driver::Get());
  int count = 0;
  CKPT_RETURN_IF_ERROR(driver->StatusOf(driver->cuDeviceGetCount(&count), "cuDeviceGetCount"));
  return count;
}

Result<std::unique_ptr<CudaDevice>> CudaDevice::Open(int ordinal) {
  CKPT_ASSIGN_OR_RETURN(const cuda::Driver* driver, cuda::Driver::Get());
  CKPT_ASSIGN_OR_RETURN(const int count, Count());
  if (ordinal < 0 || ordinal >= count) {
    return Unimplemented("there is no cuda:" + std::to_string(ordinal) + ": the driver shows " +
                         std::to_string(count) + " devices (CUDA_VISIBLE_DEVICES hides others)");
  }
  std::unique_ptr<CudaDevice> device(new CudaDevice(driver, ordinal));
  CKPT_RETURN_IF_ERROR(device->Begin().Annotate("opening cuda:" + std::to_string(ordinal)));
  return device;
}

CudaDevice::CudaDevice(const cuda::Driver* driver, int ordinal)
    : driver_(driver), ordinal_(ordinal) {}

Status CudaDevice::Begin() {
  CKPT_RETURN_IF_ERROR(CKPT_CUDA(cuDeviceGet, &device_, ordinal_));
  char name[256] = {};
  CKPT_RETURN_IF_ERROR(CKPT_CUDA(cuDeviceGetName, name, sizeof name - 1, device_));
  cuda::Uuid uuid{};
  CKPT_RETURN_IF_ERROR(CKPT_CUDA(cuDeviceGetUuid_v2, &uuid, device_));
  size_t bytes = 0;
  CKPT_RETURN_IF_ERROR(CKPT_CUDA(cuDeviceTotalMem_v2, &bytes, device_));
  info_ = {"cuda", name, UuidText(uuid), bytes, false};
  CKPT_RETURN_IF_ERROR(CKPT_CUDA(cuDevicePrimaryCtxRetain, &context_, device_));
  int virtual_memory = 0;
  CKPT_RETURN_IF_ERROR(
      CKPT_CUDA(cuDeviceGetAttribute, &virtual_memory, cuda::kAttributeVirtualMemory, device_));
  if (virtual_memory == 0) return OkStatus();
  CKPT_IN_CONTEXT();
  const cuda::AllocationProp properties = Properties();
  size_t granularity = 0;
  CKPT_RETURN_IF_ERROR(CKPT_CUDA(cuMemGetAllocationGranularity, &granularity, &properties,
                                 cuda::kGranularityMinimum));
  granularity_ = granularity;
  return OkStatus();
}

CudaDevice::~CudaDevice() {
  if (context_ == nullptr) return;
  {
    const InContext in_context(this);
    MutexLock lock(mutex_);
    for (auto& [memory, allocation] : allocations_) {
      if (!in_context.status().ok()) break;  // the driver has given all of it up
      if (!allocation.parked) Unback(memory, &allocation).IgnoreError();
      driver_->cuMemAddressFree(Address(memory), allocation.bytes);
    }
    for (const auto& [host, pieces] : registered_) {
      if (!in_context.status().ok()) break;
      for (std::byte* piece : pieces) driver_->cuMemHostUnregister(piece);
    }
  }
  driver_->cuDevicePrimaryCtxRelease_v2(device_);
}

DeviceInfo CudaDevice::info() const { return info_; }

Status CudaDevice::Check(Result32 result, const char* call) const {
  if (result == cuda::kSuccess) return OkStatus();
  Status status = driver_->StatusOf(result, call);
  status.Annotate("cuda:" + std::to_string(ordinal_) +
                  (info_.name.empty() ? "" : " (" + info_.name + ")"));
  if (!cuda::Driver::Sticky(result)) return status;
  MutexLock lock(mutex_);
  if (sticky_.ok()) sticky_ = status;
  return status;
}

Status CudaDevice::Sticky() const {
  MutexLock lock(mutex_);
  return sticky_;
}

Status CudaDevice::CheckPointer(const void* memory) const {
  CKPT_IN_CONTEXT();
  int type = 0;
  const Result32 asked =
      driver_->cuPointerGetAttribute(&type, cuda::kPointerMemoryType, Address(memory));
  const std::string what = "its address is no memory of cuda:" + std::to_string(ordinal_);
  if (asked == cuda::kInvalidValue ||
      (asked == cuda::kSuccess && type != cuda::kMemoryTypeDevice)) {
    return InvalidArgument(what + ", the driver takes it for memory of the host");
  }
  CKPT_RETURN_IF_ERROR(Check(asked, "cuPointerGetAttribute"));
  int owner = -1;
  CKPT_RETURN_IF_ERROR(
      CKPT_CUDA(cuPointerGetAttribute, &owner, cuda::kPointerDeviceOrdinal, Address(memory)));
  if (owner != ordinal_) return InvalidArgument(what + ", but of cuda:" + std::to_string(owner));
  return OkStatus();
}

Result<CudaDevice::Limits> CudaDevice::limits() const {
  CKPT_RETURN_IF_ERROR(Sticky());
  Limits limits;
  CKPT_RETURN_IF_ERROR(CKPT_CUDA(cuDriverGetVersion, &limits.driver_version));
  CKPT_RETURN_IF_ERROR(
      CKPT_CUDA(cuDeviceGetAttribute, &limits.compute_mode, cuda::kAttributeComputeMode, device_));
  // A driver before 12.1 knows no multicast.
  int multicast = 0;
  const Result32 asked =
      driver_->cuDeviceGetAttribute(&multicast, cuda::kAttributeMulticast, device_);
  if (asked != cuda::kInvalidValue) CKPT_RETURN_IF_ERROR(Check(asked, "cuDeviceGetAttribute"));
  limits.multicast = asked == cuda::kSuccess && multicast != 0;
  return limits;
}

Status CudaDevice::InItsContext(const std::function<Status()>& body) const {
  CKPT_IN_CONTEXT();
  return body();
}

// ---- streams and events

Result<StreamHandle> CudaDevice::CreateStream() {
  CKPT_IN_CONTEXT();
  StreamPtr stream = nullptr;
  CKPT_RETURN_IF_ERROR(CKPT_CUDA(cuStreamCreate, &stream, cuda::kStreamNonBlocking));
  return static_cast<StreamHandle>(stream);
}

Status CudaDevice::DestroyStream(StreamHandle stream) {
  if (stream == nullptr) return InvalidArgument("stream: the default stream is not ours");
  CKPT_IN_CONTEXT();
  return CKPT_CUDA(cuStreamDestroy_v2, Stream(stream));
}

Result<Event*> CudaDevice::RecordEvent(StreamHandle stream) {
  CKPT_IN_CONTEXT();
  EventPtr event = nullptr;
  CKPT_RETURN_IF_ERROR(CKPT_CUDA(cuEventCreate, &event, cuda::kEventDisableTiming));
  const Status recorded = CKPT_CUDA(cuEventRecord, event, Stream(stream));
  if (recorded.ok()) return reinterpret_cast<Event*>(event);
  driver_->cuEventDestroy_v2(event);
  return recorded;
}

Status CudaDevice::StreamWait(StreamHandle stream, Event* event) {
  if (event == nullptr) return BadEvent();
  CKPT_IN_CONTEXT();
  return CKPT_CUDA(cuStreamWaitEvent, Stream(stream), ToCuda(event), 0);
}

Result<bool> CudaDevice::Query(Event* event) {
  if (event == nullptr) return BadEvent();
  CKPT_IN_CONTEXT();
  const Result32 result = driver_->cuEventQuery(ToCuda(event));
  if (result == cuda::kNotReady) return false;
  CKPT_RETURN_IF_ERROR(Check(result, "cuEventQuery"));
  return true;
}

Status CudaDevice::Synchronize(Event* event, const Deadline& deadline) {
  for (int turn = 0;; ++turn) {
    CKPT_ASSIGN_OR_RETURN(const bool fired, Query(event));
    if (fired) return OkStatus();
    if (deadline.Expired()) return deadline.Exceeded();
    if (turn < kSpins) {
      ::sched_yield();
    } else {
      ::poll(nullptr, 0, 1);
    }
  }
}

void CudaDevice::FreeEvent(Event* event) {
  if (event == nullptr) return;
  const InContext in_context(this);
  if (in_context.status().ok()) CKPT_CUDA(cuEventDestroy_v2, ToCuda(event)).IgnoreError();
}

// ---- copies

Status CudaDevice::CheckRange(const void* device, const CopyShape& shape) const {
  if (device == nullptr) return InvalidArgument("copy: a null pointer");
  const auto width = static_cast<int64_t>(shape.row_bytes);
  if (shape.rows > 1 && (shape.device_pitch < width || shape.host_pitch < width)) {
    return InvalidArgument("copy: a pitch is smaller than a row");
  }
  MutexLock lock(mutex_);
  auto it = allocations_.upper_bound(const_cast<void*>(device));
  if (it == allocations_.begin()) return OkStatus();
  --it;
  const auto* begin = static_cast<const std::byte*>(it->first);
  const auto* at = static_cast<const std::byte*>(device);
  if (at >= begin + it->second.bytes) return OkStatus();  // memory of somebody else
  if (it->second.parked) return FailedPrecondition("copy: the device memory is parked");
  return OkStatus();
}

Status CudaDevice::Copy2D(StreamHandle stream, const void* device, void* host,
                          const CopyShape& shape, bool to_host) {
  cuda::Memcpy2D copy;
  copy.width_bytes = shape.row_bytes;
  copy.height = shape.rows;
  copy.src_type = to_host ? cuda::kMemoryTypeDevice : cuda::kMemoryTypeHost;
  copy.dst_type = to_host ? cuda::kMemoryTypeHost : cuda::kMemoryTypeDevice;
  copy.src_pitch = static_cast<size_t>(to_host ? shape.device_pitch : shape.host_pitch);
  copy.dst_pitch = static_cast<size_t>(to_host ? shape.host_pitch : shape.device_pitch);
  if (to_host) {
    copy.src_device = Address(device);
    copy.dst_host = host;
  } else {
    copy.src_host = host;
    copy.dst_device = Address(device);
  }
  return CKPT_CUDA(cuMemcpy2DAsync_v2, &copy, Stream(stream));
}

Status CudaDevice::CopyToHost(StreamHandle stream, void* host, const void* device,
                              const CopyShape& shape) {
  if (shape.row_bytes == 0 || shape.rows == 0) return OkStatus();
  if (host == nullptr) return InvalidArgument("copy: a null pointer");
  CKPT_RETURN_IF_ERROR(CheckRange(device, shape));
  CKPT_IN_CONTEXT();
  if (shape.rows > 1) return Copy2D(stream, device, host, shape, true);
  return CKPT_CUDA(cuMemcpyDtoHAsync_v2, host, Address(device), shape.row_bytes, Stream(stream));
}

Status CudaDevice::CopyToDevice(StreamHandle stream, void* device, const void* host,
                                const CopyShape& shape) {
  if (shape.row_bytes == 0 || shape.rows == 0) return OkStatus();
  if (host == nullptr) return InvalidArgument("copy: a null pointer");
  CKPT_RETURN_IF_ERROR(CheckRange(device, shape));
  CKPT_IN_CONTEXT();
  if (shape.rows > 1) return Copy2D(stream, device, const_cast<void*>(host), shape, false);
  return CKPT_CUDA(cuMemcpyHtoDAsync_v2, Address(device), host, shape.row_bytes, Stream(stream));
}

Status CudaDevice::RegisterHost(void* host, uint64_t bytes) {
  if (host == nullptr || bytes == 0) return InvalidArgument("register: no memory");
  {
    MutexLock lock(mutex_);
    if (registered_.contains(host)) return OkStatus();
  }
  CKPT_IN_CONTEXT();
  std::vector<std::byte*> pieces;
  auto* const begin = static_cast<std::byte*>(host);
  for (uint64_t at = 0; at < bytes; at += kPinnedPieceBytes) {
    const uint64_t size = std::min(kPinnedPieceBytes, bytes - at);
    const Status status =
        CKPT_CUDA(cuMemHostRegister_v2, begin + at, size, cuda::kHostRegisterPortable);
    if (status.ok()) {
      pieces.push_back(begin + at);
      continue;
    }
    for (std::byte* piece : pieces) driver_->cuMemHostUnregister(piece);  // I2
    return Status(status).Annotate("pinning " + FormatBytes(bytes) + " of host memory");
  }
  MutexLock lock(mutex_);
  registered_[host] = std::move(pieces);
  return OkStatus();
}

Status CudaDevice::UnregisterHost(void* host) {
  std::vector<std::byte*> pieces;
  {
    MutexLock lock(mutex_);
    const auto it = registered_.find(host);
    if (it == registered_.end()) return InvalidArgument("unregister: never registered");
    pieces = std::move(it->second);
    registered_.erase(it);
  }
  CKPT_IN_CONTEXT();
  Status first;
  for (std::byte* piece : pieces) {
    const Status status = CKPT_CUDA(cuMemHostUnregister, piece);
    if (first.ok()) first = status;
  }
  return first;
}

// ---- memory that can be parked

cuda::AllocationProp CudaDevice::Properties() const {
  cuda::AllocationProp properties;
  properties.type = cuda::kAllocationPinned;
  properties.location = {cuda::kLocationDevice, device_};
  return properties;
}

Status CudaDevice::Back(void* device, Allocation* allocation) {
  const cuda::AllocationProp properties = Properties();
  // Not Check: the lock is held.
  const auto check = [&](Result32 result, const char* call) {
    return driver_->StatusOf(result, call).Annotate("cuda:" + std::to_string(ordinal_));
  };
  cuda::MemHandle handle = 0;
  CKPT_RETURN_IF_ERROR(
      check(driver_->cuMemCreate(&handle, allocation->bytes, &properties, 0), "cuMemCreate"));
  Status status =
      check(driver_->cuMemMap(Address(device), allocation->bytes, 0, handle, 0), "cuMemMap");
  const bool mapped = status.ok();
  if (mapped) {
    const cuda::AccessDesc access{{cuda::kLocationDevice, device_}, cuda::kAccessReadWrite};
    status = check(driver_->cuMemSetAccess(Address(device), allocation->bytes, &access, 1),
                   "cuMemSetAccess");
  }
  if (status.ok()) {
    allocation->handle = handle;
    allocation->parked = false;
    return OkStatus();
  }
  if (mapped) driver_->cuMemUnmap(Address(device), allocation->bytes);
  driver_->cuMemRelease(handle);
  return status;
}

// What fails is done by the next try.
Status CudaDevice::Unback(void* device, Allocation* allocation) {
  if (!allocation->parked)
    CKPT_RETURN_IF_ERROR(
        driver_->StatusOf(driver_->cuMemUnmap(Address(device), allocation->bytes), "cuMemUnmap"));
  allocation->parked = true;
  if (allocation->handle == 0) return OkStatus();
  CKPT_RETURN_IF_ERROR(
      driver_->StatusOf(driver_->cuMemRelease(allocation->handle), "cuMemRelease"));
  allocation->handle = 0;
  return OkStatus();
}

Result<void*> CudaDevice::Alloc(uint64_t bytes) {
  if (bytes == 0) return InvalidArgument("device memory: no bytes are asked for");
  if (granularity_ == 0)
    return Unimplemented("cuda:" + std::to_string(ordinal_) + " has no virtual memory management");
  CKPT_IN_CONTEXT();
  Allocation allocation;
  allocation.bytes = AlignUp(bytes, granularity_);
  DevicePtr address = 0;
  CKPT_RETURN_IF_ERROR(CKPT_CUDA(cuMemAddressReserve, &address, allocation.bytes, 0, 0, 0));
  void* const memory = reinterpret_cast<void*>(static_cast<uintptr_t>(address));
  MutexLock lock(mutex_);
  const Status backed = Back(memory, &allocation);
  if (!backed.ok()) {
    driver_->cuMemAddressFree(address, allocation.bytes);
    return Status(backed).Annotate(FormatBytes(allocation.bytes) + " of device memory");
  }
  allocations_[memory] = allocation;
  return memory;
}

Status CudaDevice::Free(void* device) {
  CKPT_IN_CONTEXT();
  MutexLock lock(mutex_);
  const auto it = allocations_.find(device);
  if (it == allocations_.end()) return InvalidArgument("free: no memory of this device");
  CKPT_RETURN_IF_ERROR(Unback(device, &it->second));
  CKPT_RETURN_IF_ERROR(driver_->StatusOf(
      driver_->cuMemAddressFree(Address(device), it->second.bytes), "cuMemAddressFree"));
  allocations_.erase(it);
  return OkStatus();
}

Status CudaDevice::Park(void* device) {
  CKPT_IN_CONTEXT();
  MutexLock lock(mutex_);
  const auto it = allocations_.find(device);
  if (it == allocations_.end()) return InvalidArgument("park: no memory of this device");
  return Unback(device, &it->second);
}

Status CudaDevice::Unpark(void* device) {
  CKPT_IN_CONTEXT();
  MutexLock lock(mutex_);
  const auto it = allocations_.find(device);
  if (it == allocations_.end()) return InvalidArgument("unpark: no memory of this device");
  if (!it->second.parked) return OkStatus();
  CKPT_RETURN_IF_ERROR(Unback(device, &it->second));  // a release that failed
  return Back(device, &it->second);
}

}  // namespace ckpt::device
