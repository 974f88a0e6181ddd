// The calls: what each checks before the device does it.
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "libckpt/device/cuda/driver_api.h"
#include "libckpt/testing/fakecuda/fakecuda.h"
#include "libckpt/testing/fakecuda/world.h"

// NOLINTBEGIN: names and types are those of the interface
#define FAKE extern "C" __attribute__((visibility("default")))

struct CUctx_st {
  int ordinal = 0;
  int retained = 0;
};
struct CUevent_st {
  ckpt::device::Event* recorded = nullptr;
  ckpt::fakecuda::FakeCuda* device = nullptr;
};

namespace ckpt::fakecuda {
namespace {

using namespace device::cuda;
using device::CopyShape;
using device::StreamHandle;

Mutex g_mutex;
bool g_initialised CKPT_GUARDED_BY(g_mutex) = false;
std::map<int, CUctx_st> g_contexts CKPT_GUARDED_BY(g_mutex);
std::map<StreamHandle, FakeCuda*> g_blocking
    CKPT_GUARDED_BY(g_mutex);  // streams that the default one waits for
std::set<StreamHandle> g_streams CKPT_GUARDED_BY(g_mutex);
std::set<EventPtr> g_events CKPT_GUARDED_BY(g_mutex);
thread_local std::vector<CUctx_st*> t_current;

// What every call begins with: 0, or what it answers.
Result32 Enter(const char* call) {
  if (const Result32 planned = World::Get().failures().Pass(call); planned != kSuccess) {
    // One that sticks breaks the device, as on the real one.
    if (planned >= kIllegalAddress && planned <= kLaunchFailed &&
        planned != kHostMemoryAlreadyRegistered && planned != kHostMemoryNotRegistered &&
        !t_current.empty()) {
      World::Get().device(t_current.back()->ordinal)->Break(planned);
    }
    return planned;
  }
  MutexLock lock(g_mutex);
  return g_initialised ? kSuccess : kNotInitialized;
}

// And those that are made in a context.
Result32 EnterContext(const char* call, FakeCuda** device) {
  if (const Result32 result = Enter(call); result != kSuccess) return result;
  if (t_current.empty()) return kInvalidContext;
  *device = World::Get().device(t_current.back()->ordinal);
  return (*device)->broken();
}

Result32 ResultOf(const Status& status, FakeCuda* device) {
  if (status.ok()) return kSuccess;
  if (const Result32 broken = device->broken(); broken != kSuccess) return broken;
  return status.code() == Code::kResourceExhausted ? kOutOfMemory : kInvalidValue;
}

// `after` runs when what is on `before` has.
void Order(FakeCuda* device, StreamHandle before, StreamHandle after) {
  Result<device::Event*> event = device->RecordEvent(before);
  if (!event.ok()) return;
  device->StreamWait(after, *event).IgnoreError();
  device->FreeEvent(*event);
}

// The stream that is meant, behind those that the legacy default stream orders it after.
Result32 Meant(FakeCuda* device, StreamPtr stream, StreamHandle* out) {
  MutexLock lock(g_mutex);
  if (stream == nullptr) {
    *out = device->default_stream();
    for (const auto& [blocking, owner] : g_blocking) {
      if (owner == device) Order(device, blocking, *out);
    }
    return kSuccess;
  }
  if (!g_streams.contains(stream)) return kInvalidHandle;
  *out = stream;
  if (g_blocking.contains(stream)) Order(device, device->default_stream(), stream);
  return kSuccess;
}

Result32 AwaitAll(FakeCuda* device, StreamHandle stream) {
  Result<device::Event*> event = device->RecordEvent(stream);
  if (!event.ok()) return ResultOf(event.status(), device);
  const Status status = device->Synchronize(*event, Deadline::Infinite("a synchronous call"));
  device->FreeEvent(*event);
  return ResultOf(status, device);
}

uint64_t HostBytes(const CopyShape& shape) {
  return (shape.rows - 1) * static_cast<uint64_t>(shape.host_pitch) + shape.row_bytes;
}

// From pageable memory: staged before it returns. To pageable memory: done when it returns.
Result32 CopyAny(FakeCuda* device, StreamPtr stream, DevicePtr at, void* host,
                 const CopyShape& shape, bool to_host) {
  if (shape.row_bytes == 0 || shape.rows == 0) return kSuccess;
  if (host == nullptr) return kInvalidValue;
  StreamHandle meant = nullptr;
  if (const Result32 result = Meant(device, stream, &meant); result != kSuccess) return result;
  auto* const memory = reinterpret_cast<void*>(static_cast<uintptr_t>(at));
  const uint64_t bytes = HostBytes(shape);
  const bool pinned = World::Get().Pinned(host, bytes);
  if (to_host) {
    const Result32 queued = ResultOf(device->CopyToHost(meant, host, memory, shape), device);
    return queued != kSuccess || pinned ? queued : AwaitAll(device, meant);
  }
  if (pinned) return ResultOf(device->CopyToDevice(meant, memory, host, shape), device);
  // Kept until the copy has been made; a double may take a little more memory than the real driver.
  auto staged = std::make_unique<std::vector<std::byte>>(bytes);
  std::memcpy(staged->data(), host, bytes);
  const Result32 queued =
      ResultOf(device->CopyToDevice(meant, memory, staged->data(), shape), device);
  if (queued != kSuccess) return queued;
  return AwaitAll(device, meant);
}

Result32 MakeStream(FakeCuda* device, StreamPtr* out, unsigned flags) {
  Result<StreamHandle> stream = device->CreateStream();
  if (!stream.ok()) return ResultOf(stream.status(), device);
  MutexLock lock(g_mutex);
  g_streams.insert(*stream);
  if ((flags & kStreamNonBlocking) == 0) g_blocking[*stream] = device;
  *out = static_cast<StreamPtr>(*stream);
  return kSuccess;
}

bool Known(EventPtr event) {
  MutexLock lock(g_mutex);
  return g_events.contains(event);
}

constexpr struct {
  Result32 result;
  const char* name;
  const char* words;
} kErrors[] = {
    {kSuccess, "CUDA_SUCCESS", "no error"},
    {kInvalidValue, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {kOutOfMemory, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {kNotInitialized, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {kNoDevice, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {kInvalidDevice, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {kInvalidContext, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {kEccUncorrectable, "CUDA_ERROR_ECC_UNCORRECTABLE", "uncorrectable ECC error encountered"},
    {kInvalidHandle, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {kNotReady, "CUDA_ERROR_NOT_READY", "device not ready"},
    {kIllegalAddress, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {kHostMemoryAlreadyRegistered, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
     "part or all of the requested memory range is already mapped"},
    {kHostMemoryNotRegistered, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
     "pointer does not correspond to a registered memory region"},
    {kLaunchFailed, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {kUnknownError, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

}  // namespace
}  // namespace ckpt::fakecuda

using namespace ckpt::fakecuda;
using namespace ckpt::device::cuda;

#define ENTER() \
  if (const Result32 entered = Enter(__func__); entered != kSuccess) return entered
#define ENTER_CONTEXT()       \
  FakeCuda* device = nullptr; \
  if (const Result32 entered = EnterContext(__func__, &device); entered != kSuccess) return entered

// ---- controls
FAKE void fakecuda_fail(const char* call, uint64_t nth, int result, int sticky) {
  World::Get().failures().Plan(call, nth, result, sticky != 0);
}
FAKE uint64_t fakecuda_passages(const char* call) { return World::Get().failures().Passages(call); }
FAKE void fakecuda_copy_us(uint64_t us) {
  for (int i = 0; i < World::Get().count(); ++i)
    World::Get().device(i)->SetCopyDelay(std::chrono::microseconds(us));
}
FAKE void fakecuda_break_at_copy(uint64_t nth) { World::Get().device(0)->BreakAtCopy(nth); }
FAKE uint64_t fakecuda_used_bytes(int ordinal) {
  return World::Get().device(ordinal)->used_bytes();
}
FAKE uint64_t fakecuda_pinned_bytes() { return World::Get().pinned_bytes(); }

// ---- for other doubles
FAKE int fakecuda_current_ordinal() { return t_current.empty() ? -1 : t_current.back()->ordinal; }
FAKE int fakecuda_launch(void* stream, int (*kernel)(void*), void* argument) {
  ENTER_CONTEXT();
  StreamHandle meant = nullptr;
  const Result32 result = Meant(device, static_cast<StreamPtr>(stream), &meant);
  if (result != kSuccess) return result;
  return device->Launch(meant, [kernel, argument] { return kernel(argument); });
}
FAKE void* fakecuda_alias(const void* memory, uint64_t bytes) {
  for (int i = 0; i < World::Get().count(); ++i) {
    std::byte* const alias =
        World::Get().device(i)->Alias(reinterpret_cast<uintptr_t>(memory), bytes);
    if (alias != nullptr) return alias;
  }
  return nullptr;
}

// ---- the driver and its devices
FAKE Result32 cuInit(unsigned) {
  if (const Result32 planned = World::Get().failures().Pass("cuInit"); planned != kSuccess)
    return planned;
  if (World::Get().count() == 0) return kNoDevice;
  ckpt::MutexLock lock(g_mutex);
  g_initialised = true;
  return kSuccess;
}
FAKE Result32 cuGetErrorName(Result32 result, const char** out) {
  for (const auto& error : kErrors) {
    if (error.result == result) return *out = error.name, kSuccess;
  }
  return *out = nullptr, kInvalidValue;
}
FAKE Result32 cuGetErrorString(Result32 result, const char** out) {
  for (const auto& error : kErrors) {
    if (error.result == result) return *out = error.words, kSuccess;
  }
  return *out = nullptr, kInvalidValue;
}
FAKE Result32 cuDriverGetVersion(int* out) {
  if (const Result32 planned = World::Get().failures().Pass(__func__); planned != kSuccess)
    return planned;
  const char* const text = std::getenv("CKPT_FAKECUDA_DRIVER");
  *out = text == nullptr ? 13000 : std::atoi(text);
  return kSuccess;
}
FAKE Result32 cuDeviceGetCount(int* out) {
  ENTER();
  *out = World::Get().count();
  return kSuccess;
}
FAKE Result32 cuDeviceGet(Ordinal* out, int ordinal) {
  ENTER();
  if (ordinal < 0 || ordinal >= World::Get().count()) return kInvalidDevice;
  *out = ordinal;
  return kSuccess;
}
FAKE Result32 cuDeviceGetName(char* out, int bytes, Ordinal device) {
  ENTER();
  std::string name = World::Get().device(device)->info().name;
  if (std::getenv("CKPT_FAKECUDA_MIG") != nullptr) name += " MIG 1g.5gb";
  std::strncpy(out, name.c_str(), static_cast<size_t>(bytes) - 1);
  out[bytes - 1] = '\0';
  return kSuccess;
}
FAKE Result32 cuDeviceGetUuid_v2(Uuid* out, Ordinal device) {
  ENTER();
  std::memset(out->bytes, 0xfa, sizeof out->bytes);
  out->bytes[15] = static_cast<char>(device);
  return kSuccess;
}
FAKE Result32 cuDeviceTotalMem_v2(size_t* out, Ordinal device) {
  ENTER();
  *out = World::Get().device(device)->info().memory_bytes;
  return kSuccess;
}
FAKE Result32 cuDeviceGetAttribute(int* out, int attribute, Ordinal) {
  ENTER();
  const auto told = [](const char* name) {
    const char* const text = std::getenv(name);
    return text == nullptr ? 0 : std::atoi(text);
  };
  switch (attribute) {
    case kAttributeVirtualMemory:
      *out = 1;
      return kSuccess;
    case kAttributeComputeMode:
      *out = told("CKPT_FAKECUDA_COMPUTE_MODE");
      return kSuccess;
    case kAttributeMulticast:
      *out = told("CKPT_FAKECUDA_MULTICAST");
      return kSuccess;
    default:
      return kInvalidValue;
  }
}
FAKE Result32 cuDevicePrimaryCtxRetain(ContextPtr* out, Ordinal device) {
  ENTER();
  ckpt::MutexLock lock(g_mutex);
  CUctx_st& context = g_contexts[device];
  context.ordinal = device;
  ++context.retained;
  *out = &context;
  return kSuccess;
}
FAKE Result32 cuDevicePrimaryCtxRelease_v2(Ordinal device) {
  ENTER();
  ckpt::MutexLock lock(g_mutex);
  CUctx_st& context = g_contexts[device];
  if (context.retained == 0) return kInvalidContext;
  --context.retained;
  return kSuccess;
}
FAKE Result32 cuCtxPushCurrent_v2(ContextPtr context) {
  ENTER();
  if (context == nullptr || context->retained == 0) return kInvalidContext;
  t_current.push_back(context);
  return kSuccess;
}
FAKE Result32 cuCtxPopCurrent_v2(ContextPtr* out) {
  ENTER();
  if (t_current.empty()) return kInvalidContext;
  *out = t_current.back();
  t_current.pop_back();
  return kSuccess;
}
FAKE Result32 cuCtxGetCurrent(ContextPtr* out) {
  ENTER();
  *out = t_current.empty() ? nullptr : t_current.back();
  return kSuccess;
}

// ---- streams and events
FAKE Result32 cuStreamCreate(StreamPtr* out, unsigned flags) {
  ENTER_CONTEXT();
  return MakeStream(device, out, flags);
}
FAKE Result32 cuStreamDestroy_v2(StreamPtr stream) {
  ENTER_CONTEXT();
  {
    ckpt::MutexLock lock(g_mutex);
    if (g_streams.erase(stream) == 0) return kInvalidHandle;
    g_blocking.erase(stream);
  }
  return ResultOf(device->DestroyStream(stream), device);
}
FAKE Result32 cuStreamSynchronize(StreamPtr stream) {
  ENTER_CONTEXT();
  StreamHandle meant = nullptr;
  if (const Result32 result = Meant(device, stream, &meant); result != kSuccess) return result;
  return AwaitAll(device, meant);
}
FAKE Result32 cuStreamWaitEvent(StreamPtr stream, EventPtr event, unsigned) {
  ENTER_CONTEXT();
  if (!Known(event)) return kInvalidHandle;
  if (event->recorded == nullptr) return kSuccess;
  StreamHandle meant = nullptr;
  if (const Result32 result = Meant(device, stream, &meant); result != kSuccess) return result;
  return ResultOf(device->StreamWait(meant, event->recorded), device);
}
FAKE Result32 cuEventCreate(EventPtr* out, unsigned) {
  ENTER_CONTEXT();
  *out = new CUevent_st{nullptr, device};
  ckpt::MutexLock lock(g_mutex);
  g_events.insert(*out);
  return kSuccess;
}
FAKE Result32 cuEventRecord(EventPtr event, StreamPtr stream) {
  ENTER_CONTEXT();
  if (!Known(event)) return kInvalidHandle;
  StreamHandle meant = nullptr;
  if (const Result32 result = Meant(device, stream, &meant); result != kSuccess) return result;
  ckpt::Result<ckpt::device::Event*> recorded = device->RecordEvent(meant);
  if (!recorded.ok()) return ResultOf(recorded.status(), device);
  if (event->recorded != nullptr) device->FreeEvent(event->recorded);
  event->recorded = *recorded;
  return kSuccess;
}
FAKE Result32 cuEventQuery(EventPtr event) {
  ENTER_CONTEXT();
  if (!Known(event)) return kInvalidHandle;
  if (event->recorded == nullptr) return kSuccess;
  const ckpt::Result<bool> fired = device->Query(event->recorded);
  if (!fired.ok()) return ResultOf(fired.status(), device);
  return *fired ? kSuccess : kNotReady;
}
FAKE Result32 cuEventDestroy_v2(EventPtr event) {
  ENTER_CONTEXT();
  {
    ckpt::MutexLock lock(g_mutex);
    if (g_events.erase(event) == 0) return kInvalidHandle;
  }
  if (event->recorded != nullptr) event->device->FreeEvent(event->recorded);
  delete event;
  return kSuccess;
}

// ---- copies
FAKE Result32 cuMemcpyDtoHAsync_v2(void* host, DevicePtr from, size_t bytes, StreamPtr stream) {
  ENTER_CONTEXT();
  return CopyAny(device, stream, from, host, CopyShape{bytes}, true);
}
FAKE Result32 cuMemcpyHtoDAsync_v2(DevicePtr to, const void* host, size_t bytes, StreamPtr stream) {
  ENTER_CONTEXT();
  return CopyAny(device, stream, to, const_cast<void*>(host), CopyShape{bytes}, false);
}
FAKE Result32 cuMemcpyDtoH_v2(void* host, DevicePtr from, size_t bytes) {
  ENTER_CONTEXT();
  const Result32 result = CopyAny(device, nullptr, from, host, CopyShape{bytes}, true);
  return result != kSuccess ? result : AwaitAll(device, device->default_stream());
}
FAKE Result32 cuMemcpyHtoD_v2(DevicePtr to, const void* host, size_t bytes) {
  ENTER_CONTEXT();
  const Result32 result =
      CopyAny(device, nullptr, to, const_cast<void*>(host), CopyShape{bytes}, false);
  return result != kSuccess ? result : AwaitAll(device, device->default_stream());
}
FAKE Result32 cuMemcpy2DAsync_v2(const Memcpy2D* copy, StreamPtr stream) {
  ENTER_CONTEXT();
  const bool to_host = copy->src_type == kMemoryTypeDevice && copy->dst_type == kMemoryTypeHost;
  const bool to_device = copy->src_type == kMemoryTypeHost && copy->dst_type == kMemoryTypeDevice;
  if (!to_host && !to_device) return kInvalidValue;  // our code makes no other
  CopyShape shape{copy->width_bytes, copy->height};
  shape.device_pitch = static_cast<int64_t>(to_host ? copy->src_pitch : copy->dst_pitch);
  shape.host_pitch = static_cast<int64_t>(to_host ? copy->dst_pitch : copy->src_pitch);
  void* const host = to_host ? copy->dst_host : const_cast<void*>(copy->src_host);
  return CopyAny(device, stream, to_host ? copy->src_device : copy->dst_device, host, shape,
                 to_host);
}

// ---- memory
FAKE Result32 cuMemHostRegister_v2(void* host, size_t bytes, unsigned) {
  ENTER_CONTEXT();
  return World::Get().Pin(host, bytes);
}
FAKE Result32 cuMemHostUnregister(void* host) {
  ENTER_CONTEXT();
  return World::Get().Unpin(host);
}
FAKE Result32 cuPointerGetAttribute(void* out, int attribute, DevicePtr at) {
  ENTER_CONTEXT();
  for (int i = 0; i < World::Get().count(); ++i) {
    if (!World::Get().device(i)->Owns(at)) continue;
    if (attribute != kPointerMemoryType && attribute != kPointerDeviceOrdinal) return kInvalidValue;
    *static_cast<int*>(out) = attribute == kPointerMemoryType ? kMemoryTypeDevice : i;
    return kSuccess;
  }
  return kInvalidValue;
}
FAKE Result32 cuMemGetAllocationGranularity(size_t* out, const AllocationProp*, int) {
  ENTER_CONTEXT();
  *out = kGranularity;
  return kSuccess;
}
FAKE Result32 cuMemAddressReserve(DevicePtr* out, size_t bytes, size_t, DevicePtr,
                                  unsigned long long) {
  ENTER_CONTEXT();
  return device->Reserve(out, bytes);
}
FAKE Result32 cuMemAddressFree(DevicePtr at, size_t bytes) {
  ENTER_CONTEXT();
  return device->Unreserve(at, bytes);
}
FAKE Result32 cuMemCreate(MemHandle* out, size_t bytes, const AllocationProp* properties,
                          unsigned long long) {
  ENTER_CONTEXT();
  if (properties->type != kAllocationPinned || properties->location.type != kLocationDevice)
    return kInvalidValue;
  return device->Create(out, bytes);
}
FAKE Result32 cuMemRelease(MemHandle handle) {
  ENTER_CONTEXT();
  return device->Release(handle);
}
FAKE Result32 cuMemMap(DevicePtr at, size_t bytes, size_t offset, MemHandle handle,
                       unsigned long long) {
  ENTER_CONTEXT();
  return device->Map(at, bytes, offset, handle);
}
FAKE Result32 cuMemUnmap(DevicePtr at, size_t bytes) {
  ENTER_CONTEXT();
  return device->Unmap(at, bytes);
}
FAKE Result32 cuMemSetAccess(DevicePtr at, size_t bytes, const AccessDesc* access, size_t count) {
  ENTER_CONTEXT();
  if (count != 1 || access->flags != kAccessReadWrite) return kInvalidValue;
  return device->Access(at, bytes);
}
// What programs allocate with.
FAKE Result32 cuMemAlloc_v2(DevicePtr* out, size_t bytes) {
  ENTER_CONTEXT();
  const uint64_t whole = (bytes + kGranularity - 1) / kGranularity * kGranularity;
  MemHandle handle = 0;
  if (const Result32 result = device->Create(&handle, whole); result != kSuccess) return result;
  if (const Result32 result = device->Reserve(out, whole); result != kSuccess)
    return device->Release(handle), result;
  device->Map(*out, whole, 0, handle);
  device->Access(*out, whole);
  return device->Release(handle);  // with the mapping
}
FAKE Result32 cuMemFree_v2(DevicePtr at) {
  ENTER_CONTEXT();
  return device->FreeWhole(at);
}
// NOLINTEND
