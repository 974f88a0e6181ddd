#include "libckpt/plan/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <set>

#include "libckpt/base/clock.h"
#include "libckpt/base/rng.h"
#include "libckpt/plan/split.h"
#include "libckpt/plan/tiling.h"
#include "libckpt/testing/seed.h"

namespace ckpt::plan {
namespace {

using format::Box;
using format::DType;
using format::Placement;
using format::RankLayout;
using format::TensorMeta;

TensorMeta Tensor(std::string name, DType dtype, Placement placement,
                  std::vector<uint64_t> global_shape) {
  TensorMeta meta;
  meta.name = std::move(name);
  meta.dtype = dtype;
  meta.placement = placement;
  meta.global_shape = global_shape;
  meta.local = Box{std::vector<uint64_t>(global_shape.size(), 0), global_shape};
  return meta;
}

TensorMeta Sharded(std::string name, std::vector<uint64_t> global_shape, Box local) {
  TensorMeta meta =
      Tensor(std::move(name), DType::kF32, Placement::kSharded, std::move(global_shape));
  meta.local = std::move(local);
  return meta;
}

std::vector<RankLayout> Layouts(std::vector<std::vector<TensorMeta>> tensors) {
  std::vector<RankLayout> layouts;
  for (uint32_t r = 0; r < tensors.size(); ++r) layouts.push_back({Rank(r), std::move(tensors[r])});
  return layouts;
}

std::vector<uint64_t> ElementsOf(const Box& box, const std::vector<uint64_t>& global_shape) {
  std::vector<uint64_t> elements;
  const uint64_t count = box.ElementCount();
  for (uint64_t i = 0; i < count; ++i) {
    uint64_t rest = i, element = 0, stride = 1;
    for (size_t d = box.shape.size(); d-- > 0;) {
      element += (box.offset[d] + rest % box.shape[d]) * stride;
      rest /= box.shape[d];
      stride *= global_shape[d];
    }
    elements.push_back(element);
  }
  return elements;
}

// A random job: every placement, HSDP, uneven and empty shards, ties, ranks without tensors.
struct RandomJob {
  std::vector<RankLayout> layouts;
  std::vector<uint32_t> node_of;
};

// Cuts a box at random into a grid, so that boxes along each dimension tile it.
std::vector<Box> RandomGrid(Rng* rng, const std::vector<uint64_t>& shape, uint32_t boxes_max) {
  std::vector<Box> boxes{Box{std::vector<uint64_t>(shape.size(), 0), shape}};
  for (size_t d = 0; d < shape.size(); ++d) {
    std::vector<Box> next;
    for (const Box& box : boxes) {
      const bool cut = boxes.size() + next.size() < boxes_max && rng->Chance(70);
      const uint64_t at = cut ? rng->Below(box.shape[d] + 1) : box.shape[d];
      Box low = box, high = box;
      low.shape[d] = at;
      high.offset[d] += at;
      high.shape[d] -= at;
      next.push_back(low);
      if (cut) next.push_back(high);
    }
    boxes = std::move(next);
  }
  if (boxes.size() > boxes_max) return {Box{std::vector<uint64_t>(shape.size(), 0), shape}};
  return boxes;
}

RandomJob MakeRandomJob(Rng* rng) {
  constexpr DType kDTypes[] = {DType::kU8, DType::kBF16, DType::kF32, DType::kF64, DType::kC128};
  RandomJob job;
  const auto world = static_cast<uint32_t>(rng->Between(1, 9));
  std::vector<std::vector<TensorMeta>> tensors(world);
  const auto nodes = static_cast<uint32_t>(rng->Between(1, world));
  for (uint32_t r = 0; r < world; ++r) {
    job.node_of.push_back(static_cast<uint32_t>(rng->Below(nodes)));
  }
  const uint64_t count = rng->Between(0, 8);
  for (uint64_t t = 0; t < count; ++t) {
    std::vector<uint64_t> shape(rng->Below(4));
    for (uint64_t& size : shape) size = rng->Chance(5) ? 0 : rng->Between(1, 7);
    if (rng->Chance(20)) shape = {rng->Between(500, 3000)};  // large enough to be cut
    if (rng->Chance(10)) shape = {3, rng->Between(400, 900)};
    const auto placement = static_cast<Placement>(rng->Below(4));
    TensorMeta meta = Tensor("t" + std::to_string(rng->Below(1000)) + "." + std::to_string(t),
                             kDTypes[rng->Below(5)], placement, shape);
    const auto replica_share = static_cast<uint32_t>(rng->Between(0, 100));
    if (placement == Placement::kSharded) {
      const auto boxes = RandomGrid(rng, shape, world);
      for (uint32_t r = 0; r < world; ++r) {
        meta.local = boxes[r % boxes.size()];
        if (r < boxes.size() || rng->Chance(replica_share)) tensors[r].push_back(meta);
      }
    } else {
      const auto owner = static_cast<uint32_t>(rng->Below(world));
      for (uint32_t r = 0; r < world; ++r) {
        if (r == owner || rng->Chance(replica_share)) tensors[r].push_back(meta);
      }
    }
  }
  for (uint32_t r = 0; r < world; ++r) {
    if (tensors[r].empty() || !rng->Chance(30)) continue;
    TensorMeta tied = tensors[r][0];
    tied.tied_to = tied.name;
    tied.name += ".tied";
    tensors[r].push_back(tied);
  }
  job.layouts = Layouts(std::move(tensors));
  return job;
}

std::string DomainKey(const TensorMeta& tensor, uint32_t rank) {
  const bool own =
      tensor.placement == Placement::kPerRank || tensor.placement == Placement::kUnsharded;
  return tensor.name + (own ? "@" + std::to_string(rank) : "");
}

void CheckInvariants(const RandomJob& job, const GangPlan& plan) {
  std::map<std::string, std::map<uint64_t, int>> written;  // I1
  std::vector<std::map<std::string, std::map<uint64_t, int>>> on_node(job.layouts.size());
  for (uint32_t r = 0; r < plan.ranks.size(); ++r) {
    const RankPlan& rank = plan.ranks[r];
    for (uint32_t i = 0; i < rank.pieces.size(); ++i) {
      const Piece& piece = rank.pieces[i];
      ASSERT_LT(piece.tensor_index, job.layouts[r].tensors.size());
      const TensorMeta& tensor = job.layouts[r].tensors[piece.tensor_index];
      EXPECT_TRUE(tensor.tied_to.empty());
      EXPECT_TRUE(tensor.local.Contains(piece.box()));  // I2
      EXPECT_EQ(piece.write, i < rank.write_count);
      for (const uint64_t element : ElementsOf(piece.box(), tensor.global_shape)) {
        if (piece.write) ++written[DomainKey(tensor, r)][element];
        ++on_node[job.node_of[r]][DomainKey(tensor, r)][element];
      }
    }
    // File order.
    for (uint32_t i = 1; i < rank.write_count; ++i) {
      const auto key = [&](const Piece& p) {
        const TensorMeta& tensor = job.layouts[r].tensors[p.tensor_index];
        return std::make_tuple(-static_cast<int>(format::ElementBytes(tensor.dtype)), tensor.name,
                               p.box().offset, p.box().shape);
      };
      EXPECT_LT(key(rank.pieces[i - 1]), key(rank.pieces[i]));
    }
    auto decoded = RankPlan::Decode(rank.Encode(), job.layouts[r]);
    ASSERT_TRUE(decoded.ok()) << decoded.status().ToString();
    EXPECT_EQ(decoded.value(), rank);
  }
  for (uint32_t r = 0; r < job.layouts.size(); ++r) {
    for (const TensorMeta& tensor : job.layouts[r].tensors) {
      if (!tensor.tied_to.empty()) continue;
      const std::string key = DomainKey(tensor, r);
      for (const uint64_t element : ElementsOf(tensor.local, tensor.global_shape)) {
        EXPECT_EQ(written[key][element], 1) << key << " element " << element;  // I1
        EXPECT_EQ(on_node[job.node_of[r]][key][element], 1)                    // I3
            << key << " element " << element << " on node " << job.node_of[r];
      }
    }
  }
}

TEST(Plan, KeepsItsInvariantsOnRandomJobs) {
  Rng rng = testing::TestRng("random plans", 20261);
  for (int i = 0; i < 150 && !::testing::Test::HasFailure(); ++i) {
    const RandomJob job = MakeRandomJob(&rng);
    auto plan = MakePlan(job.layouts, job.node_of);
    ASSERT_TRUE(plan.ok()) << "job " << i << ": " << plan.status().ToString();
    SCOPED_TRACE("job " + std::to_string(i));
    CheckInvariants(job, plan.value());
    auto again = MakePlan(job.layouts, job.node_of);  // I5
    ASSERT_TRUE(again.ok());
    EXPECT_EQ(again->ranks, plan->ranks);
    EXPECT_EQ(again->hash, plan->hash);
  }
}

// I4, with tensors large enough to be cut.
TEST(Plan, ReplicasWriteEqualShares) {
  for (const uint32_t world : {2u, 3u, 4u, 7u, 16u, 64u}) {
    std::vector<TensorMeta> tensors;
    for (int i = 0; i < 20; ++i) {
      tensors.push_back(Tensor("w" + std::to_string(i), i % 2 ? DType::kF32 : DType::kBF16,
                               Placement::kReplicated, {static_cast<uint64_t>(1000 + 37 * i), 64}));
      tensors.push_back(Tensor("b" + std::to_string(i), DType::kF32, Placement::kReplicated, {64}));
    }
    tensors.push_back(Tensor("flat", DType::kF32, Placement::kReplicated, {1, 1, 500'000}));
    tensors.push_back(Tensor("thick rows", DType::kF32, Placement::kReplicated, {2, 100'000}));
    const auto layouts = Layouts(std::vector<std::vector<TensorMeta>>(world, tensors));
    auto plan = MakePlan(layouts, std::vector<uint32_t>(world, 0));
    ASSERT_TRUE(plan.ok()) << plan.status().ToString();
    uint64_t total = 0, pieces = 0;
    for (uint32_t r = 0; r < world; ++r) {
      total += plan->ranks[r].WriteBytes(layouts[r]);
      pieces += plan->ranks[r].write_count;
    }
    const double share = static_cast<double>(total) / world;
    for (uint32_t r = 0; r < world; ++r) {
      const auto bytes = static_cast<double>(plan->ranks[r].WriteBytes(layouts[r]));
      EXPECT_NEAR(bytes, share, std::max(share * 0.05, double{kSplitBytesMin}))
          << world << " " << r;
    }
    EXPECT_LE(pieces, tensors.size() + 3 * world);
  }
}

TEST(Plan, OneNodeStagesNothingTwice) {
  std::vector<TensorMeta> tensors{Tensor("w", DType::kF32, Placement::kReplicated, {1000, 10})};
  const auto layouts = Layouts({tensors, tensors, tensors, tensors});
  auto one = MakePlan(layouts, {0, 0, 0, 0});
  auto two = MakePlan(layouts, {0, 0, 1, 1});
  ASSERT_TRUE(one.ok() && two.ok());
  uint64_t staged_one = 0, staged_two = 0;
  for (uint32_t r = 0; r < 4; ++r) {
    staged_one += one->ranks[r].StageBytes(layouts[r]);
    staged_two += two->ranks[r].StageBytes(layouts[r]);
    // What is held for the node is dealt evenly too.
    EXPECT_NEAR(static_cast<double>(two->ranks[r].StageBytes(layouts[r])), 20'000, 4'096);
  }
  EXPECT_EQ(staged_one, 40'000u);
  EXPECT_EQ(staged_two, 80'000u);
  EXPECT_NE(one->hash, two->hash);
}

TEST(Plan, EveryClaimantOfAnUnshardedTensorWritesIt) {
  std::vector<TensorMeta> tensors{Tensor("step", DType::kI64, Placement::kUnsharded, {4})};
  auto plan = MakePlan(Layouts({tensors, tensors}), {0, 0});
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->ranks[0].write_count, 1u);
  EXPECT_EQ(plan->ranks[1].write_count, 1u);
}

void ExpectRefused(const std::vector<RankLayout>& layouts, const std::vector<std::string>& parts) {
  auto plan = MakePlan(layouts, std::vector<uint32_t>(layouts.size(), 0));
  ASSERT_FALSE(plan.ok());
  EXPECT_EQ(plan.status().code(), Code::kInvalidArgument);
  for (const std::string& part : parts) {
    EXPECT_NE(plan.status().message().find(part), std::string::npos)
        << part << " is not in: " << plan.status().message();
  }
}

TEST(Plan, RefusesLayoutsThatContradictEachOther) {
  const auto replicated = Tensor("w", DType::kF32, Placement::kReplicated, {8, 2});
  auto other = replicated;
  other.dtype = DType::kF64;
  ExpectRefused(Layouts({{replicated}, {other}}), {"'w'", "rank 0", "rank 1", "dtype", "F64"});
  other = Tensor("w", DType::kF32, Placement::kReplicated, {8, 3});
  ExpectRefused(Layouts({{replicated}, {}, {other}}), {"'w'", "rank 2", "global shape", "[8,3]"});
  other = Tensor("w", DType::kF32, Placement::kPerRank, {8, 2});
  ExpectRefused(Layouts({{replicated}, {other}}), {"'w'", "placement", "per rank"});
  other = replicated;
  other.local.shape[0] = 4;
  ExpectRefused(Layouts({{replicated}, {other}}), {"'w'", "rank 1", "part"});
  ExpectRefused(Layouts({{replicated, replicated}}), {"'w'", "twice", "rank 0"});
}

TEST(Plan, RefusesBoxesThatDoNotTile) {
  const std::vector<uint64_t> shape{10, 4};
  const auto low = Sharded("w", shape, Box{{0, 0}, {5, 4}});
  ExpectRefused(Layouts({{low}, {Sharded("w", shape, Box{{6, 0}, {4, 4}})}}),
                {"'w'", "4 of 40 elements"});
  ExpectRefused(Layouts({{low}, {}, {Sharded("w", shape, Box{{4, 0}, {6, 4}})}}),
                {"'w'", "rank 0", "rank 2", "overlap"});
  // Volumes add up, places do not.
  ExpectRefused(Layouts({{low}, {Sharded("w", shape, Box{{3, 0}, {5, 4}})}}), {"overlap"});
}

TEST(Plan, RefusesBadTies) {
  const auto w = Tensor("w", DType::kF32, Placement::kReplicated, {8});
  auto tied = Tensor("head", DType::kF32, Placement::kReplicated, {8});
  tied.tied_to = "nothing";
  ExpectRefused(Layouts({{w, tied}}), {"'head'", "'nothing'"});
  tied.tied_to = "head";
  ExpectRefused(Layouts({{w, tied}}), {"'head'"});
  tied.tied_to = "w";
  tied.dtype = DType::kBF16;
  ExpectRefused(Layouts({{w, tied}}), {"'head'", "another dtype"});
}

TEST(Plan, RefusesNoRanksAndMisnumberedOnes) {
  EXPECT_FALSE(MakePlan({}, {}).ok());
  EXPECT_FALSE(MakePlan(Layouts({{}}), {}).ok());
  std::vector<RankLayout> layouts = Layouts({{}, {}});
  std::swap(layouts[0], layouts[1]);
  EXPECT_FALSE(MakePlan(layouts, {0, 0}).ok());
}

TEST(Tiling, AgreesWithPainting) {
  Rng rng = testing::TestRng("tilings", 77);
  for (int i = 0; i < 3000; ++i) {
    const std::vector<uint64_t> shape{rng.Between(1, 6), rng.Between(1, 6)};
    std::vector<Box> boxes = RandomGrid(&rng, shape, 6);
    for (Box& box : boxes) {  // spoil some
      if (!rng.Chance(15) || box.Empty()) continue;
      const size_t d = rng.Below(2);
      if (rng.Chance(50) && box.offset[d] > 0)
        --box.offset[d];
      else
        --box.shape[d];
    }
    std::vector<const Box*> refs;
    std::map<uint64_t, int> painted;
    for (const Box& box : boxes) {
      refs.push_back(&box);
      for (const uint64_t element : ElementsOf(box, shape)) ++painted[element];
    }
    const bool once = painted.size() == shape[0] * shape[1] &&
                      std::all_of(painted.begin(), painted.end(),
                                  [](const auto& entry) { return entry.second == 1; });
    EXPECT_EQ(!CheckTiling(Box{{0, 0}, shape}, refs).has_value(), once);
  }
}

TEST(Split, RangesBecomeBoxesInOrder) {
  Rng rng = testing::TestRng("ranges", 5);
  for (int i = 0; i < 2000; ++i) {
    Box box;
    std::vector<uint64_t> global;
    for (uint64_t d = rng.Below(5); d > 0; --d) {
      box.shape.push_back(rng.Between(1, 5));
      box.offset.push_back(rng.Below(3));
      global.push_back(box.offset.back() + box.shape.back());
    }
    const uint64_t count = box.ElementCount();
    const uint64_t begin = rng.Below(count + 1), end = rng.Between(begin, count);
    std::vector<uint64_t> found;
    for (const Box& part : RangeToBoxes(box, begin, end)) {
      EXPECT_TRUE(box.Contains(part));
      for (const uint64_t element : ElementsOf(part, global)) found.push_back(element);
    }
    const auto all = ElementsOf(box, global);
    EXPECT_EQ(found, std::vector<uint64_t>(all.begin() + begin, all.begin() + end));
  }
}

TEST(RankPlan, DecodeTakesNoDamagedBytes) {
  Rng rng = testing::TestRng("damaged plans", 9);
  std::vector<TensorMeta> tensors{Tensor("w", DType::kF32, Placement::kReplicated, {100, 64}),
                                  Tensor("b", DType::kF32, Placement::kReplicated, {64})};
  const auto layouts = Layouts({tensors, tensors, tensors});
  auto plan = MakePlan(layouts, {0, 1, 2});
  ASSERT_TRUE(plan.ok());
  const std::string good = plan->ranks[1].Encode();
  for (int i = 0; i < 5000; ++i) {
    std::string bad = good;
    if (rng.Chance(20)) bad.resize(rng.Below(bad.size()));
    for (uint64_t n = rng.Between(1, 3); n > 0 && !bad.empty(); --n) {
      bad[rng.Below(bad.size())] ^= static_cast<char>(1 << rng.Below(8));
    }
    auto decoded = RankPlan::Decode(bad, layouts[1]);
    if (!decoded.ok()) continue;  // what is taken must be within bounds
    EXPECT_LE(decoded->write_count, decoded->pieces.size());
    for (const Piece& piece : decoded->pieces) {
      ASSERT_LT(piece.tensor_index, 2u);
      EXPECT_TRUE(tensors[piece.tensor_index].local.Contains(piece.box()));
    }
  }
}

// No target, only a guard against a plan that grows with ranks × tensors squared.
TEST(Plan, SixtyFourRanksTwoThousandTensors) {
  constexpr uint32_t kWorld = 64;
  std::vector<std::vector<TensorMeta>> tensors(kWorld);
  for (int t = 0; t < 2000; ++t) {
    const std::vector<uint64_t> shape{4096, 128};
    for (uint32_t r = 0; r < kWorld; ++r) {
      if (t % 2 == 0) {
        tensors[r].push_back(
            Tensor("r" + std::to_string(t), DType::kBF16, Placement::kReplicated, shape));
      } else {
        tensors[r].push_back(Sharded("s" + std::to_string(t), shape, Box{{64 * r, 0}, {64, 128}}));
      }
    }
  }
  std::vector<uint32_t> node_of;
  for (uint32_t r = 0; r < kWorld; ++r) node_of.push_back(r / 8);
  const auto layouts = Layouts(std::move(tensors));
  const int64_t begin = BoottimeNs();
  auto plan = MakePlan(layouts, node_of);
  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  std::printf("planned in %s\n", FormatDuration(Nanos(BoottimeNs() - begin)).c_str());
  uint64_t pieces = 0;
  for (const RankPlan& rank : plan->ranks) pieces += rank.pieces.size();
  EXPECT_LT(pieces, 1000u * 64 + 8 * 1200);
}

}  // namespace
}  // namespace ckpt::plan
