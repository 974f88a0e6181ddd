// All ranks' layouts turned around: for each tensor name, who holds which box of it.
//
// Ranks of one job mostly hold the same names in the same order, so a rank's names are first
// compared with the previous rank's at the same index and hashed only where they differ.
#pragma once

#include <cstdint>
#include <vector>

#include "libckpt/format/types.h"

namespace ckpt::plan {

struct Claim {
  uint32_t rank = 0;
  uint32_t tensor_index = 0;
};

// One tensor name. Tied tensors claim nothing: they are stored as what they are tied to.
struct Domain {
  const format::TensorMeta* meta = nullptr;  // of the first claim
  std::vector<Claim> claims;                 // by rank
  uint32_t name_order = 0;                   // position of the name among all names
};

// Domains in order of first appearance. kInvalidArgument naming tensor and ranks if claims of one
// name disagree in placement, dtype or global shape, or a rank claims a name twice, or a tensor
// that is not sharded is held in part, or one is tied to something else than an untied tensor of
// its own rank.
Result<std::vector<Domain>> CollectClaims(const std::vector<format::RankLayout>& layouts);

inline const format::TensorMeta& MetaOf(const std::vector<format::RankLayout>& layouts,
                                        const Claim& claim) {
  return layouts[claim.rank].tensors[claim.tensor_index];
}

// Whether `box` is all of `global_shape`.
bool IsWhole(const format::Box& box, const std::vector<uint64_t>& global_shape);

// `name` for a message: quoted, cut if very long.
std::string Quoted(std::string_view name);

}  // namespace ckpt::plan
