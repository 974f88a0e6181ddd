// What we declare is what NVIDIA's header says, where it is there: checked when this compiles.
#include "libckpt/device/cuda/driver_api.h"

#include <gtest/gtest.h>

#if __has_include(<cuda.h>)
#include <cuda.h>

#include "libckpt/testing/header_twin.h"

CKPT_TWIN_STRUCT(CUuuid, ckpt::device::cuda::Uuid)
CKPT_TWIN_STRUCT(CUmemAllocationProp, ckpt::device::cuda::AllocationProp)
CKPT_TWIN_STRUCT(CUmemAccessDesc, ckpt::device::cuda::AccessDesc)
CKPT_TWIN_STRUCT(CUDA_MEMCPY2D, ckpt::device::cuda::Memcpy2D)

namespace ckpt::device::cuda {
namespace {

using testing::Plain;

// Only those that the header declares under the exported name: the others are macros for it, and
// are what they name.
#define CKPT_SAME_CALL(name, parameters) \
  static_assert(std::is_same_v<Plain<decltype(::name)>::Type, Result32 parameters>, #name);
CKPT_CUDA_CALLS(CKPT_SAME_CALL)

static_assert(sizeof(CUuuid) == sizeof(Uuid));
static_assert(sizeof(CUmemAllocationProp) == sizeof(AllocationProp));
static_assert(sizeof(CUmemAccessDesc) == sizeof(AccessDesc));
static_assert(sizeof(CUDA_MEMCPY2D) == sizeof(Memcpy2D));
static_assert(offsetof(CUmemAllocationProp, location) == offsetof(AllocationProp, location));
static_assert(offsetof(CUmemAllocationProp, allocFlags) == offsetof(AllocationProp, flags));
static_assert(offsetof(CUmemAccessDesc, flags) == offsetof(AccessDesc, flags));
static_assert(offsetof(CUDA_MEMCPY2D, srcDevice) == offsetof(Memcpy2D, src_device));
static_assert(offsetof(CUDA_MEMCPY2D, srcPitch) == offsetof(Memcpy2D, src_pitch));
static_assert(offsetof(CUDA_MEMCPY2D, dstMemoryType) == offsetof(Memcpy2D, dst_type));
static_assert(offsetof(CUDA_MEMCPY2D, dstHost) == offsetof(Memcpy2D, dst_host));
static_assert(offsetof(CUDA_MEMCPY2D, dstPitch) == offsetof(Memcpy2D, dst_pitch));
static_assert(offsetof(CUDA_MEMCPY2D, WidthInBytes) == offsetof(Memcpy2D, width_bytes));

CKPT_SAME_NUMBER(kInvalidValue, CUDA_ERROR_INVALID_VALUE)
CKPT_SAME_NUMBER(kOutOfMemory, CUDA_ERROR_OUT_OF_MEMORY)
CKPT_SAME_NUMBER(kNotInitialized, CUDA_ERROR_NOT_INITIALIZED)
CKPT_SAME_NUMBER(kDeinitialized, CUDA_ERROR_DEINITIALIZED)
CKPT_SAME_NUMBER(kDeviceUnavailable, CUDA_ERROR_DEVICE_UNAVAILABLE)
CKPT_SAME_NUMBER(kNoDevice, CUDA_ERROR_NO_DEVICE)
CKPT_SAME_NUMBER(kInvalidDevice, CUDA_ERROR_INVALID_DEVICE)
CKPT_SAME_NUMBER(kInvalidContext, CUDA_ERROR_INVALID_CONTEXT)
CKPT_SAME_NUMBER(kEccUncorrectable, CUDA_ERROR_ECC_UNCORRECTABLE)
CKPT_SAME_NUMBER(kNvlinkUncorrectable, CUDA_ERROR_NVLINK_UNCORRECTABLE)
CKPT_SAME_NUMBER(kContained, CUDA_ERROR_CONTAINED)
CKPT_SAME_NUMBER(kInvalidHandle, CUDA_ERROR_INVALID_HANDLE)
CKPT_SAME_NUMBER(kNotReady, CUDA_ERROR_NOT_READY)
CKPT_SAME_NUMBER(kIllegalAddress, CUDA_ERROR_ILLEGAL_ADDRESS)
CKPT_SAME_NUMBER(kLaunchTimeout, CUDA_ERROR_LAUNCH_TIMEOUT)
CKPT_SAME_NUMBER(kContextIsDestroyed, CUDA_ERROR_CONTEXT_IS_DESTROYED)
CKPT_SAME_NUMBER(kAssert, CUDA_ERROR_ASSERT)
CKPT_SAME_NUMBER(kHardwareStackError, CUDA_ERROR_HARDWARE_STACK_ERROR)
CKPT_SAME_NUMBER(kHostMemoryAlreadyRegistered, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED)
CKPT_SAME_NUMBER(kHostMemoryNotRegistered, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED)
CKPT_SAME_NUMBER(kLaunchFailed, CUDA_ERROR_LAUNCH_FAILED)
CKPT_SAME_NUMBER(kNotPermitted, CUDA_ERROR_NOT_PERMITTED)
CKPT_SAME_NUMBER(kNotSupported, CUDA_ERROR_NOT_SUPPORTED)
CKPT_SAME_NUMBER(kSystemNotReady, CUDA_ERROR_SYSTEM_NOT_READY)
CKPT_SAME_NUMBER(kSystemDriverMismatch, CUDA_ERROR_SYSTEM_DRIVER_MISMATCH)
CKPT_SAME_NUMBER(kExternalDevice, CUDA_ERROR_EXTERNAL_DEVICE)
CKPT_SAME_NUMBER(kUnknownError, CUDA_ERROR_UNKNOWN)
CKPT_SAME_NUMBER(kStreamNonBlocking, CU_STREAM_NON_BLOCKING)
CKPT_SAME_NUMBER(kEventDisableTiming, CU_EVENT_DISABLE_TIMING)
CKPT_SAME_NUMBER(kHostRegisterPortable, CU_MEMHOSTREGISTER_PORTABLE)
CKPT_SAME_NUMBER(kAttributeVirtualMemory, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)
CKPT_SAME_NUMBER(kAttributeComputeMode, CU_DEVICE_ATTRIBUTE_COMPUTE_MODE)
CKPT_SAME_NUMBER(kAttributeMulticast, CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED)
CKPT_SAME_NUMBER(kComputeModeProhibited, CU_COMPUTEMODE_PROHIBITED)
CKPT_SAME_NUMBER(kComputeModeExclusiveProcess, CU_COMPUTEMODE_EXCLUSIVE_PROCESS)
CKPT_SAME_NUMBER(kPointerMemoryType, CU_POINTER_ATTRIBUTE_MEMORY_TYPE)
CKPT_SAME_NUMBER(kPointerDeviceOrdinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)
CKPT_SAME_NUMBER(kMemoryTypeHost, CU_MEMORYTYPE_HOST)
CKPT_SAME_NUMBER(kMemoryTypeDevice, CU_MEMORYTYPE_DEVICE)
CKPT_SAME_NUMBER(kAllocationPinned, CU_MEM_ALLOCATION_TYPE_PINNED)
CKPT_SAME_NUMBER(kLocationDevice, CU_MEM_LOCATION_TYPE_DEVICE)
CKPT_SAME_NUMBER(kAccessReadWrite, CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
CKPT_SAME_NUMBER(kGranularityMinimum, CU_MEM_ALLOC_GRANULARITY_MINIMUM)

}  // namespace
}  // namespace ckpt::device::cuda

TEST(DriverApi, IsWhatTheHeaderOfTheToolkitSays) { SUCCEED() << "CUDA_VERSION " << CUDA_VERSION; }
#else
TEST(DriverApi, IsWhatTheHeaderOfTheToolkitSays) {
  GTEST_SKIP() << "SKIPPED: no cuda.h here (CUDA Toolkit)";
}
#endif
