// How a rank's plan becomes a shard: the first `write_count` pieces are the shard's tensors, one to
// one and in the same order.
#pragma once

#include "libckpt/format/shard.h"
#include "libckpt/plan/plan.h"

namespace ckpt::engine {

// Piece `index` of the plan as a tensor of a shard (begin and end unset).
format::ShardTensor ShardTensorOf(const format::RankLayout& layout, const plan::Piece& piece);

// kInvalidArgument if the pieces are not in file order.
Result<format::ShardLayout> ShardLayoutOf(const format::RankLayout& layout,
                                          const plan::RankPlan& plan, uint64_t chunk_bytes);

}  // namespace ckpt::engine
