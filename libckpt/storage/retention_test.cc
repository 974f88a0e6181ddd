// What people may write as rules of retention.
#include "libckpt/storage/retention.h"

#include <gtest/gtest.h>

namespace ckpt::storage {
namespace {

TEST(KeepRules, NoneMeansThatNothingIsRemoved) {
  const auto rules = MakeKeepRules(0, 0, 0);
  ASSERT_TRUE(rules.ok());
  EXPECT_FALSE(rules->has_value());
}

TEST(KeepRules, AllThree) {
  const auto rules = MakeKeepRules(3, 1000, 24);
  ASSERT_TRUE(rules.ok() && rules->has_value());
  EXPECT_EQ((*rules)->last, 3u);
  EXPECT_EQ((*rules)->every_steps, 1000u);
  EXPECT_EQ((*rules)->every_hours, std::chrono::hours(24));
}

TEST(KeepRules, ARuleWithoutTheNewestIsRefusedWithTheWayOut) {
  const Status status = MakeKeepRules(0, 1000, 0).status();
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_NE(status.message().find("CKPT_KEEP_LAST"), std::string::npos) << status.message();
  EXPECT_EQ(MakeKeepRules(2'000'000, 0, 0).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(MakeKeepRules(1, 0, uint64_t{1} << 40).status().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace ckpt::storage
