// Data that the tests of this layer share: odd names, every value with its spelling, and a small
// checkpoint that has everything. tests/format builds its golden files from the same.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "libckpt/format/index.h"
#include "libckpt/format/manifest.h"
#include "libckpt/format/types.h"

namespace ckpt::format {

std::vector<std::string> OddNames();
// A value and the one spelling it has.
std::vector<std::pair<Value, std::string>> SpelledValues();
TensorMeta WholeTensor(std::string name, DType dtype, std::vector<uint64_t> shape,
                       Placement placement = Placement::kReplicated);

// Two ranks with all dtypes and placements, odd names, zero dims, zero size, slices, a tied tensor,
// all value tags, blobs. `files` is filled by RichShards.
Manifest RichManifest();
// The shard of each of the two ranks: which pieces it holds, in file order.
std::vector<std::vector<ShardTensor>> RichShards();
// The bytes of a shard's stream: the header, and data that depend on name and place only.
std::string ShardStream(const ShardLayout& layout);
// The index of a stream, with its digests.
ShardIndex IndexOf(const Manifest& manifest, Rank rank, const ShardLayout& layout,
                   const std::string& stream);

}  // namespace ckpt::format
