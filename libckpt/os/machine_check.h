// What a machine must have for this project to work well, looked at for a person: each finding says
// what is wrong and what to do about it. Nothing here decides anything.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "libckpt/base/status.h"

namespace ckpt::os {

enum class FindingLevel { kOk, kWarn, kFail };

struct Finding {
  std::string name;  // "kernel: memfd"
  FindingLevel level = FindingLevel::kOk;
  std::string message;
  std::string remedy;  // empty if there is nothing to do
};

// memfd with seals, pidfd.
std::vector<Finding> CheckKernel();

// A folder that programs write into: there, writable, with room. One that is missing is looked for
// further up: it would be made. Fails below `bytes_min` free, warns below ten times as much.
// Blocks: on the file system (a probe file is written and removed).
Finding CheckFolder(const std::string& name, const std::string& path, uint64_t bytes_min);

// Whether files in a folder (or where it would be made) can go past the page cache. A warning is as
// bad as it gets: files are written through it then.
// Blocks: on the file system (a page is written to a file that has no name any more, and read).
Finding CheckDirect(const std::string& name, const std::string& path);

// Whether `bytes` of memory could be had now.
Finding CheckMemory(const std::string& name, uint64_t bytes);

}  // namespace ckpt::os
