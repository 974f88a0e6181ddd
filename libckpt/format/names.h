// Names of a job's files and directories (docs/format/v1.md, "Directory layout"), and the id of a
// checkpoint.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "libckpt/base/ids.h"
#include "libckpt/base/status.h"
#include "libckpt/base/version.h"

namespace ckpt::format {

inline constexpr uint32_t kFormatVersion = 1;
inline constexpr std::string_view kWriterVersion = kVersion;

// In the job's directory.
inline constexpr std::string_view kJobFile = "JOB";
std::string EpochFileName(Epoch epoch);  // "EPOCH.7"
std::string ClaimFileName(Epoch epoch);  // "EPOCH.7.claim"
// The epoch of exactly such a name ("EPOCH.7"; "EPOCH.7.claim"), else kInvalidArgument.
Result<Epoch> ParseEpochFileName(std::string_view name);
Result<Epoch> ParseClaimFileName(std::string_view name);

// In a checkpoint's directory, whose own name is AttemptId::ToString().
inline constexpr std::string_view kManifestFile = "MANIFEST";
inline constexpr std::string_view kCommitFile = "COMMIT";
inline constexpr std::string_view kDrainingFile = "DRAINING";
inline constexpr std::string_view kOriginsFile = "ORIGINS";
inline constexpr std::string_view kPinnedFile = "PINNED";  // put there by people; any content
// "shard-00003.safetensors", "shard-00003.index"; with a tag "shard-00003.<tag>.safetensors":
// written by another process than the attempt's own.
std::string ShardFileName(Rank writer, std::string_view tag = "");
std::string IndexFileName(Rank writer, std::string_view tag = "");

// Identifies a checkpoint in chunk seeds and references: XXH3-128 over job id ‖ epoch u64 LE ‖
// step i64 LE ‖ attempt u32 LE.
using Uid = std::array<uint8_t, 16>;
Uid CheckpointUid(const JobId& job, const AttemptId& id);
std::string UidToString(const Uid& uid);  // 32 hex digits

}  // namespace ckpt::format
