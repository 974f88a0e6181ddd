#include "libckpt/engine/base_shard.h"

#include <algorithm>

#include "libckpt/base/fault.h"
#include "libckpt/base/log.h"
#include "libckpt/engine/stored_files.h"

namespace ckpt::engine {
namespace {

// The newest visible checkpoint that is not the attempt itself.
Result<std::optional<AttemptId>> NewestBefore(storage::Store* store, const AttemptId& id) {
  CKPT_ASSIGN_OR_RETURN(const std::vector<storage::CheckpointInfo> infos, store->List());
  for (const storage::CheckpointInfo& info : infos) {
    if (info.visible && info.committed && info.id != id) return std::optional(info.id);
  }
  return std::optional<AttemptId>();
}

// The base and what it refers to, less the one of those that holds least if they are too many (I2).
storage::AttemptOrigins WantedOrigins(const format::Manifest& base) {
  std::vector<format::ManifestOrigin> origins = base.origins;
  while (origins.size() >= format::kOriginsMax) {
    origins.erase(std::min_element(origins.begin(), origins.end(),
                                   [](const auto& a, const auto& b) { return a.bytes < b.bytes; }));
  }
  storage::AttemptOrigins wanted{base.id, {base.id}};
  for (const format::ManifestOrigin& origin : origins) wanted.origins.push_back(origin.id);
  std::sort(wanted.origins.begin(), wanted.origins.end());
  return wanted;
}

const format::ManifestFile* FileOf(const format::Manifest& manifest, Rank rank) {
  for (const format::ManifestFile& file : manifest.files) {
    if (file.shard == rank) return &file;
  }
  return nullptr;
}

bool SameLayout(const format::ShardIndex& index, const format::ShardLayout& layout) {
  return index.chunk_bytes == layout.chunk_bytes && index.header_bytes == layout.header.size() &&
         index.stream_bytes == layout.stream_bytes && index.tensors == layout.tensors;
}

}  // namespace

Digest DigestOfSpans(const std::vector<ByteSpan>& spans, uint64_t seed) {
  if (spans.size() == 1) return DigestOf(spans[0], seed);
  DigestStream stream(seed);
  for (const ByteSpan span : spans) stream.Update(span);
  return stream.Finish();
}

uint8_t BaseShard::NumberOf(const format::Origin& origin) const {
  const auto found = std::find(origins_.begin(), origins_.end(), origin);
  return found == origins_.end() ? 0 : static_cast<uint8_t>(found - origins_.begin() + 1);
}

void BaseShard::AddOrigins(storage::Store* store, const format::Origin& self,
                           const std::vector<AttemptId>& named) {
  std::vector<uint64_t> live(index_.origins.size());
  for (const format::ChunkEntry& chunk : index_.chunks) {
    if (chunk.referred()) live[chunk.origin - 1] += chunk.stored_bytes;
  }
  const auto add = [&](const format::Origin& origin) {
    const bool may = std::binary_search(named.begin(), named.end(), origin.id);
    if (may && OpenOrigin(store, origin).ok()) origins_.push_back(origin);
  };
  for (size_t o = 0; o < live.size(); ++o) {
    if (live[o] >= index_.origins[o].file_bytes / 2) add(index_.origins[o]);  // I3
  }
  add(self);
  std::sort(origins_.begin(), origins_.end(),
            [](const format::Origin& a, const format::Origin& b) { return a.id < b.id; });
  self_ = NumberOf(self);
  for (const format::Origin& origin : index_.origins) number_.push_back(NumberOf(origin));
}

Result<std::optional<BaseShard>> BaseShard::TryFind(storage::Store* store, const JobId& job,
                                                    const AttemptId& id, Rank rank,
                                                    const format::ShardLayout& layout) {
  CKPT_FAULT("engine.base.find");
  std::optional<BaseShard> none;
  CKPT_ASSIGN_OR_RETURN(const std::optional<AttemptId> newest, NewestBefore(store, id));
  if (!newest) return none;
  CKPT_ASSIGN_OR_RETURN(format::Manifest manifest, ReadVerifiedManifest(store, *newest));
  CKPT_ASSIGN_OR_RETURN(const storage::AttemptOrigins named,
                        store->NameOrigins(id, WantedOrigins(manifest)));
  if (named.base != manifest.id) {  // what another rank of this attempt has found
    CKPT_ASSIGN_OR_RETURN(manifest, ReadVerifiedManifest(store, named.base));
  }
  const format::ManifestFile* file = FileOf(manifest, rank);
  if (file == nullptr || manifest.job != job) return none;
  BaseShard base;
  CKPT_ASSIGN_OR_RETURN(base.index_, ReadVerifiedIndex(store, manifest, *file));
  if (!SameLayout(base.index_, layout) || base.index_.chunks.size() > UINT32_MAX) return none;
  base.AddOrigins(store, {manifest.id, manifest.uid(), rank, file->bytes, file->name},
                  named.origins);
  if (base.origins_.empty()) return none;
  return std::optional(std::move(base));
}

std::optional<BaseShard> BaseShard::Find(storage::Store* store, const JobId& job,
                                         const AttemptId& id, Rank rank,
                                         const format::ShardLayout& layout) {
  auto found = TryFind(store, job, id, rank, layout);
  if (found.ok()) return std::move(found).value();
  LogWarning(
      id.ToString() + ": the shard of rank " + std::to_string(rank.value()) +
      " is written whole, without references to older checkpoints: " + found.status().message());
  return std::nullopt;
}

std::optional<format::ChunkEntry> BaseShard::Match(uint64_t chunk,
                                                   const std::vector<ByteSpan>& spans) const {
  format::ChunkEntry entry = index_.chunks[chunk];
  const uint8_t number = entry.referred() ? number_[entry.origin - 1] : self_;
  if (chunk == 0 || number == 0) return std::nullopt;
  if (DigestOfSpans(spans, index_.Seed(chunk)) != entry.digest) return std::nullopt;
  if (!entry.referred()) entry.origin_chunk = static_cast<uint32_t>(chunk);
  entry.origin = number;
  return entry;
}

}  // namespace ckpt::engine
