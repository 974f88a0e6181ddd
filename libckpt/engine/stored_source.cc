#include "libckpt/engine/stored_source.h"

#include "libckpt/codec/codec.h"
#include "libckpt/engine/parallel.h"
#include "libckpt/engine/stored_files.h"

namespace ckpt::engine {
namespace {

// Where reads do not go on by themselves, so many threads wait for the disk.
constexpr uint32_t kReadThreads = 16;

// ", tensors 'a', 'b' and 3 more": those with chunks that origin `number` holds.
std::string TensorsHeldBy(const format::ShardIndex& index, uint8_t number) {
  constexpr size_t kNamesMax = 3;
  std::string names;
  size_t count = 0;
  for (const format::ShardTensor& tensor : index.tensors) {
    const format::ChunkSpan span = index.ChunkOf(tensor.begin, tensor.end);
    bool held = false;
    for (uint64_t c = span.first; c < span.last; ++c) held |= index.chunks[c].origin == number;
    if (held && ++count <= kNamesMax) names += (count == 1 ? "'" : ", '") + tensor.name + "'";
  }
  if (count > kNamesMax) names += " and " + std::to_string(count - kNamesMax) + " more";
  return (count == 1 ? ", tensor " : ", tensors ") + names;
}

}  // namespace

ShardSource::ShardSource(storage::Store* store, const AttemptId& id, std::string name,
                         format::ShardIndex index, bool several)
    : name_(std::move(name)), index_(std::move(index)), store_(store) {
  for (const format::ChunkEntry& chunk : index_.chunks) chunks_.push_back({chunk.begin, chunk.end});
  HolderFile& own = files_.emplace_back();
  own.id = id;
  own.name = name_;
  for (const format::Origin& origin : index_.origins) {
    HolderFile& file = files_.emplace_back();
    file.id = origin.id;
    file.name = origin.file;
  }
  shared_.resize(chunks_.size());
  for (const format::ShardTensor& tensor : index_.tensors) {
    if (!several || tensor.placement != format::Placement::kReplicated) continue;
    const format::ChunkSpan span = format::ChunkOf(chunks_, tensor.begin, tensor.end);
    for (uint64_t c = span.first; c < span.last; ++c) shared_[c] = true;
  }
}

Result<std::unique_ptr<ShardSource>> ShardSource::Open(storage::Store* store,
                                                       const format::Manifest& manifest,
                                                       const format::ManifestFile& entry,
                                                       bool several) {
  CKPT_ASSIGN_OR_RETURN(auto index, ReadVerifiedIndex(store, manifest, entry));
  return OpenWith(store, manifest.id, entry.name, std::move(index), several);
}

Result<std::unique_ptr<ShardSource>> ShardSource::OpenWith(storage::Store* store,
                                                           const AttemptId& id,
                                                           const std::string& name,
                                                           format::ShardIndex index, bool several) {
  CKPT_RETURN_IF_ERROR(OpenSized(store, id, name, index.file_bytes).status());
  for (size_t o = 0; o < index.origins.size(); ++o) {
    Status opened = OpenOrigin(store, index.origins[o]).status();
    if (!opened.ok())
      return opened.Annotate(name + TensorsHeldBy(index, static_cast<uint8_t>(o + 1)));
  }
  return std::unique_ptr<ShardSource>(new ShardSource(store, id, name, std::move(index), several));
}

Result<std::shared_ptr<const storage::FileReader>> ShardSource::FileOf(uint8_t origin) const {
  HolderFile& holder = files_[origin];
  {
    MutexLock lock(holder.mutex);
    if (holder.file != nullptr) return holder.file;
  }
  CKPT_ASSIGN_OR_RETURN(auto opened, store_->OpenFile(holder.id, holder.name));
  MutexLock lock(holder.mutex);
  if (holder.file == nullptr) holder.file = std::move(opened);
  return holder.file;
}

void ShardSource::Prefetch(uint64_t chunk, ChunkScratch* scratch) const {
  scratch->Drop();
  const format::ChunkEntry& entry = index_.chunks[chunk];
  auto file = FileOf(entry.origin);
  if (!file.ok() || (*file)->depth() == 1) return;
  const auto fetch = (*file)->StartFetch(entry.stored_offset, entry.stored_bytes, ReuseOf(chunk),
                                         &scratch->stored);
  if (fetch.ok()) scratch->begun = {std::move(file).value(), chunk, *fetch};
}

uint32_t ShardSource::depth() const {
  const auto file = FileOf(0);
  return file.ok() ? (*file)->depth() : 1;
}

uint32_t ShardSource::readers() const { return depth() > 1 ? kThreadsBesideQueue : kReadThreads; }

Result<ByteSpan> ShardSource::FetchStored(uint64_t chunk, ChunkScratch* scratch) const {
  const format::ChunkEntry& entry = index_.chunks[chunk];
  CKPT_ASSIGN_OR_RETURN(const auto file, FileOf(entry.origin));
  if (scratch->begun && (scratch->begun->file != file || scratch->begun->chunk != chunk))
    scratch->Drop();
  if (scratch->begun) {
    const ChunkScratch::Begun begun = *std::exchange(scratch->begun, std::nullopt);
    return file->AwaitFetch(begun.fetch);
  }
  return file->Fetch(entry.stored_offset, entry.stored_bytes, ReuseOf(chunk), &scratch->stored);
}

Result<ShardSource::Bytes> ShardSource::FetchBoth(uint64_t chunk, bool verify,
                                                  ChunkScratch* scratch) const {
  const format::ChunkEntry& entry = index_.chunks[chunk];
  const auto stored = FetchStored(chunk, scratch);
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
