#include "libckpt/device/host/host_device.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

#include "libckpt/base/bytes.h"

namespace ckpt::device {
namespace {

// Fresh anonymous pages over `at` (or anywhere): what was there is given back to the system.
Result<std::byte*> MapFresh(void* at, uint64_t bytes, int protection) {
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | (at != nullptr ? MAP_FIXED : 0);
  void* memory = mmap(at, bytes, protection, flags, -1, 0);
  if (memory == MAP_FAILED) {
    return ErrnoStatus(errno, "mapping " + FormatBytes(bytes) + " of host memory");
  }
  return static_cast<std::byte*>(memory);
}

Status Unknown() { return InvalidArgument("host memory: not allocated by this device"); }

}  // namespace

HostDevice::~HostDevice() {
  StopStreams();
  for (const auto& [memory, allocation] : allocations_) munmap(memory, allocation.bytes);
}

DeviceInfo HostDevice::info() const {
  DeviceInfo info;
  info.kind = "host";
  info.name = "CPU";
  info.uuid = "host";
  info.memory_bytes = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  info.host_accessible = true;
  return info;
}

Result<void*> HostDevice::Alloc(uint64_t bytes) {
  if (bytes == 0 || bytes > UINT64_MAX / 2) return InvalidArgument("host memory: bad size");
  const uint64_t whole = AlignUp(bytes, kPageBytes);
  CKPT_ASSIGN_OR_RETURN(std::byte * memory, MapFresh(nullptr, whole, PROT_READ | PROT_WRITE));
  MutexLock lock(mutex_);
  allocations_[memory] = Allocation{whole, false};
  return static_cast<void*>(memory);
}

Status HostDevice::Free(void* device) {
  uint64_t bytes = 0;
  {
    MutexLock lock(mutex_);
    const auto it = allocations_.find(static_cast<std::byte*>(device));
    if (it == allocations_.end()) return Unknown();
    bytes = it->second.bytes;
    allocations_.erase(it);
  }
  return munmap(device, bytes) == 0 ? OkStatus() : ErrnoStatus(errno, "unmapping host memory");
}

Status HostDevice::Park(void* device) {
  MutexLock lock(mutex_);
  const auto it = allocations_.find(static_cast<std::byte*>(device));
  if (it == allocations_.end()) return Unknown();
  if (it->second.parked) return OkStatus();
  const auto mapped = MapFresh(device, it->second.bytes, PROT_NONE);
  if (!mapped.ok()) return mapped.status();
  it->second.parked = true;
  return OkStatus();
}

Status HostDevice::Unpark(void* device) {
  MutexLock lock(mutex_);
  const auto it = allocations_.find(static_cast<std::byte*>(device));
  if (it == allocations_.end()) return Unknown();
  if (!it->second.parked) return OkStatus();
  const auto mapped = MapFresh(device, it->second.bytes, PROT_READ | PROT_WRITE);
  if (!mapped.ok()) return mapped.status();
  it->second.parked = false;
  return OkStatus();
}

Status HostDevice::CheckCopy(const Copy& copy) {
  const auto [low, high] = DeviceExtent(copy.shape);
  MutexLock lock(mutex_);
  auto it = allocations_.upper_bound(copy.device() + high - 1);
  while (it != allocations_.begin()) {
    --it;
    if (it->first + it->second.bytes <= copy.device() + low) break;
    if (it->second.parked) return FailedPrecondition("copy: the memory is parked");
  }
  return OkStatus();
}

Status HostDevice::RunCopy(const Copy& copy) {
  MoveRows(copy, copy.to, copy.from);
  return OkStatus();
}

std::unique_ptr<Device> CreateHostDevice() { return std::make_unique<HostDevice>(); }

}  // namespace ckpt::device
