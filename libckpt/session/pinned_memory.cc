#include "libckpt/session/pinned_memory.h"

#include "libckpt/base/log.h"

namespace ckpt::session {

PinnedMemory::~PinnedMemory() {
  for (const auto& [device, memory] : held_) {
    if (const Status status = device->UnregisterHost(memory); !status.ok())
      LogWarning("staging memory: " + status.message());
  }
}

void PinnedMemory::Pin(MutableByteSpan memory, const std::vector<device::Device*>& devices) {
  for (device::Device* device : devices) {
    const Status status = device->RegisterHost(memory.data(), memory.size());
    if (status.ok()) {
      held_.emplace_back(device, memory.data());
    } else {
      LogWarning("staging memory is not pinned, copies from the device are slower: " +
                 status.message());
    }
  }
}

}  // namespace ckpt::session
