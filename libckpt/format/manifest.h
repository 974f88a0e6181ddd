// MANIFEST: what a checkpoint is: who wrote it, how every rank holds its tensors, which files hold
// them, and all values. Canonical JSON with its own digest; docs/format/v1.md is normative.
//
// Slices are not listed: a reader finds them in the indexes. What is equal on many ranks is stored
// once (tensors, boxes, orders, values), so that a replicated job's manifest does not grow with its
// ranks.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "libckpt/base/digest.h"
#include "libckpt/base/ids.h"
#include "libckpt/base/limits.h"
#include "libckpt/format/names.h"
#include "libckpt/format/types.h"

namespace ckpt::format {

enum class CommitMode : uint8_t { kStandalone = 0, kManaged = 1 };

struct ManifestFile {
  Rank shard;  // the rank that wrote it
  std::string name;
  uint64_t bytes = 0;
  std::string index_name;
  uint64_t index_bytes = 0;
  Digest index_digest;  // IndexDigest()
  bool operator==(const ManifestFile&) const = default;
};

// An older checkpoint of the job that holds bytes of this one.
struct ManifestOrigin {
  AttemptId id;
  uint64_t bytes = 0;  // stored there and referred to by this one
  bool operator==(const ManifestOrigin&) const = default;
};
inline constexpr size_t kManifestOriginsMax = 64;

struct Manifest {
  JobId job;
  AttemptId id;
  CommitMode mode = CommitMode::kStandalone;
  std::string writer{kWriterVersion};   // release that wrote it
  std::vector<RankLayout> layouts;      // by rank; their number is the world
  std::vector<RankValues> values;       // by rank, as many
  std::vector<ManifestFile> files;      // by shard; ranks that write nothing have none
  std::vector<ManifestOrigin> origins;  // by rising id: the union over all shards
  bool operator==(const Manifest&) const = default;

  Uid uid() const { return CheckpointUid(job, id); }
  uint32_t world() const { return static_cast<uint32_t>(layouts.size()); }

  // Errors: kInvalidArgument, naming the thing, for what Decode would refuse (a bad tensor or
  // value, a shared value that differs between ranks, …); kResourceExhausted beyond
  // kManifestBytesMax.
  Result<std::string> Encode() const;
  // Strict: canonical spelling, own digest, no duplicates, bounded depth and size. Unknown keys are
  // ignored; unknown required features are kFailedPrecondition naming the release that knows them.
  // Other damage is kDataLoss.
  static Result<Manifest> Decode(std::string_view bytes);
};

// What COMMIT holds: XXH3-128 over all bytes of the MANIFEST file.
Digest ManifestDigest(std::string_view manifest);

}  // namespace ckpt::format
