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

TEST(ParallelAhead, BeginsEachOnceAndNoMoreThanItMayBeforeItIsFinished) {
  constexpr uint64_t kCount = 500;
  constexpr uint32_t kAhead = 3, kThreads = 4;
  std::vector<std::atomic<int>> begun(kCount), finished(kCount);
  std::vector<std::atomic<int>> in_slot(AheadSlots(kAhead));
  std::atomic<int> under_way{0}, most{0};
  const Status status = ParallelAhead(
      kCount, kThreads, kAhead,
      [&](uint64_t i, uint32_t slot) {
        EXPECT_EQ(in_slot[slot]++, 0) << "a slot of two";
        ++begun[i];
        const int now = ++under_way;
        for (int seen = most; now > seen && !most.compare_exchange_weak(seen, now);) {
        }
      },
      [&](uint64_t i, uint32_t slot) {
        EXPECT_EQ(begun[i], 1);
        --in_slot[slot];
        --under_way;
        ++finished[i];
        return OkStatus();
      });
  EXPECT_TRUE(status.ok());
  for (uint64_t i = 0; i < kCount; ++i) EXPECT_EQ(finished[i], 1) << i;
  EXPECT_LE(most, static_cast<int>(kThreads * (kAhead + 1)));
  EXPECT_GT(most, 1);
}

TEST(ParallelAhead, AfterAnErrorNothingIsBegun) {
  std::atomic<int> begun{0};
  const Status status = ParallelAhead(
      1000, 2, 7, [&](uint64_t, uint32_t) { ++begun; },
      [](uint64_t i, uint32_t) { return i == 3 ? DataLoss("three") : OkStatus(); });
  EXPECT_EQ(status.code(), Code::kDataLoss);
  EXPECT_LT(begun, 1000);
}

}  // namespace
}  // namespace ckpt::engine
