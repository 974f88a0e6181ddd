#include "libckpt/os/memory_room.h"

#include <algorithm>
#include <fstream>
#include <optional>
#include <sstream>

#include "libckpt/base/clock.h"

namespace ckpt::os {
namespace {

constexpr uint64_t kUnlimited = uint64_t{1} << 62;  // version 1 says it as a number about this size

// The names of one version of cgroups.
struct Files {
  const char *limit, *used, *cache;
};
constexpr Files kVersion1 = {"memory.limit_in_bytes", "memory.usage_in_bytes", "total_"};
constexpr Files kVersion2 = {"memory.max", "memory.current", ""};

std::optional<uint64_t> Number(const std::string& path) {
  std::ifstream in(path);
  uint64_t number = 0;
  if (!(in >> number)) return std::nullopt;  // also "max"
  return number;
}

// The value behind `key` in lines of "key value" or "key: value kB".
uint64_t ValueOf(const std::string& path, const std::string& key) {
  std::ifstream in(path);
  std::string name;
  for (std::string line; std::getline(in, line);) {
    std::istringstream fields(line);
    uint64_t value = 0;
    if (fields >> name >> value && name == key) return value;
  }
  return 0;
}

void Look(const std::string& folder, const Files& files, MemoryRoom* room) {
  const std::optional<uint64_t> limit = Number(folder + "/" + files.limit);
  const std::optional<uint64_t> used = Number(folder + "/" + files.used);
  if (!limit || !used || *limit >= kUnlimited) return;
  uint64_t cache = 0;
  for (const char* list : {"inactive_file", "active_file"}) {
    cache += ValueOf(folder + "/memory.stat", std::string(files.cache) + list);
  }
  const uint64_t taken = *used - std::min(*used, cache);
  const uint64_t left = *limit - std::min(*limit, taken);
  if (left >= room->bytes) return;
  *room = {left, "the cgroup's limit in " + folder + "/" + files.limit, *limit};
}

// A cgroup and all above it.
void LookUp(const std::string& root, std::string path, const Files& files, MemoryRoom* room) {
  while (path.size() > 1) {
    Look(root + path, files, room);
    path.erase(path.rfind('/'));
  }
  Look(root, files, room);
}

}  // namespace

Result<MemoryRoom> AvailableMemory(const std::string& proc, const std::string& cgroups) {
  const uint64_t available = ValueOf(proc + "/meminfo", "MemAvailable:") * 1024;
  if (available == 0) return Internal(proc + "/meminfo has no MemAvailable");
  MemoryRoom room{available, "this machine's memory",
                  ValueOf(proc + "/meminfo", "MemTotal:") * 1024};
  std::ifstream in(proc + "/self/cgroup");
  for (std::string line; std::getline(in, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string path = line.substr(second + 1);
    if (controllers == ",,") LookUp(cgroups, path, kVersion2, &room);
    if (controllers.find(",memory,") != std::string::npos) {
      LookUp(cgroups + "/memory", path, kVersion1, &room);
    }
  }
  return room;
}

}  // namespace ckpt::os
