// WriteShard: staging memory → one safetensors stream and its index. A few threads take parts of
// the stream in order: each digests the chunks of its part from staging memory, compresses them or
// finds them in an older checkpoint, appends what is left to the file in turn, and writes the block
// that it fills while the others go on.
#include <algorithm>
#include <atomic>
#include <map>

#include "libckpt/base/fault.h"
#include "libckpt/codec/codec.h"
#include "libckpt/engine/base_shard.h"
#include "libckpt/engine/block_stream.h"
#include "libckpt/engine/engine.h"
#include "libckpt/engine/shard_map.h"
#include "libckpt/engine/stored_files.h"
#include "libckpt/format/index.h"
#include "libckpt/format/names.h"

namespace ckpt::engine {
namespace {

// The digests that un-sharded tensors are compared by, taken in the order of the stream.
class ClaimDigests {
 public:
  void Update(const format::ShardTensor& tensor, ByteSpan bytes) {
    if (tensor.placement != format::Placement::kUnsharded) return;
    streams_.try_emplace(tensor.name).first->second.Update(bytes);
  }
  std::vector<std::pair<std::string, Digest>> Take() const {
    std::vector<std::pair<std::string, Digest>> claims;
    for (const auto& [name, stream] : streams_) claims.emplace_back(name, stream.Finish());
    return claims;
  }

 private:
  std::map<std::string, DigestStream> streams_;
};

class ShardWriter {
 public:
  ShardWriter(StagingRegion* region, storage::Store* store, const WriteOptions& options)
      : region_(region),
        store_(store),
        options_(options),
        id_(region->info().id),
        rank_(region->identity().rank),
        claims_wanted_(region->identity().world > 1) {
    index_.uid = format::CheckpointUid(region->identity().job, id_);
    index_.shard = rank_;
  }

  Result<ShardReport> Run() {
    ShardReport report;
    report.rank = rank_;
    CKPT_ASSIGN_OR_RETURN(const format::RankValues values, region_->Values());
    report.values = values.Encode();
    if (region_->plan().write_count == 0) return report;
    CKPT_ASSIGN_OR_RETURN(layout_,
                          ShardLayoutOf(region_->layout(), region_->plan(), options_.chunk_bytes));
    report.file = format::ShardFileName(rank_, options_.tag);
    report.index_file = format::IndexFileName(rank_, options_.tag);
    if (options_.references)
      base_ = BaseShard::Find(store_, region_->identity().job, id_, rank_, layout_);
    index_.chunks.resize(layout_.chunks.size());
    CKPT_RETURN_IF_ERROR(WriteStream(report.file).Annotate("writing " + report.file));
    FinishIndex(&report);
    const std::string encoded = index_.Encode();
    CKPT_RETURN_IF_ERROR(WriteWhole(report.index_file, encoded));
    report.file_bytes = index_.file_bytes;
    report.index_bytes = encoded.size();
    report.index_digest = format::IndexDigest(encoded);
    report.raw_bytes = layout_.stream_bytes;
    report.claims = Claims();
    return report;
  }

 private:
  struct Scratch {
    std::string gathered;                 // a chunk that lies in several places, to be compressed
    std::vector<std::string> compressed;  // by chunk of the part
    std::vector<ByteSpan> out;            // what goes to the file
  };

  Status WriteStream(const std::string& name) {
    CKPT_FAULT("engine.write.create");
    // How much a smaller shard takes is not known before it is written.
    const bool whole = !base_ && options_.compression_level == 0;
    CKPT_ASSIGN_OR_RETURN(auto file,
                          store_->CreateFile(id_, name, whole ? layout_.stream_bytes : 0));
    BlockStream stream(file.get(), layout_.stream_bytes, options_.block_bytes);
    const std::vector<Part> parts = PartsOf(layout_.chunks);
    std::vector<Scratch> scratch(kCopyThreadsMax);
    // Compression is work for as many cores as there are.
    const bool works = options_.threads == 0 && options_.compression_level > 0;
    const uint32_t threads = works ? kWriteThreadsDefault : options_.threads;
    CKPT_RETURN_IF_ERROR(
        WriteParts(parts, threads, &stream, [&](uint64_t i, const Part& part, uint32_t thread) {
          return WritePart(i, part, &stream, &scratch[thread]);
        }));
    CKPT_FAULT("engine.write.finish");
    return file->Finish();
  }

  Status WritePart(uint64_t number, const Part& part, BlockStream* stream, Scratch* scratch) {
    const int64_t began_ns = BoottimeNs();
    scratch->out.clear();
    scratch->compressed.resize(
        std::max<size_t>(scratch->compressed.size(), part.last - part.first));
    for (uint64_t c = part.first; c < part.last; ++c) {
      if (options_.cancelled && options_.cancelled())
        return Cancelled("writing " + id_.ToString() + " was cancelled");
      std::string* compressed = &scratch->compressed[c - part.first];
      CKPT_RETURN_IF_ERROR(EncodeChunk(c, compressed, scratch));
    }
    CKPT_RETURN_IF_ERROR(stream->Append(number, scratch->out, [&](uint64_t file_offset) {
      for (uint64_t c = part.first; c < part.last; ++c) {
        format::ChunkEntry& entry = index_.chunks[c];
        if (claims_wanted_) UpdateClaims(c);
        if (entry.referred()) continue;
        entry.stored_offset = file_offset;
        file_offset += entry.stored_bytes;
      }
      index_.file_bytes = file_offset;
    }));
    const format::ChunkRange& last = layout_.chunks[part.last - 1];
    const uint64_t size = last.end - layout_.chunks[part.first].begin;
    const uint64_t done = done_bytes_.fetch_add(size) + size;
    if (options_.progress) options_.progress(done, layout_.stream_bytes);
    if (options_.pace) options_.pace(Nanos(BoottimeNs() - began_ns));
    return OkStatus();
  }

  // Fills the entry but for its place in the file, and adds its stored bytes to `scratch->out`.
  Status EncodeChunk(uint64_t chunk, std::string* compressed, Scratch* scratch) {
    const std::vector<ByteSpan> spans = SpansOf(chunk);
    const format::ChunkRange& range = layout_.chunks[chunk];
    const Digest digest = DigestOfSpans(spans, ChunkSeed(index_.uid, rank_.value(), chunk));
    if (options_.chunk_bytes == kChunkBytesDefault) region_->set_chunk_digest(chunk, digest);
    format::ChunkEntry& entry = index_.chunks[chunk];
    if (const auto match = base_ ? base_->Match(chunk, spans) : std::nullopt) {
      entry = *match;
      return OkStatus();
    }
    entry = {format::Codec::kRaw, range.begin, range.end, 0, range.end - range.begin, digest, 0, 0};
    if (options_.compression_level > 0 && chunk != 0) {
      CKPT_ASSIGN_OR_RETURN(codec::Encoded encoded, Compress(chunk, spans, &scratch->gathered));
      if (encoded.codec != codec::Codec::kRaw) {
        entry.codec = static_cast<format::Codec>(encoded.codec);
        *compressed = std::move(encoded.bytes);
        entry.stored_bytes = compressed->size();
        entry.stored_check = format::StoredCheck(AsBytes(*compressed));
        scratch->out.push_back(AsBytes(*compressed));
        return OkStatus();
      }
    }
    scratch->out.insert(scratch->out.end(), spans.begin(), spans.end());
    return OkStatus();
  }

  Result<codec::Encoded> Compress(uint64_t chunk, const std::vector<ByteSpan>& spans,
                                  std::string* gathered) {
    ByteSpan bytes = spans[0];
    if (spans.size() > 1) {
      gathered->clear();
      for (const ByteSpan span : spans) gathered->append(AsText(span));
      bytes = AsBytes(*gathered);
    }
    const format::ChunkRange& range = layout_.chunks[chunk];
    const ChunkElements elements = ElementsOf(layout_.tensors, range.begin, range.end);
    return codec::Encode(bytes, elements.bytes, elements.floats, options_.compression_level);
  }

  // The staging memory of a chunk.
  std::vector<ByteSpan> SpansOf(uint64_t chunk) const {
    if (chunk == 0) return {AsBytes(layout_.header)};
    std::vector<ByteSpan> spans;
    ForEachPiece(chunk,
                 [&](const format::ShardTensor&, ByteSpan bytes) { spans.push_back(bytes); });
    return spans;
  }

  void UpdateClaims(uint64_t chunk) {
    if (chunk == 0) return;
    ForEachPiece(chunk, [&](const format::ShardTensor& tensor, ByteSpan bytes) {
      claims_.Update(tensor, bytes);
    });
  }

  template <typename Fn>
  void ForEachPiece(uint64_t chunk, Fn&& fn) const {
    const format::ChunkRange& range = layout_.chunks[chunk];
    auto tensor =
        std::upper_bound(layout_.tensors.begin(), layout_.tensors.end(), range.begin,
                         [](uint64_t at, const format::ShardTensor& t) { return at < t.end; });
    for (uint64_t at = range.begin; at < range.end; ++tensor) {
      const uint64_t end = std::min(tensor->end, range.end);
      if (end == at) continue;
      const auto piece = static_cast<uint32_t>(tensor - layout_.tensors.begin());
      fn(*tensor, std::as_const(*region_).piece_data(piece).subspan(at - tensor->begin, end - at));
      at = end;
    }
  }

  // Leaves only the origins that are referred to, and says how much each of them holds.
  void FinishIndex(ShardReport* report) {
    index_.header_bytes = layout_.header.size();
    index_.chunk_bytes = layout_.chunk_bytes;
    index_.stream_bytes = layout_.stream_bytes;
    index_.tensors = layout_.tensors;
    if (!base_) return;
    std::vector<uint64_t> bytes(base_->origins().size());
    for (const format::ChunkEntry& entry : index_.chunks) {
      if (entry.referred()) bytes[entry.origin - 1] += entry.stored_bytes;
    }
    std::vector<uint8_t> number(bytes.size());
    for (size_t o = 0; o < bytes.size(); ++o) {
      if (bytes[o] == 0) continue;
      index_.origins.push_back(base_->origins()[o]);
      number[o] = static_cast<uint8_t>(index_.origins.size());
      report->origins.push_back({base_->origins()[o].id, bytes[o]});
    }
    for (format::ChunkEntry& entry : index_.chunks) {
      if (entry.referred()) entry.origin = number[entry.origin - 1];
    }
  }

  std::vector<std::pair<std::string, Digest>> Claims() const {
    std::vector<std::pair<std::string, Digest>> claims = claims_.Take();
    // An empty tensor has no bytes to go by, but is claimed all the same.
    for (const format::ShardTensor& tensor : layout_.tensors) {
      if (tensor.placement == format::Placement::kUnsharded && tensor.Bytes() == 0) {
        claims.emplace_back(tensor.name, DigestOf({}));
      }
    }
    return claims;
  }

  Status WriteWhole(const std::string& name, std::string_view bytes) {
    CKPT_FAULT("engine.write.index");
    CKPT_ASSIGN_OR_RETURN(auto file, store_->CreateFile(id_, name, bytes.size()));
    CKPT_RETURN_IF_ERROR(file->Write(0, AsBytes(bytes)).Annotate("writing " + name));
    CKPT_FAULT("engine.write.index_finish");
    return file->Finish().Annotate("writing " + name);
  }

  StagingRegion* const region_;
  storage::Store* const store_;
  const WriteOptions& options_;
  const AttemptId id_;
  const Rank rank_;
  const bool claims_wanted_;  // alone there is nobody to compare with
  format::ShardLayout layout_;
  std::optional<BaseShard> base_;
  format::ShardIndex index_;
  ClaimDigests claims_;
  std::atomic<uint64_t> done_bytes_{0};
};

}  // namespace

Result<ShardReport> WriteShard(StagingRegion* region, storage::Store* store,
                               const WriteOptions& options) {
  const GenerationState state = region->state();
  if (state != GenerationState::kSealed && state != GenerationState::kGangComplete &&
      state != GenerationState::kDurable) {
    return FailedPrecondition("rank " + std::to_string(region->identity().rank.value()) +
                              ": a shard is written from a staging region that is not sealed");
  }
  return ShardWriter(region, store, options).Run();
}

}  // namespace ckpt::engine
