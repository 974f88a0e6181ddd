#include "coordinator/run/kv_store.h"

#include <gtest/gtest.h>

namespace ckpt::run {
namespace {

using Waiters = std::vector<KvStore::Waiter>;

TEST(KvStore, AnswersAtOnceOrWhenTheKeyIsSet) {
  KvStore kv;
  EXPECT_EQ(kv.Wait("e1", "id", {1, 7}), std::nullopt);
  EXPECT_EQ(kv.Wait("e1", "id", {2, 8}), std::nullopt);
  EXPECT_EQ(kv.Wait("e2", "id", {3, 9}), std::nullopt) << "scopes are apart";
  const auto told = kv.Set("e1", "id", "x");
  ASSERT_TRUE(told.ok());
  EXPECT_EQ(*told, (Waiters{{1, 7}, {2, 8}}));
  EXPECT_EQ(kv.Wait("e1", "id", {1, 10}), "x");
}

TEST(KvStore, I1AValueStays) {
  KvStore kv;
  ASSERT_TRUE(kv.Set("s", "k", "a").ok());
  EXPECT_TRUE(kv.Set("s", "k", "a").ok()) << "the same again is no error";
  EXPECT_EQ(kv.Set("s", "k", "b").status().code(), Code::kAlreadyExists);
  kv.Clear();
  EXPECT_TRUE(kv.Set("s", "k", "b").ok());
}

TEST(KvStore, I2IsBounded) {
  KvStore kv;
  EXPECT_EQ(kv.Set("s", "k", std::string(kKvBytesMax, 'x')).status().code(),
            Code::kResourceExhausted);
  EXPECT_TRUE(kv.Set("s", "k", std::string(kKvBytesMax - 2, 'x')).ok());
  EXPECT_EQ(kv.Set("s", "l", "y").status().code(), Code::kResourceExhausted);
}

TEST(KvStore, AGonePeerIsNotTold) {
  KvStore kv;
  kv.Wait("s", "k", {1, 1});
  kv.Wait("s", "k", {2, 2});
  kv.ForgetPeer(1);
  EXPECT_EQ(*kv.Set("s", "k", "v"), (Waiters{{2, 2}}));
}

}  // namespace
}  // namespace ckpt::run
