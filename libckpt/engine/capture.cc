// Capture: the only part of a save that the training loop waits for.
//
// Host memory is copied by the caller's thread and another one in blocks; device memory by the
// device's copy engine on a stream of our own, which waits for an event on each of the callers'
// streams: a copy that is not ordered after the compute stream would stage half an update.
#include <algorithm>
#include <atomic>
#include <deque>

#include "libckpt/base/fault.h"
#include "libckpt/base/guard.h"
#include "libckpt/base/mutex.h"
#include "libckpt/engine/live.h"
#include "libckpt/engine/parallel.h"
#include "libckpt/engine/shared_capture.h"

namespace ckpt::engine {
namespace {

constexpr uint64_t kBlockBytes = uint64_t{128} << 10;  // a starved thread holds up no more
constexpr uint64_t kDeviceBatchBytes = uint64_t{64} << 20;
constexpr uint32_t kDeviceBatchCopies = 1024;
constexpr auto kDrainMax = std::chrono::seconds(30);
constexpr size_t kDeviceBatchesMax = 2;  // in flight: one runs, one is ready

struct Job {
  const LiveTensor* tensor;
  uint32_t piece;
  StridedCopy copy;
  uint32_t element_bytes;
};

class Progress {
 public:
  explicit Progress(std::function<void(uint64_t)> report) : report_(std::move(report)) {}
  void Add(uint64_t bytes) {
    const uint64_t done = done_.fetch_add(bytes) + bytes;
    if (report_) report_(done);
  }

 private:
  const std::function<void(uint64_t)> report_;
  std::atomic<uint64_t> done_{0};
};

std::string Of(const LiveTensor& tensor, const StagingRegion& region) {
  return "rank " + std::to_string(region.identity().rank.value()) + ": staging tensor '" +
         tensor.meta.name + "'";
}

Status CheckTensors(const std::vector<LiveTensor>& tensors, const StagingRegion& region) {
  const auto& expected = region.layout().tensors;
  const std::string rank = "rank " + std::to_string(region.identity().rank.value());
  if (tensors.size() != expected.size()) {
    return InvalidArgument(rank + ": the state has " + std::to_string(tensors.size()) +
                           " tensors, its staging region was made for " +
                           std::to_string(expected.size()) + "; track it anew");
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    CKPT_RETURN_IF_ERROR(CheckLive(tensors[i]).Annotate(rank));
    const format::TensorMeta& meta = tensors[i].meta;
    if (meta.name == expected[i].name && meta.dtype == expected[i].dtype &&
        meta.local == expected[i].local) {
      continue;
    }
    return InvalidArgument(rank + ": tensor '" + meta.name + "' is not what '" + expected[i].name +
                           "' was when the staging region was made; track the state anew");
  }
  return OkStatus();
}

// One device's copies, in batches that are ordered by events.
class DeviceCopier {
 public:
  DeviceCopier(device::Device* device, StagingRegion* region, Progress* progress,
               const Deadline& deadline)
      : device_(device), region_(region), progress_(progress), deadline_(deadline) {}

  // Nothing may write into the region once Capture has returned, also after an error.
  ~DeviceCopier() {
    if (stream_ == nullptr) return;
    if (in_flight_) DrainStream({device_, stream_}, Deadline("draining device copies", kDrainMax));
    for (const Batch& batch : batches_) device_->FreeEvent(batch.event);
    device_->DestroyStream(stream_).IgnoreError();
  }

  Status Open(const std::vector<StreamUse>& callers) {
    CKPT_ASSIGN_OR_RETURN(stream_, device_->CreateStream());
    for (const StreamUse& use : callers) {
      if (use.device != device_) continue;
      CKPT_ASSIGN_OR_RETURN(device::Event * event, device_->RecordEvent(use.stream));
      const Status status = device_->StreamWait(stream_, event);
      device_->FreeEvent(event);
      CKPT_RETURN_IF_ERROR(status);
    }
    return OkStatus();
  }

  Status Enqueue(const Job& job) {
    const auto* device_memory = static_cast<const std::byte*>(job.tensor->data);
    std::byte* host = region_->piece_data(job.piece).data();
    const uint64_t step = std::max<uint64_t>(kDeviceBatchBytes / job.element_bytes, 1);
    for (uint64_t begin = 0; begin < job.copy.element_count(); begin += step) {
      const uint64_t end = std::min(begin + step, job.copy.element_count());
      Status status;
      job.copy.ForEachBlock(begin, end, [&](const Block& block) {
        if (!status.ok()) return;
        status = ForEachDeviceCopy(
            block, job.element_bytes, /*device_is_a=*/true,
            [&](int64_t from, int64_t to, const device::CopyShape& shape) -> Status {
              in_flight_ = true;
              CKPT_RETURN_IF_ERROR(
                  device_->CopyToHost(stream_, host + to, device_memory + from, shape));
              return Count(*job.tensor, shape.row_bytes * shape.rows);
            });
      });
      if (!status.ok()) return std::move(status).Annotate(Of(*job.tensor, *region_));
    }
    return OkStatus();
  }

  Status Finish() {
    if (open_.copies > 0) CKPT_RETURN_IF_ERROR(CloseBatch());
    while (!batches_.empty()) CKPT_RETURN_IF_ERROR(AwaitOldest());
    in_flight_ = false;
    return OkStatus();
  }

 private:
  struct Batch {
    device::Event* event = nullptr;
    const LiveTensor* first = nullptr;
    uint64_t bytes = 0;
    uint32_t copies = 0;
  };

  Status Count(const LiveTensor& tensor, uint64_t bytes) {
    if (open_.first == nullptr) open_.first = &tensor;
    open_.bytes += bytes;
    ++open_.copies;
    if (open_.bytes < kDeviceBatchBytes && open_.copies < kDeviceBatchCopies) return OkStatus();
    return CloseBatch();
  }

  Status CloseBatch() {
    Result<device::Event*> event = device_->RecordEvent(stream_);
    if (!event.ok()) return Status(event.status()).Annotate(Of(*open_.first, *region_));
    open_.event = *event;
    batches_.push_back(open_);
    open_ = Batch{};
    return batches_.size() > kDeviceBatchesMax ? AwaitOldest() : OkStatus();
  }

  Status AwaitOldest() {
    const Batch batch = batches_.front();
    Status status = device_->Synchronize(batch.event, deadline_);
    if (!status.ok()) return std::move(status).Annotate(Of(*batch.first, *region_) + " and on");
    batches_.pop_front();
    device_->FreeEvent(batch.event);
    progress_->Add(batch.bytes);
    return OkStatus();
  }

  device::Device* device_;
  StagingRegion* region_;
  Progress* progress_;
  const Deadline& deadline_;
  device::StreamHandle stream_ = nullptr;
  bool in_flight_ = false;
  Batch open_;
  std::deque<Batch> batches_;
};

// A run of jobs, or a part of one: about kBlockBytes.
struct HostBlock {
  uint32_t first_job = 0, last_job = 0;  // [first, last]
  uint64_t begin = 0, end = 0;           // elements of first_job; used if first == last
};

std::vector<HostBlock> CutIntoBlocks(const std::vector<Job>& jobs) {
  std::vector<HostBlock> blocks;
  uint64_t open_bytes = kBlockBytes;  // of the last block, if small jobs may still join it
  for (uint32_t i = 0; i < jobs.size(); ++i) {
    const uint64_t elements = jobs[i].copy.element_count();
    const uint64_t bytes = elements * jobs[i].element_bytes;
    if (bytes > kBlockBytes) {
      const uint64_t step = kBlockBytes / jobs[i].element_bytes;
      for (uint64_t at = 0; at < elements; at += step) {
        blocks.push_back({i, i, at, std::min(at + step, elements)});
      }
      open_bytes = kBlockBytes;
    } else if (open_bytes + bytes <= kBlockBytes) {
      blocks.back().last_job = i;
      open_bytes += bytes;
    } else {
      blocks.push_back({i, i, 0, elements});
      open_bytes = bytes;
    }
  }
  return blocks;
}

Status CopyHostBlock(const HostBlock& block, const std::vector<Job>& jobs, StagingRegion* region,
                     Progress* progress, const Deadline& deadline) {
  if (deadline.Expired()) {
    return deadline.Exceeded().Annotate(Of(*jobs[block.first_job].tensor, *region));
  }
  uint64_t bytes = 0;
  for (uint32_t i = block.first_job; i <= block.last_job; ++i) {
    const Job& job = jobs[i];
    CKPT_FAULT("engine.capture.copy");
    const bool part = block.first_job == block.last_job;
    const uint64_t begin = part ? block.begin : 0;
    const uint64_t end = part ? block.end : job.copy.element_count();
    const auto* from = static_cast<const std::byte*>(job.tensor->data);
    std::byte* to = region->piece_data(job.piece).data();
    job.copy.ForEachBlock(begin, end,
                          [&](const Block& b) { CopyBlock(b, from, to, job.element_bytes); });
    bytes += (end - begin) * job.element_bytes;
  }
  progress->Add(bytes);
  return OkStatus();
}

// A run of the copy: the state that its threads share.
class CaptureRun final : public SharedCapture {
 public:
  CaptureRun(std::shared_ptr<const std::vector<LiveTensor>> tensors, StagingRegion* region,
             Options options)
      : tensors_(std::move(tensors)),
        region_(region),
        progress_(std::move(options.progress)),
        cancelled_(std::move(options.cancelled)) {
    const uint32_t staged = region_->staged_count();
    for (uint32_t i = 0; i < staged; ++i) {
      const plan::Piece& piece = region_->plan().pieces[i];
      const LiveTensor& tensor = (*tensors_)[piece.tensor_index];
      if (piece.box().Empty()) continue;
      (OnHost(tensor) ? host_jobs_ : device_jobs_)
          .push_back(Job{&tensor, i,
                         StridedCopy(piece.box(), ViewOf(tensor), RowMajorView(piece.box())),
                         format::ElementBytes(tensor.meta.dtype)});
    }
    blocks_ = CutIntoBlocks(host_jobs_);
  }

  Status Run(uint32_t threads, const Deadline& deadline) override {
    bool with_devices = false;
    {
      MutexLock lock(mutex_);
      with_devices = !devices_taken_;
      devices_taken_ = true;
      ++running_;
    }
    Status status = NoThrow("staging", [&] {
      return with_devices ? CopyAll(threads, deadline) : CopyHost(threads, deadline);
    });
    MutexLock lock(mutex_);
    --running_;
    if (!status.ok()) next_.store(blocks_.size());
    if (!status.ok() && error_.ok()) error_ = std::move(status);
    changed_.NotifyAll();
    while (running_ > 0) {
      if (!changed_.WaitUntil(mutex_, deadline) && running_ > 0) return deadline.Exceeded();
    }
    return error_;
  }

 private:
  // The copies of the devices run while the host's are made.
  Status CopyAll(uint32_t threads, const Deadline& deadline) {
    const std::vector<StreamUse> callers = StreamsOf(*tensors_, /*on_host=*/false);
    std::deque<DeviceCopier> copiers;
    for (size_t i = 0; i < callers.size(); ++i) {
      if (i > 0 && callers[i].device == callers[i - 1].device) continue;
      copiers.emplace_back(callers[i].device, region_, &progress_, deadline);
      CKPT_RETURN_IF_ERROR(copiers.back().Open(callers));
      CKPT_FAULT("engine.capture.enqueue");
      for (const Job& job : device_jobs_) {
        if (job.tensor->device == callers[i].device) {
          CKPT_RETURN_IF_ERROR(copiers.back().Enqueue(job));
        }
      }
    }
    CKPT_RETURN_IF_ERROR(CopyHost(threads, deadline));
    for (DeviceCopier& copier : copiers) CKPT_RETURN_IF_ERROR(copier.Finish());
    return OkStatus();
  }

  Status CopyHost(uint32_t threads, const Deadline& deadline) {
    for (const StreamUse& use : StreamsOf(*tensors_, /*on_host=*/true)) {
      CKPT_RETURN_IF_ERROR(AwaitStream(use, deadline).Annotate("waiting for the caller's stream"));
    }
    // At a fence most often nothing is left, and no thread is worth its start.
    const uint64_t left = blocks_.size() - std::min<uint64_t>(next_.load(), blocks_.size());
    const uint64_t used = std::min<uint64_t>(CopyThreads(threads), left);
    return ParallelFor(used, static_cast<uint32_t>(used), [&](uint64_t, uint32_t) -> Status {
      for (uint64_t i; (i = next_.fetch_add(1)) < blocks_.size();) {
        Status status = CopyHostBlock(blocks_[i], host_jobs_, region_, &progress_, deadline);
        if (status.ok() && cancelled_ && cancelled_()) status = Cancelled("the copy was cancelled");
        if (status.ok()) continue;
        next_.store(blocks_.size());
        return status;
      }
      return OkStatus();
    });
  }

  const std::shared_ptr<const std::vector<LiveTensor>> tensors_;
  StagingRegion* const region_;
  Progress progress_;
  const std::function<bool()> cancelled_;
  std::vector<Job> host_jobs_, device_jobs_;
  std::vector<HostBlock> blocks_;
  std::atomic<uint64_t> next_{0};

  Mutex mutex_;
  CondVar changed_;
  bool devices_taken_ CKPT_GUARDED_BY(mutex_) = false;
  uint32_t running_ CKPT_GUARDED_BY(mutex_) = 0;  // calls of Run that have not returned
  Status error_ CKPT_GUARDED_BY(mutex_);
};

}  // namespace

Result<std::unique_ptr<SharedCapture>> SharedCapture::Begin(
    std::shared_ptr<const std::vector<LiveTensor>> tensors, StagingRegion* region,
    Options options) {
  CKPT_FAULT("engine.capture.begin");
  if (region->state() != GenerationState::kFilling) {
    return FailedPrecondition("rank " + std::to_string(region->identity().rank.value()) +
                              ": capture into a staging region that is not FILLING");
  }
  CKPT_RETURN_IF_ERROR(CheckTensors(*tensors, *region));
  return std::unique_ptr<SharedCapture>(
      std::make_unique<CaptureRun>(std::move(tensors), region, std::move(options)));
}

Status Capture(const std::vector<LiveTensor>& tensors, StagingRegion* region,
               const std::function<void(uint64_t)>& report, const Deadline& deadline,
               uint32_t threads) {
  // Not owned: the copy ends before this returns.
  const std::shared_ptr<const std::vector<LiveTensor>> borrowed(std::shared_ptr<void>(), &tensors);
  CKPT_ASSIGN_OR_RETURN(const std::unique_ptr<SharedCapture> capture,
                        SharedCapture::Begin(borrowed, region, {report, {}}));
  CKPT_RETURN_IF_ERROR(capture->Run(threads, deadline));
  CKPT_FAULT("engine.capture.end");
  return OkStatus();
}

}  // namespace ckpt::engine
