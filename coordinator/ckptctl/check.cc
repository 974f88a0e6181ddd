#include "coordinator/ckptctl/check.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <map>
#include <set>
#include <utility>

#include "coordinator/ckptctl/check_index.h"
#include "libckpt/base/mutex.h"
#include "libckpt/engine/parallel.h"
#include "libckpt/engine/stored_source.h"
#include "libckpt/format/manifest.h"
#include "libckpt/format/names.h"

namespace ckpt::ckptctl {
namespace {

// What a file that cannot be used at all costs, or nothing if the error is no damage.
Result<Damage> AsDamage(const Status& status, std::string file) {
  Damage damage;
  damage.file = std::move(file);
  if (status.code() == Code::kNotFound)
    damage.what = "is missing";
  else if (status.code() == Code::kDataLoss)
    damage.what = status.message();
  else
    return Status(status).Annotate(damage.file);
  return damage;
}

// Reads all of a small file.
Result<std::string> ReadAll(storage::Store& store, const AttemptId& id, const std::string& name,
                            uint64_t bytes_max) {
  CKPT_RETURN_IF_ERROR(CheckName("file", name));
  CKPT_ASSIGN_OR_RETURN(const auto file, store.OpenFile(id, name));
  if (file->size() > bytes_max)
    return DataLoss("has " + std::to_string(file->size()) + " bytes, at most " +
                    std::to_string(bytes_max) + " are possible");
  std::string bytes(file->size(), '\0');
  CKPT_RETURN_IF_ERROR(file->Read(0, std::as_writable_bytes(std::span(bytes))));
  return bytes;
}

class Checker {
 public:
  Checker(storage::Store& store, const AttemptId& id, const CheckProgress& progress)
      : store_(store), progress_(progress) {
    report_.id = id;
  }

  Result<CheckReport> Run() {
    CKPT_RETURN_IF_ERROR(CheckRecords());
    if (manifest_) {
      for (const format::ManifestFile& entry : manifest_->files) total_bytes_ += entry.bytes;
      for (const format::ManifestOrigin& origin : manifest_->origins) total_bytes_ += origin.bytes;
      for (const format::ManifestFile& entry : manifest_->files)
        CKPT_RETURN_IF_ERROR(CheckShard(entry));
    } else {
      CKPT_RETURN_IF_ERROR(CheckShardsWithoutManifest());
    }
    return std::move(report_);
  }

 private:
  // COMMIT and MANIFEST. A manifest that is whole by itself is used even if COMMIT is not.
  Status CheckRecords() {
    const Result<storage::CommitRecord> commit = store_.ReadCommit(report_.id);
    if (!commit.ok()) {
      CKPT_ASSIGN_OR_RETURN(Damage damage,
                            AsDamage(commit.status(), std::string(format::kCommitFile)));
      if (commit.status().code() == Code::kNotFound)
        damage.what = "is missing: the checkpoint is not committed";
      report_.damage.push_back(std::move(damage));
    }
    const Result<std::string> bytes = store_.ReadManifest(report_.id);
    const std::string name(format::kManifestFile);
    if (!bytes.ok()) {
      CKPT_ASSIGN_OR_RETURN(Damage damage, AsDamage(bytes.status(), name));
      report_.damage.push_back(std::move(damage));
      return OkStatus();
    }
    report_.bytes += bytes->size();
    Result<format::Manifest> manifest = format::Manifest::Decode(*bytes);
    if (!manifest.ok() && manifest.status().code() == Code::kFailedPrecondition)
      return std::move(manifest).status();
    const bool differs = commit.ok() && format::ManifestDigest(*bytes) != commit->manifest_digest;
    if (differs || !manifest.ok()) {
      Damage damage{name, std::nullopt, std::nullopt, 0, bytes->size()};
      damage.what = manifest.ok() ? "is not the one that COMMIT names"
                                  : "does not have its digest (" + manifest.status().message() +
                                        "); it describes all tensors";
      manifest_damage_ = report_.damage.size();
      report_.damage.push_back(std::move(damage));
    }
    if (manifest.ok() && !differs) manifest_ = std::move(manifest).value();
    return OkStatus();
  }

  // Each index knows its own digest, so the data can be checked without MANIFEST.
  Status CheckShardsWithoutManifest() {
    constexpr uint32_t kGapMax = 64;  // ranks that write nothing have no shard
    std::set<std::string> names;
    for (uint32_t rank = 0, gap = 0; gap < kGapMax; ++rank, ++gap) {
      format::ManifestFile entry;
      entry.shard = Rank(rank);
      entry.name = format::ShardFileName(entry.shard);
      entry.index_name = format::IndexFileName(entry.shard);
      const Result<std::string> bytes =
          ReadAll(store_, report_.id, entry.index_name, kIndexBytesMax);
      if (!bytes.ok()) continue;
      gap = 0;
      entry.index_bytes = bytes->size();
      entry.index_digest = format::IndexDigest(*bytes);
      const auto file = store_.OpenFile(report_.id, entry.name);
      entry.bytes = file.ok() ? (*file)->size() : 0;
      CKPT_RETURN_IF_ERROR(CheckShard(entry));
      const auto index = format::ShardIndex::Decode(*bytes, entry.bytes);
      if (!index.ok()) continue;
      for (const format::ShardTensor& tensor : index->tensors) names.insert(tensor.name);
    }
    if (manifest_damage_) report_.damage[*manifest_damage_].tensors = {names.begin(), names.end()};
    return OkStatus();
  }

  Status CheckShard(const format::ManifestFile& entry) {
    ++report_.shards;
    auto opened = store_.OpenFile(report_.id, entry.name);
    if (!opened.ok()) {
      CKPT_ASSIGN_OR_RETURN(Damage damage, AsDamage(opened.status(), entry.name));
      damage.shard = entry.shard.value();
      damage.tensors = TensorsOfRank(entry.shard);
      report_.damage.push_back(std::move(damage));
      return OkStatus();
    }
    const std::shared_ptr<const storage::FileReader> file = std::move(opened).value();
    if (file->size() != entry.bytes) {
      AddSize(entry.name, entry.shard, file->size(), entry.bytes);
      if (file->size() < entry.bytes) return OkStatus();
    }
    CKPT_ASSIGN_OR_RETURN(const std::optional<format::ShardIndex> index, IndexOf(entry, *file));
    return index ? CheckChunks(entry, *index, file) : OkStatus();
  }

  // Nothing if the index is damaged beyond use; what was wrong is reported.
  Result<std::optional<format::ShardIndex>> IndexOf(const format::ManifestFile& entry,
                                                    const storage::FileReader& file) {
    std::optional<format::ShardIndex> none;
    const Result<std::string> bytes = ReadAll(store_, report_.id, entry.index_name, kIndexBytesMax);
    std::string have;
    if (bytes.ok()) have = *bytes;
    report_.bytes += have.size();
    if (bytes.ok() && format::IndexDigest(have) == entry.index_digest) {
      Result<format::ShardIndex> index = format::ShardIndex::Decode(have, entry.bytes);
      if (index.ok() && (!manifest_ || index->uid == manifest_->uid()))
        return std::optional(std::move(index).value());
      if (!index.ok() && index.status().code() == Code::kFailedPrecondition)
        return std::move(index).status();
    }
    Damage damage;
    if (!bytes.ok()) {
      CKPT_ASSIGN_OR_RETURN(damage, AsDamage(bytes.status(), entry.index_name));
    }
    damage.file = entry.index_name;
    damage.shard = entry.shard.value();
    damage.end = have.size();
    if (damage.what.empty()) damage.what = "does not have the digest that MANIFEST names";
    const auto rebuilt =
        manifest_ ? RebuildIndex(*manifest_, entry, file, have) : std::optional<RebuiltIndex>();
    if (rebuilt) {
      Localize(*rebuilt, have, &damage);
      damage.what += "; the shard's data are whole";
    } else {
      damage.tensors = HeaderTensors(file);
      damage.what += "; the shard's chunks cannot be checked without it";
    }
    report_.damage.push_back(std::move(damage));
    return rebuilt ? std::optional(rebuilt->index) : none;
  }

  // What is wrong with a chunk, empty if nothing is; or an error that is no damage.
  using CheckOne = std::function<Result<std::string>(uint64_t chunk, engine::ChunkScratch*)>;
  using BeginOne = std::function<void(uint64_t chunk, engine::ChunkScratch*)>;

  Status CheckChunks(const format::ManifestFile& entry, const format::ShardIndex& index,
                     const std::shared_ptr<const storage::FileReader>& file) {
    const bool plain =
        std::all_of(index.chunks.begin(), index.chunks.end(), [](const format::ChunkEntry& chunk) {
          return chunk.codec == format::Codec::kRaw && !chunk.referred();
        });
    if (!plain) return CheckStoredChunks(entry, index);
    const auto begin = [&](uint64_t chunk, engine::ChunkScratch* scratch) {
      const format::ChunkEntry& at = index.chunks[chunk];
      const auto fetch = file->StartFetch(at.stored_offset, at.stored_bytes, storage::Reuse::kOnce,
                                          &scratch->stored);
      if (fetch.ok()) scratch->begun = {file, chunk, *fetch};
    };
    const auto check = [&](uint64_t chunk, engine::ChunkScratch* scratch) -> Result<std::string> {
      const format::ChunkEntry& at = index.chunks[chunk];
      const auto begun = std::exchange(scratch->begun, std::nullopt);
      const auto bytes = begun ? file->AwaitFetch(begun->fetch)
                               : file->Fetch(at.stored_offset, at.stored_bytes,
                                             storage::Reuse::kOnce, &scratch->stored);
      if (!bytes.ok()) return bytes.status().message();
      const bool whole = DigestOf(*bytes, index.Seed(chunk)) == at.digest;
      return std::string(whole ? "" : "does not have its digest");
    };
    const size_t before = report_.damage.size();
    CKPT_RETURN_IF_ERROR(CheckEach(entry, index, file->depth(), begin, check));
    if (report_.damage.size() == before || report_.damage[before].chunk != 0) return OkStatus();
    std::string header(index.chunks[0].stored_bytes, '\0');
    if (file->Read(0, std::as_writable_bytes(std::span(header))).ok())
      LocalizeHeader(index, header, &report_.damage[before]);
    return OkStatus();
  }

  // Of a shard that is compressed, or refers to older checkpoints.
  Status CheckStoredChunks(const format::ManifestFile& entry, const format::ShardIndex& index) {
    const auto source = engine::ShardSource::OpenWith(&store_, report_.id, entry.name, index,
                                                      /*several=*/false);
    if (!source.ok()) {
      CKPT_ASSIGN_OR_RETURN(Damage damage, AsDamage(source.status(), entry.name));
      damage.shard = entry.shard.value();
      damage.tensors = TensorsOfRank(entry.shard);
      report_.damage.push_back(std::move(damage));
      return OkStatus();
    }
    const auto begin = [&](uint64_t chunk, engine::ChunkScratch* scratch) {
      (*source)->Prefetch(chunk, scratch);
    };
    const auto check = [&](uint64_t chunk, engine::ChunkScratch* scratch) -> Result<std::string> {
      const auto bytes = (*source)->FetchBoth(chunk, /*verify=*/true, scratch);
      if (bytes.ok()) return std::string();
      if (bytes.status().code() != Code::kDataLoss) return bytes.status();
      return bytes.status().message();
    };
    return CheckEach(entry, index, (*source)->depth(), begin, check);
  }

  // Every chunk, several at once; damage is added in their order.
  Status CheckEach(const format::ManifestFile& entry, const format::ShardIndex& index,
                   uint32_t depth, const BeginOne& begin, const CheckOne& check) {
    constexpr uint32_t kPool = 8;  // where each thread waits for the disk itself
    const uint32_t threads = depth > 1 ? engine::kThreadsBesideQueue : kPool;
    const uint32_t ahead = engine::ReadsAhead(depth, threads);
    std::deque<engine::ChunkScratch> scratch(engine::AheadSlots(ahead));
    Mutex mutex;
    std::map<uint64_t, std::string> wrong;
    CKPT_RETURN_IF_ERROR(engine::ParallelAhead(
        index.chunks.size(), threads, ahead,
        [&](uint64_t chunk, uint32_t slot) { begin(chunk, &scratch[slot]); },
        [&](uint64_t chunk, uint32_t slot) -> Status {
          CKPT_ASSIGN_OR_RETURN(std::string what, check(chunk, &scratch[slot]));
          Progress(index.chunks[chunk].stored_bytes);
          MutexLock lock(mutex);
          if (!what.empty()) wrong.emplace(chunk, std::move(what));
          return OkStatus();
        }));
    report_.chunks += index.chunks.size();
    for (const format::ChunkEntry& at : index.chunks) report_.bytes += at.stored_bytes;
    for (const auto& [chunk, what] : wrong) {
      const format::ChunkEntry& at = index.chunks[chunk];
      Damage damage{entry.name, entry.shard.value(), chunk, at.stored_offset,
                    at.stored_offset + at.stored_bytes};
      damage.tensors = TensorsOfChunk(index, chunk);
      damage.what = what;
      report_.damage.push_back(std::move(damage));
    }
    return OkStatus();
  }

  void Progress(uint64_t bytes) {
    const uint64_t done = done_bytes_.fetch_add(bytes) + bytes;
    if (progress_ && total_bytes_ > 0) progress_(done, std::max(done, total_bytes_));
  }

  void AddSize(const std::string& name, Rank shard, uint64_t have, uint64_t want) {
    Damage damage{name, shard.value(), std::nullopt, std::min(have, want), std::max(have, want)};
    damage.tensors = TensorsOfRank(shard);
    damage.what = "has " + std::to_string(have) + " bytes instead of " + std::to_string(want);
    report_.damage.push_back(std::move(damage));
  }

  std::vector<std::string> TensorsOfRank(Rank shard) const {
    std::vector<std::string> names;
    if (!manifest_ || shard.value() >= manifest_->layouts.size()) return names;
    for (const format::TensorMeta& tensor : manifest_->layouts[shard.value()].tensors)
      names.push_back(tensor.name);
    return names;
  }

  storage::Store& store_;
  const CheckProgress& progress_;
  uint64_t total_bytes_ = 0;  // 0 not known
  std::atomic<uint64_t> done_bytes_{0};
  CheckReport report_;
  std::optional<format::Manifest> manifest_;
  std::optional<size_t> manifest_damage_;  // its place in report_.damage
};

std::string NamesText(const std::vector<std::string>& names) {
  constexpr size_t kMax = 4;
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kMax); ++i)
    text += (i == 0 ? "'" : ", '") + names[i] + "'";
  if (names.size() > kMax) text += " and " + std::to_string(names.size() - kMax) + " more";
  return text;
}

}  // namespace

std::string Damage::ToString() const {
  std::string text = file;
  if (shard) text += ", shard " + std::to_string(*shard);
  if (chunk) text += ", chunk " + std::to_string(*chunk);
  if (end > begin) text += ", bytes " + std::to_string(begin) + " to " + std::to_string(end);
  if (!tensors.empty())
    text += (tensors.size() == 1 ? ", tensor " : ", tensors ") + NamesText(tensors);
  return text + ": " + what;
}

Result<CheckReport> CheckCheckpoint(storage::Store& store, const AttemptId& id,
                                    const CheckProgress& progress) {
  return Checker(store, id, progress).Run();
}

}  // namespace ckpt::ckptctl
