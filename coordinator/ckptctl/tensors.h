// The tensors of a checkpoint, each as a whole: sharded ones put together, replicated ones once,
// tied ones with the content that they share, per-rank ones under "NAME.rank3".
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "libckpt/engine/engine.h"

namespace ckpt::ckptctl {

struct WholeTensor {
  std::string name;
  format::TensorMeta meta;  // as it is loaded: `local` is all of it, and it is tied to nothing
  Rank rank;                // as which it is loaded
  bool own = false;         // of that rank alone
  uint64_t bytes() const { return meta.LocalBytes(); }
};

// Sorted by name. Errors: kFailedPrecondition if two would have one ("w" of rank 0 and "w.rank0"):
// nothing is left out without a word.
Result<std::vector<WholeTensor>> WholeTensors(const engine::CheckpointReader& reader);

// Every byte is verified. `progress` gets bytes of its chunks, from any thread. Errors: as
// engine::CheckpointReader::Load.
Status LoadWhole(engine::CheckpointReader* reader, const WholeTensor& tensor,
                 std::vector<std::byte>* out,
                 const std::function<void(uint64_t done, uint64_t total)>& progress = {});

}  // namespace ckpt::ckptctl
