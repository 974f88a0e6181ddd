#include "libckpt/engine/copy.h"

#include <atomic>
#include <deque>

#include "libckpt/base/fault.h"
#include "libckpt/engine/block_stream.h"
#include "libckpt/engine/stored_files.h"
#include "libckpt/engine/stored_source.h"

namespace ckpt::engine {
namespace {

constexpr auto kCommitWaitMax = std::chrono::minutes(1);

class Copier {
 public:
  Copier(storage::Store* from, storage::Store* to, const CopyOptions& options)
      : from_(from), to_(to), options_(options) {}

  Status Run(const AttemptId& id) {
    CKPT_ASSIGN_OR_RETURN(const storage::CommitRecord commit, from_->ReadCommit(id));
    CKPT_ASSIGN_OR_RETURN(format::Manifest manifest, ReadVerifiedManifest(from_, id));
    for (const format::ManifestFile& file : manifest.files) total_bytes_ += file.bytes;
    for (const format::ManifestOrigin& origin : manifest.origins) total_bytes_ += origin.bytes;
    CKPT_RETURN_IF_ERROR(to_->BeginAttempt(id));
    const format::Manifest source = manifest;
    for (size_t f = 0; f < manifest.files.size(); ++f) {
      CKPT_RETURN_IF_ERROR(CopyShard(source, source.files[f], &manifest.files[f]));
    }
    manifest.origins.clear();
    CKPT_ASSIGN_OR_RETURN(const std::string text, manifest.Encode());
    CKPT_FAULT("engine.copy.commit");
    return to_->Commit(id, text, {format::ManifestDigest(text), commit.epoch, commit.coordinator},
                       Deadline("committing a copy", kCommitWaitMax));
  }

 private:
  Status CopyShard(const format::Manifest& manifest, const format::ManifestFile& entry,
                   format::ManifestFile* copied) {
    CKPT_ASSIGN_OR_RETURN(const auto source,
                          ShardSource::Open(from_, manifest, entry, /*several=*/false));
    format::ShardIndex index = source->index();
    index.origins.clear();
    uint64_t bytes = 0;
    for (const format::ChunkEntry& chunk : index.chunks) bytes += chunk.stored_bytes;
    CKPT_ASSIGN_OR_RETURN(auto file, to_->CreateFile(manifest.id, entry.name, bytes));
    BlockStream stream(file.get(), bytes);
    const uint32_t ahead = ReadsAhead(source->depth(), stream.ThreadsFor(options_.threads));
    std::deque<ChunkScratch> scratch(AheadSlots(ahead));
    const auto write = [&](uint64_t i, const Part& part, uint32_t slot) -> Status {
      return CopyPart(*source, i, part, &index, &stream, &scratch[slot]);
    };
    const auto begin = [&](const Part& part, uint32_t slot) {
      source->Prefetch(part.first, &scratch[slot]);
    };
    CKPT_RETURN_IF_ERROR(
        WriteParts(OneByOne(index), options_.threads, &stream, write, {ahead, begin})
            .Annotate("writing " + entry.name));
    CKPT_RETURN_IF_ERROR(file->Finish());
    index.file_bytes = copied->bytes = bytes;
    const std::string encoded = index.Encode();
    CKPT_ASSIGN_OR_RETURN(auto index_file,
                          to_->CreateFile(manifest.id, entry.index_name, encoded.size()));
    CKPT_RETURN_IF_ERROR(index_file->Write(0, AsBytes(encoded)));
    copied->index_bytes = encoded.size();
    copied->index_digest = format::IndexDigest(encoded);
    return index_file->Finish();
  }

  static std::vector<Part> OneByOne(const format::ShardIndex& index) {
    std::vector<Part> parts;
    for (uint64_t c = 0; c < index.chunks.size(); ++c) parts.push_back({c, c + 1});
    return parts;
  }

  Status CopyPart(const ShardSource& source, uint64_t number, const Part& part,
                  format::ShardIndex* index, BlockStream* stream, ChunkScratch* scratch) {
    if (options_.cancelled && options_.cancelled()) return Cancelled("the copy was cancelled");
    CKPT_ASSIGN_OR_RETURN(const ShardSource::Bytes bytes,
                          source.FetchBoth(part.first, /*verify=*/true, scratch));
    format::ChunkEntry& entry = index->chunks[part.first];
    if (entry.referred()) {  // from here on it is this checkpoint's own
      entry.origin = 0;
      entry.origin_chunk = 0;
      const uint64_t seed = ChunkSeed(index->uid, index->shard.value(), part.first);
      entry.digest = DigestOf(bytes.raw, seed);
    }
    CKPT_RETURN_IF_ERROR(stream->Append(
        number, {bytes.stored}, [&](uint64_t file_offset) { entry.stored_offset = file_offset; }));
    const uint64_t done = done_bytes_.fetch_add(bytes.stored.size()) + bytes.stored.size();
    if (options_.progress) options_.progress(done, total_bytes_);
    return OkStatus();
  }

  storage::Store* const from_;
  storage::Store* const to_;
  const CopyOptions& options_;
  uint64_t total_bytes_ = 0;
  std::atomic<uint64_t> done_bytes_{0};
};

}  // namespace

Status CopyCheckpoint(storage::Store* from, const AttemptId& id, storage::Store* to,
                      const CopyOptions& options) {
  return Copier(from, to, options)
      .Run(id)
      .Annotate("copying " + id.ToString() + " of " + from->Describe() + " to " + to->Describe());
}

}  // namespace ckpt::engine
