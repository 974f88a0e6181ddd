// Reads and checks every byte of a checkpoint and says exactly what is damaged: file, shard, chunk,
// range of bytes, tensors. Unlike a load it does not stop at the first damage.
//
// A damaged header or index is localised by building it anew from what the other files say: both
// are functions of their tensors and chunks. An index that comes out with the digest that MANIFEST
// names proves the shard's data as well.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "libckpt/base/status.h"
#include "libckpt/storage/store.h"

namespace ckpt::ckptctl {

struct Damage {
  std::string file;  // within the checkpoint's directory
  std::optional<uint32_t> shard;
  std::optional<uint64_t> chunk;
  uint64_t begin = 0, end = 0;       // bytes of `file`
  std::vector<std::string> tensors;  // that these bytes are of, or describe
  std::string what;
  // "shard-00002.safetensors, shard 2, chunk 7, bytes 4096 to 8192, tensor 'w': …".
  std::string ToString() const;
};

struct CheckReport {
  AttemptId id;
  uint64_t shards = 0;
  uint64_t chunks = 0;
  uint64_t bytes = 0;  // read and compared with a digest
  std::vector<Damage> damage;
  bool ok() const { return damage.empty(); }
};

// Gets stored bytes done and in all, from any thread; nothing if MANIFEST cannot tell them.
using CheckProgress = std::function<void(uint64_t done, uint64_t total)>;

// Errors: what is no damage of this checkpoint (no permission, a newer format).
Result<CheckReport> CheckCheckpoint(storage::Store& store, const AttemptId& id,
                                    const CheckProgress& progress = {});

}  // namespace ckpt::ckptctl
