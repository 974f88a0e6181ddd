// A checkpoint made of tensors that lie in files of somebody else.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "libckpt/format/types.h"
#include "libckpt/storage/store.h"

namespace ckpt::engine {

// A whole tensor, row-major, from `offset` on in a file that outlives the import.
struct ForeignTensor {
  std::string name;
  format::DType dtype = format::DType::kU8;
  std::vector<uint64_t> shape;
  const storage::FileReader* file = nullptr;
  uint64_t offset = 0;
};

struct ImportOptions {
  std::function<void(uint64_t done, uint64_t total)> progress;
  std::function<bool()> cancelled;
  uint32_t threads = 0;  // 0 chooses
};

// Commits checkpoint `id` of one rank, which holds `tensors` (any order) and `values`. Each byte is
// read once, in the order of the shard; memory: a block for each thread, whatever the sizes.
// Pre: `to` does not have it (BeginAttempt fails otherwise).
// Errors: kInvalidArgument naming the tensor, before anything is made, for a bad name, shape or
// dtype, or a name that comes twice; kDataLoss naming file and range if a file ends early. What was
// begun in `to` has no COMMIT.
// Durable: as Store::Commit.
Status ImportCheckpoint(const std::vector<ForeignTensor>& tensors, const format::RankValues& values,
                        const JobId& job, const AttemptId& id, storage::Store* to,
                        const ImportOptions& options);

}  // namespace ckpt::engine
