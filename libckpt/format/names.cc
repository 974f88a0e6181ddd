#include "libckpt/format/names.h"

#include <charconv>

#include "libckpt/base/bytes.h"
#include "libckpt/base/digest.h"

namespace ckpt::format {
namespace {

constexpr std::string_view kEpochPrefix = "EPOCH.";
constexpr std::string_view kClaimSuffix = ".claim";

std::string PaddedShard(Rank writer) {
  const std::string number = std::to_string(writer.value());
  return "shard-" + std::string(number.size() < 5 ? 5 - number.size() : 0, '0') + number;
}

std::string Tagged(Rank writer, std::string_view tag) {
  return PaddedShard(writer) + (tag.empty() ? "" : "." + std::string(tag));
}

}  // namespace

std::string EpochFileName(Epoch epoch) {
  return std::string(kEpochPrefix) + std::to_string(epoch.value());
}

std::string ClaimFileName(Epoch epoch) { return EpochFileName(epoch) + std::string(kClaimSuffix); }

Result<Epoch> ParseEpochFileName(std::string_view name) {
  uint64_t number = 0;
  if (name.starts_with(kEpochPrefix)) {
    const std::string_view digits = name.substr(kEpochPrefix.size());
    std::from_chars(digits.data(), digits.data() + digits.size(), number);
    if (number != 0 && EpochFileName(Epoch(number)) == name) return Epoch(number);
  }
  return InvalidArgument("'" + std::string(name) + "' is no epoch file's name (EPOCH.<n>)");
}

Result<Epoch> ParseClaimFileName(std::string_view name) {
  if (name.ends_with(kClaimSuffix)) {
    return ParseEpochFileName(name.substr(0, name.size() - kClaimSuffix.size()));
  }
  return InvalidArgument("'" + std::string(name) + "' is no claim's name (EPOCH.<n>.claim)");
}

std::string ShardFileName(Rank writer, std::string_view tag) {
  return Tagged(writer, tag) + ".safetensors";
}
std::string IndexFileName(Rank writer, std::string_view tag) {
  return Tagged(writer, tag) + ".index";
}

Uid CheckpointUid(const JobId& job, const AttemptId& id) {
  ByteWriter writer;
  writer.PutRaw(
      std::string_view(reinterpret_cast<const char*>(job.bytes.data()), job.bytes.size()));
  writer.Put<uint64_t>(id.epoch.value())
      .Put<int64_t>(id.step.value())
      .Put<uint32_t>(id.attempt.value());
  return DigestOf(AsBytes(writer.str())).bytes;
}

std::string UidToString(const Uid& uid) { return JobId{uid}.ToString(); }

}  // namespace ckpt::format
