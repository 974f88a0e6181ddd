#include "libckpt/engine/shard_map.h"

namespace ckpt::engine {

format::ShardTensor ShardTensorOf(const format::RankLayout& layout, const plan::Piece& piece) {
  const format::TensorMeta& meta = layout.tensors[piece.tensor_index];
  format::ShardTensor tensor;
  tensor.name = meta.name;
  tensor.dtype = meta.dtype;
  tensor.placement = meta.placement;
  tensor.global_shape = meta.global_shape;
  tensor.box = piece.box();
  return tensor;
}

Result<format::ShardLayout> ShardLayoutOf(const format::RankLayout& layout,
                                          const plan::RankPlan& plan, uint64_t chunk_bytes) {
  std::vector<format::ShardTensor> tensors;
  tensors.reserve(plan.write_count);
  for (uint32_t i = 0; i < plan.write_count; ++i) {
    tensors.push_back(ShardTensorOf(layout, plan.pieces[i]));
  }
  return format::LayOutShard(std::move(tensors), chunk_bytes);
}

}  // namespace ckpt::engine
