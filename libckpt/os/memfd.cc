#include "libckpt/os/memfd.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <utility>

#include "libckpt/base/clock.h"
#include "libckpt/base/fault.h"
#include "libckpt/base/limits.h"

#if !defined(MADV_POPULATE_WRITE)
#define MADV_POPULATE_WRITE 23
#endif

namespace ckpt::os {
namespace {

constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW;

Status MemoryError(int error, std::string_view verb, uint64_t bytes) {
  if (error == ENOMEM || error == ENOSPC || error == EAGAIN) error = ENOMEM;
  return ErrnoStatus(error, std::string(verb) + " " + FormatBytes(bytes) + " of memory");
}

Result<std::byte*> MapBytes(int fd, uint64_t bytes, int protection, int flags, bool populate) {
  CKPT_FAULT("os.memory.map");
  if (bytes == 0) return InvalidArgument("mapping 0 bytes of memory");
  if (populate) flags |= MAP_POPULATE;
  void* data = ::mmap(nullptr, bytes, protection, flags, fd, 0);
  if (data == MAP_FAILED) return MemoryError(errno, "mapping", bytes);
  // A fork's child has no use for it: it would hold shared memory for as long as it lives, and make
  // the next write into each private page a copy. Where the kernel refuses, that is what happens.
  (void)::madvise(data, bytes, MADV_DONTFORK);
  return static_cast<std::byte*>(data);
}

}  // namespace

Status Populate(MutableByteSpan mapped) {
  CKPT_FAULT("os.memory.populate");
  const uintptr_t page = kPageBytes;
  const uintptr_t begin = reinterpret_cast<uintptr_t>(mapped.data()) / page * page;
  const uintptr_t end = AlignUp(reinterpret_cast<uintptr_t>(mapped.data()) + mapped.size(), page);
  if (mapped.empty()) return OkStatus();
  int result;
  do {
    result = ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_POPULATE_WRITE);
  } while (result != 0 && (errno == EINTR || errno == EAGAIN));
  return result == 0 ? OkStatus()
                     : MemoryError(errno == EFAULT ? ENOMEM : errno, "touching", end - begin);
}

Mapping::Mapping(Mapping&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  if (this != &other) {
    Unmap();
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
  }
  return *this;
}

Mapping::~Mapping() { Unmap(); }

void Mapping::Unmap() {
  if (data_ != nullptr) ::munmap(data_, size_);
  Leak();
}

void Mapping::Leak() {
  data_ = nullptr;
  size_ = 0;
}

Result<Mapping> Mapping::Anonymous(uint64_t bytes, bool populate) {
  CKPT_ASSIGN_OR_RETURN(std::byte* const data, MapBytes(-1, bytes, PROT_READ | PROT_WRITE,
                                                        MAP_PRIVATE | MAP_ANONYMOUS, populate));
  return Mapping(data, bytes);
}

Result<Memfd> Memfd::Create(std::string_view name, uint64_t bytes) {
  CKPT_FAULT("os.memory.create");
  if (bytes == 0) return InvalidArgument("creating 0 bytes of shared memory");
  // 249 bytes is the kernel's limit on names.
  UniqueFd fd(
      ::memfd_create(std::string(name.substr(0, 200)).c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return MemoryError(errno, "creating", bytes);
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    return MemoryError(errno, "sizing", bytes);
  }
  if (::fcntl(fd.get(), F_ADD_SEALS, kSizeSeals | F_SEAL_SEAL) != 0) {
    return ErrnoStatus(errno, "sealing shared memory");
  }
  return FromFd(std::move(fd), bytes);
}

Result<Memfd> Memfd::FromFd(UniqueFd fd, uint64_t bytes_expected) {
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & kSizeSeals) != kSizeSeals) {
    return InvalidArgument(
        "a descriptor that should be sealed shared memory is not: its size is "
        "not sealed");
  }
  struct stat st;
  if (::fstat(fd.get(), &st) != 0) return ErrnoStatus(errno, "looking at shared memory");
  const auto bytes = static_cast<uint64_t>(st.st_size);
  if (bytes == 0 || (bytes_expected != 0 && bytes != bytes_expected)) {
    return InvalidArgument("shared memory has " + std::to_string(bytes) + " bytes, expected " +
                           (bytes_expected != 0 ? std::to_string(bytes_expected) : "some"));
  }
  Memfd memory;
  memory.fd_ = std::move(fd);
  memory.bytes_ = bytes;
  memory.inode_ = st.st_ino;
  return memory;
}

Status Memfd::Reserve(uint64_t offset, uint64_t bytes) {
  CKPT_FAULT("os.memory.reserve");
  int result;
  do {
    result = ::fallocate(fd_.get(), 0, static_cast<off_t>(offset), static_cast<off_t>(bytes));
  } while (result != 0 && errno == EINTR);
  return result == 0 ? OkStatus() : MemoryError(errno, "reserving", bytes);
}

Status Memfd::Write(uint64_t offset, ByteSpan bytes) const {
  CKPT_FAULT("os.memory.write");
  if (offset > bytes_ || bytes.size() > bytes_ - offset) {
    return InvalidArgument("writing beyond the end of shared memory");
  }
  while (!bytes.empty()) {
    const ssize_t n = ::pwrite(fd_.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return MemoryError(n < 0 ? errno : ENOSPC, "filling", bytes_);
    bytes = bytes.subspan(static_cast<size_t>(n));
    offset += static_cast<uint64_t>(n);
  }
  return OkStatus();
}

Result<Mapping> Memfd::Map(const MapOptions& options) const {
  const int protection = PROT_READ | (options.writable ? PROT_WRITE : 0);
  CKPT_ASSIGN_OR_RETURN(std::byte* const data,
                        MapBytes(fd_.get(), bytes_, protection, MAP_SHARED, options.populate));
  return Mapping(data, bytes_);
}

Result<Memfd> Memfd::Dup() const {
  CKPT_ASSIGN_OR_RETURN(UniqueFd fd, DupFd(fd_.get()));
  return FromFd(std::move(fd), bytes_);
}

}  // namespace ckpt::os
