#include "libckpt/engine/placer.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <optional>

#include "libckpt/base/digest.h"
#include "libckpt/base/fault.h"
#include "libckpt/engine/live.h"
#include "libckpt/engine/parallel.h"

namespace ckpt::engine {
namespace {

// What a device may take for the copies of one chunk, beyond all reason.
constexpr auto kDeviceWaitMax = std::chrono::minutes(5);
// Copied, then digested while it is still in the core's cache. A multiple of every element.
constexpr uint64_t kDigestedBytes = uint64_t{128} << 10;

// The part of one stored box that goes to one target. View a: the stored box, row-major.
struct Placing {
  const LiveTensor* target;
  bool on_host;
  uint64_t stream_begin, stream_end;  // of the stored box
  uint32_t element_bytes;
  StridedCopy copy;

  // Elements of `copy` that lie in [begin, end) of the stream.
  std::pair<uint64_t, uint64_t> ElementsIn(uint64_t begin, uint64_t end) const {
    begin = std::max(begin, stream_begin);
    end = std::min(end, stream_end);
    if (begin >= end) return {0, 0};
    const auto first = static_cast<int64_t>((begin - stream_begin) / element_bytes);
    const auto last = static_cast<int64_t>((end - stream_begin) / element_bytes);
    return {copy.LowerBoundInA(first), copy.LowerBoundInA(last)};
  }
};

struct ChunkTask {
  uint32_t source = 0;
  uint64_t chunk = 0;
  std::vector<uint32_t> placings;
};

// Copies to device memory, one stream for each device that a thread meets.
class DeviceWriter {
 public:
  // Nothing may read the scratch memory once this is gone, also after an error.
  ~DeviceWriter() {
    for (const StreamUse& use : streams_) {
      DrainStream(use, Deadline("draining device copies", kDeviceWaitMax));
      use.device->DestroyStream(use.stream).IgnoreError();
    }
  }

  Status Copy(const Placing& placing, const Block& block, const std::byte* from) {
    device::Device* device = placing.target->device;
    CKPT_ASSIGN_OR_RETURN(const device::StreamHandle stream, StreamOn(device));
    auto* to = static_cast<std::byte*>(placing.target->data);
    return ForEachDeviceCopy(
        block, placing.element_bytes, /*device_is_a=*/false,
        [&](int64_t device_at, int64_t host_at, const device::CopyShape& shape) {
          return device->CopyToDevice(stream, to + device_at, from + host_at, shape);
        });
  }

  // The scratch memory may be used again after this.
  Status Drain() {
    const Deadline deadline("copying to the device", kDeviceWaitMax);
    for (const StreamUse& use : streams_) CKPT_RETURN_IF_ERROR(AwaitStream(use, deadline));
    return OkStatus();
  }

 private:
  Result<device::StreamHandle> StreamOn(device::Device* device) {
    for (const StreamUse& use : streams_) {
      if (use.device == device) return use.stream;
    }
    CKPT_ASSIGN_OR_RETURN(const device::StreamHandle stream, device->CreateStream());
    streams_.push_back({device, stream});
    return stream;
  }

  std::vector<StreamUse> streams_;
};

struct ThreadState {
  ChunkScratch scratch;
  std::vector<ByteSpan> spans;
  DeviceWriter device_writer;
};

class Loader {
 public:
  Loader(const SourceSet& sources, const LoadOptions& options)
      : set_(sources), sources_(sources.size()), options_(options) {}

  Status Add(const StoredBox& stored, const LiveTensor& target) {
    const format::ShardTensor& meta = *stored.meta;
    CKPT_ASSIGN_OR_RETURN(sources_[stored.source], set_.Get(stored.source));
    const format::Box part = target.meta.local.Intersect(meta.box);
    placings_.push_back(Placing{&target, OnHost(target), meta.begin, meta.end,
                                format::ElementBytes(meta.dtype),
                                StridedCopy(part, RowMajorView(meta.box), ViewOf(target))});
    const auto index = static_cast<uint32_t>(placings_.size() - 1);
    const auto& chunks = sources_[stored.source]->chunks();
    const format::ChunkSpan span = format::ChunkOf(chunks, meta.begin, meta.end);
    for (uint64_t c = span.first; c < span.last; ++c) {
      const auto [first, last] = placings_.back().ElementsIn(chunks[c].begin, chunks[c].end);
      if (first < last) needed_.push_back({stored.source, c, index});
    }
    return OkStatus();
  }

  Status Run() {
    GroupByChunk();
    if (tasks_.empty()) return OkStatus();
    // All shards of a checkpoint are files of one store.
    const ChunkSource& first = *sources_[tasks_.front().source];
    const uint32_t threads = options_.threads != 0 ? options_.threads : first.readers();
    const uint32_t ahead = ReadsAhead(first.depth(), threads);
    std::deque<ThreadState> slots(AheadSlots(ahead));
    return ParallelAhead(
        tasks_.size(), threads, ahead,
        [&](uint64_t i, uint32_t slot) {
          sources_[tasks_[i].source]->Prefetch(tasks_[i].chunk, &slots[slot].scratch);
        },
        [&](uint64_t i, uint32_t slot) { return RunTask(tasks_[i], &slots[slot]); });
  }

 private:
  struct Need {
    uint32_t source;
    uint64_t chunk;
    uint32_t placing;
    auto operator<=>(const Need&) const = default;
  };

  void GroupByChunk() {
    std::sort(needed_.begin(), needed_.end());
    for (const Need& need : needed_) {
      const bool same = !tasks_.empty() && tasks_.back().source == need.source &&
                        tasks_.back().chunk == need.chunk;
      if (!same) {
        tasks_.push_back(ChunkTask{need.source, need.chunk, {}});
        const format::ChunkRange& range = sources_[need.source]->chunks()[need.chunk];
        total_bytes_ += range.end - range.begin;
      }
      tasks_.back().placings.push_back(need.placing);
    }
  }

  Status RunTask(const ChunkTask& task, ThreadState* thread) {
    CKPT_FAULT("engine.load.chunk");
    const ChunkSource& source = *sources_[task.source];
    const format::ChunkRange& range = source.chunks()[task.chunk];
    const std::optional<uint64_t> seed = options_.verify ? source.SeedOf(task.chunk) : std::nullopt;
    CKPT_RETURN_IF_ERROR(
        source.Fetch(task.chunk, options_.verify && !seed, &thread->scratch, &thread->spans));
    std::optional<DigestStream> digest;
    if (seed) digest.emplace(*seed);
    uint64_t at = range.begin;
    for (const ByteSpan span : thread->spans) {
      const uint64_t step = seed ? kDigestedBytes : span.size();
      for (uint64_t begin = 0; begin < span.size(); begin += step) {
        const ByteSpan part = span.subspan(begin, std::min(step, span.size() - begin));
        for (const uint32_t p : task.placings) {
          CKPT_RETURN_IF_ERROR(PlaceSpan(placings_[p], at + begin, part, &thread->device_writer));
        }
        if (digest) digest->Update(part);
      }
      at += span.size();
    }
    if (digest) CKPT_RETURN_IF_ERROR(source.Compare(task.chunk, digest->Finish()));
    CKPT_RETURN_IF_ERROR(thread->device_writer.Drain());
    const uint64_t done = done_bytes_.fetch_add(range.end - range.begin) + range.end - range.begin;
    if (options_.progress) options_.progress(done, total_bytes_);
    return OkStatus();
  }

  Status PlaceSpan(const Placing& placing, uint64_t stream_at, ByteSpan span, DeviceWriter* out) {
    const auto [first, last] = placing.ElementsIn(stream_at, stream_at + span.size());
    if (first >= last) return OkStatus();
    // Offsets in view a count from the stored box; the span may begin inside of it.
    const uint64_t lead = placing.stream_begin < stream_at ? stream_at - placing.stream_begin : 0;
    const uint64_t skip = placing.stream_begin > stream_at ? placing.stream_begin - stream_at : 0;
    const auto lead_elements = static_cast<int64_t>(lead / placing.element_bytes);
    const std::byte* from = span.data() + skip;
    auto* to = static_cast<std::byte*>(placing.target->data);
    Status status;
    placing.copy.ForEachBlock(first, last, [&](Block block) {
      if (!status.ok()) return;
      block.a_offset -= lead_elements;
      if (placing.on_host) {
        CopyBlock(block, from, to, placing.element_bytes);
      } else {
        status = out->Copy(placing, block, from);
      }
    });
    return std::move(status).Annotate("loading tensor '" + placing.target->meta.name + "'");
  }

  const SourceSet& set_;
  std::vector<const ChunkSource*> sources_;  // those that are needed
  const LoadOptions& options_;
  std::vector<Placing> placings_;
  std::vector<Need> needed_;
  std::vector<ChunkTask> tasks_;
  uint64_t total_bytes_ = 0;
  std::atomic<uint64_t> done_bytes_{0};
};

// What the callers have enqueued may still read the old content.
Status AwaitCallers(const std::vector<Wanted>& wanted) {
  std::vector<LiveTensor> targets;
  for (const Wanted& want : wanted) {
    if (want.target->device != nullptr) targets.push_back(*want.target);
  }
  const Deadline deadline("waiting for the caller's stream", kDeviceWaitMax);
  for (const bool on_host : {true, false}) {
    for (const StreamUse& use : StreamsOf(targets, on_host)) {
      CKPT_RETURN_IF_ERROR(AwaitStream(use, deadline));
    }
  }
  return OkStatus();
}

}  // namespace

Status Place(const Catalog& catalog, const SourceSet& sources, Rank rank,
             const std::vector<Wanted>& wanted, const LoadOptions& options) {
  CKPT_FAULT("engine.load.begin");
  CKPT_RETURN_IF_ERROR(catalog.Prefetch(rank, wanted));
  Loader loader(sources, options);
  for (const Wanted& want : wanted) {
    CKPT_ASSIGN_OR_RETURN(const std::vector<StoredBox> boxes,
                          catalog.Cover(rank, want.stored_name, want.target->meta));
    for (const StoredBox& box : boxes) CKPT_RETURN_IF_ERROR(loader.Add(box, *want.target));
  }
  CKPT_RETURN_IF_ERROR(AwaitCallers(wanted));
  return loader.Run();
}

}  // namespace ckpt::engine
