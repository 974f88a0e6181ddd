// The part of NVIDIA's driver interface that we call, as it is on every driver since 11.4: names,
// types and numbers are part of its ABI. Declared here so that a build needs no CUDA Toolkit, and
// one binary runs with and without a GPU; where the Toolkit is, driver_api_test.cc compares each
// line with its header.
#pragma once

#include <cstddef>
#include <cstdint>

struct CUctx_st;
struct CUstream_st;
struct CUevent_st;

namespace ckpt::device::cuda {

using Result32 = int;                  // CUresult
using Ordinal = int;                   // CUdevice
using DevicePtr = unsigned long long;  // CUdeviceptr
using MemHandle = unsigned long long;  // CUmemGenericAllocationHandle
using ContextPtr = CUctx_st*;
using StreamPtr = CUstream_st*;
using EventPtr = CUevent_st*;

enum : Result32 {
  kSuccess = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kNotInitialized = 3,
  kDeinitialized = 4,
  kDeviceUnavailable = 46,
  kNoDevice = 100,
  kInvalidDevice = 101,
  kInvalidContext = 201,
  kEccUncorrectable = 214,
  kNvlinkUncorrectable = 220,
  kContained = 226,
  kInvalidHandle = 400,
  kNotReady = 600,
  kIllegalAddress = 700,
  kLaunchTimeout = 702,
  kContextIsDestroyed = 709,
  kAssert = 710,
  kHostMemoryAlreadyRegistered = 712,
  kHostMemoryNotRegistered = 713,
  kHardwareStackError = 714,
  kLaunchFailed = 719,
  kNotPermitted = 800,
  kNotSupported = 801,
  kSystemNotReady = 802,
  kSystemDriverMismatch = 803,
  kExternalDevice = 911,
  kUnknownError = 999,
};

inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr unsigned kEventDisableTiming = 2;
inline constexpr unsigned kHostRegisterPortable = 1;
inline constexpr int kAttributeVirtualMemory =
    102;  // CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
inline constexpr int kAttributeComputeMode = 20;
inline constexpr int kAttributeMulticast = 132;
inline constexpr int kComputeModeProhibited = 2;
inline constexpr int kComputeModeExclusiveProcess = 3;
inline constexpr int kPointerMemoryType = 2;
inline constexpr int kPointerDeviceOrdinal = 9;
inline constexpr int kMemoryTypeHost = 1;
inline constexpr int kMemoryTypeDevice = 2;
inline constexpr int kAllocationPinned = 1;
inline constexpr int kLocationDevice = 1;
inline constexpr int kAccessReadWrite = 3;
inline constexpr int kGranularityMinimum = 0;

struct Uuid {
  char bytes[16];
};

struct Location {
  int type = 0;
  int id = 0;
};

struct AllocationProp {
  int type = 0;
  int requested_handle_types = 0;
  Location location;
  void* win32_handle_metadata = nullptr;
  struct {
    unsigned char compression = 0;
    unsigned char gpu_direct_rdma = 0;
    unsigned short usage = 0;
    unsigned char reserved[4] = {};
  } flags;
};

struct AccessDesc {
  Location location;
  int flags = 0;
};

struct Memcpy2D {
  size_t src_x_bytes = 0, src_y = 0;
  int src_type = 0;
  const void* src_host = nullptr;
  DevicePtr src_device = 0;
  void* src_array = nullptr;
  size_t src_pitch = 0;
  size_t dst_x_bytes = 0, dst_y = 0;
  int dst_type = 0;
  void* dst_host = nullptr;
  DevicePtr dst_device = 0;
  void* dst_array = nullptr;
  size_t dst_pitch = 0;
  size_t width_bytes = 0, height = 0;
};

// X(name as exported by libcuda, parameters)
#define CKPT_CUDA_CALLS(X)                                                            \
  X(cuInit, (unsigned))                                                               \
  X(cuGetErrorName, (Result32, const char**))                                         \
  X(cuGetErrorString, (Result32, const char**))                                       \
  X(cuDriverGetVersion, (int*))                                                       \
  X(cuDeviceGetCount, (int*))                                                         \
  X(cuDeviceGet, (Ordinal*, int))                                                     \
  X(cuDeviceGetName, (char*, int, Ordinal))                                           \
  X(cuDeviceGetUuid_v2, (Uuid*, Ordinal))                                             \
  X(cuDeviceTotalMem_v2, (size_t*, Ordinal))                                          \
  X(cuDeviceGetAttribute, (int*, int, Ordinal))                                       \
  X(cuDevicePrimaryCtxRetain, (ContextPtr*, Ordinal))                                 \
  X(cuDevicePrimaryCtxRelease_v2, (Ordinal))                                          \
  X(cuCtxPushCurrent_v2, (ContextPtr))                                                \
  X(cuCtxPopCurrent_v2, (ContextPtr*))                                                \
  X(cuStreamCreate, (StreamPtr*, unsigned))                                           \
  X(cuStreamDestroy_v2, (StreamPtr))                                                  \
  X(cuStreamWaitEvent, (StreamPtr, EventPtr, unsigned))                               \
  X(cuEventCreate, (EventPtr*, unsigned))                                             \
  X(cuEventRecord, (EventPtr, StreamPtr))                                             \
  X(cuEventQuery, (EventPtr))                                                         \
  X(cuEventDestroy_v2, (EventPtr))                                                    \
  X(cuMemcpyDtoHAsync_v2, (void*, DevicePtr, size_t, StreamPtr))                      \
  X(cuMemcpyHtoDAsync_v2, (DevicePtr, const void*, size_t, StreamPtr))                \
  X(cuMemcpy2DAsync_v2, (const Memcpy2D*, StreamPtr))                                 \
  X(cuMemHostRegister_v2, (void*, size_t, unsigned))                                  \
  X(cuMemHostUnregister, (void*))                                                     \
  X(cuPointerGetAttribute, (void*, int, DevicePtr))                                   \
  X(cuMemAddressReserve, (DevicePtr*, size_t, size_t, DevicePtr, unsigned long long)) \
  X(cuMemAddressFree, (DevicePtr, size_t))                                            \
  X(cuMemCreate, (MemHandle*, size_t, const AllocationProp*, unsigned long long))     \
  X(cuMemRelease, (MemHandle))                                                        \
  X(cuMemMap, (DevicePtr, size_t, size_t, MemHandle, unsigned long long))             \
  X(cuMemUnmap, (DevicePtr, size_t))                                                  \
  X(cuMemSetAccess, (DevicePtr, size_t, const AccessDesc*, size_t))                   \
  X(cuMemGetAllocationGranularity, (size_t*, const AllocationProp*, int))

}  // namespace ckpt::device::cuda
