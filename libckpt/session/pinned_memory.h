// Staging memory that devices copy from and to at their full speed: registered with each of them,
// and given back before it goes.
#pragma once

#include <utility>
#include <vector>

#include "libckpt/base/bytes.h"
#include "libckpt/device/device.h"

namespace ckpt::session {

class PinnedMemory {
 public:
  PinnedMemory() = default;
  ~PinnedMemory();
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;

  // Once. A device that refuses is logged: its copies are slower, and hold the loop up. Blocks: a
  // second for some gigabytes.
  void Pin(MutableByteSpan memory, const std::vector<device::Device*>& devices);

 private:
  std::vector<std::pair<device::Device*, std::byte*>> held_;
};

}  // namespace ckpt::session
