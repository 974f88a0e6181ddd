#include "coordinator/agent/staging_ledger.h"

#include <gtest/gtest.h>

namespace ckpt::agent {
namespace {

constexpr uint64_t kMiB = 1 << 20;

void Hold(HeldCopies* held, const std::string& job, uint32_t rank, uint64_t bytes) {
  held->Put({{job, 1, rank, 0}, os::Memfd::Create("test", bytes).value(), false});
}

TEST(StagingLedger, FetchesUnderWayAreCounted) {
  HeldCopies held;
  StagingLedger ledger(100 * kMiB, &held);
  Hold(&held, "other", 0, 20 * kMiB);
  ASSERT_TRUE(ledger.Reserve(1, 50 * kMiB).ok());
  const Status second = ledger.Reserve(2, 40 * kMiB);
  EXPECT_EQ(second.code(), Code::kResourceExhausted);
  EXPECT_NE(second.message().find("only 30"), std::string::npos) << second.message();
  EXPECT_EQ(ledger.Grant({"job", 1}, 100 * kMiB), 30 * kMiB) << "nor for a launch";
  ledger.EndGrant({"job", 1});
  ledger.Release(1);
  EXPECT_TRUE(ledger.Reserve(2, 40 * kMiB).ok());
  EXPECT_TRUE(ledger.Reserve(2, 80 * kMiB).ok()) << "instead of its 40";
}

TEST(StagingLedger, GrantsCountUntilTheirMemoryIsHeld) {
  HeldCopies held;
  StagingLedger ledger(100 * kMiB, &held);
  EXPECT_EQ(ledger.Grant({"a", 1}, 60 * kMiB), 60 * kMiB);
  EXPECT_FALSE(ledger.Reserve(1, 41 * kMiB).ok()) << "granted, though nothing is held yet";
  Hold(&held, "a", 0, 30 * kMiB);
  EXPECT_FALSE(ledger.Reserve(1, 41 * kMiB).ok()) << "counted once";
  EXPECT_TRUE(ledger.Reserve(1, 40 * kMiB).ok());
  EXPECT_EQ(ledger.Grant({"b", 1}, 1), 0u);
  ledger.EndGrant({"a", 1});
  EXPECT_EQ(ledger.Grant({"b", 1}, 100 * kMiB), 30 * kMiB);
}

}  // namespace
}  // namespace ckpt::agent
