#include "libckpt/comm/nccl/config.h"

#include <cstring>

namespace ckpt::comm::nccl {

void ConfigCopy::Own(size_t offset, size_t size) {
  if (size < offset + sizeof(char*)) return;
  auto* const at = reinterpret_cast<std::byte*>(words_.data()) + offset;
  const char* text = nullptr;
  std::memcpy(&text, at, sizeof text);
  if (text == nullptr) return;
  strings_.push_back(std::make_unique<std::string>(text));
  text = strings_.back()->c_str();
  std::memcpy(at, &text, sizeof text);
}

Result<ConfigCopy> ConfigCopy::Of(const void* config) {
  const Config defaults;
  if (config == nullptr) config = &defaults;
  size_t size = 0;
  unsigned magic = 0;
  std::memcpy(&size, config, sizeof size);
  std::memcpy(&magic, static_cast<const std::byte*>(config) + sizeof size, sizeof magic);
  if (magic != kMagic || size < kConfigBytesMin || size > kConfigBytesMax)
    return InvalidArgument("ncclConfig_t: begin with NCCL_CONFIG_INITIALIZER");
  ConfigCopy copy;
  copy.words_.resize((size + 7) / 8);
  std::memcpy(copy.words_.data(), config, size);
  Config* const own = copy.get();
  if (own->blocking != kUndefined && own->blocking != 0) {
    return InvalidArgument(
        "ncclConfig_t: blocking is 1, and a call that blocks has no deadline; leave it undefined, "
        "and after ncclInProgress ask ncclCommGetAsyncError");
  }
  own->blocking = 0;
  copy.Own(kConfigNetNameOffset, size);
  copy.Own(kConfigCommNameOffset, size);
  return copy;
}

}  // namespace ckpt::comm::nccl
