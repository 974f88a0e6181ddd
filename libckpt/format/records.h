// The small files that decide what is visible: JOB, EPOCH.n.claim, EPOCH.n, COMMIT, DRAINING,
// ORIGINS. Each
// is one line of canonical JSON that carries its kind, its job and its own digest, so that a torn,
// misplaced or foreign one is never taken for a real one. Encode writes '?' for the bytes of a text
// that is not UTF-8.
//
// Decode errors, all of them: kDataLoss for damage or another kind, kFailedPrecondition for a newer
// format version. What a record must match (job, epoch, attempt) is the caller's to compare.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "libckpt/base/digest.h"
#include "libckpt/base/ids.h"
#include "libckpt/base/limits.h"
#include "libckpt/base/status.h"

namespace ckpt::format {

inline constexpr uint64_t kRecordBytesMax = uint64_t{16} << 20;

// JOB.
struct JobFile {
  JobId job;
  bool operator==(const JobFile&) const = default;
  std::string Encode() const;
  static Result<JobFile> Decode(std::string_view bytes);
};

// EPOCH.n.claim. `claimant` is random for each try, so that one's own claim is known again.
struct ClaimFile {
  JobId job;
  Epoch epoch;
  std::string claimant;  // UTF-8
  bool operator==(const ClaimFile&) const = default;
  std::string Encode() const;
  static Result<ClaimFile> Decode(std::string_view bytes);
};

// EPOCH.n: what this epoch sees of older ones. `adopted` is in rising order without equals (Encode
// sorts). `shape` describes the launch for people ("4 ranks on 2 nodes"); UTF-8, may be empty.
struct EpochFile {
  JobId job;
  Epoch epoch;
  std::vector<AttemptId> adopted;
  std::string shape;
  bool operator==(const EpochFile&) const = default;
  std::string Encode() const;
  static Result<EpochFile> Decode(std::string_view bytes);
};

// COMMIT.
struct CommitFile {
  JobId job;
  AttemptId id;
  Digest manifest_digest;   // ManifestDigest()
  Epoch epoch;              // of the committer
  std::string coordinator;  // managed mode: the coordinator's record, any bytes
  bool operator==(const CommitFile&) const = default;
  std::string Encode() const;
  static Result<CommitFile> Decode(std::string_view bytes);
};

// ORIGINS: the checkpoints that an attempt may refer to, named before it does. `base` is the one it
// was compared with. In rising order without equals (Encode sorts), `base` among them.
struct OriginsFile {
  JobId job;
  AttemptId id;
  AttemptId base;
  std::vector<AttemptId> origins;
  bool operator==(const OriginsFile&) const = default;
  std::string Encode() const;
  static Result<OriginsFile> Decode(std::string_view bytes);
};

// DRAINING.
struct DrainingFile {
  JobId job;
  AttemptId id;
  bool operator==(const DrainingFile&) const = default;
  std::string Encode() const;
  static Result<DrainingFile> Decode(std::string_view bytes);
};

}  // namespace ckpt::format
