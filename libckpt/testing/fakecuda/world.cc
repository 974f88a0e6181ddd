#include "libckpt/testing/fakecuda/world.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "libckpt/base/bytes.h"

namespace ckpt::fakecuda {

using namespace device::cuda;  // the numbers of the interface

namespace {

uint64_t Number(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

void* Pointer(DevicePtr at) { return reinterpret_cast<void*>(static_cast<uintptr_t>(at)); }
DevicePtr Number(const void* at) { return reinterpret_cast<uintptr_t>(at); }

// Addresses that are taken, and nothing behind them.
void* Nothing(void* at, uint64_t bytes) {
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | (at == nullptr ? 0 : MAP_FIXED);
  return ::mmap(at, bytes, PROT_NONE, flags, -1, 0);
}

}  // namespace

FakeCuda::FakeCuda(uint64_t memory_bytes)
    : memory_bytes_(memory_bytes), default_(CreateStream().value()) {}

FakeCuda::~FakeCuda() { StopStreams(); }

device::DeviceInfo FakeCuda::info() const {
  return {"cuda", "FAKE CUDA device in software (no GPU)", "", memory_bytes_, false};
}

Result32 FakeCuda::Reserve(DevicePtr* out, uint64_t bytes) {
  if (bytes == 0 || bytes % kGranularity != 0) return kInvalidValue;
  void* const at = Nothing(nullptr, bytes);
  if (at == MAP_FAILED) return kOutOfMemory;
  MutexLock lock(mutex_);
  reserved_[*out = Number(at)] = bytes;
  return kSuccess;
}

Result32 FakeCuda::Unreserve(DevicePtr at, uint64_t bytes) {
  MutexLock lock(mutex_);
  const auto it = reserved_.find(at);
  if (it == reserved_.end() || it->second != bytes) return kInvalidValue;
  const auto mapped = mappings_.lower_bound(at);
  if (mapped != mappings_.end() && mapped->first < at + bytes) return kInvalidValue;
  ::munmap(Pointer(at), bytes);
  reserved_.erase(it);
  return kSuccess;
}

Result32 FakeCuda::Create(MemHandle* out, uint64_t bytes) {
  if (bytes == 0 || bytes % kGranularity != 0) return kInvalidValue;
  MutexLock lock(mutex_);
  if (bytes > memory_bytes_ - used_) return kOutOfMemory;
  Handle handle;
  handle.bytes = bytes;
  handle.fd = ::memfd_create("fakecuda", MFD_CLOEXEC);
  if (handle.fd < 0 || ::ftruncate(handle.fd, static_cast<off_t>(bytes)) != 0) {
    if (handle.fd >= 0) ::close(handle.fd);
    return kOutOfMemory;
  }
  used_ += bytes;
  handles_[*out = ++last_handle_] = handle;
  return kSuccess;
}

// Physical memory goes when neither a handle nor a mapping holds it.
void FakeCuda::DropIfUnused(MemHandle handle) {
  const auto it = handles_.find(handle);
  if (!it->second.released || it->second.mappings != 0) return;
  ::close(it->second.fd);
  used_ -= it->second.bytes;
  handles_.erase(it);
}

Result32 FakeCuda::Release(MemHandle handle) {
  MutexLock lock(mutex_);
  const auto it = handles_.find(handle);
  if (it == handles_.end() || it->second.released) return kInvalidValue;
  it->second.released = true;
  DropIfUnused(handle);
  return kSuccess;
}

Result32 FakeCuda::Map(DevicePtr at, uint64_t bytes, uint64_t offset, MemHandle number) {
  MutexLock lock(mutex_);
  const auto handle = handles_.find(number);
  if (handle == handles_.end() || handle->second.released || offset + bytes > handle->second.bytes)
    return kInvalidValue;
  auto room = reserved_.upper_bound(at);
  if (room == reserved_.begin()) return kInvalidValue;
  --room;
  if (at + bytes > room->first + room->second) return kInvalidValue;
  const auto next = mappings_.lower_bound(at);
  if (next != mappings_.end() && next->first < at + bytes) return kInvalidValue;
  const auto from = static_cast<off_t>(offset);
  void* const seen =
      ::mmap(Pointer(at), bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, handle->second.fd, from);
  void* const alias =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, handle->second.fd, from);
  if (seen == MAP_FAILED || alias == MAP_FAILED) return kOutOfMemory;
  ++handle->second.mappings;
  mappings_[at] = {bytes, offset, number, static_cast<std::byte*>(alias), false};
  return kSuccess;
}

Result32 FakeCuda::Unmap(DevicePtr at, uint64_t bytes) {
  MutexLock lock(mutex_);
  const auto it = mappings_.find(at);
  if (it == mappings_.end() || it->second.bytes != bytes) return kInvalidValue;
  Nothing(Pointer(at), bytes);
  ::munmap(it->second.alias, bytes);
  const MemHandle handle = it->second.handle;
  mappings_.erase(it);
  --handles_.at(handle).mappings;
  DropIfUnused(handle);
  return kSuccess;
}

Result32 FakeCuda::FreeWhole(DevicePtr at) {
  uint64_t bytes = 0;
  {
    MutexLock lock(mutex_);
    const auto it = mappings_.find(at);
    if (it == mappings_.end()) return kInvalidValue;
    bytes = it->second.bytes;
  }
  const Result32 unmapped = Unmap(at, bytes);
  return unmapped != kSuccess ? unmapped : Unreserve(at, bytes);
}

Result32 FakeCuda::Access(DevicePtr at, uint64_t bytes) {
  MutexLock lock(mutex_);
  const auto it = mappings_.find(at);
  if (it == mappings_.end() || it->second.bytes != bytes) return kInvalidValue;
  it->second.access = true;
  return kSuccess;
}

bool FakeCuda::Owns(DevicePtr at) const {
  MutexLock lock(mutex_);
  return AliasOf(static_cast<const std::byte*>(Pointer(at)), 0, 1) != nullptr;
}

std::byte* FakeCuda::Alias(DevicePtr at, uint64_t bytes) const {
  MutexLock lock(mutex_);
  return AliasOf(static_cast<const std::byte*>(Pointer(at)), 0, static_cast<int64_t>(bytes));
}

Result32 FakeCuda::Launch(device::StreamHandle stream, std::function<Result32()> kernel) {
  if (const Result32 result = broken(); result != kSuccess) return result;
  const Status queued = Enqueue(stream, [this, kernel = std::move(kernel)] {
    if (const Result32 result = kernel(); result != kSuccess) Break(result);
  });
  return queued.ok() ? kSuccess : kInvalidHandle;
}

std::byte* FakeCuda::AliasOf(const std::byte* at, int64_t low, int64_t high) const {
  auto it = mappings_.upper_bound(Number(at));
  if (it == mappings_.begin()) return nullptr;
  --it;
  const auto offset = static_cast<int64_t>(Number(at) - it->first);
  if (!it->second.access || offset + low < 0 ||
      offset + high > static_cast<int64_t>(it->second.bytes))
    return nullptr;
  return it->second.alias + offset;
}

Status FakeCuda::CheckCopy(const Copy& copy) {
  const auto [low, high] = DeviceExtent(copy.shape);
  MutexLock lock(mutex_);
  return AliasOf(copy.device(), low, high) == nullptr ? InvalidArgument("no device memory")
                                                      : OkStatus();
}

Status FakeCuda::RunCopy(const Copy& copy) {
  const auto [low, high] = DeviceExtent(copy.shape);
  std::byte* alias = nullptr;
  {
    MutexLock lock(mutex_);
    const int64_t began_ns = BoottimeNs();
    for (;;) {  // the delay may be changed meanwhile
      const Deadline until = Deadline::At(
          "copy", began_ns + delay_.count() + (copy.to_host ? 0 : upload_delay_.count()));
      if (until.Expired()) break;
      delay_changed_.WaitUntil(mutex_, until);
    }
    alias = AliasOf(copy.device(), low, high);
    if (++copies_ == break_at_ || alias == nullptr) broken_ = kIllegalAddress;
    if (broken_ != 0) return Aborted("the device is broken");
  }
  MoveRows(copy, copy.to_host ? copy.to : alias, copy.to_host ? alias : copy.from);
  return OkStatus();
}

Result32 FakeCuda::broken() const {
  MutexLock lock(mutex_);
  return broken_;
}
void FakeCuda::Break(Result32 result) {
  MutexLock lock(mutex_);
  if (broken_ == 0) broken_ = result;
}
void FakeCuda::Stop() {
  SetUploadDelay(Nanos(0));
  SetCopyDelay(Nanos(0));
  StopStreams();
}
void FakeCuda::SetCopyDelay(Nanos delay) {
  MutexLock lock(mutex_);
  delay_ = delay;
  delay_changed_.NotifyAll();
}
void FakeCuda::SetUploadDelay(Nanos delay) {
  MutexLock lock(mutex_);
  upload_delay_ = delay;
}
void FakeCuda::BreakAtCopy(uint64_t nth) {
  MutexLock lock(mutex_);
  break_at_ = copies_ + nth;
}
uint64_t FakeCuda::used_bytes() const {
  MutexLock lock(mutex_);
  return used_;
}

// ---- the world

World& World::Get() {
  static World* const world = new World;
  return *world;
}

World::World() {
  const uint64_t bytes = Number("CKPT_FAKECUDA_MIB", 1024) << 20;
  for (uint64_t i = 0; i < Number("CKPT_FAKECUDA_DEVICES", 1); ++i) {
    devices_.push_back(std::make_unique<FakeCuda>(bytes));
    devices_.back()->SetCopyDelay(std::chrono::microseconds(Number("CKPT_FAKECUDA_COPY_US", 0)));
    devices_.back()->SetUploadDelay(
        std::chrono::microseconds(Number("CKPT_FAKECUDA_UPLOAD_US", 0)));
  }
  std::atexit([] {
    for (const auto& device : Get().devices_) device->Stop();
  });
}

Result32 World::Pin(const void* host, uint64_t bytes) {
  const auto* begin = static_cast<const std::byte*>(host);
  MutexLock lock(mutex_);
  auto next = pinned_.lower_bound(begin);
  if (next != pinned_.end() && next->first < begin + bytes) return kHostMemoryAlreadyRegistered;
  if (next != pinned_.begin() && std::prev(next)->first + std::prev(next)->second > begin)
    return kHostMemoryAlreadyRegistered;
  pinned_[begin] = bytes;
  return kSuccess;
}

Result32 World::Unpin(const void* host) {
  MutexLock lock(mutex_);
  return pinned_.erase(static_cast<const std::byte*>(host)) == 0 ? kHostMemoryNotRegistered
                                                                 : kSuccess;
}

// Neighbours count as one.
bool World::Pinned(const void* host, uint64_t bytes) {
  const auto* at = static_cast<const std::byte*>(host);
  const std::byte* const end = at + bytes;
  MutexLock lock(mutex_);
  while (at < end) {
    auto it = pinned_.upper_bound(at);
    if (it == pinned_.begin()) return false;
    --it;
    if (it->first + it->second <= at) return false;
    at = it->first + it->second;
  }
  return true;
}

uint64_t World::pinned_bytes() {
  MutexLock lock(mutex_);
  uint64_t sum = 0;
  for (const auto& [at, bytes] : pinned_) sum += bytes;
  return sum;
}

}  // namespace ckpt::fakecuda
