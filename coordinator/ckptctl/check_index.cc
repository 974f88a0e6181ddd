#include "coordinator/ckptctl/check_index.h"

#include <algorithm>

#include "libckpt/format/shard.h"

namespace ckpt::ckptctl {
namespace {

// Offsets in an index file (docs/format/v1.md, "Index").
constexpr uint64_t kFixedBytes = 80;
constexpr uint64_t kChunkBytesOffset = 56;
constexpr uint64_t kChunkEntryBytes = 48;
constexpr uint64_t kDigestBytes = 16;

struct HeaderBytes {
  std::string bytes;
  format::ShardHeader header;
};

std::optional<HeaderBytes> ReadHeader(const storage::FileReader& file) {
  std::string first(8, '\0');
  if (!file.Read(0, std::as_writable_bytes(std::span(first))).ok()) return std::nullopt;
  const Result<uint64_t> size = format::ShardHeaderBytes(first, file.size());
  if (!size.ok()) return std::nullopt;
  HeaderBytes read;
  read.bytes.resize(*size);
  if (!file.Read(0, std::as_writable_bytes(std::span(read.bytes))).ok()) return std::nullopt;
  Result<format::ShardHeader> header = format::ParseShardHeader(read.bytes, file.size());
  if (!header.ok()) return std::nullopt;
  read.header = std::move(header).value();
  return read;
}

// As rank `shard` holds it, else as the first rank that does.
const format::TensorMeta* FindMeta(const format::Manifest& manifest, Rank shard,
                                   const std::string& name) {
  const format::TensorMeta* found = nullptr;
  for (const format::RankLayout& layout : manifest.layouts) {
    for (const format::TensorMeta& tensor : layout.tensors) {
      if (tensor.name != name || (found != nullptr && layout.rank != shard)) continue;
      found = &tensor;
    }
  }
  return found;
}

std::optional<std::vector<format::ShardTensor>> TensorsOf(const format::Manifest& manifest,
                                                          Rank shard,
                                                          const format::ShardHeader& header) {
  std::vector<format::ShardTensor> tensors;
  for (const format::HeaderEntry& entry : header.entries) {
    const Result<format::ParsedShardKey> key = format::ParseShardKey(entry.key);
    if (!key.ok()) return std::nullopt;
    const format::TensorMeta* meta = FindMeta(manifest, shard, key->name);
    if (meta == nullptr) return std::nullopt;
    format::ShardTensor tensor{key->name, meta->dtype, meta->placement, meta->global_shape,
                               key->box};
    if (!key->sliced)
      tensor.box = {std::vector<uint64_t>(meta->global_shape.size()), meta->global_shape};
    tensors.push_back(std::move(tensor));
  }
  // The header's order is that of the stream, but for tensors without bytes.
  std::sort(tensors.begin(), tensors.end(), format::ShardOrderLess);
  return tensors;
}

std::vector<uint64_t> ChunkSizesToTry(std::string_view damaged) {
  std::vector<uint64_t> sizes = {kChunkBytesDefault};
  if (damaged.size() >= kFixedBytes) {
    const uint64_t said = ByteReader(damaged.substr(kChunkBytesOffset)).Get<uint64_t>();
    const bool possible = said != 0 && said <= format::kChunkBytesMax &&
                          said % format::kChunkBytesGranule == 0 && said != sizes[0];
    if (possible) sizes.push_back(said);
  }
  return sizes;
}

std::optional<std::vector<Digest>> DigestChunks(const format::ShardLayout& layout,
                                                const format::Uid& uid, Rank shard,
                                                const storage::FileReader& file) {
  std::vector<Digest> digests;
  std::vector<std::byte> bytes;
  for (size_t chunk = 0; chunk < layout.chunks.size(); ++chunk) {
    const format::ChunkRange& range = layout.chunks[chunk];
    bytes.resize(range.end - range.begin);
    if (!file.Read(range.begin, bytes).ok()) return std::nullopt;
    digests.push_back(DigestOf(bytes, ChunkSeed(uid, shard.value(), chunk)));
  }
  return digests;
}

uint64_t TensorEntryBytes(const format::ShardTensor& tensor) {
  return 4 + tensor.name.size() + 4 + 3 * 8 * tensor.global_shape.size() + 16;
}

// First and one past the last byte that differ; what is missing or too much differs.
std::pair<uint64_t, uint64_t> DifferingRange(std::string_view a, std::string_view b) {
  const size_t common = std::min(a.size(), b.size());
  size_t begin = 0;
  while (begin < common && a[begin] == b[begin]) ++begin;
  size_t end = std::max(a.size(), b.size());
  if (a.size() == b.size()) {
    while (end > begin && a[end - 1] == b[end - 1]) --end;
  }
  return {begin, end};
}

}  // namespace

std::vector<std::string> TensorsOfChunk(const format::ShardIndex& index, uint64_t chunk) {
  std::vector<std::string> names;
  const format::ChunkEntry& entry = index.chunks[chunk];
  for (const format::ShardTensor& tensor : index.tensors) {
    // Chunk 0 is the header, which describes them all.
    const bool touches = tensor.begin < entry.end && tensor.end > entry.begin;
    if (chunk == 0 || touches) names.push_back(tensor.name);
  }
  return names;
}

std::vector<std::string> HeaderTensors(const storage::FileReader& file) {
  std::vector<std::string> names;
  const std::optional<HeaderBytes> read = ReadHeader(file);
  if (!read) return names;
  for (const format::HeaderEntry& entry : read->header.entries) {
    const Result<format::ParsedShardKey> key = format::ParseShardKey(entry.key);
    names.push_back(key.ok() ? key->name : entry.key);
  }
  return names;
}

std::optional<RebuiltIndex> RebuildIndex(const format::Manifest& manifest,
                                         const format::ManifestFile& entry,
                                         const storage::FileReader& file,
                                         std::string_view damaged) {
  const std::optional<HeaderBytes> read = ReadHeader(file);
  if (!read) return std::nullopt;
  const auto tensors = TensorsOf(manifest, entry.shard, read->header);
  if (!tensors) return std::nullopt;
  for (const uint64_t chunk_bytes : ChunkSizesToTry(damaged)) {
    const Result<format::ShardLayout> layout = format::LayOutShard(*tensors, chunk_bytes);
    if (!layout.ok() || layout->stream_bytes != file.size()) continue;
    const auto digests = DigestChunks(*layout, manifest.uid(), entry.shard, file);
    if (!digests) return std::nullopt;
    RebuiltIndex rebuilt{format::MakeRawIndex(manifest.uid(), entry.shard, *layout, *digests), {}};
    rebuilt.bytes = rebuilt.index.Encode();
    if (format::IndexDigest(rebuilt.bytes) == entry.index_digest) return rebuilt;
  }
  return std::nullopt;
}

void Localize(const RebuiltIndex& rebuilt, std::string_view damaged, Damage* damage) {
  std::tie(damage->begin, damage->end) = DifferingRange(rebuilt.bytes, damaged);
  const uint64_t chunks_begin =
      rebuilt.bytes.size() - kDigestBytes - kChunkEntryBytes * rebuilt.index.chunks.size();
  const uint64_t at = damage->begin;
  if (at >= chunks_begin && at < rebuilt.bytes.size() - kDigestBytes) {
    damage->chunk = (at - chunks_begin) / kChunkEntryBytes;
    damage->tensors = TensorsOfChunk(rebuilt.index, *damage->chunk);
    return;
  }
  uint64_t end = kFixedBytes;
  for (const format::ShardTensor& tensor : rebuilt.index.tensors) {
    const uint64_t begin = end;
    end += TensorEntryBytes(tensor);
    if (at >= begin && at < end) damage->tensors = {tensor.name};
  }
  if (!damage->tensors.empty()) return;
  // The fixed part or the digest at the end: of the whole shard.
  for (const format::ShardTensor& tensor : rebuilt.index.tensors)
    damage->tensors.push_back(tensor.name);
}

void LocalizeHeader(const format::ShardIndex& index, std::string_view damaged, Damage* damage) {
  const Result<format::ShardLayout> layout = format::LayOutShard(index.tensors, index.chunk_bytes);
  if (!layout.ok() || layout->header.size() != damaged.size()) return;
  std::tie(damage->begin, damage->end) = DifferingRange(layout->header, damaged);
  damage->what = "the header does not have its digest";
  // The entry that the bytes lie in: the last key that begins before them.
  size_t best = 0;
  for (const format::ShardTensor& tensor : index.tensors) {
    const size_t key = layout->header.find("\"" + format::ShardKey(tensor) + "\":");
    if (key == std::string::npos || key > damage->begin || key < best) continue;
    best = key;
    damage->tensors = {tensor.name};
  }
}

}  // namespace ckpt::ckptctl
