#include "libckpt/testing/seed.h"

#include <cstdio>
#include <cstdlib>

namespace ckpt::testing {

uint64_t TestSeed(std::string_view what, uint64_t fallback) {
  const char* given = std::getenv("CKPT_TEST_SEED");
  const uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 0) : fallback;
  std::printf("seed of %.*s: %llu (CKPT_TEST_SEED=%llu repeats it)\n",
              static_cast<int>(what.size()), what.data(), static_cast<unsigned long long>(seed),
              static_cast<unsigned long long>(seed));
  return seed;
}

}  // namespace ckpt::testing
