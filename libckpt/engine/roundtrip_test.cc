// Bytes come back bit by bit: every dtype, any view, any number of ranks.
#include <gtest/gtest.h>

#include "libckpt/testing/test_gang.h"

namespace ckpt::engine {
namespace {

using format::Box;
using format::DType;
using format::Placement;
using testing::Meta;
using testing::Part;
using testing::Shard;
using testing::TestGang;
using testing::TestRank;
using testing::TestStore;
using testing::TestTensor;

constexpr DType kAllDTypes[] = {
    DType::kBool, DType::kU8,  DType::kI8,   DType::kU16,    DType::kI16,    DType::kU32,
    DType::kI32,  DType::kU64, DType::kI64,  DType::kF16,    DType::kBF16,   DType::kF32,
    DType::kF64,  DType::kC64, DType::kC128, DType::kF8E4M3, DType::kF8E5M2, DType::kF4x2};

// Content is random bits, so floats hold NaNs with every payload; bool bytes are kept as they are.
TestRank AllDTypes() {
  TestRank rank;
  for (const DType dtype : kAllDTypes) {
    rank.tensors.emplace_back(Meta("dtype/" + std::string(format::DTypeName(dtype)), dtype,
                                   Placement::kReplicated, {37, 5}),
                              0);
  }
  return rank;
}

TestRank OddShapes() {
  TestRank rank;
  const auto add = [&](std::string name, std::vector<uint64_t> shape,
                       std::vector<int64_t> strides = {}) {
    rank.tensors.emplace_back(
        Meta(std::move(name), DType::kF32, Placement::kReplicated, std::move(shape)), 0,
        std::move(strides));
  };
  add("scalar", {});
  add("empty", {0, 7});
  add("one", {1, 1, 1});
  add("fortran", {13, 17}, {1, 13});
  add("every second column", {9, 8}, {16, 2});
  add("reversed rows", {6, 5}, {-5, 1});
  add("reversed both", {6, 5}, {-5, -1});
  add("middle of a large storage", {3, 4, 5}, {400, 40, 1});
  add("permuted", {3, 4, 5}, {1, 15, 3});
  add("large", {1500, 1031});  // several chunks, none of them at a row's end
  return rank;
}

template <typename MakeRank>
std::vector<TestRank> Ranks(uint32_t world, MakeRank make) {
  std::vector<TestRank> ranks;
  for (uint32_t r = 0; r < world; ++r) ranks.push_back(make());
  return ranks;
}

void ExpectRoundTrip(std::vector<TestRank> ranks) {
  TestStore store;
  TestGang gang(std::move(ranks));
  gang.MakeRegions(store.job);
  gang.Fill(10);
  ASSERT_CKPT_OK(gang.Save(store.store.get(), store.job, store.Id(10)));
  gang.Clear();
  std::vector<std::string> skipped;
  auto reader = OpenNewest(store.store.get(), &skipped);
  ASSERT_TRUE(reader.ok()) << reader.status().ToString();
  EXPECT_TRUE(skipped.empty());
  EXPECT_EQ(reader.value()->id(), store.Id(10));
  ASSERT_CKPT_OK(reader.value()->Verify({}));
  ASSERT_CKPT_OK(gang.LoadAll(reader.value().get()));
  EXPECT_EQ(gang.CountWrong(10), 0u);
}

TEST(RoundTrip, EveryDType) { ExpectRoundTrip(Ranks(1, AllDTypes)); }
TEST(RoundTrip, EveryDTypeSplitOverReplicas) { ExpectRoundTrip(Ranks(3, AllDTypes)); }
TEST(RoundTrip, OddShapesAndViews) { ExpectRoundTrip(Ranks(1, OddShapes)); }
TEST(RoundTrip, OddShapesAndViewsSplitOverReplicas) { ExpectRoundTrip(Ranks(4, OddShapes)); }

// What a rank of `world` holds: sharded along rows, along columns, replicated, hybrid.
TestRank Mixed(uint32_t rank, uint32_t world) {
  TestRank state;
  const std::vector<uint64_t> wide{64, 300}, tall{513, 40};
  state.tensors.emplace_back(Shard("rows", DType::kF32, tall, Part(tall, 0, rank, world)), rank);
  state.tensors.emplace_back(Shard("columns", DType::kBF16, wide, Part(wide, 1, rank, world)),
                             rank);
  state.tensors.emplace_back(Meta("replicated", DType::kF64, Placement::kReplicated, {211, 33}),
                             rank);
  const uint32_t halves = world > 1 ? 2 : 1;
  state.tensors.emplace_back(
      Shard("hybrid", DType::kI32, tall, Part(tall, 0, rank % halves, halves)), rank);
  // Columns of a view in Fortran order.
  const Box part = Part(wide, 1, rank, world);
  state.tensors.emplace_back(Shard("fortran columns", DType::kF32, wide, part), rank,
                             std::vector<int64_t>{1, static_cast<int64_t>(part.shape[0])});
  state.values.values.push_back({"lr", format::Scope::kShared, format::Value{0.25}});
  return state;
}

std::vector<TestRank> MixedRanks(uint32_t world) {
  std::vector<TestRank> ranks;
  for (uint32_t r = 0; r < world; ++r) ranks.push_back(Mixed(r, world));
  return ranks;
}

class Reshard : public ::testing::TestWithParam<std::pair<uint32_t, uint32_t>> {};

TEST_P(Reshard, LoadsOnAnotherNumberOfRanks) {
  const auto [from, to] = GetParam();
  TestStore store;
  TestGang writers(MixedRanks(from));
  writers.MakeRegions(store.job);
  writers.Fill(7);
  ASSERT_CKPT_OK(writers.Save(store.store.get(), store.job, store.Id(7)));
  auto reader = OpenCheckpoint(store.store.get(), store.Id(7));
  ASSERT_TRUE(reader.ok()) << reader.status().ToString();
  TestGang readers(MixedRanks(to));
  readers.Clear();
  ASSERT_CKPT_OK(readers.LoadAll(reader.value().get()));
  EXPECT_EQ(readers.CountWrong(7), 0u);
  for (uint32_t r = 0; r < to; ++r) {
    auto values = reader.value()->Values(Rank(r));
    ASSERT_TRUE(values.ok()) << values.status().ToString();
    EXPECT_EQ(values.value(), readers.ranks()[r].values);
  }
}
INSTANTIATE_TEST_SUITE_P(Worlds, Reshard,
                         ::testing::Values(std::pair(1, 1), std::pair(1, 4), std::pair(4, 1),
                                           std::pair(3, 5), std::pair(8, 3), std::pair(4, 4)));

}  // namespace
}  // namespace ckpt::engine
