#include "coordinator/run/memcpy_speed.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "libckpt/os/memfd.h"
#include "libckpt/os/thread.h"

namespace ckpt::run {
namespace {

constexpr uint64_t kCopiedMax = uint64_t{1} << 30;
constexpr uint64_t kBufferBytes = uint64_t{32} << 20;  // of each thread, beyond most caches

}  // namespace

Nanos TimeMemcpy(uint64_t bytes, uint32_t threads) {
  threads = std::clamp<uint32_t>(threads, 1, 16);
  const uint64_t each = std::min(bytes, kCopiedMax) / threads;
  const uint64_t buffer = std::min(each, kBufferBytes);
  if (buffer == 0) return Nanos(0);
  std::vector<os::Mapping> from, to;
  for (uint32_t i = 0; i < threads; ++i) {
    Result<os::Mapping> source = os::Mapping::Anonymous(buffer, true);
    Result<os::Mapping> target = os::Mapping::Anonymous(buffer, true);
    if (!source.ok() || !target.ok()) return Nanos(0);
    std::memset(source->data(), 1, buffer);
    from.push_back(std::move(source).value());
    to.push_back(std::move(target).value());
  }
  const int64_t begin = BoottimeNs();
  {
    std::vector<os::Thread> copiers;
    for (uint32_t i = 0; i < threads; ++i) {
      copiers.emplace_back("memcpy", [&, i] {
        for (uint64_t done = 0; done < each; done += buffer) {
          std::memcpy(to[i].data(), from[i].data(), std::min(buffer, each - done));
        }
      });
    }
  }
  const int64_t took = BoottimeNs() - begin;
  return Nanos(static_cast<int64_t>(static_cast<double>(took) * static_cast<double>(bytes) /
                                    static_cast<double>(each * threads)));
}

}  // namespace ckpt::run
