// Headers and indexes built anew, to find which bytes of a damaged one are wrong.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/ckptctl/check.h"
#include "libckpt/format/index.h"
#include "libckpt/format/manifest.h"

namespace ckpt::ckptctl {

struct RebuiltIndex {
  format::ShardIndex index;
  std::string bytes;
};

// The index of a shard from its header, its data and MANIFEST; nothing unless it comes out with the
// digest that `entry` names. `damaged` is what is there instead: its chunk size is tried too.
std::optional<RebuiltIndex> RebuildIndex(const format::Manifest& manifest,
                                         const format::ManifestFile& entry,
                                         const storage::FileReader& file, std::string_view damaged);

// Narrows `damage` to the bytes of the index that differ, and to the chunk or tensor they are of.
void Localize(const RebuiltIndex& rebuilt, std::string_view damaged, Damage* damage);
// The same for a shard's header, which is a function of its tensors.
void LocalizeHeader(const format::ShardIndex& index, std::string_view damaged, Damage* damage);

std::vector<std::string> TensorsOfChunk(const format::ShardIndex& index, uint64_t chunk);
// By the shard's own header; empty if that cannot be read.
std::vector<std::string> HeaderTensors(const storage::FileReader& file);

}  // namespace ckpt::ckptctl
