// Streams and events as copy engines have them, made of threads: what the host device and the test
// doubles share. A subclass says what its memory is and how one copy is done.
//
// A stream is a thread and a queue. An event fires once the stream that it was recorded on has come
// to it. StreamWait can only name an event that was recorded before, so waits never form a circle
// and every queue drains. The null stream is the caller's own thread: what is enqueued there has
// happened on return. (CUDA's legacy default stream also waits for other streams; nobody here may
// rely on that.)
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "libckpt/base/limits.h"
#include "libckpt/base/mutex.h"
#include "libckpt/device/device.h"
#include "libckpt/os/thread.h"

namespace ckpt::device {

class AsyncDevice : public Device {
 public:
  ~AsyncDevice() override;

  Result<StreamHandle> CreateStream() override;
  Status DestroyStream(StreamHandle stream) override;  // what is enqueued still happens
  Result<Event*> RecordEvent(StreamHandle stream) override;
  Status StreamWait(StreamHandle stream, Event* event) override;
  Result<bool> Query(Event* event) override;
  Status Synchronize(Event* event, const Deadline& deadline) override;
  void FreeEvent(Event* event) override;
  Status CopyToHost(StreamHandle stream, void* host, const void* device,
                    const CopyShape& shape) override;
  Status CopyToDevice(StreamHandle stream, void* device, const void* host,
                      const CopyShape& shape) override;
  Status RegisterHost(void* host, uint64_t bytes) override;
  Status UnregisterHost(void* host) override;

  // Ranges registered now.
  size_t registered_count() const;

 protected:
  struct Copy {
    std::byte* to = nullptr;
    const std::byte* from = nullptr;
    CopyShape shape;
    bool to_host = false;
    std::byte* device() const { return to_host ? const_cast<std::byte*>(from) : to; }
  };
  // At the time of the call: whether the copy may be enqueued at all.
  virtual Status CheckCopy(const Copy& copy) = 0;
  // In stream order. An error becomes sticky.
  virtual Status RunCopy(const Copy& copy) = 0;
  // Moves the rows by the CPU between addresses it may touch.
  static void MoveRows(const Copy& copy, std::byte* to, const std::byte* from);
  // The bytes [low, high) around the device pointer that a copy touches.
  static std::pair<int64_t, int64_t> DeviceExtent(const CopyShape& shape);

  // The error that all calls return since something went wrong on the device; OK before.
  Status sticky() const;
  void MakeSticky(Status status);
  // Subclasses call it first in their destructors: no RunCopy runs after it.
  void StopStreams();
  // In stream order, on the stream's thread.
  Status Enqueue(StreamHandle stream, std::function<void()> operation);

 private:
  struct EventState;
  class Stream;

  std::shared_ptr<EventState> Find(Event* event) const;
  Status EnqueueCopy(StreamHandle stream, const Copy& copy);

  mutable Mutex mutex_;
  std::map<StreamHandle, std::shared_ptr<Stream>> streams_ CKPT_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<Stream>> closing_ CKPT_GUARDED_BY(mutex_);  // destroyed, may run
  std::map<Event*, std::shared_ptr<EventState>> events_ CKPT_GUARDED_BY(mutex_);
  std::map<void*, uint64_t> registered_ CKPT_GUARDED_BY(mutex_);
  Status sticky_ CKPT_GUARDED_BY(mutex_);
};

}  // namespace ckpt::device
