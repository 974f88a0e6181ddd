#include "libckpt/engine/live.h"

#include <algorithm>

#include "libckpt/base/log.h"
#include "libckpt/base/mutex.h"

namespace ckpt::engine {

Status CheckLive(const LiveTensor& tensor) {
  const size_t dims = tensor.meta.local.shape.size();
  if (!tensor.strides.empty() && tensor.strides.size() != dims) {
    return InvalidArgument("tensor '" + tensor.meta.name + "' has " + std::to_string(dims) +
                           " dimensions but " + std::to_string(tensor.strides.size()) + " strides");
  }
  if (tensor.data == nullptr && !tensor.meta.local.Empty()) {
    return InvalidArgument("tensor '" + tensor.meta.name + "' has elements but no memory");
  }
  return OkStatus();
}

View ViewOf(const LiveTensor& tensor) {
  const format::Box& local = tensor.meta.local;
  return View{&local.offset,
              tensor.strides.empty() ? RowMajorStrides(local.shape) : tensor.strides};
}

bool OnHost(const LiveTensor& tensor) {
  return tensor.device == nullptr || tensor.device->info().host_accessible;
}

std::vector<StreamUse> StreamsOf(const std::vector<LiveTensor>& tensors, bool on_host) {
  std::vector<StreamUse> uses;
  for (const LiveTensor& tensor : tensors) {
    if (tensor.device == nullptr) continue;
    const StreamUse use{tensor.device, tensor.stream};
    if (std::find(uses.begin(), uses.end(), use) != uses.end()) continue;
    if (OnHost(tensor) == on_host) uses.push_back(use);
  }
  std::stable_sort(uses.begin(), uses.end(), [](const StreamUse& a, const StreamUse& b) {
    return std::less<>()(a.device, b.device);
  });
  return uses;
}

Status AwaitStream(const StreamUse& use, const Deadline& deadline) {
  CKPT_ASSIGN_OR_RETURN(device::Event * event, use.device->RecordEvent(use.stream));
  const Status status = use.device->Synchronize(event, deadline);
  use.device->FreeEvent(event);
  return status;
}

void DrainStream(const StreamUse& use, const Deadline& deadline) {
  for (;;) {
    const Status status = AwaitStream(use, deadline);
    if (status.ok() || status.code() == Code::kAborted) return;  // it does nothing any more
    if (deadline.Expired()) return LogError("copies on a device did not end: " + status.ToString());
    Mutex mutex;
    CondVar never;
    MutexLock lock(mutex);
    never.WaitUntil(mutex, Deadline("a moment", std::chrono::milliseconds(1)));
  }
}

}  // namespace ckpt::engine
