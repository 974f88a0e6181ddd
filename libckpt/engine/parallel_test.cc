// What a body throws is an error of the loop, on whichever thread it happened.
#include "libckpt/engine/parallel.h"

#include <gtest/gtest.h>

#include <atomic>
#include <new>
#include <stdexcept>

namespace ckpt::engine {
namespace {

TEST(ParallelFor, WhatABodyThrowsIsItsError) {
  for (uint64_t bad = 0; bad < 8; ++bad) {  // on the caller's thread or another
    std::atomic<uint64_t> running{0};
    const Status status = ParallelFor(8, 4, [&](uint64_t i, uint32_t) -> Status {
      ++running;
      if (i == bad) {
        --running;
        throw std::bad_alloc();
      }
      --running;
      return OkStatus();
    });
    EXPECT_EQ(status.code(), Code::kResourceExhausted);
    EXPECT_EQ(running, 0u) << "no worker outlives the call";
  }
  const Status status = ParallelFor(
      1, 1, [](uint64_t, uint32_t) -> Status { throw std::runtime_error("a device's own"); });
  EXPECT_EQ(status.code(), Code::kInternal);
  EXPECT_NE(status.message().find("a device's own"), std::string::npos);
}

}  // namespace
}  // namespace ckpt::engine
