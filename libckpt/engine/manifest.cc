#include "libckpt/format/manifest.h"

#include <map>

#include "libckpt/base/fault.h"
#include "libckpt/engine/engine.h"

namespace ckpt::engine {
namespace {

// Version 2 has origins behind it; without any, a leader of an older release reads version 1.
constexpr uint32_t kReportVersion = 1;
constexpr uint32_t kReportVersionOrigins = 2;

Digest GetDigest(ByteReader* reader) {
  Digest digest;
  const std::string_view raw = reader->GetRaw(digest.bytes.size());
  if (!raw.empty()) std::memcpy(digest.bytes.data(), raw.data(), raw.size());
  return digest;
}

std::string_view DigestBytes(const Digest& digest) {
  return AsText(std::as_bytes(std::span(digest.bytes)));
}

Status Conflict(std::string_view kind, const std::string& name, Rank first, Rank second) {
  return FailedPrecondition(
      std::string(kind) + " '" + name + "' differs between rank " + std::to_string(first.value()) +
      " and rank " + std::to_string(second.value()) + "; make them equal, or declare it per rank");
}

Status CompareClaims(const std::vector<ShardReport>& shards) {
  std::map<std::string, std::pair<Rank, Digest>> first;
  for (const ShardReport& shard : shards) {
    for (const auto& [name, digest] : shard.claims) {
      const auto [it, inserted] = first.try_emplace(name, shard.rank, digest);
      if (!inserted && it->second.second != digest) {
        return Conflict("un-sharded tensor", name, it->second.first, shard.rank);
      }
    }
  }
  return OkStatus();
}

std::vector<format::ManifestOrigin> UnionOfOrigins(const std::vector<ShardReport>& shards) {
  std::map<AttemptId, uint64_t> bytes;
  for (const ShardReport& shard : shards) {
    for (const format::ManifestOrigin& origin : shard.origins) bytes[origin.id] += origin.bytes;
  }
  std::vector<format::ManifestOrigin> origins;
  for (const auto& [id, sum] : bytes) origins.push_back({id, sum});
  return origins;
}

// Shared values and blobs: whoever has one of a name has the same.
Status CompareValues(const std::vector<format::RankValues>& ranks) {
  std::map<std::string, std::pair<Rank, const format::NamedValue*>> values;
  std::map<std::string, std::pair<Rank, const format::NamedBlob*>> blobs;
  for (uint32_t r = 0; r < ranks.size(); ++r) {
    for (const format::NamedValue& value : ranks[r].values) {
      const auto [it, inserted] = values.try_emplace(value.name, Rank(r), &value);
      const format::NamedValue& other = *it->second.second;
      if (inserted || (value.scope == format::Scope::kPerRank && other.scope == value.scope))
        continue;
      if (!(other == value)) return Conflict("value", value.name, it->second.first, Rank(r));
    }
    for (const format::NamedBlob& blob : ranks[r].blobs) {
      const auto [it, inserted] = blobs.try_emplace(blob.name, Rank(r), &blob);
      const format::NamedBlob& other = *it->second.second;
      if (inserted || (blob.scope == format::Scope::kPerRank && other.scope == blob.scope))
        continue;
      if (!(other == blob)) return Conflict("blob", blob.name, it->second.first, Rank(r));
    }
  }
  return OkStatus();
}

}  // namespace

std::string ShardReport::Encode() const {
  ByteWriter writer;
  writer.Put<uint32_t>(origins.empty() ? kReportVersion : kReportVersionOrigins)
      .Put<uint32_t>(rank.value());
  writer.PutString(file).PutString(index_file);
  writer.Put<uint64_t>(file_bytes).Put<uint64_t>(index_bytes);
  writer.PutRaw(DigestBytes(index_digest)).Put<uint64_t>(raw_bytes);
  writer.PutString(values);
  writer.Put<uint32_t>(static_cast<uint32_t>(claims.size()));
  for (const auto& [name, digest] : claims) writer.PutString(name).PutRaw(DigestBytes(digest));
  if (!origins.empty()) writer.Put<uint32_t>(static_cast<uint32_t>(origins.size()));
  for (const format::ManifestOrigin& origin : origins)
    writer.PutString(origin.id.ToString()).Put<uint64_t>(origin.bytes);
  return std::move(writer).Take();
}

Result<ShardReport> ShardReport::Decode(std::string_view bytes) {
  ByteReader reader(bytes);
  ShardReport report;
  const uint32_t version = reader.Get<uint32_t>();
  report.rank = Rank(reader.Get<uint32_t>());
  report.file = reader.GetString(128);
  report.index_file = reader.GetString(128);
  report.file_bytes = reader.Get<uint64_t>();
  report.index_bytes = reader.Get<uint64_t>();
  report.index_digest = GetDigest(&reader);
  report.raw_bytes = reader.Get<uint64_t>();
  report.values = reader.GetString(2 * kValueBytesMax);
  const uint32_t count = reader.GetCount(20);
  for (uint32_t i = 0; i < count && !reader.failed(); ++i) {
    std::string name(reader.GetString(kTensorNameBytesMax));
    report.claims.emplace_back(std::move(name), GetDigest(&reader));
  }
  if (version != kReportVersion && version != kReportVersionOrigins)
    return DataLoss("shard report of version " + std::to_string(version));
  const uint32_t origins = version == kReportVersionOrigins ? reader.GetCount(12) : 0;
  for (uint32_t i = 0; i < origins && !reader.failed(); ++i) {
    CKPT_ASSIGN_OR_RETURN(const AttemptId id, AttemptId::Parse(reader.GetString(128)));
    report.origins.push_back({id, reader.Get<uint64_t>()});
  }
  CKPT_RETURN_IF_ERROR(reader.Finish("shard report"));
  return report;
}

Result<std::string> BuildManifest(const JobId& job, const AttemptId& id,
                                  const std::vector<format::RankLayout>& layouts,
                                  const std::vector<ShardReport>& shards, bool managed) {
  CKPT_FAULT("engine.manifest.build");
  if (shards.size() != layouts.size()) {
    return InvalidArgument(id.ToString() + ": " + std::to_string(shards.size()) +
                           " shard reports for " + std::to_string(layouts.size()) + " ranks");
  }
  format::Manifest manifest;
  manifest.job = job;
  manifest.id = id;
  manifest.mode = managed ? format::CommitMode::kManaged : format::CommitMode::kStandalone;
  manifest.layouts = layouts;
  for (uint32_t r = 0; r < shards.size(); ++r) {
    const ShardReport& shard = shards[r];
    if (shard.rank != Rank(r)) {
      return InvalidArgument(id.ToString() + ": shard report " + std::to_string(r) +
                             " is of rank " + std::to_string(shard.rank.value()));
    }
    CKPT_ASSIGN_OR_RETURN(auto values, format::RankValues::Decode(shard.values));
    manifest.values.push_back(std::move(values));
    if (shard.file.empty()) continue;
    manifest.files.push_back({shard.rank, shard.file, shard.file_bytes, shard.index_file,
                              shard.index_bytes, shard.index_digest});
  }
  manifest.origins = UnionOfOrigins(shards);
  CKPT_RETURN_IF_ERROR(CompareClaims(shards));
  CKPT_RETURN_IF_ERROR(CompareValues(manifest.values));
  return manifest.Encode();
}

}  // namespace ckpt::engine
