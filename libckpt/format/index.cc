#include "libckpt/format/index.h"

#include <algorithm>

namespace ckpt::format {
namespace {

constexpr std::string_view kMagic = "CKPTIDX1";
constexpr size_t kDigestBytes = 16;
constexpr size_t kFixedBytes = 80;
constexpr size_t kTensorBytesMin = 4 + 4 + 2 * 8;
constexpr size_t kChunkEntryBytes = 48;
constexpr size_t kOriginBytesMin = 16 + 8 + 8 + 4 + 4 + 8 + 4;
constexpr size_t kFileNameBytesMax = 128;
constexpr uint32_t kFeatureOrigins = 1;  // a table of origins stands before the chunks

std::string_view DigestText(const std::array<uint8_t, 16>& bytes) {
  return std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

void PutTensor(ByteWriter* writer, const ShardTensor& tensor) {
  writer->PutString(tensor.name)
      .Put<uint8_t>(static_cast<uint8_t>(tensor.dtype))
      .Put<uint8_t>(static_cast<uint8_t>(tensor.placement))
      .Put<uint8_t>(static_cast<uint8_t>(tensor.global_shape.size()))
      .Put<uint8_t>(0);
  for (const auto* dims : {&tensor.global_shape, &tensor.box.offset, &tensor.box.shape}) {
    for (const uint64_t dim : *dims) writer->Put<uint64_t>(dim);
  }
  writer->Put<uint64_t>(tensor.begin).Put<uint64_t>(tensor.end);
}

ShardTensor GetTensor(ByteReader* reader) {
  ShardTensor tensor;
  tensor.name = reader->GetString(kTensorNameBytesMax);
  tensor.dtype = static_cast<DType>(reader->Get<uint8_t>());
  tensor.placement = static_cast<Placement>(reader->Get<uint8_t>());
  const auto dims = reader->Get<uint8_t>();
  if (dims > kTensorDimsMax || reader->Get<uint8_t>() != 0) reader->Fail();
  for (auto* out : {&tensor.global_shape, &tensor.box.offset, &tensor.box.shape}) {
    for (uint8_t d = 0; d < dims && !reader->failed(); ++d) out->push_back(reader->Get<uint64_t>());
  }
  tensor.begin = reader->Get<uint64_t>();
  tensor.end = reader->Get<uint64_t>();
  return tensor;
}

void PutChunk(ByteWriter* writer, const ChunkEntry& chunk) {
  writer->Put<uint8_t>(static_cast<uint8_t>(chunk.codec))
      .Put<uint8_t>(chunk.origin)
      .Put<uint16_t>(chunk.stored_check)
      .Put<uint32_t>(chunk.origin_chunk)
      .Put<uint64_t>(chunk.raw_bytes())
      .Put<uint64_t>(chunk.stored_offset)
      .Put<uint64_t>(chunk.stored_bytes)
      .PutRaw(DigestText(chunk.digest.bytes));
}

void PutOrigins(ByteWriter* writer, const std::vector<Origin>& origins) {
  writer->Put<uint32_t>(static_cast<uint32_t>(origins.size())).Put<uint32_t>(0);
  for (const Origin& origin : origins) {
    writer->PutRaw(DigestText(origin.uid))
        .Put<uint64_t>(origin.id.epoch.value())
        .Put<int64_t>(origin.id.step.value())
        .Put<uint32_t>(origin.id.attempt.value())
        .Put<uint32_t>(origin.shard.value())
        .Put<uint64_t>(origin.file_bytes)
        .PutString(origin.file);
  }
}

Status Damaged(const std::string& why) { return DataLoss("an index is damaged: " + why); }

// The fixed part behind the magic; counts are only checked against the bytes that are there.
struct Counts {
  uint32_t features = 0;
  uint32_t tensors = 0;
  uint64_t chunks = 0;
};

Result<Counts> GetFixed(ByteReader* reader, ShardIndex* index) {
  if (const auto version = reader->Get<uint32_t>(); version != kFormatVersion) {
    return FailedPrecondition("an index is of format " + std::to_string(version) +
                              ", this release (" + std::string(kWriterVersion) +
                              ") reads format 1: use a newer release");
  }
  Counts counts;
  counts.features = reader->Get<uint32_t>();
  if ((counts.features & ~kFeatureOrigins) != 0) {
    return FailedPrecondition("an index needs features (bits " + std::to_string(counts.features) +
                              ") that this release (" + std::string(kWriterVersion) +
                              ") does not know: use the release that the manifest names");
  }
  const std::string_view uid = reader->GetRaw(index->uid.size());
  std::copy(uid.begin(), uid.end(), index->uid.begin());
  index->shard = Rank(reader->Get<uint32_t>());
  counts.tensors = reader->Get<uint32_t>();
  counts.chunks = reader->Get<uint64_t>();
  index->header_bytes = reader->Get<uint64_t>();
  index->chunk_bytes = reader->Get<uint64_t>();
  index->stream_bytes = reader->Get<uint64_t>();
  index->file_bytes = reader->Get<uint64_t>();
  if (reader->failed() || counts.tensors > reader->rest().size() / kTensorBytesMin ||
      counts.chunks > reader->rest().size() / kChunkEntryBytes) {
    return Damaged("cut short or an impossible count");
  }
  return counts;
}

Status CheckFixed(const ShardIndex& index, uint64_t file_bytes) {
  if (index.file_bytes != file_bytes) {
    return DataLoss("a shard file has " + std::to_string(file_bytes) + " bytes, its index says " +
                    std::to_string(index.file_bytes));
  }
  if (index.shard.value() >= kRanksMax) return Damaged("its shard number is out of range");
  if (index.header_bytes < kShardAlignment || index.header_bytes % kShardAlignment != 0 ||
      index.header_bytes > kShardHeaderBytesMax || index.header_bytes > index.stream_bytes) {
    return Damaged("impossible header size");
  }
  if (index.chunk_bytes == 0 || index.chunk_bytes > kChunkBytesMax ||
      index.chunk_bytes % kChunkBytesGranule != 0) {
    return Damaged("impossible chunk size");
  }
  return OkStatus();
}

// I2 for tensors, `begin` to stream_bytes; each one is well-formed by itself.
Status CheckTensors(const ShardIndex& index) {
  uint64_t at = index.header_bytes;
  for (size_t i = 0; i < index.tensors.size(); ++i) {
    const ShardTensor& tensor = index.tensors[i];
    const TensorMeta meta{tensor.name, tensor.dtype, tensor.placement, tensor.global_shape,
                          tensor.box};
    if (const Status bad = CheckTensor(meta); !bad.ok()) return Damaged(bad.message());
    if (i != 0 && !ShardOrderLess(index.tensors[i - 1], tensor)) {
      return Damaged("tensor '" + tensor.name + "' is out of order");
    }
    if (tensor.begin != at || tensor.end < at || tensor.end - at != tensor.Bytes()) {
      return Damaged("tensor '" + tensor.name + "' has a wrong range");
    }
    at = tensor.end;
  }
  if (at != index.stream_bytes) return Damaged("its tensors do not cover its shard");
  return OkStatus();
}

// How many chunks ComputeChunks would make, before it allocates them.
uint64_t CountChunks(const ShardIndex& index) {
  uint64_t count = 1, run = 0;
  uint32_t width = 0;
  for (const ShardTensor& tensor : index.tensors) {
    if (tensor.begin == tensor.end) continue;
    if (ElementBytes(tensor.dtype) != width) {
      count += CeilDiv(run, index.chunk_bytes);
      run = 0;
      width = ElementBytes(tensor.dtype);
    }
    run += tensor.end - tensor.begin;
  }
  return count + CeilDiv(run, index.chunk_bytes);
}

Status GetOrigins(ByteReader* reader, ShardIndex* index) {
  const auto count = reader->Get<uint32_t>();
  const auto reserved = reader->Get<uint32_t>();
  if (reader->failed() || reserved != 0 || count == 0 || count > kOriginsMax ||
      reader->rest().size() / kOriginBytesMin < count) {
    return Damaged("an impossible number of origins");
  }
  for (uint32_t i = 0; i < count; ++i) {
    Origin origin;
    const std::string_view uid = reader->GetRaw(origin.uid.size());
    std::copy(uid.begin(), uid.end(), origin.uid.begin());
    origin.id.epoch = Epoch(reader->Get<uint64_t>());
    origin.id.step = Step(reader->Get<int64_t>());
    origin.id.attempt = Attempt(reader->Get<uint32_t>());
    origin.shard = Rank(reader->Get<uint32_t>());
    origin.file_bytes = reader->Get<uint64_t>();
    origin.file = reader->GetString(kFileNameBytesMax);
    if (reader->failed() || !CheckName("file", origin.file).ok())
      return Damaged("an origin has no file");
    if (origin.uid == index->uid || origin.shard.value() >= kRanksMax ||
        origin.file_bytes > INT64_MAX || (i != 0 && !(index->origins.back().id < origin.id))) {
      return Damaged("its origins are out of order or impossible");
    }
    index->origins.push_back(origin);
  }
  return OkStatus();
}

// Where the bytes of a chunk are: `stored` is the end of the own chunks before it.
bool WellPlaced(const ShardIndex& index, const ChunkEntry& chunk, uint64_t stored) {
  const bool fits = chunk.codec == Codec::kRaw ? chunk.stored_bytes == chunk.raw_bytes()
                                               : chunk.stored_bytes < chunk.raw_bytes();
  if (!fits || chunk.stored_bytes == 0) return false;
  if (chunk.codec == Codec::kRaw && chunk.stored_check != 0) return false;
  const bool header = index.chunks.empty();
  if (header) return !chunk.referred() && chunk.codec == Codec::kRaw && chunk.stored_offset == 0;
  if (!chunk.referred()) return chunk.origin_chunk == 0 && chunk.stored_offset == stored;
  if (chunk.origin > index.origins.size() || chunk.origin_chunk == 0) return false;
  const uint64_t file_bytes = index.origins[chunk.origin - 1].file_bytes;
  return chunk.stored_bytes <= file_bytes && chunk.stored_offset <= file_bytes - chunk.stored_bytes;
}

// The entry of the chunk that is `range`; the reader has failed if it was cut short.
ChunkEntry GetChunk(ByteReader* reader, const ChunkRange& range, bool* known) {
  ChunkEntry chunk;
  chunk.begin = range.begin;
  chunk.end = range.end;
  const auto codec = reader->Get<uint8_t>();
  *known = codec <= static_cast<uint8_t>(Codec::kPlanes);
  chunk.codec = static_cast<Codec>(codec);
  chunk.origin = reader->Get<uint8_t>();
  chunk.stored_check = reader->Get<uint16_t>();
  chunk.origin_chunk = reader->Get<uint32_t>();
  if (reader->Get<uint64_t>() != chunk.raw_bytes()) reader->Fail();
  chunk.stored_offset = reader->Get<uint64_t>();
  chunk.stored_bytes = reader->Get<uint64_t>();
  const std::string_view digest = reader->GetRaw(kDigestBytes);
  std::copy(digest.begin(), digest.end(), chunk.digest.bytes.begin());
  return chunk;
}

Status GetChunks(ByteReader* reader, uint64_t count, ShardIndex* index) {
  if (CountChunks(*index) != count) return Damaged("a wrong number of chunks");
  uint64_t stored = 0;
  std::vector<bool> used(index->origins.size());
  index->chunks.reserve(count);
  for (const ChunkRange& range :
       ComputeChunks(index->tensors, index->header_bytes, index->chunk_bytes)) {
    const std::string name = "chunk " + std::to_string(index->chunks.size());
    bool known = false;
    const ChunkEntry chunk = GetChunk(reader, range, &known);
    if (!known) {
      return FailedPrecondition(name + " is stored with codec " +
                                std::to_string(static_cast<int>(chunk.codec)) +
                                ", which this release (" + std::string(kWriterVersion) +
                                ") does not know: use the release that the manifest names");
    }
    if (reader->failed() || !WellPlaced(*index, chunk, stored)) {
      return Damaged(name + " has a wrong size or place");
    }
    if (chunk.referred()) {
      used[chunk.origin - 1] = true;
    } else {
      stored += chunk.stored_bytes;
    }
    index->chunks.push_back(chunk);
  }
  if (stored != index->file_bytes) return Damaged("its chunks do not cover its file");
  if (std::find(used.begin(), used.end(), false) != used.end())
    return Damaged("it names an origin that no chunk refers to");
  return OkStatus();
}

}  // namespace

std::string ShardIndex::Encode() const {
  ByteWriter writer;
  writer.PutRaw(kMagic).Put<uint32_t>(kFormatVersion);
  writer.Put<uint32_t>(origins.empty() ? 0 : kFeatureOrigins).PutRaw(DigestText(uid));
  writer.Put<uint32_t>(shard.value())
      .Put<uint32_t>(static_cast<uint32_t>(tensors.size()))
      .Put<uint64_t>(chunks.size())
      .Put<uint64_t>(header_bytes)
      .Put<uint64_t>(chunk_bytes)
      .Put<uint64_t>(stream_bytes)
      .Put<uint64_t>(file_bytes);
  for (const ShardTensor& tensor : tensors) PutTensor(&writer, tensor);
  if (!origins.empty()) PutOrigins(&writer, origins);
  for (const ChunkEntry& chunk : chunks) PutChunk(&writer, chunk);
  writer.PutRaw(DigestText(DigestOf(AsBytes(writer.str())).bytes));
  return std::move(writer).Take();
}

Result<ShardIndex> ShardIndex::Decode(std::string_view bytes, uint64_t file_bytes) {
  if (bytes.size() < kFixedBytes + kDigestBytes || bytes.size() > kIndexBytesMax ||
      !bytes.starts_with(kMagic)) {
    return Damaged("it does not begin as one, or has an impossible size");
  }
  const std::string_view body = bytes.substr(0, bytes.size() - kDigestBytes);
  if (DigestOf(AsBytes(body)) != IndexDigest(bytes)) {
    return Damaged("its bytes do not have its digest");
  }
  ByteReader reader(body.substr(kMagic.size()));
  ShardIndex index;
  CKPT_ASSIGN_OR_RETURN(const Counts counts, GetFixed(&reader, &index));
  CKPT_RETURN_IF_ERROR(CheckFixed(index, file_bytes));
  for (uint32_t i = 0; i < counts.tensors && !reader.failed(); ++i) {
    index.tensors.push_back(GetTensor(&reader));
  }
  if (reader.failed()) return Damaged("cut short within its tensors");
  CKPT_RETURN_IF_ERROR(CheckTensors(index));
  if (counts.features & kFeatureOrigins) CKPT_RETURN_IF_ERROR(GetOrigins(&reader, &index));
  CKPT_RETURN_IF_ERROR(GetChunks(&reader, counts.chunks, &index));
  CKPT_RETURN_IF_ERROR(reader.Finish("an index"));
  return index;
}

ChunkSpan ShardIndex::ChunkOf(uint64_t begin, uint64_t end) const {
  const auto first = std::partition_point(chunks.begin(), chunks.end(),
                                          [&](const ChunkEntry& c) { return c.end <= begin; });
  const auto last =
      std::partition_point(first, chunks.end(), [&](const ChunkEntry& c) { return c.begin < end; });
  if (begin >= end || first == last) return {};
  return {static_cast<uint64_t>(first - chunks.begin()),
          static_cast<uint64_t>(last - chunks.begin())};
}

uint64_t ShardIndex::Seed(uint64_t chunk) const {
  const ChunkEntry& entry = chunks[chunk];
  if (!entry.referred()) return ChunkSeed(uid, shard.value(), chunk);
  const Origin& origin = origins[entry.origin - 1];
  return ChunkSeed(origin.uid, origin.shard.value(), entry.origin_chunk);
}

std::string ShardIndex::DescribeChunk(uint64_t chunk) const {
  if (chunk >= chunks.size()) return "chunk " + std::to_string(chunk) + " (none such)";
  constexpr int kNamesMax = 3;
  const ChunkEntry& entry = chunks[chunk];
  std::string names = chunk == 0 ? "the header" : "";
  int count = 0;
  for (const ShardTensor& tensor : tensors) {
    if (tensor.begin >= entry.end || tensor.end <= entry.begin) continue;
    if (++count <= kNamesMax) names += (names.empty() ? "'" : ", '") + tensor.name + "'";
  }
  if (count > kNamesMax) names += " and " + std::to_string(count - kNamesMax) + " more";
  const std::string stored =
      entry.referred() ? ", stored in " + origins[entry.origin - 1].id.ToString() : "";
  return "chunk " + std::to_string(chunk) + " (bytes " + std::to_string(entry.begin) + " to " +
         std::to_string(entry.end) + ": " + names + stored + ")";
}

ShardIndex MakeRawIndex(const Uid& uid, Rank shard, const ShardLayout& layout,
                        const std::vector<Digest>& digests) {
  ShardIndex index;
  index.uid = uid;
  index.shard = shard;
  index.header_bytes = layout.header.size();
  index.chunk_bytes = layout.chunk_bytes;
  index.stream_bytes = index.file_bytes = layout.stream_bytes;
  index.tensors = layout.tensors;
  for (size_t i = 0; i < layout.chunks.size(); ++i) {
    const ChunkRange& range = layout.chunks[i];
    index.chunks.push_back({Codec::kRaw, range.begin, range.end, range.begin,
                            range.end - range.begin, i < digests.size() ? digests[i] : Digest{}, 0,
                            0});
  }
  return index;
}

uint16_t StoredCheck(ByteSpan stored) {
  const Digest digest = DigestOf(stored);
  return static_cast<uint16_t>(digest.bytes[14] << 8 | digest.bytes[15]);
}

Digest IndexDigest(std::string_view encoded_index) {
  Digest digest;
  if (encoded_index.size() < kDigestBytes) return digest;
  const std::string_view tail = encoded_index.substr(encoded_index.size() - kDigestBytes);
  std::copy(tail.begin(), tail.end(), digest.bytes.begin());
  return digest;
}

}  // namespace ckpt::format
