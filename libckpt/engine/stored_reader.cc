// Opening a committed checkpoint: COMMIT names the manifest by digest, the manifest names each
// index by digest, and an index holds a digest of every chunk. Nothing is believed before its
// digest is checked, and no size before it is compared with the real file.
#include <algorithm>

#include "libckpt/base/fault.h"
#include "libckpt/engine/reader.h"
#include "libckpt/format/index.h"
#include "libckpt/format/manifest.h"

namespace ckpt::engine {
namespace {

class ShardSource : public ChunkSource {
 public:
  ShardSource(std::string name, format::ShardIndex index, std::unique_ptr<storage::FileReader> file)
      : name_(std::move(name)), index_(std::move(index)), file_(std::move(file)) {
    for (const format::ChunkEntry& chunk : index_.chunks) {
      chunks_.push_back({chunk.begin, chunk.end});
    }
  }

  Rank rank() const override { return index_.shard; }
  const std::vector<format::ShardTensor>& tensors() const override { return index_.tensors; }
  const std::vector<format::ChunkRange>& chunks() const override { return chunks_; }

  Status Fetch(uint64_t chunk, bool verify, std::vector<std::byte>* scratch,
               std::vector<ByteSpan>* out) const override {
    const format::ChunkEntry& entry = index_.chunks[chunk];
    if (entry.codec != format::Codec::kRaw) {
      return FailedPrecondition(name_ + ": " + index_.DescribeChunk(chunk) +
                                " is stored with a codec that this release does not read");
    }
    scratch->resize(entry.raw_bytes());
    CKPT_RETURN_IF_ERROR(file_->Read(entry.stored_offset, *scratch)
                             .Annotate(name_ + ": " + index_.DescribeChunk(chunk)));
    if (verify && DigestOf(*scratch, index_.Seed(chunk)) != entry.digest) {
      return DataLoss(name_ + ": " + index_.DescribeChunk(chunk) +
                      " is damaged: it does not have its digest");
    }
    out->assign(1, ByteSpan(*scratch));
    return OkStatus();
  }

  Status Inspect(uint64_t chunk, const std::vector<ByteSpan>& bytes) const override {
    if (chunk != 0) return OkStatus();
    const auto header = format::ParseShardHeader(AsText(bytes[0]), index_.stream_bytes);
    if (!header.ok()) return Status(header.status()).Annotate(name_ + ": chunk 0 (the header)");
    return format::CheckHeader(header.value(), index_.tensors)
        .Annotate(name_ + ": chunk 0 (the header)");
  }

 private:
  const std::string name_;
  const format::ShardIndex index_;
  const std::unique_ptr<storage::FileReader> file_;
  std::vector<format::ChunkRange> chunks_;
};

Result<std::unique_ptr<storage::FileReader>> OpenSized(storage::Store* store, const AttemptId& id,
                                                       const std::string& name, uint64_t bytes) {
  CKPT_RETURN_IF_ERROR(CheckName("file", name));
  CKPT_ASSIGN_OR_RETURN(auto file, store->OpenFile(id, name));
  if (file->size() != bytes) {
    return DataLoss(name + " has " + std::to_string(file->size()) + " bytes, the manifest says " +
                    std::to_string(bytes));
  }
  return file;
}

Result<format::ShardIndex> ReadIndex(storage::Store* store, const format::Manifest& manifest,
                                     const format::ManifestFile& entry) {
  CKPT_FAULT("engine.open.index");
  if (entry.index_bytes > kIndexBytesMax) return DataLoss(entry.index_name + " is too large");
  CKPT_ASSIGN_OR_RETURN(auto file,
                        OpenSized(store, manifest.id, entry.index_name, entry.index_bytes));
  std::string bytes(entry.index_bytes, '\0');
  CKPT_RETURN_IF_ERROR(file->Read(0, std::as_writable_bytes(std::span(bytes))));
  // The index ends in its own digest, which Decode compares with the bytes; here it is compared
  // with the manifest's.
  if (format::IndexDigest(bytes) != entry.index_digest) {
    return DataLoss(entry.index_name + " is damaged: it is not the index that the manifest names");
  }
  auto index = format::ShardIndex::Decode(bytes, entry.bytes);
  if (!index.ok()) return std::move(index).status().Annotate(entry.index_name);
  if (index->uid != manifest.uid() || index->shard != entry.shard) {
    return DataLoss(entry.index_name + " belongs to another checkpoint or rank");
  }
  return index;
}

Result<std::unique_ptr<ChunkSource>> OpenShard(storage::Store* store,
                                               const format::Manifest& manifest,
                                               const format::ManifestFile& entry) {
  CKPT_ASSIGN_OR_RETURN(auto file, OpenSized(store, manifest.id, entry.name, entry.bytes));
  CKPT_ASSIGN_OR_RETURN(auto index, ReadIndex(store, manifest, entry));
  return std::unique_ptr<ChunkSource>(
      std::make_unique<ShardSource>(entry.name, std::move(index), std::move(file)));
}

Result<format::Manifest> ReadManifest(storage::Store* store, const AttemptId& id) {
  CKPT_FAULT("engine.open.manifest");
  CKPT_ASSIGN_OR_RETURN(const storage::CommitRecord commit, store->ReadCommit(id));
  CKPT_ASSIGN_OR_RETURN(const std::string bytes, store->ReadManifest(id));
  if (format::ManifestDigest(bytes) != commit.manifest_digest) {
    return DataLoss("MANIFEST is damaged: it is not the one that COMMIT names");
  }
  CKPT_ASSIGN_OR_RETURN(format::Manifest manifest, format::Manifest::Decode(bytes));
  if (manifest.id != id) {
    return DataLoss("MANIFEST is that of " + manifest.id.ToString());
  }
  return manifest;
}

Result<std::unique_ptr<CheckpointReader>> Open(storage::Store* store, const AttemptId& id,
                                               const std::string& description) {
  CKPT_ASSIGN_OR_RETURN(format::Manifest manifest, ReadManifest(store, id));
  std::vector<std::unique_ptr<ChunkSource>> sources;
  for (const format::ManifestFile& file : manifest.files) {
    auto source = OpenShard(store, manifest, file);
    if (!source.ok()) return std::move(source).status();
    sources.push_back(std::move(source).value());
  }
  return std::unique_ptr<CheckpointReader>(
      std::make_unique<SourceReader>(description, id, std::move(manifest.layouts),
                                     std::move(manifest.values), std::move(sources)));
}

}  // namespace

Result<std::unique_ptr<CheckpointReader>> OpenCheckpoint(storage::Store* store,
                                                         const AttemptId& id) {
  const std::string description = "checkpoint " + id.ToString() + " in " + store->Describe();
  auto reader = Open(store, id, description);
  if (!reader.ok()) return std::move(reader).status().Annotate(description);
  return reader;
}

Result<std::unique_ptr<CheckpointReader>> OpenNewest(storage::Store* store,
                                                     std::vector<std::string>* skipped,
                                                     const std::vector<AttemptId>& except) {
  CKPT_ASSIGN_OR_RETURN(const std::vector<storage::CheckpointInfo> infos, store->List());
  std::string damage;
  bool any = false;
  for (const storage::CheckpointInfo& info : infos) {
    if (!info.committed || !info.visible) continue;
    any = true;
    if (std::find(except.begin(), except.end(), info.id) != except.end()) continue;
    auto reader = OpenCheckpoint(store, info.id);
    if (reader.ok()) return reader;
    // Only damage is a reason to fall back; what may work on the next try, or with another release,
    // must not quietly cost the newest steps.
    const Code code = reader.status().code();
    if (code != Code::kDataLoss && code != Code::kNotFound) return std::move(reader).status();
    if (skipped != nullptr) skipped->push_back(reader.status().ToString());
    damage += (damage.empty() ? "" : "\n") + reader.status().message();
  }
  if (!any) return NotFound("no checkpoint in " + store->Describe());
  return DataLoss("no checkpoint in " + store->Describe() + " can be opened:\n" + damage);
}

}  // namespace ckpt::engine
