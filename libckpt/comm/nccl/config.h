// A copy of a program's ncclConfig_t, whatever version of NCCL's header it was compiled with: as
// many bytes as it says it has, with the strings that it points to.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "libckpt/base/status.h"
#include "libckpt/comm/nccl/nccl_api.h"

namespace ckpt::comm::nccl {

class ConfigCopy {
 public:
  // `config` null: NCCL's defaults. The copy is non-blocking, because only such a communicator can
  // be waited for with a deadline.
  // Errors: kInvalidArgument if it was not initialised by NCCL_CONFIG_INITIALIZER, or asks for a
  // blocking communicator.
  static Result<ConfigCopy> Of(const void* config);

  // Valid as long as this, and not const because NCCL's parameter is not.
  Config* get() { return reinterpret_cast<Config*>(words_.data()); }

 private:
  ConfigCopy() = default;
  void Own(size_t offset, size_t size);

  std::vector<uint64_t> words_;
  std::vector<std::unique_ptr<std::string>> strings_;
};

}  // namespace ckpt::comm::nccl
