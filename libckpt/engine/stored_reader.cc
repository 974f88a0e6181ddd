// Opening a committed checkpoint. Only MANIFEST is read at once; a shard's index is read when a
// tensor in it is wanted. The newest one is chosen by whoever starts a job, and is held to more:
// all indexes whole, all files of their size.
#include <algorithm>

#include "libckpt/engine/reader.h"
#include "libckpt/engine/stored_files.h"
#include "libckpt/engine/stored_source.h"

namespace ckpt::engine {
namespace {

Result<std::unique_ptr<SourceReader>> Open(storage::Store* store, const AttemptId& id,
                                           const std::string& description) {
  CKPT_ASSIGN_OR_RETURN(format::Manifest read, ReadVerifiedManifest(store, id));
  const bool several = read.world() > 1;
  std::vector<format::RankLayout> layouts = std::move(read.layouts);
  std::vector<format::RankValues> values = std::move(read.values);
  const auto manifest = std::make_shared<const format::Manifest>(std::move(read));
  SourceSet sources;
  uint64_t bytes = 0;
  for (const format::ManifestOrigin& origin : manifest->origins) bytes += origin.bytes;
  for (const format::ManifestFile& file : manifest->files) {
    bytes += file.bytes;
    sources.Add(
        file.shard, [store, manifest, &file, several]() -> Result<std::unique_ptr<ChunkSource>> {
          CKPT_ASSIGN_OR_RETURN(auto source, ShardSource::Open(store, *manifest, file, several));
          return std::unique_ptr<ChunkSource>(std::move(source));
        });
  }
  return std::make_unique<SourceReader>(description, id, std::move(layouts), std::move(values),
                                        std::move(sources), bytes);
}

std::string Describe(storage::Store* store, const AttemptId& id) {
  return "checkpoint " + id.ToString() + " in " + store->Describe();
}

Result<std::unique_ptr<CheckpointReader>> OpenWhole(storage::Store* store, const AttemptId& id) {
  auto reader = Open(store, id, Describe(store, id));
  if (!reader.ok()) return std::move(reader).status().Annotate(Describe(store, id));
  CKPT_RETURN_IF_ERROR((*reader)->CheckAll());
  return std::unique_ptr<CheckpointReader>(std::move(reader).value());
}

}  // namespace

Result<std::unique_ptr<CheckpointReader>> OpenCheckpoint(storage::Store* store,
                                                         const AttemptId& id) {
  auto reader = Open(store, id, Describe(store, id));
  if (!reader.ok()) return std::move(reader).status().Annotate(Describe(store, id));
  return std::unique_ptr<CheckpointReader>(std::move(reader).value());
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
    auto reader = OpenWhole(store, info.id);
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
