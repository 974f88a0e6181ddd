// A checkpoint in staging memory: the regions of one node, of one generation. Written pieces are
// verified by the digests that the writer left in the region, where it did; the copies that a node
// holds of other nodes' pieces have none.
#include <algorithm>

#include "libckpt/base/fault.h"
#include "libckpt/engine/base_shard.h"
#include "libckpt/engine/reader.h"
#include "libckpt/engine/shard_map.h"
#include "libckpt/format/names.h"

namespace ckpt::engine {
namespace {

class RegionSource : public ChunkSource {
 public:
  static Result<std::unique_ptr<ChunkSource>> Make(StagingRegion region) {
    CKPT_ASSIGN_OR_RETURN(format::ShardLayout layout,
                          ShardLayoutOf(region.layout(), region.plan(), kChunkBytesDefault));
    return std::unique_ptr<ChunkSource>(new RegionSource(std::move(region), std::move(layout)));
  }

  Rank rank() const override { return region_.identity().rank; }
  const std::vector<format::ShardTensor>& tensors() const override { return tensors_; }
  const std::vector<format::ChunkRange>& chunks() const override { return chunks_; }

  Status Fetch(uint64_t chunk, bool verify, ChunkScratch*,
               std::vector<ByteSpan>* out) const override {
    Spans(chunks_[chunk], out);
    const std::optional<uint64_t> seed = verify ? SeedOf(chunk) : std::nullopt;
    return seed ? Compare(chunk, DigestOfSpans(*out, *seed)) : OkStatus();
  }

  std::optional<uint64_t> SeedOf(uint64_t chunk) const override {
    if (!region_.chunk_digest(chunk)) return std::nullopt;
    return ChunkSeed(uid_, rank().value(), chunk);
  }

  Status Compare(uint64_t chunk, const Digest& found) const override {
    if (region_.chunk_digest(chunk) == found) return OkStatus();
    return DataLoss("staging memory of rank " + std::to_string(rank().value()) + ": chunk " +
                    std::to_string(chunk) + " (" + Names(chunks_[chunk]) +
                    ") is damaged: it does not have its digest");
  }

  Status Inspect(uint64_t, const std::vector<ByteSpan>&) const override { return OkStatus(); }

 private:
  RegionSource(StagingRegion region, format::ShardLayout layout)
      : region_(std::move(region)),
        header_(std::move(layout.header)),
        tensors_(std::move(layout.tensors)),
        chunks_(std::move(layout.chunks)) {
    uid_ = format::CheckpointUid(region_.identity().job, region_.info().id);
    if (region_.plan().write_count == 0) chunks_.assign(1, {0, header_.size()});
    // Held pieces go on where the shard's stream ends.
    const uint32_t staged = region_.staged_count();
    for (uint32_t i = region_.plan().write_count; i < staged; ++i) {
      format::ShardTensor tensor = ShardTensorOf(region_.layout(), region_.plan().pieces[i]);
      tensor.begin = chunks_.back().end;
      tensor.end = tensor.begin + tensor.Bytes();
      for (uint64_t at = tensor.begin; at < tensor.end; at += kChunkBytesDefault) {
        chunks_.push_back({at, std::min(at + kChunkBytesDefault, tensor.end)});
      }
      tensors_.push_back(std::move(tensor));
    }
  }

  void Spans(const format::ChunkRange& chunk, std::vector<ByteSpan>* out) const {
    out->clear();
    if (chunk.begin == 0) return out->push_back(AsBytes(header_));
    auto tensor =
        std::upper_bound(tensors_.begin(), tensors_.end(), chunk.begin,
                         [](uint64_t at, const format::ShardTensor& t) { return at < t.end; });
    for (uint64_t at = chunk.begin; at < chunk.end; ++tensor) {
      const uint64_t end = std::min(tensor->end, chunk.end);
      const auto piece = static_cast<uint32_t>(tensor - tensors_.begin());
      if (end > at) {
        out->push_back(region_.piece_data(piece).subspan(at - tensor->begin, end - at));
      }
      at = end;
    }
  }

  std::string Names(const format::ChunkRange& chunk) const {
    std::string names;
    for (const format::ShardTensor& tensor : tensors_) {
      if (tensor.begin >= chunk.end || tensor.end <= chunk.begin) continue;
      names += (names.empty() ? "'" : ", '") + tensor.name + "'";
    }
    return names.empty() ? "the header" : names;
  }

  const StagingRegion region_;
  const std::string header_;
  std::vector<format::ShardTensor> tensors_;  // index: that of the piece
  std::vector<format::ChunkRange> chunks_;
  format::Uid uid_{};
};

bool Sealed(GenerationState state) {
  return state == GenerationState::kSealed || state == GenerationState::kGangComplete ||
         state == GenerationState::kDurable;
}

// All of one job, plan, generation and attempt, none twice.
Status CheckTogether(const std::vector<StagingRegion>& regions) {
  if (regions.empty()) return NotFound("no staging region");
  const StagingIdentity& first = regions[0].identity();
  const GenerationInfo info = regions[0].info();
  std::vector<bool> seen(std::min(first.world, kRanksMax));
  for (const StagingRegion& region : regions) {
    const StagingIdentity& identity = region.identity();
    const std::string name = "staging region of rank " + std::to_string(identity.rank.value());
    if (!Sealed(region.state())) return FailedPrecondition(name + " is not sealed");
    if (identity.rank.value() >= seen.size() || seen[identity.rank.value()]) {
      return DataLoss(name + " comes twice, or is beyond the world of " +
                      std::to_string(first.world));
    }
    seen[identity.rank.value()] = true;
    const GenerationInfo other = region.info();
    if (identity.job != first.job || identity.world != first.world ||
        identity.plan_hash != first.plan_hash || other.id != info.id ||
        other.generation != info.generation || other.full != info.full) {
      return FailedPrecondition(name + " is of another job, plan or generation than that of rank " +
                                std::to_string(first.rank.value()));
    }
  }
  return OkStatus();
}

Result<SourceSet> SourcesOf(std::vector<StagingRegion> regions) {
  SourceSet sources;
  for (StagingRegion& region : regions) {
    auto source = RegionSource::Make(std::move(region));
    if (!source.ok()) return std::move(source).status();
    sources.AddOpened(std::move(source).value());
  }
  return sources;
}

std::vector<format::RankLayout> LayoutsOf(const std::vector<StagingRegion>& regions) {
  std::vector<format::RankLayout> layouts(regions[0].identity().world);
  for (uint32_t r = 0; r < layouts.size(); ++r) layouts[r].rank = Rank(r);
  for (const StagingRegion& region : regions) {
    layouts[region.identity().rank.value()] = region.layout();
  }
  return layouts;
}

}  // namespace

Result<std::unique_ptr<CheckpointReader>> OpenStaged(std::vector<StagingRegion> regions) {
  CKPT_FAULT("engine.open.staged");
  CKPT_RETURN_IF_ERROR(CheckTogether(regions));
  const GenerationInfo info = regions[0].info();
  std::vector<format::RankLayout> layouts = LayoutsOf(regions);
  std::vector<format::RankValues> values(layouts.size());
  for (const StagingRegion& region : regions) {
    CKPT_ASSIGN_OR_RETURN(values[region.identity().rank.value()], region.Values());
  }
  CKPT_ASSIGN_OR_RETURN(auto sources, SourcesOf(std::move(regions)));
  uint64_t bytes = 0;
  for (uint32_t s = 0; s < sources.size(); ++s) {
    CKPT_ASSIGN_OR_RETURN(const ChunkSource* source, sources.Get(s));
    bytes += source->chunks().empty() ? 0 : source->chunks().back().end;
  }
  return std::unique_ptr<CheckpointReader>(std::make_unique<SourceReader>(
      "staged generation " + std::to_string(info.generation) + " (" + info.id.ToString() + ")",
      info.id, std::move(layouts), std::move(values), std::move(sources), bytes));
}

bool CoversRank(const std::vector<StagingRegion>& regions, const format::RankLayout& layout) {
  if (!CheckTogether(regions).ok()) return false;
  const bool own = std::any_of(regions.begin(), regions.end(), [&](const StagingRegion& region) {
    return region.identity().rank == layout.rank && region.layout() == layout;
  });
  if (!own) return false;  // its values lie nowhere else
  auto sources = SourcesOf(regions);
  if (!sources.ok()) return false;
  const std::vector<format::RankLayout> layouts = LayoutsOf(regions);
  const Catalog catalog(layouts, sources.value());
  return std::all_of(layout.tensors.begin(), layout.tensors.end(), [&](const auto& tensor) {
    return !tensor.tied_to.empty() || tensor.local.Empty() ||
           catalog.Cover(layout.rank, tensor.name, tensor).ok();
  });
}

}  // namespace ckpt::engine
