#include "libckpt/testing/fake_device.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

#include "libckpt/base/bytes.h"

namespace ckpt::testing {
namespace {

Status Unknown() { return InvalidArgument("fake device: no memory of this device"); }

}  // namespace

FakeDevice::FakeDevice(FakeDeviceOptions options)
    : options_(options), copy_delay_(options.copy_delay) {}

FakeDevice::~FakeDevice() {
  StopStreams();
  for (const auto& [memory, allocation] : allocations_) Release(memory, allocation);
}

void FakeDevice::Release(std::byte* memory, const Allocation& allocation) {
  munmap(memory, allocation.bytes);
  munmap(allocation.alias, allocation.bytes);
  close(allocation.fd);
}

device::DeviceInfo FakeDevice::info() const {
  device::DeviceInfo info;
  info.kind = "fake";
  info.name = "a device in software";
  info.uuid = "FAKE-0";
  info.memory_bytes = options_.memory_bytes;
  info.host_accessible = false;
  return info;
}

Result<void*> FakeDevice::Alloc(uint64_t bytes) {
  CKPT_RETURN_IF_ERROR(sticky());
  if (bytes == 0) return InvalidArgument("fake device: bad size");
  const uint64_t whole = AlignUp(bytes, kPageBytes);
  MutexLock lock(mutex_);
  if (whole > options_.memory_bytes - allocated_bytes_) {
    return ResourceExhausted("fake device: " + FormatBytes(whole) + " do not fit into " +
                             FormatBytes(options_.memory_bytes - allocated_bytes_));
  }
  Allocation allocation;
  allocation.bytes = whole;
  allocation.fd = memfd_create("fake-device", MFD_CLOEXEC);
  if (allocation.fd < 0) return ErrnoStatus(errno, "fake device: memfd_create");
  if (ftruncate(allocation.fd, static_cast<off_t>(whole)) != 0) {
    close(allocation.fd);
    return ErrnoStatus(errno, "fake device: ftruncate");
  }
  void* alias = mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_SHARED, allocation.fd, 0);
  void* memory = mmap(nullptr, whole, PROT_NONE, MAP_SHARED, allocation.fd, 0);
  if (alias == MAP_FAILED || memory == MAP_FAILED) {
    const int error = errno;
    if (alias != MAP_FAILED) munmap(alias, whole);
    close(allocation.fd);
    return ErrnoStatus(error, "fake device: mmap");
  }
  allocation.alias = static_cast<std::byte*>(alias);
  allocations_[static_cast<std::byte*>(memory)] = allocation;
  allocated_bytes_ += whole;
  return memory;
}

Status FakeDevice::Free(void* device) {
  MutexLock lock(mutex_);
  const auto it = allocations_.find(static_cast<std::byte*>(device));
  if (it == allocations_.end()) return Unknown();
  if (!it->second.parked) allocated_bytes_ -= it->second.bytes;
  Release(it->first, it->second);
  allocations_.erase(it);
  return OkStatus();
}

Status FakeDevice::Park(void* device) {
  CKPT_RETURN_IF_ERROR(sticky());
  MutexLock lock(mutex_);
  const auto it = allocations_.find(static_cast<std::byte*>(device));
  if (it == allocations_.end()) return Unknown();
  Allocation& allocation = it->second;
  if (allocation.parked) return OkStatus();
  if (fallocate(allocation.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
                static_cast<off_t>(allocation.bytes)) != 0) {
    return ErrnoStatus(errno, "fake device: releasing pages");
  }
  allocation.parked = true;
  allocated_bytes_ -= allocation.bytes;
  return OkStatus();
}

Status FakeDevice::Unpark(void* device) {
  CKPT_RETURN_IF_ERROR(sticky());
  MutexLock lock(mutex_);
  const auto it = allocations_.find(static_cast<std::byte*>(device));
  if (it == allocations_.end()) return Unknown();
  Allocation& allocation = it->second;
  if (!allocation.parked) return OkStatus();
  if (allocation.bytes > options_.memory_bytes - allocated_bytes_) {
    return ResourceExhausted("fake device: " + FormatBytes(allocation.bytes) +
                             " cannot be unparked, " +
                             FormatBytes(options_.memory_bytes - allocated_bytes_) + " are free");
  }
  allocation.parked = false;
  allocated_bytes_ += allocation.bytes;
  return OkStatus();
}

void FakeDevice::BreakAtCopy(uint64_t nth) {
  MutexLock lock(mutex_);
  break_at_ = copies_done_ + nth;
}

void FakeDevice::SetCopyDelay(Nanos delay) {
  MutexLock lock(mutex_);
  copy_delay_ = delay;
  delay_changed_.NotifyAll();
}

uint64_t FakeDevice::allocated_bytes() const {
  MutexLock lock(mutex_);
  return allocated_bytes_;
}

uint64_t FakeDevice::copies_done() const {
  MutexLock lock(mutex_);
  return copies_done_;
}

Result<std::byte*> FakeDevice::AliasOf(const std::byte* pointer, int64_t low, int64_t high) {
  MutexLock lock(mutex_);
  auto it = allocations_.upper_bound(const_cast<std::byte*>(pointer));
  if (it == allocations_.begin()) return Unknown();
  --it;
  const int64_t at = pointer - it->first;
  if (at + low < 0 || at + high > static_cast<int64_t>(it->second.bytes)) return Unknown();
  if (it->second.parked) return FailedPrecondition("fake device: the memory is parked");
  return it->second.alias + at;
}

Status FakeDevice::CheckCopy(const Copy& copy) {
  const auto [low, high] = DeviceExtent(copy.shape);
  const auto alias = AliasOf(copy.device(), low, high);
  return alias.ok() ? OkStatus() : alias.status();
}

Status FakeDevice::RunCopy(const Copy& copy) {
  {
    MutexLock lock(mutex_);
    const int64_t began_ns = BoottimeNs();
    for (;;) {  // the delay may be changed meanwhile
      const auto until = Deadline::At("copy delay", began_ns + copy_delay_.count());
      if (until.Expired()) break;
      delay_changed_.WaitUntil(mutex_, until);
    }
    if (++copies_done_ == break_at_) {
      return Aborted("fake device: an uncorrectable error; the process must be restarted");
    }
  }
  const auto [low, high] = DeviceExtent(copy.shape);
  const auto alias = AliasOf(copy.device(), low, high);
  if (!alias.ok()) return Aborted("fake device: illegal address");
  if (copy.to_host) {
    MoveRows(copy, copy.to, alias.value());
  } else {
    MoveRows(copy, alias.value(), copy.from);
  }
  return OkStatus();
}

}  // namespace ckpt::testing
