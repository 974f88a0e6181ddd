// Room on a file system, for messages about a full disk.
#pragma once

#include <cstdint>
#include <string>

#include "libckpt/base/status.h"

namespace ckpt::os {

// Bytes that an unprivileged process may still write where `path` lies (quotas not counted).
Result<uint64_t> FreeBytes(const std::string& path);

}  // namespace ckpt::os
