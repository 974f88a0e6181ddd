#include "libckpt/engine/import.h"

#include <algorithm>
#include <atomic>

#include "libckpt/base/fault.h"
#include "libckpt/engine/block_stream.h"
#include "libckpt/engine/engine.h"
#include "libckpt/format/index.h"
#include "libckpt/format/names.h"

namespace ckpt::engine {
namespace {

constexpr auto kCommitWaitMax = std::chrono::minutes(1);
const Rank kOnlyRank(0);

// Every rank of whatever job loads it may have the whole: that is what "replicated" says.
format::TensorMeta MetaOf(const ForeignTensor& tensor) {
  format::TensorMeta meta;
  meta.name = tensor.name;
  meta.dtype = tensor.dtype;
  meta.placement = format::Placement::kReplicated;
  meta.global_shape = tensor.shape;
  meta.local = {std::vector<uint64_t>(tensor.shape.size(), 0), tensor.shape};
  return meta;
}

class Importer {
 public:
  Importer(std::vector<ForeignTensor> tensors, storage::Store* to, const ImportOptions& options)
      : tensors_(std::move(tensors)), to_(to), options_(options) {}

  Status Import(const format::RankValues& values, const JobId& job, const AttemptId& id) {
    format::RankLayout rank_layout{kOnlyRank, {}};
    for (const ForeignTensor& tensor : tensors_) rank_layout.tensors.push_back(MetaOf(tensor));
    CKPT_RETURN_IF_ERROR(LayOut(rank_layout));
    CKPT_FAULT("engine.import.begin");
    CKPT_RETURN_IF_ERROR(to_->BeginAttempt(id));
    ShardReport report;
    report.rank = kOnlyRank;
    report.values = values.Encode();
    report.file = format::ShardFileName(kOnlyRank);
    report.index_file = format::IndexFileName(kOnlyRank);
    uid_ = format::CheckpointUid(job, id);
    CKPT_RETURN_IF_ERROR(WriteShardFile(id, report.file).Annotate("writing " + report.file));
    CKPT_RETURN_IF_ERROR(WriteIndexFile(id, &report).Annotate("writing " + report.index_file));
    CKPT_ASSIGN_OR_RETURN(const std::string manifest,
                          BuildManifest(job, id, {rank_layout}, {report}, /*managed=*/false));
    CKPT_FAULT("engine.import.commit");
    return to_->Commit(id, manifest, {format::ManifestDigest(manifest), id.epoch, ""},
                       Deadline("committing an import", kCommitWaitMax));
  }

 private:
  // Sorts tensors_ as they lie in the shard.
  Status LayOut(const format::RankLayout& rank_layout) {
    std::vector<std::pair<format::ShardTensor, size_t>> order;
    for (size_t i = 0; i < tensors_.size(); ++i) {
      const format::TensorMeta& meta = rank_layout.tensors[i];
      CKPT_RETURN_IF_ERROR(format::CheckTensor(meta));
      order.push_back({{meta.name, meta.dtype, meta.placement, meta.global_shape, meta.local}, i});
    }
    std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
      return format::ShardOrderLess(a.first, b.first);
    });
    std::vector<ForeignTensor> sorted;
    std::vector<format::ShardTensor> shard;
    for (auto& [tensor, i] : order) {
      sorted.push_back(std::move(tensors_[i]));
      shard.push_back(std::move(tensor));
    }
    tensors_ = std::move(sorted);
    CKPT_ASSIGN_OR_RETURN(layout_, format::LayOutShard(std::move(shard)));
    digests_.resize(layout_.chunks.size());
    return OkStatus();
  }

  Status WriteShardFile(const AttemptId& id, const std::string& name) {
    CKPT_ASSIGN_OR_RETURN(auto file, to_->CreateFile(id, name, layout_.stream_bytes));
    BlockStream stream(file.get(), layout_.stream_bytes);
    std::vector<AlignedBuffer> scratch(kCopyThreadsMax);
    CKPT_RETURN_IF_ERROR(WriteParts(PartsOf(layout_.chunks), options_.threads, &stream,
                                    [&](uint64_t i, const Part& part, uint32_t slot) {
                                      return WritePart(i, part, &stream, &scratch[slot]);
                                    }));
    return file->Finish();
  }

  Status WritePart(uint64_t number, const Part& part, BlockStream* stream, AlignedBuffer* scratch) {
    if (options_.cancelled && options_.cancelled()) return Cancelled("the import was cancelled");
    std::vector<ByteSpan> spans;
    uint64_t first = part.first;
    if (first == 0) spans.push_back(AsBytes(layout_.header));
    if (first == 0) digests_[first++] = DigestOf(spans[0], ChunkSeed(uid_, 0, 0));
    if (first < part.last) {
      const uint64_t begin = layout_.chunks[first].begin;
      CKPT_ASSIGN_OR_RETURN(const ByteSpan bytes,
                            ReadData(begin, layout_.chunks[part.last - 1].end, scratch));
      for (uint64_t c = first; c < part.last; ++c) {
        const format::ChunkRange& range = layout_.chunks[c];
        digests_[c] = DigestOf(bytes.subspan(range.begin - begin, range.end - range.begin),
                               ChunkSeed(uid_, kOnlyRank.value(), c));
      }
      spans.push_back(bytes);
    }
    CKPT_RETURN_IF_ERROR(stream->Append(number, spans, [](uint64_t) {}));
    uint64_t size = 0;
    for (const ByteSpan span : spans) size += span.size();
    const uint64_t done = done_bytes_.fetch_add(size) + size;
    if (options_.progress) options_.progress(done, layout_.stream_bytes);
    return OkStatus();
  }

  // A part of a stream: where it comes from.
  struct Run {  // of bytes
    const storage::FileReader* file;
    uint64_t offset, bytes;
  };

  // Bytes [begin, end) of the stream, which lie in its data, from wherever they are.
  Result<ByteSpan> ReadData(uint64_t begin, uint64_t end, AlignedBuffer* scratch) const {
    const std::vector<Run> runs = RunsOf(begin, end);
    if (runs.size() == 1)
      return runs[0].file->Fetch(runs[0].offset, runs[0].bytes, storage::Reuse::kOnce, scratch);
    scratch->Reserve(end - begin);
    MutableByteSpan rest = scratch->span().first(end - begin);
    for (const Run& run : runs) {
      CKPT_RETURN_IF_ERROR(run.file->Read(run.offset, rest.first(run.bytes)));
      rest = rest.subspan(run.bytes);
    }
    return ByteSpan(scratch->span().first(end - begin));
  }

  // Tensors that follow each other here as they do there are one run.
  std::vector<Run> RunsOf(uint64_t begin, uint64_t end) const {
    std::vector<Run> runs;
    auto at = std::upper_bound(layout_.tensors.begin(), layout_.tensors.end(), begin,
                               [](uint64_t b, const format::ShardTensor& t) { return b < t.end; });
    for (; begin < end; ++at) {
      const uint64_t bytes = std::min(at->end, end) - begin;
      if (bytes == 0) continue;
      const ForeignTensor& from = tensors_[static_cast<size_t>(at - layout_.tensors.begin())];
      const uint64_t offset = from.offset + (begin - at->begin);
      if (!runs.empty() && runs.back().file == from.file &&
          runs.back().offset + runs.back().bytes == offset)
        runs.back().bytes += bytes;
      else
        runs.push_back({from.file, offset, bytes});
      begin += bytes;
    }
    return runs;
  }

  Status WriteIndexFile(const AttemptId& id, ShardReport* report) {
    const std::string encoded = format::MakeRawIndex(uid_, kOnlyRank, layout_, digests_).Encode();
    report->file_bytes = report->raw_bytes = layout_.stream_bytes;
    report->index_bytes = encoded.size();
    report->index_digest = format::IndexDigest(encoded);
    CKPT_ASSIGN_OR_RETURN(auto file, to_->CreateFile(id, report->index_file, encoded.size()));
    CKPT_RETURN_IF_ERROR(file->Write(0, AsBytes(encoded)));
    return file->Finish();
  }

  std::vector<ForeignTensor> tensors_;  // as layout_.tensors, once that is made
  storage::Store* const to_;
  const ImportOptions& options_;
  format::Uid uid_{};
  format::ShardLayout layout_;
  std::vector<Digest> digests_;  // by chunk; each is of one part
  std::atomic<uint64_t> done_bytes_{0};
};

}  // namespace

Status ImportCheckpoint(const std::vector<ForeignTensor>& tensors, const format::RankValues& values,
                        const JobId& job, const AttemptId& id, storage::Store* to,
                        const ImportOptions& options) {
  return Importer(tensors, to, options).Import(values, job, id);
}

}  // namespace ckpt::engine
