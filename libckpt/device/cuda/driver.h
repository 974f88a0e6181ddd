// The driver, found at run time: libcuda.so.1 by the loader's own rules. A machine without one is
// no error before somebody asks for a device.
#pragma once

#include <string>

#include "libckpt/base/status.h"
#include "libckpt/device/cuda/driver_api.h"

namespace ckpt::device::cuda {

class Driver {
 public:
  // The first call loads and initialises it. Threads: any.
  // Errors: kUnimplemented if there is none, or one that lacks a call, which is named; what cuInit
  // says.
  static Result<const Driver*> Get();

#define CKPT_CUDA_MEMBER(name, parameters) Result32(*name) parameters = nullptr;
  CKPT_CUDA_CALLS(CKPT_CUDA_MEMBER)
#undef CKPT_CUDA_MEMBER

  // "cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY (out of memory)". Codes: kResourceExhausted out of
  // memory, kAborted what the process cannot recover from (Sticky), kInvalidArgument,
  // kUnimplemented, kPermissionDenied, else kUnavailable.
  Status StatusOf(Result32 result, const char* call) const;
  // After one of these every later call of this process fails the same way.
  static bool Sticky(Result32 result);

 private:
  Status Load();
};

}  // namespace ckpt::device::cuda
