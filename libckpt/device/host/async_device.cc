#include "libckpt/device/host/async_device.h"

#include <algorithm>
#include <atomic>
#include <cstring>

namespace ckpt::device {

struct AsyncDevice::EventState {
  Mutex mutex;
  CondVar changed;
  bool fired CKPT_GUARDED_BY(mutex) = false;

  void Fire() {
    MutexLock lock(mutex);
    fired = true;
    changed.NotifyAll();
  }
  bool Fired() {
    MutexLock lock(mutex);
    return fired;
  }
  bool Wait(const Deadline& deadline) {
    MutexLock lock(mutex);
    while (!fired) {
      if (!changed.WaitUntil(mutex, deadline) && !fired) return false;
    }
    return true;
  }
};

class AsyncDevice::Stream {
 public:
  Stream() : thread_("ckpt-stream", [this] { Run(); }) {}
  ~Stream() { Close(); }

  Status Push(std::function<void()> operation) {
    MutexLock lock(mutex_);
    if (closed_) return InvalidArgument("stream: it was destroyed");
    if (queue_.size() >= kDeviceQueueMax) {
      return ResourceExhausted("stream: " + std::to_string(kDeviceQueueMax) +
                               " operations are waiting; synchronize first");
    }
    queue_.push_back(std::move(operation));
    changed_.NotifyOne();
    return OkStatus();
  }
  void Close() {
    MutexLock lock(mutex_);
    closed_ = true;
    changed_.NotifyOne();
  }
  bool finished() const { return finished_.load(); }

 private:
  void Run() {
    for (;;) {
      std::function<void()> operation;
      {
        MutexLock lock(mutex_);
        while (queue_.empty() && !closed_) changed_.Wait(mutex_);
        if (queue_.empty()) break;
        operation = std::move(queue_.front());
        queue_.pop_front();
      }
      operation();
    }
    finished_.store(true);
  }

  Mutex mutex_;
  CondVar changed_;
  std::deque<std::function<void()>> queue_ CKPT_GUARDED_BY(mutex_);
  bool closed_ CKPT_GUARDED_BY(mutex_) = false;
  std::atomic<bool> finished_{false};
  os::Thread thread_;  // last: joined before the rest goes
};

AsyncDevice::~AsyncDevice() { StopStreams(); }

void AsyncDevice::StopStreams() {
  std::map<StreamHandle, std::shared_ptr<Stream>> streams;
  std::vector<std::shared_ptr<Stream>> closing;
  {
    MutexLock lock(mutex_);
    streams.swap(streams_);
    closing.swap(closing_);
  }
  // All are closed before any is joined: one may wait for another's event.
  for (auto& [handle, stream] : streams) stream->Close();
}

Result<StreamHandle> AsyncDevice::CreateStream() {
  CKPT_RETURN_IF_ERROR(sticky());
  auto stream = std::make_shared<Stream>();
  std::vector<std::shared_ptr<Stream>> finished;  // joined outside the lock
  MutexLock lock(mutex_);
  const auto done = std::partition(closing_.begin(), closing_.end(),
                                   [](const auto& s) { return !s->finished(); });
  finished.assign(done, closing_.end());
  closing_.erase(done, closing_.end());
  StreamHandle handle = stream.get();
  streams_.emplace(handle, std::move(stream));
  return handle;
}

Status AsyncDevice::DestroyStream(StreamHandle handle) {
  MutexLock lock(mutex_);
  const auto it = streams_.find(handle);
  if (it == streams_.end()) return InvalidArgument("stream: destroyed, or of another device");
  it->second->Close();
  closing_.push_back(std::move(it->second));
  streams_.erase(it);
  return OkStatus();
}

Status AsyncDevice::Enqueue(StreamHandle handle, std::function<void()> operation) {
  if (handle == nullptr) {
    operation();
    return OkStatus();
  }
  std::shared_ptr<Stream> stream;
  {
    MutexLock lock(mutex_);
    const auto it = streams_.find(handle);
    if (it == streams_.end()) return InvalidArgument("stream: destroyed, or of another device");
    stream = it->second;
  }
  return stream->Push(std::move(operation));
}

Result<Event*> AsyncDevice::RecordEvent(StreamHandle stream) {
  CKPT_RETURN_IF_ERROR(sticky());
  auto state = std::make_shared<EventState>();
  auto* handle = reinterpret_cast<Event*>(state.get());
  CKPT_RETURN_IF_ERROR(Enqueue(stream, [state] { state->Fire(); }));
  MutexLock lock(mutex_);
  events_.emplace(handle, std::move(state));
  return handle;
}

std::shared_ptr<AsyncDevice::EventState> AsyncDevice::Find(Event* event) const {
  MutexLock lock(mutex_);
  const auto it = events_.find(event);
  return it == events_.end() ? nullptr : it->second;
}

Status AsyncDevice::StreamWait(StreamHandle stream, Event* event) {
  CKPT_RETURN_IF_ERROR(sticky());
  auto state = Find(event);
  if (state == nullptr) return InvalidArgument("event: freed, or of another device");
  return Enqueue(stream, [state] { state->Wait(Deadline::Infinite("event of another stream")); });
}

Result<bool> AsyncDevice::Query(Event* event) {
  const auto state = Find(event);
  if (state == nullptr) return InvalidArgument("event: freed, or of another device");
  CKPT_RETURN_IF_ERROR(sticky());
  return state->Fired();
}

Status AsyncDevice::Synchronize(Event* event, const Deadline& deadline) {
  const auto state = Find(event);
  if (state == nullptr) return InvalidArgument("event: freed, or of another device");
  if (!state->Wait(deadline)) return deadline.Exceeded();
  return sticky();
}

void AsyncDevice::FreeEvent(Event* event) {
  MutexLock lock(mutex_);
  events_.erase(event);
}

Status AsyncDevice::EnqueueCopy(StreamHandle stream, const Copy& copy) {
  CKPT_RETURN_IF_ERROR(sticky());
  if (copy.shape.row_bytes == 0 || copy.shape.rows == 0) return OkStatus();
  if (copy.to == nullptr || copy.from == nullptr) return InvalidArgument("copy: a null pointer");
  const auto width = static_cast<int64_t>(copy.shape.row_bytes);
  if (copy.shape.rows > 1 && (copy.shape.device_pitch < width || copy.shape.host_pitch < width)) {
    return InvalidArgument("copy: a pitch is smaller than a row");
  }
  CKPT_RETURN_IF_ERROR(CheckCopy(copy));
  return Enqueue(stream, [this, copy] {
    if (!sticky().ok()) return;
    Status status = RunCopy(copy);
    if (!status.ok()) MakeSticky(std::move(status));
  });
}

Status AsyncDevice::CopyToHost(StreamHandle stream, void* host, const void* device,
                               const CopyShape& shape) {
  return EnqueueCopy(stream, Copy{static_cast<std::byte*>(host),
                                  static_cast<const std::byte*>(device), shape, true});
}

Status AsyncDevice::CopyToDevice(StreamHandle stream, void* device, const void* host,
                                 const CopyShape& shape) {
  return EnqueueCopy(stream, Copy{static_cast<std::byte*>(device),
                                  static_cast<const std::byte*>(host), shape, false});
}

void AsyncDevice::MoveRows(const Copy& copy, std::byte* to, const std::byte* from) {
  const int64_t to_pitch = copy.to_host ? copy.shape.host_pitch : copy.shape.device_pitch;
  const int64_t from_pitch = copy.to_host ? copy.shape.device_pitch : copy.shape.host_pitch;
  for (uint64_t row = 0; row < copy.shape.rows; ++row) {
    std::memcpy(to + static_cast<int64_t>(row) * to_pitch,
                from + static_cast<int64_t>(row) * from_pitch, copy.shape.row_bytes);
  }
}

std::pair<int64_t, int64_t> AsyncDevice::DeviceExtent(const CopyShape& shape) {
  const int64_t reach = static_cast<int64_t>(shape.rows - 1) * shape.device_pitch;
  return {0, reach + static_cast<int64_t>(shape.row_bytes)};
}

Status AsyncDevice::RegisterHost(void* host, uint64_t bytes) {
  CKPT_RETURN_IF_ERROR(sticky());
  if (host == nullptr || bytes == 0) return InvalidArgument("register: no memory");
  MutexLock lock(mutex_);
  uint64_t& known = registered_[host];
  known = std::max(known, bytes);
  return OkStatus();
}

Status AsyncDevice::UnregisterHost(void* host) {
  MutexLock lock(mutex_);
  if (registered_.erase(host) == 0) return InvalidArgument("unregister: never registered");
  return OkStatus();
}

size_t AsyncDevice::registered_count() const {
  MutexLock lock(mutex_);
  return registered_.size();
}

Status AsyncDevice::sticky() const {
  MutexLock lock(mutex_);
  return sticky_;
}

void AsyncDevice::MakeSticky(Status status) {
  MutexLock lock(mutex_);
  if (sticky_.ok()) sticky_ = std::move(status);
}

}  // namespace ckpt::device
