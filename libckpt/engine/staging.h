// One rank's staging region: the memory (a memfd, or plain memory in the standalone engine) that
// holds one generation of what the rank staged, together with everything that is needed to go on
// with it: layout, pieces, values, digests. Any process that holds the descriptor can write the
// shard or restore from it.
//
//   header (4 KiB) │ layout │ plan │ room for values │ chunk digests │ data: pieces in plan
//   order, 64-byte aligned
//
// The room for values is as large as values may be, and most often nearly all of it stays empty:
// it takes addresses, but no memory, and is not sent to other nodes (UsedParts).
//
// I1  Format() fixes all offsets; a generation changes only state, ids, values, digests and data.
// I2  Open() trusts nothing: every offset is checked against the size of the mapping, layout and
// plan are decoded anew. I3  state: FREE → FILLING → SEALED → GANG_COMPLETE → DURABLE → FREE;
// SEALED or later means that all staged pieces and
//     values belong to one boundary.
// I4  A digest is taken from this memory after SEALED; `digest_valid` says which chunks have one.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

#include "libckpt/base/bytes.h"
#include "libckpt/base/digest.h"
#include "libckpt/base/ids.h"
#include "libckpt/format/types.h"
#include "libckpt/plan/plan.h"

namespace ckpt::engine {

enum class GenerationState : uint32_t {
  kFree = 0,
  kFilling = 1,
  kSealed = 2,
  kGangComplete = 3,
  kDurable = 4,
  kAborted = 5
};

struct StagingIdentity {
  JobId job;
  Rank rank;
  uint32_t world = 0;
  uint64_t plan_hash = 0;
};

struct GenerationInfo {
  uint32_t generation = 0;
  AttemptId id;  // epoch, step (known when sealed), attempt
  uint32_t boundary = 0;
  bool full = false;  // all pieces of the plan (a suspend), else only those this rank writes
};

// Of a region's memory.
struct RegionPart {
  uint64_t offset = 0, bytes = 0;
};

class StagingRegion {
 public:
  // Bytes a region for this layout and plan takes, values included.
  static uint64_t BytesNeeded(const format::RankLayout& layout, const plan::RankPlan& plan);
  // What of it every generation fills: worth allocating beforehand. Rising, whole pages.
  static Result<std::vector<RegionPart>> FilledParts(const format::RankLayout& layout,
                                                     const plan::RankPlan& plan);
  // Lays the region out over `memory` (page-aligned, ≥ BytesNeeded, zeroed or not). State: FREE.
  static Result<StagingRegion> Format(MutableByteSpan memory, const StagingIdentity& identity,
                                      const format::RankLayout& layout, const plan::RankPlan& plan);
  // Opens one that another process formatted. kDataLoss naming what does not fit. The memory must
  // stay mapped.
  static Result<StagingRegion> Open(MutableByteSpan memory);

  const StagingIdentity& identity() const { return identity_; }
  const format::RankLayout& layout() const { return layout_; }
  const plan::RankPlan& plan() const { return plan_; }

  GenerationState state() const;
  void set_state(GenerationState state);
  GenerationInfo info() const;
  // FREE, DURABLE or ABORTED → FILLING; digests and values of the older generation are dropped.
  void Begin(const GenerationInfo& info);
  // FILLING → SEALED at `step`. kFailedPrecondition in another state.
  Status Seal(Step step);

  // Pieces staged in this generation: write_count, or all if `full`.
  uint32_t staged_count() const;
  MutableByteSpan piece_data(uint32_t piece);
  ByteSpan piece_data(uint32_t piece) const;

  // kResourceExhausted if the encoded values exceed kValueBytesMax.
  Status SetValues(const format::RankValues& values);
  Result<format::RankValues> Values() const;

  // Chunk digests of the shard (file order), written by whoever writes the shard; `uid` seeds them.
  uint64_t chunk_count() const;
  std::optional<Digest> chunk_digest(uint64_t chunk) const;
  void set_chunk_digest(uint64_t chunk, const Digest& digest);

  uint64_t memory_bytes() const { return memory_.size(); }
  // What the generation in it uses, all that a copy of it needs. Rising, whole pages.
  std::vector<RegionPart> UsedParts() const;

 private:
  StagingRegion() = default;
  MutableByteSpan memory_;
  StagingIdentity identity_;
  format::RankLayout layout_;
  plan::RankPlan plan_;
  std::vector<uint64_t> piece_offsets_;
  std::vector<uint64_t> piece_bytes_;
  uint64_t values_offset_ = 0;
  uint64_t digests_offset_ = 0;
  uint64_t chunk_count_ = 0;
};

}  // namespace ckpt::engine
