#include "libckpt/device/cuda/driver.h"

#include <dlfcn.h>

namespace ckpt::device::cuda {
namespace {

constexpr const char* kLibrary = "libcuda.so.1";

}  // namespace

Result<const Driver*> Driver::Get() {
  // Never unloaded: a copy may be in flight at exit.
  static Driver* const driver = new Driver;
  static const Status* const loaded = new Status(driver->Load());
  if (!loaded->ok()) return Status(*loaded);
  return driver;
}

Status Driver::Load() {
  void* const library = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* why = ::dlerror();
    return Unimplemented("no CUDA driver: " + std::string(why == nullptr ? kLibrary : why));
  }
#define CKPT_CUDA_FIND(name, parameters)                                    \
  name = reinterpret_cast<Result32(*) parameters>(::dlsym(library, #name)); \
  if (name == nullptr) {                                                    \
    return Unimplemented(std::string("the CUDA driver has no " #name) +     \
                         ": one of 11.4 or later is needed");               \
  }
  CKPT_CUDA_CALLS(CKPT_CUDA_FIND)
#undef CKPT_CUDA_FIND
  return StatusOf(cuInit(0), "cuInit");
}

bool Driver::Sticky(Result32 result) {
  switch (result) {
    case kDeinitialized:
    case kDeviceUnavailable:
    case kEccUncorrectable:
    case kNvlinkUncorrectable:
    case kContained:
    case kContextIsDestroyed:
    case kExternalDevice:
    case kUnknownError:
      return true;
    default:  // what kernels and copies fail with
      return result >= kIllegalAddress && result <= kLaunchFailed &&
             result != kHostMemoryAlreadyRegistered && result != kHostMemoryNotRegistered;
  }
}

Status Driver::StatusOf(Result32 result, const char* call) const {
  if (result == kSuccess) return OkStatus();
  const char* name = nullptr;
  const char* words = nullptr;
  if (cuGetErrorName(result, &name) != kSuccess || name == nullptr)
    name = "an error that the driver does not know";
  if (cuGetErrorString(result, &words) != kSuccess) words = nullptr;
  std::string text = std::string(call) + ": " + name + " " + std::to_string(result);
  if (words != nullptr) text += std::string(" (") + words + ")";
  if (Sticky(result)) {
    return Aborted(
        text + "; the driver serves this process no more: start it again, what is durable stays");
  }
  switch (result) {
    case kOutOfMemory:
      return ResourceExhausted(text);
    case kInvalidValue:
    case kInvalidHandle:
    case kInvalidDevice:
    case kInvalidContext:
      return InvalidArgument(text);
    case kNotSupported:
    case kNoDevice:
      return Unimplemented(text);
    case kNotPermitted:
      return PermissionDenied(text);
    default:
      return Unavailable(text);
  }
}

}  // namespace ckpt::device::cuda
