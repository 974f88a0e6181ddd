// For tests: a staging region of a small model, filled, sealed and complete.
#pragma once

#include <cstring>

#include "libckpt/engine/staging.h"
#include "libckpt/os/memfd.h"

namespace ckpt::agent {

struct TestRegion {
  JobId job_id;
  uint32_t rank = 0;
  uint32_t world = 1;
  AttemptId id;
  uint64_t tensor_bytes = 1 << 20;
  engine::GenerationState state = engine::GenerationState::kGangComplete;
};

inline std::byte TestByte(uint32_t rank, uint64_t i) {
  return static_cast<std::byte>((i * 2654435761u >> 7) + rank * 17);
}

inline Result<os::Memfd> MakeTestRegion(const TestRegion& want) {
  format::RankLayout layout;
  layout.rank = Rank(want.rank);
  format::TensorMeta tensor;
  tensor.name = "weights";
  tensor.placement = format::Placement::kPerRank;
  tensor.global_shape = {want.tensor_bytes};
  tensor.local = {{0}, {want.tensor_bytes}};
  layout.tensors.push_back(tensor);
  plan::RankPlan plan;
  plan.pieces.push_back({0, tensor.local, true});
  plan.write_count = 1;
  const uint64_t bytes = AlignUp(engine::StagingRegion::BytesNeeded(layout, plan), 4096);
  CKPT_ASSIGN_OR_RETURN(os::Memfd memory, os::Memfd::Create("test-region", bytes));
  CKPT_ASSIGN_OR_RETURN(const os::Mapping mapping, memory.Map());
  const engine::StagingIdentity identity{want.job_id, Rank(want.rank), want.world, 1};
  CKPT_ASSIGN_OR_RETURN(engine::StagingRegion region,
                        engine::StagingRegion::Format(mapping.bytes(), identity, layout, plan));
  region.Begin({.generation = 1, .id = want.id, .boundary = 1, .full = true});
  const MutableByteSpan data = region.piece_data(0);
  for (uint64_t i = 0; i < data.size(); ++i) data[i] = TestByte(want.rank, i);
  CKPT_RETURN_IF_ERROR(region.SetValues({}));
  if (want.state != engine::GenerationState::kFilling) {
    CKPT_RETURN_IF_ERROR(region.Seal(want.id.step));
    region.set_state(want.state);
  }
  return memory;
}

}  // namespace ckpt::agent
