// What can be known, before anything is touched, of whether NCCL communicators on a device can be
// taken down and built again: each with its reason.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "libckpt/base/status.h"
#include "libckpt/comm/nccl/library.h"
#include "libckpt/device/cuda/cuda_device.h"

namespace ckpt::comm::nccl {

enum class Verdict { kYes, kNo, kUnknown };

struct Finding {
  std::string check;  // "mig", "compute mode", …
  Verdict verdict;
  std::string reason;
};

// `graphs`: what is declared to hold a communicator. Never an error: what cannot be found out is
// kUnknown.
std::vector<Finding> Preflight(const Library& library, const device::CudaDevice& device,
                               uint32_t world, const Status& graphs);

// kFailedPrecondition with the reasons of all that say no, but for graphs: those go by themselves.
Status Refusal(const std::vector<Finding>& findings);

// [{"check":"mig","verdict":"yes","reason":"…"},…]
std::string ToJson(const std::vector<Finding>& findings);

}  // namespace ckpt::comm::nccl
