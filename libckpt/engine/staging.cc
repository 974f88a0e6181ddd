#include "libckpt/engine/staging.h"

#include <algorithm>
#include <cstring>

#include "libckpt/base/clock.h"
#include "libckpt/base/fault.h"
#include "libckpt/base/log.h"
#include "libckpt/engine/shard_map.h"

namespace ckpt::engine {
namespace {

constexpr uint64_t kMagic = 0x3147'5453'5450'4b43ull;  // "CKPTSTG1"
constexpr uint32_t kVersion = 1;
constexpr uint64_t kHeaderBytes = kPageBytes;
constexpr uint64_t kPieceAlignment = 64;
constexpr uint64_t kValuesCapacity = kValueBytesMax;
constexpr uint64_t kStageBytesMax = uint64_t{1} << 46;  // of one rank: beyond any machine's memory

// The fixed part of the header, encoded; its digest follows it.
struct FixedHeader {
  uint64_t total_bytes = 0;
  StagingIdentity identity;
  uint64_t layout_bytes = 0, plan_bytes = 0, chunk_count = 0;
  Digest body_digest;  // of layout and plan as encoded

  std::string Encode() const {
    ByteWriter writer;
    writer.Put<uint64_t>(kMagic).Put<uint32_t>(kVersion).Put<uint32_t>(kHeaderBytes);
    writer.Put<uint64_t>(total_bytes);
    writer.PutRaw(AsText(std::as_bytes(std::span(identity.job.bytes))));
    writer.Put<uint32_t>(identity.rank.value()).Put<uint32_t>(identity.world);
    writer.Put<uint64_t>(identity.plan_hash);
    writer.Put<uint64_t>(layout_bytes).Put<uint64_t>(plan_bytes).Put<uint64_t>(chunk_count);
    writer.PutRaw(AsText(std::as_bytes(std::span(body_digest.bytes))));
    return std::move(writer).Take();
  }
};
constexpr size_t kFixedBytes = 8 + 4 + 4 + 8 + 16 + 4 + 4 + 8 + 3 * 8 + 16;

// The changing part, at its own cache line; `state` orders the rest.
struct Changing {
  uint32_t state;
  uint32_t generation;
  uint64_t epoch;
  int64_t step;
  uint32_t attempt;
  uint32_t boundary;
  uint32_t full;
  uint32_t reserved;
  uint64_t values_bytes;
};
constexpr uint64_t kChangingOffset = 1024;
static_assert(kFixedBytes + sizeof(Digest) < kChangingOffset);

struct DigestSlot {
  Digest digest;
  uint32_t valid;
  uint32_t reserved[3];
};
static_assert(sizeof(DigestSlot) == 32);

Changing* ChangingOf(MutableByteSpan memory) {
  return reinterpret_cast<Changing*>(memory.data() + kChangingOffset);
}
std::atomic_ref<uint32_t> StateOf(MutableByteSpan memory) {
  return std::atomic_ref<uint32_t>(ChangingOf(memory)->state);
}

// Where everything lies, from sizes alone.
struct Offsets {
  uint64_t layout = 0, plan = 0, values = 0, digests = 0, total = 0;
  std::vector<uint64_t> pieces, piece_bytes;
};

Result<Offsets> ComputeOffsets(const format::RankLayout& layout, const plan::RankPlan& plan,
                               uint64_t layout_bytes, uint64_t plan_bytes, uint64_t chunk_count) {
  Offsets offsets;
  bool overflow = layout_bytes > kIndexBytesMax || plan_bytes > kIndexBytesMax ||
                  chunk_count > UINT64_MAX / (8 * sizeof(DigestSlot));
  if (overflow) return InvalidArgument("staging region: layout or plan is beyond all bounds");
  offsets.layout = kHeaderBytes;
  offsets.plan = AlignUp(offsets.layout + layout_bytes, kPieceAlignment);
  offsets.values = AlignUp(offsets.plan + plan_bytes, kPageBytes);
  offsets.digests = offsets.values + kValuesCapacity;
  uint64_t at = AlignUp(offsets.digests + chunk_count * sizeof(DigestSlot), kPageBytes);
  for (const plan::Piece& piece : plan.pieces) {
    const uint64_t bytes =
        piece.box().ElementCount() * format::ElementBytes(layout.tensors[piece.tensor_index].dtype);
    offsets.pieces.push_back(at);
    offsets.piece_bytes.push_back(bytes);
    overflow = overflow || AddOverflows(at, bytes, &at) || at > UINT64_MAX - kPageBytes;
    if (overflow) return InvalidArgument("staging region: the state is beyond all bounds");
    at = AlignUp(at, kPieceAlignment);
  }
  offsets.total = AlignUp(at, kPageBytes);
  return offsets;
}

// Bytes of all pieces. kResourceExhausted beyond `bytes_max`: asked before anything is allocated by
// that number.
Result<uint64_t> StageBytes(const format::RankLayout& layout, const plan::RankPlan& plan,
                            uint64_t bytes_max) {
  uint64_t sum = 0;
  for (const plan::Piece& piece : plan.pieces) {
    const format::TensorMeta& tensor = layout.tensors[piece.tensor_index];
    uint64_t bytes = 0;
    if (MulOverflows(piece.box().ElementCount(), format::ElementBytes(tensor.dtype), &bytes) ||
        AddOverflows(sum, bytes, &sum) || sum > bytes_max) {
      return ResourceExhausted("staging region: the state does not fit into " +
                               FormatBytes(bytes_max));
    }
  }
  return sum;
}

Result<uint64_t> CountChunks(const format::RankLayout& layout, const plan::RankPlan& plan) {
  if (plan.write_count == 0) return uint64_t{0};
  CKPT_ASSIGN_OR_RETURN(const format::ShardLayout shard,
                        ShardLayoutOf(layout, plan, kChunkBytesDefault));
  return static_cast<uint64_t>(shard.chunks.size());
}

// All but the room for values beyond the first `values_bytes`.
std::vector<RegionPart> PartsAround(uint64_t values_offset, uint64_t values_bytes,
                                    uint64_t digests_offset, uint64_t total) {
  const uint64_t used = AlignUp(std::clamp<uint64_t>(values_bytes, 1, kValuesCapacity), kPageBytes);
  return {{0, values_offset + used}, {digests_offset, total - digests_offset}};
}

Digest BodyDigest(std::string_view layout, std::string_view plan) {
  DigestStream stream;
  stream.Update(AsBytes(layout));
  stream.Update(AsBytes(plan));
  return stream.Finish();
}

Status Misfit(const std::string& what) { return DataLoss("staging region: " + what); }

// Copied out of the shared memory first: its holder may change it under our hands.
Result<FixedHeader> ReadFixedHeader(ByteSpan memory) {
  if (memory.size() < kHeaderBytes) {
    return Misfit("only " + std::to_string(memory.size()) + " bytes, the header takes 4096");
  }
  const std::string copy(AsText(memory.first(kFixedBytes + sizeof(Digest))));
  ByteReader reader(std::string_view(copy).substr(0, kFixedBytes));
  if (reader.Get<uint64_t>() != kMagic) return Misfit("no such thing (wrong magic)");
  const uint32_t version = reader.Get<uint32_t>();
  if (version != kVersion) return Misfit("version " + std::to_string(version) + " is unknown");
  const Digest digest = DigestOf(AsBytes(copy).first(kFixedBytes));
  if (std::memcmp(digest.bytes.data(), copy.data() + kFixedBytes, sizeof digest.bytes) != 0) {
    return Misfit("the header does not have its digest");
  }
  FixedHeader header;
  reader.Get<uint32_t>();
  header.total_bytes = reader.Get<uint64_t>();
  std::memcpy(header.identity.job.bytes.data(), reader.GetRaw(16).data(), 16);
  header.identity.rank = Rank(reader.Get<uint32_t>());
  header.identity.world = reader.Get<uint32_t>();
  header.identity.plan_hash = reader.Get<uint64_t>();
  header.layout_bytes = reader.Get<uint64_t>();
  header.plan_bytes = reader.Get<uint64_t>();
  header.chunk_count = reader.Get<uint64_t>();
  std::memcpy(header.body_digest.bytes.data(), reader.GetRaw(16).data(), 16);
  return header;
}

bool Begins(GenerationState state) {
  return state == GenerationState::kFree || state == GenerationState::kDurable ||
         state == GenerationState::kAborted;
}

}  // namespace

uint64_t StagingRegion::BytesNeeded(const format::RankLayout& layout, const plan::RankPlan& plan) {
  if (!StageBytes(layout, plan, kStageBytesMax).ok()) return UINT64_MAX;
  const auto chunks = CountChunks(layout, plan);
  if (!chunks.ok()) return UINT64_MAX;
  const auto offsets =
      ComputeOffsets(layout, plan, layout.Encode().size(), plan.Encode().size(), chunks.value());
  return offsets.ok() ? offsets.value().total : UINT64_MAX;
}

Result<std::vector<RegionPart>> StagingRegion::FilledParts(const format::RankLayout& layout,
                                                           const plan::RankPlan& plan) {
  CKPT_RETURN_IF_ERROR(StageBytes(layout, plan, kStageBytesMax).status());
  CKPT_ASSIGN_OR_RETURN(const uint64_t chunks, CountChunks(layout, plan));
  CKPT_ASSIGN_OR_RETURN(const Offsets offsets, ComputeOffsets(layout, plan, layout.Encode().size(),
                                                              plan.Encode().size(), chunks));
  return PartsAround(offsets.values, 0, offsets.digests, offsets.total);
}

Result<StagingRegion> StagingRegion::Format(MutableByteSpan memory, const StagingIdentity& identity,
                                            const format::RankLayout& layout,
                                            const plan::RankPlan& plan) {
  CKPT_FAULT("engine.staging.format");
  CKPT_RETURN_IF_ERROR(StageBytes(layout, plan, memory.size()).status());
  const std::string layout_bytes = layout.Encode();
  const std::string plan_bytes = plan.Encode();
  CKPT_ASSIGN_OR_RETURN(const uint64_t chunk_count, CountChunks(layout, plan));
  CKPT_ASSIGN_OR_RETURN(const Offsets offsets, ComputeOffsets(layout, plan, layout_bytes.size(),
                                                              plan_bytes.size(), chunk_count));
  if (memory.size() < offsets.total) {
    return ResourceExhausted("staging region of rank " + std::to_string(identity.rank.value()) +
                             " takes " + FormatBytes(offsets.total) + ", only " +
                             FormatBytes(memory.size()) + " are given");
  }
  FixedHeader header{offsets.total,     identity,    layout_bytes.size(),
                     plan_bytes.size(), chunk_count, BodyDigest(layout_bytes, plan_bytes)};
  const std::string fixed = header.Encode();
  const Digest digest = DigestOf(AsBytes(fixed));
  std::memset(memory.data(), 0, kHeaderBytes);
  std::memcpy(memory.data(), fixed.data(), fixed.size());
  std::memcpy(memory.data() + fixed.size(), digest.bytes.data(), sizeof digest.bytes);
  std::memcpy(memory.data() + offsets.layout, layout_bytes.data(), layout_bytes.size());
  std::memcpy(memory.data() + offsets.plan, plan_bytes.data(), plan_bytes.size());
  std::memset(memory.data() + offsets.digests, 0, chunk_count * sizeof(DigestSlot));
  return Open(memory);
}

Result<StagingRegion> StagingRegion::Open(MutableByteSpan memory) {
  CKPT_FAULT("engine.staging.open");
  if (reinterpret_cast<uintptr_t>(memory.data()) % kPieceAlignment != 0) {
    return InvalidArgument("staging region: the memory is not aligned to 64 bytes");
  }
  CKPT_ASSIGN_OR_RETURN(const FixedHeader header, ReadFixedHeader(memory));
  if (header.total_bytes > memory.size()) {
    return Misfit("says " + std::to_string(header.total_bytes) + " bytes, " +
                  std::to_string(memory.size()) + " are mapped");
  }
  if (header.layout_bytes > memory.size() || header.plan_bytes > memory.size() ||
      AlignUp(kHeaderBytes + header.layout_bytes, kPieceAlignment) + header.plan_bytes >
          memory.size()) {
    return Misfit("layout and plan do not fit into it");
  }
  const uint64_t plan_offset = AlignUp(kHeaderBytes + header.layout_bytes, kPieceAlignment);
  const std::string layout_copy(AsText(memory.subspan(kHeaderBytes, header.layout_bytes)));
  const std::string plan_copy(AsText(memory.subspan(plan_offset, header.plan_bytes)));
  if (BodyDigest(layout_copy, plan_copy) != header.body_digest) {
    return Misfit("layout and plan do not have their digest");
  }
  if (header.identity.world > kRanksMax || header.identity.rank.value() >= header.identity.world) {
    return Misfit("rank " + std::to_string(header.identity.rank.value()) + " of " +
                  std::to_string(header.identity.world) + " is impossible");
  }
  StagingRegion region;
  region.identity_ = header.identity;
  CKPT_ASSIGN_OR_RETURN(region.layout_, format::RankLayout::Decode(layout_copy));
  CKPT_ASSIGN_OR_RETURN(region.plan_, plan::RankPlan::Decode(plan_copy, region.layout_));
  const auto staged = StageBytes(region.layout_, region.plan_, memory.size());
  if (!staged.ok()) return Misfit("its pieces are larger than the memory");
  const auto chunks = CountChunks(region.layout_, region.plan_);
  if (!chunks.ok()) return Misfit(chunks.status().message());
  region.chunk_count_ = chunks.value();
  auto offsets = ComputeOffsets(region.layout_, region.plan_, layout_copy.size(), plan_copy.size(),
                                region.chunk_count_);
  if (!offsets.ok()) return Misfit(offsets.status().message());
  if (offsets->total != header.total_bytes || region.chunk_count_ != header.chunk_count) {
    return Misfit("sizes in the header do not follow from its layout and plan");
  }
  region.memory_ = memory.first(header.total_bytes);
  region.values_offset_ = offsets->values;
  region.digests_offset_ = offsets->digests;
  region.piece_offsets_ = std::move(offsets->pieces);
  region.piece_bytes_ = std::move(offsets->piece_bytes);
  const auto state = static_cast<uint32_t>(region.state());
  if (state > static_cast<uint32_t>(GenerationState::kAborted)) {
    return Misfit("state " + std::to_string(state) + " is unknown");
  }
  return region;
}

GenerationState StagingRegion::state() const {
  return static_cast<GenerationState>(StateOf(memory_).load(std::memory_order_acquire));
}

void StagingRegion::set_state(GenerationState state) {
  StateOf(memory_).store(static_cast<uint32_t>(state), std::memory_order_release);
}

GenerationInfo StagingRegion::info() const {
  const Changing* changing = ChangingOf(memory_);
  GenerationInfo info;
  info.generation = changing->generation;
  info.id = AttemptId{Epoch(changing->epoch), Step(changing->step), Attempt(changing->attempt)};
  info.boundary = changing->boundary;
  info.full = changing->full != 0;
  return info;
}

void StagingRegion::Begin(const GenerationInfo& info) {
  if (!Begins(state())) {
    // Going on would drop a generation that is not durable yet.
    LogError("staging region of rank " + std::to_string(identity_.rank.value()) +
             ": a generation was begun over one in use (state " +
             std::to_string(static_cast<uint32_t>(state())) + "); ignored");
    return;
  }
  set_state(GenerationState::kAborted);
  Changing* changing = ChangingOf(memory_);
  changing->generation = info.generation;
  changing->epoch = info.id.epoch.value();
  changing->step = info.id.step.value();
  changing->attempt = info.id.attempt.value();
  changing->boundary = info.boundary;
  changing->full = info.full ? 1 : 0;
  changing->values_bytes = 0;
  std::memset(memory_.data() + digests_offset_, 0, chunk_count_ * sizeof(DigestSlot));
  set_state(GenerationState::kFilling);
}

Status StagingRegion::Seal(Step step) {
  CKPT_FAULT("engine.staging.seal");
  if (state() != GenerationState::kFilling) {
    return FailedPrecondition("staging region of rank " + std::to_string(identity_.rank.value()) +
                              " is sealed in state " +
                              std::to_string(static_cast<uint32_t>(state())) + ", not FILLING");
  }
  ChangingOf(memory_)->step = step.value();
  set_state(GenerationState::kSealed);
  return OkStatus();
}

uint32_t StagingRegion::staged_count() const {
  return info().full ? static_cast<uint32_t>(plan_.pieces.size()) : plan_.write_count;
}

MutableByteSpan StagingRegion::piece_data(uint32_t piece) {
  return memory_.subspan(piece_offsets_[piece], piece_bytes_[piece]);
}
ByteSpan StagingRegion::piece_data(uint32_t piece) const {
  return memory_.subspan(piece_offsets_[piece], piece_bytes_[piece]);
}

Status StagingRegion::SetValues(const format::RankValues& values) {
  CKPT_FAULT("engine.staging.values");
  const std::string encoded = values.Encode();
  if (encoded.size() > kValuesCapacity) {
    return ResourceExhausted("values and blobs of rank " + std::to_string(identity_.rank.value()) +
                             " take " + FormatBytes(encoded.size()) + ", at most " +
                             FormatBytes(kValuesCapacity) + " are kept; save them as tensors");
  }
  std::memcpy(memory_.data() + values_offset_, encoded.data(), encoded.size());
  ChangingOf(memory_)->values_bytes = encoded.size();
  return OkStatus();
}

Result<format::RankValues> StagingRegion::Values() const {
  const uint64_t bytes = ChangingOf(memory_)->values_bytes;
  if (bytes > kValuesCapacity) return Misfit("values of " + std::to_string(bytes) + " bytes");
  if (bytes == 0) return format::RankValues{};
  return format::RankValues::Decode(std::string(AsText(memory_.subspan(values_offset_, bytes))));
}

std::vector<RegionPart> StagingRegion::UsedParts() const {
  return PartsAround(values_offset_, ChangingOf(memory_)->values_bytes, digests_offset_,
                     memory_.size());
}

uint64_t StagingRegion::chunk_count() const { return chunk_count_; }

std::optional<Digest> StagingRegion::chunk_digest(uint64_t chunk) const {
  if (chunk >= chunk_count_) return std::nullopt;
  auto* slot = reinterpret_cast<DigestSlot*>(memory_.data() + digests_offset_) + chunk;
  if (std::atomic_ref<uint32_t>(slot->valid).load(std::memory_order_acquire) != 1) {
    return std::nullopt;
  }
  return slot->digest;
}

void StagingRegion::set_chunk_digest(uint64_t chunk, const Digest& digest) {
  if (chunk >= chunk_count_) return;
  auto* slot = reinterpret_cast<DigestSlot*>(memory_.data() + digests_offset_) + chunk;
  slot->digest = digest;
  std::atomic_ref<uint32_t>(slot->valid).store(1, std::memory_order_release);
}

}  // namespace ckpt::engine
