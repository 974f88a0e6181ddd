// Seeds of random tests: printed, so that a failure can be repeated, and taken from CKPT_TEST_SEED.
#pragma once

#include <cstdint>
#include <string_view>

#include "libckpt/base/rng.h"

namespace ckpt::testing {

// CKPT_TEST_SEED if it is set, else `fallback`. Prints "seed of WHAT: N".
uint64_t TestSeed(std::string_view what, uint64_t fallback);

inline Rng TestRng(std::string_view what, uint64_t fallback) {
  return Rng(TestSeed(what, fallback));
}

}  // namespace ckpt::testing
