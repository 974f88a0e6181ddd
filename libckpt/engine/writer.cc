// WriteShard: staging memory → one safetensors stream and its index. Each chunk is digested from
// staging memory and then written while it is in cache; small pieces are gathered into blocks.
#include <algorithm>
#include <cstring>
#include <map>

#include "libckpt/base/fault.h"
#include "libckpt/engine/engine.h"
#include "libckpt/engine/shard_map.h"
#include "libckpt/format/index.h"
#include "libckpt/format/names.h"

namespace ckpt::engine {
namespace {

constexpr uint64_t kWriteBlockBytes = uint64_t{1} << 20;

// Appends to a file in blocks of at least kWriteBlockBytes, without copying what is large already.
class BlockWriter {
 public:
  explicit BlockWriter(storage::FileWriter* file) : file_(file) {}

  Status Append(ByteSpan bytes) {
    if (buffer_.empty() && bytes.size() >= kWriteBlockBytes) return Write(bytes);
    buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
    return buffer_.size() >= kWriteBlockBytes ? Flush() : OkStatus();
  }
  Status Flush() {
    if (buffer_.empty()) return OkStatus();
    const Status status = Write(buffer_);
    buffer_.clear();
    return status;
  }

 private:
  Status Write(ByteSpan bytes) {
    CKPT_FAULT("engine.write.block");
    CKPT_RETURN_IF_ERROR(file_->Write(offset_, bytes));
    offset_ += bytes.size();
    return OkStatus();
  }

  storage::FileWriter* file_;
  std::vector<std::byte> buffer_;
  uint64_t offset_ = 0;
};

// The digests that un-sharded tensors are compared by, taken while their bytes go by.
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
      : region_(region), store_(store), options_(options), id_(region->info().id) {
    uid_ = format::CheckpointUid(region->identity().job, id_);
  }

  Result<ShardReport> Run() {
    const Rank rank = region_->identity().rank;
    ShardReport report;
    report.rank = rank;
    CKPT_ASSIGN_OR_RETURN(const format::RankValues values, region_->Values());
    report.values = values.Encode();
    if (region_->plan().write_count == 0) return report;
    CKPT_ASSIGN_OR_RETURN(layout_,
                          ShardLayoutOf(region_->layout(), region_->plan(), options_.chunk_bytes));
    report.file = format::ShardFileName(rank, options_.tag);
    report.index_file = format::IndexFileName(rank, options_.tag);
    CKPT_RETURN_IF_ERROR(WriteStream(report.file));
    const format::ShardIndex index = format::MakeRawIndex(uid_, rank, layout_, digests_);
    const std::string encoded = index.Encode();
    CKPT_RETURN_IF_ERROR(WriteWhole(report.index_file, encoded));
    report.file_bytes = index.file_bytes;
    report.index_bytes = encoded.size();
    report.index_digest = format::IndexDigest(encoded);
    report.raw_bytes = layout_.stream_bytes;
    report.claims = claims_.Take();
    // An empty tensor has no bytes to go by, but is claimed all the same.
    for (const format::ShardTensor& tensor : layout_.tensors) {
      if (tensor.placement == format::Placement::kUnsharded && tensor.Bytes() == 0) {
        report.claims.emplace_back(tensor.name, DigestOf({}));
      }
    }
    return report;
  }

 private:
  Status WriteStream(const std::string& name) {
    CKPT_FAULT("engine.write.create");
    CKPT_ASSIGN_OR_RETURN(auto file, store_->CreateFile(id_, name, layout_.stream_bytes));
    BlockWriter out(file.get());
    uint32_t piece = 0;
    for (uint64_t chunk = 0; chunk < layout_.chunks.size(); ++chunk) {
      if (options_.cancelled && options_.cancelled()) {
        return Cancelled("writing " + name + " of " + id_.ToString() + " was cancelled");
      }
      CKPT_RETURN_IF_ERROR(WriteChunk(chunk, &piece, &out).Annotate("writing " + name));
      if (options_.progress) options_.progress(layout_.chunks[chunk].end, layout_.stream_bytes);
    }
    CKPT_RETURN_IF_ERROR(out.Flush().Annotate("writing " + name));
    CKPT_FAULT("engine.write.finish");
    return file->Finish().Annotate("writing " + name);
  }

  Status WriteChunk(uint64_t chunk, uint32_t* piece, BlockWriter* out) {
    const uint64_t seed = ChunkSeed(uid_, region_->identity().rank.value(), chunk);
    const std::vector<ByteSpan> spans = SpansOf(layout_.chunks[chunk], piece);
    Digest digest;
    if (spans.size() == 1) {
      digest = DigestOf(spans[0], seed);
    } else {
      DigestStream stream(seed);
      for (const ByteSpan span : spans) stream.Update(span);
      digest = stream.Finish();
    }
    digests_.push_back(digest);
    if (options_.chunk_bytes == kChunkBytesDefault) region_->set_chunk_digest(chunk, digest);
    for (const ByteSpan span : spans) CKPT_RETURN_IF_ERROR(out->Append(span));
    return OkStatus();
  }

  // The staging memory of a chunk; `piece` is the first piece that may lie in it, and moves on.
  std::vector<ByteSpan> SpansOf(const format::ChunkRange& chunk, uint32_t* piece) {
    if (chunk.begin == 0) return {AsBytes(layout_.header)};
    std::vector<ByteSpan> spans;
    uint64_t at = chunk.begin;
    while (at < chunk.end) {
      const format::ShardTensor& tensor = layout_.tensors[*piece];
      if (tensor.end <= at) {
        ++*piece;
        continue;
      }
      const uint64_t end = std::min(tensor.end, chunk.end);
      spans.push_back(ByteSpan(region_->piece_data(*piece)).subspan(at - tensor.begin, end - at));
      claims_.Update(tensor, spans.back());
      at = end;
    }
    return spans;
  }

  Status WriteWhole(const std::string& name, std::string_view bytes) {
    CKPT_FAULT("engine.write.index");
    CKPT_ASSIGN_OR_RETURN(auto file, store_->CreateFile(id_, name, bytes.size()));
    CKPT_RETURN_IF_ERROR(file->Write(0, AsBytes(bytes)).Annotate("writing " + name));
    CKPT_FAULT("engine.write.index_finish");
    return file->Finish().Annotate("writing " + name);
  }

  StagingRegion* region_;
  storage::Store* store_;
  const WriteOptions& options_;
  const AttemptId id_;
  format::Uid uid_{};
  format::ShardLayout layout_;
  std::vector<Digest> digests_;
  ClaimDigests claims_;
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
