#include "libckpt/engine/reader.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <map>
#include <set>

#include "libckpt/base/fault.h"
#include "libckpt/base/mutex.h"
#include "libckpt/engine/parallel.h"
#include "libckpt/engine/placer.h"

namespace ckpt::engine {
namespace {

constexpr size_t kDamageShownMax = 64;

// What is missing is damaged.
bool IsDamage(const Status& status) {
  return status.code() == Code::kDataLoss || status.code() == Code::kNotFound;
}

// Damage found by several threads, reported in order of shard and chunk.
class DamageList {
 public:
  void Add(uint64_t order, std::string message) {
    MutexLock lock(mutex_);
    found_.emplace(order, std::move(message));
  }
  Status ToStatus() {
    MutexLock lock(mutex_);
    if (found_.empty()) return OkStatus();
    std::string text;
    size_t shown = 0;
    for (const auto& [order, message] : found_) {
      if (++shown > kDamageShownMax) break;
      text += (text.empty() ? "" : "\n") + message;
    }
    if (found_.size() > kDamageShownMax) {
      text += "\nand " + std::to_string(found_.size() - kDamageShownMax) + " more";
    }
    return DataLoss(text);
  }

 private:
  Mutex mutex_;
  std::map<uint64_t, std::string> found_ CKPT_GUARDED_BY(mutex_);
};

template <typename Item>
Status AddShared(const std::vector<Item>& items, bool own, bool known, Rank from,
                 std::set<std::string>* names, std::vector<Item>* out) {
  for (const Item& item : items) {
    if (!own && item.scope == format::Scope::kPerRank) {
      if (known) continue;
      return FailedPrecondition("'" + item.name + "' is per rank (rank " +
                                std::to_string(from.value()) +
                                " has one), and this checkpoint has no such rank");
    }
    if (names->insert(item.name).second) out->push_back(item);
  }
  return OkStatus();
}

}  // namespace

Result<format::RankValues> ValuesOf(const std::vector<format::RankValues>& values, Rank rank) {
  format::RankValues out;
  std::set<std::string> value_names, blob_names;
  const bool known = rank.value() < values.size();
  const auto add = [&](uint32_t r, bool own) -> Status {
    CKPT_RETURN_IF_ERROR(
        AddShared(values[r].values, own, known, Rank(r), &value_names, &out.values));
    return AddShared(values[r].blobs, own, known, Rank(r), &blob_names, &out.blobs);
  };
  if (known) CKPT_RETURN_IF_ERROR(add(rank.value(), true));
  for (uint32_t r = 0; r < values.size(); ++r) CKPT_RETURN_IF_ERROR(add(r, false));
  return out;
}

SourceReader::SourceReader(std::string description, AttemptId id,
                           std::vector<format::RankLayout> layouts,
                           std::vector<format::RankValues> values, SourceSet sources,
                           uint64_t verify_bytes)
    : description_(std::move(description)),
      id_(id),
      layouts_(std::move(layouts)),
      values_(std::move(values)),
      sources_(std::move(sources)),
      verify_bytes_(verify_bytes),
      catalog_(layouts_, sources_) {}

Result<format::RankValues> SourceReader::Values(Rank rank) const {
  auto values = ValuesOf(values_, rank);
  if (!values.ok()) return std::move(values).status().Annotate(description_);
  return values;
}

Status SourceReader::Load(Rank rank, const std::vector<LiveTensor>& targets,
                          const LoadOptions& options) {
  auto wanted = catalog_.Match(rank, targets, options);
  if (!wanted.ok()) return std::move(wanted).status().Annotate(description_);
  return Place(catalog_, sources_, rank, wanted.value(), options).Annotate(description_);
}

namespace {

// Checks all chunks of one source; damage goes to `damage`, numbered from `order` on.
Status VerifySource(const ChunkSource& source, uint64_t order, const LoadOptions& options,
                    const std::function<void(uint64_t)>& progress, DamageList* damage) {
  struct Scratch {
    ChunkScratch bytes;
    std::vector<ByteSpan> spans;
  };
  const uint32_t threads = options.threads != 0 ? options.threads : source.readers();
  const uint32_t ahead = ReadsAhead(source.depth(), threads);
  std::deque<Scratch> scratch(AheadSlots(ahead));
  return ParallelAhead(
      source.chunks().size(), threads, ahead,
      [&](uint64_t c, uint32_t slot) { source.Prefetch(c, &scratch[slot].bytes); },
      [&](uint64_t c, uint32_t slot) -> Status {
        Scratch& mine = scratch[slot];
        Status status = source.Fetch(c, /*verify=*/true, &mine.bytes, &mine.spans);
        if (status.ok()) status = source.Inspect(c, mine.spans);
        if (!status.ok() && !IsDamage(status)) return status;
        if (!status.ok()) damage->Add(order + c, status.message());
        progress(source.chunks()[c].end - source.chunks()[c].begin);
        return OkStatus();
      });
}

}  // namespace

// Shard by shard: neither their indexes nor their descriptors are all held at once.
Status SourceReader::Verify(const LoadOptions& options) {
  CKPT_FAULT("engine.verify.begin");
  DamageList damage;
  uint64_t order = 0;
  std::atomic<uint64_t> done{0};
  const auto progress = [&](uint64_t bytes) {
    const uint64_t now = done.fetch_add(bytes) + bytes;
    if (options.progress) options.progress(now, std::max(now, verify_bytes_));
  };
  for (uint32_t s = 0; s < sources_.size(); ++s) {
    const auto source = sources_.Borrow(s);
    if (!source.ok()) {
      if (!IsDamage(source.status())) return Status(source.status()).Annotate(description_);
      damage.Add(order++, source.status().message());
      continue;
    }
    CKPT_RETURN_IF_ERROR(
        VerifySource(**source, order, options, progress, &damage).Annotate(description_));
    order += (*source)->chunks().size();
  }
  return damage.ToStatus().Annotate(description_);
}

}  // namespace ckpt::engine
