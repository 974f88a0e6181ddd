#include "libckpt/engine/stored_source.h"

#include "libckpt/codec/codec.h"
#include "libckpt/engine/stored_files.h"

namespace ckpt::engine {

ShardSource::ShardSource(std::string name, format::ShardIndex index)
    : name_(std::move(name)), index_(std::move(index)) {
  for (const format::ChunkEntry& chunk : index_.chunks) chunks_.push_back({chunk.begin, chunk.end});
}

Result<std::unique_ptr<ShardSource>> ShardSource::Open(storage::Store* store,
                                                       const format::Manifest& manifest,
                                                       const format::ManifestFile& entry) {
  CKPT_ASSIGN_OR_RETURN(auto index, ReadVerifiedIndex(store, manifest, entry));
  return OpenWith(store, manifest.id, entry.name, std::move(index));
}

Result<std::unique_ptr<ShardSource>> ShardSource::OpenWith(storage::Store* store,
                                                           const AttemptId& id,
                                                           const std::string& name,
                                                           format::ShardIndex index) {
  CKPT_ASSIGN_OR_RETURN(auto file, OpenSized(store, id, name, index.file_bytes));
  std::unique_ptr<ShardSource> source(new ShardSource(name, std::move(index)));
  source->files_.push_back(std::move(file));
  for (const format::Origin& origin : source->index_.origins) {
    auto opened = OpenOrigin(store, origin);
    if (!opened.ok()) return std::move(opened).status().Annotate(name);
    source->files_.push_back(std::move(opened).value());
  }
  return source;
}

Result<ShardSource::Bytes> ShardSource::FetchBoth(uint64_t chunk, bool verify,
                                                  ChunkScratch* scratch) const {
  const format::ChunkEntry& entry = index_.chunks[chunk];
  const auto stored =
      files_[entry.origin]->Fetch(entry.stored_offset, entry.stored_bytes, &scratch->stored);
  if (!stored.ok()) return Status(stored.status()).Annotate(Where(chunk));
  Bytes bytes{*stored, *stored};
  if (entry.codec != format::Codec::kRaw) {
    if (verify && format::StoredCheck(bytes.stored) != entry.stored_check)
      return DataLoss(Where(chunk) + " is damaged: its compressed bytes are not those written");
    scratch->decoded.resize(entry.raw_bytes());
    const ChunkElements elements = ElementsOf(index_.tensors, entry.begin, entry.end);
    const Status decoded = codec::Decode(static_cast<codec::Codec>(entry.codec), bytes.stored,
                                         elements.bytes, scratch->decoded);
    if (!decoded.ok()) {
      return DataLoss(Where(chunk) + " is damaged: it does not decode (" + decoded.message() + ")");
    }
    bytes.raw = scratch->decoded;
  }
  if (verify && DigestOf(bytes.raw, index_.Seed(chunk)) != entry.digest)
    return DataLoss(Where(chunk) + " is damaged: it does not have its digest");
  return bytes;
}

Status ShardSource::Fetch(uint64_t chunk, bool verify, ChunkScratch* scratch,
                          std::vector<ByteSpan>* out) const {
  CKPT_ASSIGN_OR_RETURN(const Bytes bytes, FetchBoth(chunk, verify, scratch));
  out->assign(1, bytes.raw);
  return OkStatus();
}

Status ShardSource::Inspect(uint64_t chunk, const std::vector<ByteSpan>& bytes) const {
  if (chunk != 0) return OkStatus();
  const auto header = format::ParseShardHeader(AsText(bytes[0]), index_.stream_bytes);
  if (!header.ok()) return Status(header.status()).Annotate(name_ + ": chunk 0 (the header)");
  return format::CheckHeader(header.value(), index_.tensors)
      .Annotate(name_ + ": chunk 0 (the header)");
}

}  // namespace ckpt::engine
