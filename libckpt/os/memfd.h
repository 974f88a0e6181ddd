// Memory that processes share by descriptor, and its mappings. A Memfd's size is sealed: nobody who
// holds the descriptor can shrink it, so touching a mapping can never raise SIGBUS. Seals do not
// stop writes (a rank may punch holes): contents are trusted once hashed, not before.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "libckpt/base/bytes.h"
#include "libckpt/base/status.h"
#include "libckpt/os/fd.h"

namespace ckpt::os {

struct MapOptions {
  bool writable = true;
  bool populate = false;  // touch all pages now: a first copy into unmapped pages costs thrice
};

// Touches all pages of `mapped` (of a mapping, writable) and changes nothing in them, whoever
// writes into them meanwhile. Errors: kResourceExhausted; kInvalidArgument before Linux 5.14.
Status Populate(MutableByteSpan mapped);

// Not there in a child of fork().
class Mapping {
 public:
  Mapping() = default;
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  // Private zeroed memory. kResourceExhausted if there is none.
  static Result<Mapping> Anonymous(uint64_t bytes, bool populate = false);

  std::byte* data() const { return data_; }
  uint64_t size() const { return size_; }
  MutableByteSpan bytes() const { return {data_, static_cast<size_t>(size_)}; }
  bool valid() const { return data_ != nullptr; }
  void Unmap();
  // Leaves the memory mapped for the rest of the process: for pages that other threads may still
  // touch at exit.
  void Leak();

 private:
  friend class Memfd;
  Mapping(std::byte* data, uint64_t size) : data_(data), size_(size) {}
  std::byte* data_ = nullptr;
  uint64_t size_ = 0;
};

class Memfd {
 public:
  Memfd() = default;
  // Zeroed, sized, sealed against any change of size and of seals. `name` shows in /proc only.
  static Result<Memfd> Create(std::string_view name, uint64_t bytes);
  // Takes a descriptor that came from outside. kInvalidArgument unless it is a memfd whose size is
  // sealed and not 0, and `bytes_expected` (if not 0) its size.
  static Result<Memfd> FromFd(UniqueFd fd, uint64_t bytes_expected = 0);

  // Allocates the pages of this part now. kResourceExhausted if there is no room; touching them
  // later costs less.
  Status Reserve(uint64_t offset, uint64_t bytes);
  // Allocates what it fills, neither zeroed first nor with a fault for each page: half of the time
  // of Reserve and a copy into a mapping. kResourceExhausted if there is no room.
  Status Write(uint64_t offset, ByteSpan bytes) const;
  Result<Mapping> Map(const MapOptions& options = {}) const;
  Result<Memfd> Dup() const;

  int fd() const { return fd_.get(); }
  uint64_t bytes() const { return bytes_; }
  bool valid() const { return fd_.valid(); }
  // Tells the same memory behind two descriptors.
  uint64_t inode() const { return inode_; }
  UniqueFd TakeFd() && { return std::move(fd_); }

 private:
  UniqueFd fd_;
  uint64_t bytes_ = 0;
  uint64_t inode_ = 0;
};

}  // namespace ckpt::os
