// Staging regions: what any holder of the memory can rely on, and what it cannot.
#include "libckpt/engine/staging.h"

#include <gtest/gtest.h>

#include "libckpt/base/rng.h"
#include "libckpt/engine/engine.h"
#include "libckpt/testing/seed.h"
#include "libckpt/testing/test_gang.h"

namespace ckpt::engine {
namespace {

using format::DType;
using format::Placement;
using testing::Meta;
using testing::Part;
using testing::Shard;
using testing::TestGang;
using testing::TestRank;
using testing::TestStore;

#define EXPECT_HAS(text, part) \
  EXPECT_NE((text).find(part), std::string::npos) << part << " is not in: " << (text)

// Four ranks on two nodes.
std::vector<TestRank> FourRanks() {
  std::vector<TestRank> ranks(4);
  for (uint32_t r = 0; r < 4; ++r) {
    const std::vector<uint64_t> shape{64, 20};
    ranks[r].tensors.emplace_back(Meta("w", DType::kF32, Placement::kReplicated, {400, 50}), r);
    ranks[r].tensors.emplace_back(Shard("s", DType::kBF16, shape, Part(shape, 0, r, 4)), r);
    ranks[r].tensors.emplace_back(Shard("hybrid", DType::kF32, shape, Part(shape, 0, r % 2, 2)), r);
    ranks[r].tensors.emplace_back(Meta("rng", DType::kU64, Placement::kPerRank, {5}), r);
    ranks[r].values.values.push_back(
        {"position", format::Scope::kPerRank, format::Value{int64_t{r + 10}}});
  }
  return ranks;
}

class Staging : public ::testing::Test {
 protected:
  void SetUp() override {
    gang_.MakeRegions(store_.job);
    gang_.Fill(3);
  }
  std::vector<StagingRegion> Node(uint32_t node) {
    return {gang_.regions()[2 * node], gang_.regions()[2 * node + 1]};
  }
  TestStore store_;
  TestGang gang_{FourRanks(), {0, 0, 1, 1}};
};

TEST_F(Staging, AnotherHolderSeesTheSame) {
  ASSERT_CKPT_OK(gang_.Stage(store_.Id(3), true));
  for (uint32_t r = 0; r < 4; ++r) {
    const StagingRegion& mine = gang_.regions()[r];
    auto opened = StagingRegion::Open(gang_.pages()[r]->span());
    ASSERT_TRUE(opened.ok()) << opened.status().ToString();
    EXPECT_EQ(opened->identity().rank, Rank(r));
    EXPECT_EQ(opened->identity().job, store_.job);
    EXPECT_EQ(opened->layout(), mine.layout());
    EXPECT_EQ(opened->plan(), mine.plan());
    EXPECT_EQ(opened->state(), GenerationState::kSealed);
    EXPECT_EQ(opened->info().id, store_.Id(3));
    EXPECT_EQ(opened->Values().value(), gang_.ranks()[r].values);
  }
}

TEST_F(Staging, ItsUsedPartsAreAllThatACopyNeeds) {
  ASSERT_CKPT_OK(gang_.Stage(store_.Id(3), true));
  std::vector<std::unique_ptr<testing::Pages>> copies;
  std::vector<StagingRegion> node;
  for (uint32_t r = 0; r < 2; ++r) {
    const StagingRegion& region = gang_.regions()[r];
    const MutableByteSpan memory = gang_.pages()[r]->span();
    copies.push_back(std::make_unique<testing::Pages>(memory.size()));
    uint64_t bytes = 0, end = 0;
    for (const RegionPart& part : region.UsedParts()) {
      EXPECT_GE(part.offset, end);
      end = part.offset + part.bytes;
      bytes += part.bytes;
      const ByteSpan from = memory.subspan(part.offset, part.bytes);
      std::copy(from.begin(), from.end(), copies[r]->span().begin() + part.offset);
    }
    EXPECT_LE(end, memory.size());
    EXPECT_LE(bytes, memory.size() - kValueBytesMax + 2 * kPageBytes) << "the room for values";
    node.push_back(StagingRegion::Open(copies[r]->span()).value());
    EXPECT_EQ(node[r].Values().value(), gang_.ranks()[r].values);
  }
  gang_.Clear();
  auto reader = OpenStaged(node);
  ASSERT_TRUE(reader.ok()) << reader.status().ToString();
  for (uint32_t r = 0; r < 2; ++r) {
    ASSERT_CKPT_OK(reader.value()->Load(Rank(r), gang_.ranks()[r].Live(), {}));
    for (auto& tensor : gang_.ranks()[r].tensors) EXPECT_EQ(tensor.CountWrong(3), 0u);
  }
}

TEST_F(Staging, ANodeRestoresItsRanksFromAFullGeneration) {
  ASSERT_CKPT_OK(gang_.Stage(store_.Id(3), true));
  gang_.Clear();
  for (uint32_t node = 0; node < 2; ++node) {
    auto reader = OpenStaged(Node(node));
    ASSERT_TRUE(reader.ok()) << reader.status().ToString();
    EXPECT_EQ(reader.value()->world(), 4u);
    for (uint32_t r = 2 * node; r < 2 * node + 2; ++r) {
      EXPECT_TRUE(CoversRank(Node(node), gang_.layouts()[r]));
      EXPECT_FALSE(CoversRank(Node(1 - node), gang_.layouts()[r]));
      ASSERT_CKPT_OK(reader.value()->Load(Rank(r), gang_.ranks()[r].Live(), {}));
      EXPECT_EQ(reader.value()->Values(Rank(r)).value(), gang_.ranks()[r].values);
    }
  }
  EXPECT_EQ(gang_.CountWrong(3), 0u);
}

TEST_F(Staging, APeriodicGenerationCoversOnlyWithAllNodes) {
  ASSERT_CKPT_OK(gang_.Stage(store_.Id(3), false));
  EXPECT_FALSE(CoversRank(Node(0), gang_.layouts()[0]));
  EXPECT_TRUE(CoversRank(gang_.regions(), gang_.layouts()[0]));
  auto part = OpenStaged(Node(0));
  ASSERT_TRUE(part.ok());
  const Status status = part.value()->Load(Rank(0), gang_.ranks()[0].Live(), {});
  EXPECT_EQ(status.code(), Code::kDataLoss);
  EXPECT_HAS(status.message(), "'w'");
  auto whole = OpenStaged(gang_.regions());
  ASSERT_TRUE(whole.ok());
  gang_.Clear();
  ASSERT_CKPT_OK(gang_.LoadAll(whole.value().get()));
  EXPECT_EQ(gang_.CountWrong(3), 0u);
}

TEST_F(Staging, WhoWroteLeftDigestsAndARestoreComparesThem) {
  ASSERT_CKPT_OK(gang_.Stage(store_.Id(3), true));
  StagingRegion& region = gang_.regions()[0];
  EXPECT_FALSE(region.chunk_digest(0).has_value());
  ASSERT_TRUE(gang_.WriteAll(store_.store.get(), store_.job, store_.Id(3)).ok());
  for (uint64_t c = 0; c < region.chunk_count(); ++c) {
    EXPECT_TRUE(region.chunk_digest(c).has_value());
  }
  EXPECT_FALSE(region.chunk_digest(region.chunk_count()).has_value());
  auto reader = OpenStaged(Node(0));
  ASSERT_TRUE(reader.ok());
  EXPECT_CKPT_OK(reader.value()->Verify({}));
  region.piece_data(0)[17] ^= std::byte{1};
  const Status status = reader.value()->Verify({});
  EXPECT_EQ(status.code(), Code::kDataLoss);
  EXPECT_HAS(status.message(), "rank 0");
  EXPECT_HAS(status.message(), "chunk ");
  EXPECT_EQ(reader.value()->Load(Rank(0), gang_.ranks()[0].Live(), {}).code(), Code::kDataLoss);
  // The next generation starts without digests.
  ASSERT_CKPT_OK(gang_.Stage(store_.Id(4), true));
  EXPECT_FALSE(region.chunk_digest(0).has_value());
}

TEST_F(Staging, OnlySealedRegionsOfOneGenerationOpenTogether) {
  EXPECT_EQ(OpenStaged(Node(0)).status().code(), Code::kFailedPrecondition);
  EXPECT_EQ(OpenStaged({}).status().code(), Code::kNotFound);
  ASSERT_CKPT_OK(gang_.Stage(store_.Id(3), true));
  EXPECT_EQ(OpenStaged({gang_.regions()[0], gang_.regions()[0]}).status().code(), Code::kDataLoss);
  StagingRegion& late = gang_.regions()[1];
  late.set_state(GenerationState::kDurable);
  late.Begin(GenerationInfo{99, store_.Id(9), 1, true});
  ASSERT_CKPT_OK(late.Seal(Step(9)));
  EXPECT_EQ(OpenStaged(Node(0)).status().code(), Code::kFailedPrecondition);
  EXPECT_FALSE(CoversRank(Node(0), gang_.layouts()[0]));
}

TEST_F(Staging, BeginNeverDropsAGenerationInUse) {
  ASSERT_CKPT_OK(gang_.Stage(store_.Id(3), true));
  StagingRegion& region = gang_.regions()[0];
  region.Begin(GenerationInfo{7, store_.Id(7), 1, true});
  EXPECT_EQ(region.state(), GenerationState::kSealed);
  EXPECT_EQ(region.info().id, store_.Id(3));
}

TEST_F(Staging, TooMuchMemoryOfValuesIsRefused) {
  StagingRegion& region = gang_.regions()[0];
  region.Begin(GenerationInfo{1, store_.Id(1), 1, true});
  format::RankValues values;
  values.blobs.push_back({"blob", format::Scope::kPerRank, "application/octet-stream",
                          std::string(kValueBytesMax + 1, 'x')});
  EXPECT_EQ(region.SetValues(values).code(), Code::kResourceExhausted);
  EXPECT_EQ(region.state(), GenerationState::kFilling);
}

TEST_F(Staging, FormatNeedsTheRoomItSays) {
  const auto& layout = gang_.layouts()[0];
  const auto& plan = gang_.plan().ranks[0];
  const uint64_t needed = StagingRegion::BytesNeeded(layout, plan);
  testing::Pages pages(needed);
  const StagingIdentity identity{store_.job, Rank(0), 4, 1};
  EXPECT_TRUE(StagingRegion::Format(pages.span().first(needed), identity, layout, plan).ok());
  EXPECT_EQ(
      StagingRegion::Format(pages.span().first(needed - 1), identity, layout, plan).status().code(),
      Code::kResourceExhausted);
  EXPECT_FALSE(StagingRegion::Open(pages.span().first(needed - 1)).ok());
  EXPECT_FALSE(StagingRegion::Open(pages.span().first(100)).ok());
  EXPECT_FALSE(StagingRegion::Open(pages.span().subspan(8)).ok());
}

// Puts fitting digests into a region whose header or body was changed, as someone hostile would.
void Resign(MutableByteSpan memory) {
  const auto get = [&](size_t at) {
    uint64_t value = 0;
    std::memcpy(&value, memory.data() + at, sizeof value);
    return value;
  };
  const uint64_t layout_bytes = get(56), plan_bytes = get(64);
  const uint64_t plan_at = AlignUp(4096 + std::min<uint64_t>(layout_bytes, memory.size()), 64);
  if (layout_bytes <= memory.size() - 4096 && plan_at <= memory.size() &&
      plan_bytes <= memory.size() - plan_at) {
    DigestStream body;
    body.Update(memory.subspan(4096, layout_bytes));
    body.Update(memory.subspan(plan_at, plan_bytes));
    const Digest digest = body.Finish();
    std::memcpy(memory.data() + 80, digest.bytes.data(), 16);
  }
  const Digest head = DigestOf(memory.first(96));
  std::memcpy(memory.data() + 96, head.bytes.data(), 16);
}

// Whatever opens is used to the full; bounds are the sanitizer's to watch.
void UseAll(MutableByteSpan memory, const std::vector<LiveTensor>& targets) {
  auto opened = StagingRegion::Open(memory);
  if (!opened.ok()) return;
  StagingRegion region = std::move(opened).value();
  EXPECT_LE(region.staged_count(), region.plan().pieces.size());
  uint64_t sum = 0;
  for (uint32_t p = 0; p < region.plan().pieces.size(); ++p) {
    const ByteSpan data = region.piece_data(p);
    if (data.empty()) continue;
    ASSERT_GE(data.data(), memory.data());
    ASSERT_LE(data.data() + data.size(), memory.data() + memory.size());
    sum += static_cast<uint64_t>(data.front()) + static_cast<uint64_t>(data.back());
  }
  region.Values().status().IgnoreError();
  for (uint64_t c = 0; c < region.chunk_count(); ++c) sum += region.chunk_digest(c).has_value();
  auto reader = OpenStaged({region});
  if (!reader.ok()) return;
  reader.value()->Verify({}).IgnoreError();
  reader.value()->Load(region.identity().rank, targets, {}).IgnoreError();
  EXPECT_NE(sum, UINT64_MAX);
}

TEST_F(Staging, DamagedRegionsNeverLeadOutOfBounds) {
  Rng rng = ckpt::testing::TestRng("damaged regions", 31);
  ASSERT_CKPT_OK(gang_.Stage(store_.Id(3), true));
  const MutableByteSpan memory = gang_.pages()[0]->span();
  const uint64_t meta_bytes =
      4096 + gang_.layouts()[0].Encode().size() + 64 + gang_.plan().ranks[0].Encode().size();
  const std::vector<std::byte> good(memory.begin(), memory.begin() + meta_bytes);
  const auto targets = gang_.ranks()[0].Live();
  for (int i = 0; i < 4000; ++i) {
    const bool wide = rng.Chance(30);
    for (uint64_t n = rng.Between(1, 4); n > 0; --n) {
      // Half of the time where the numbers are.
      const uint64_t at = rng.Chance(50)   ? rng.Below(112)
                          : rng.Chance(20) ? 1024 + rng.Below(64)
                                           : rng.Below(meta_bytes - 8);
      if (wide) {
        const uint64_t value = rng.Chance(50) ? rng.Next() : UINT64_MAX - rng.Below(5000);
        std::memcpy(memory.data() + at, &value, sizeof value);
      } else {
        memory[at] ^= std::byte{static_cast<uint8_t>(1 << rng.Below(8))};
      }
    }
    if (rng.Chance(80)) Resign(memory);
    UseAll(memory, targets);
    std::copy(good.begin(), good.end(), memory.begin());
  }
  EXPECT_TRUE(StagingRegion::Open(memory).ok());
}

TEST_F(Staging, EveryFlippedByteOfTheFixedPartIsFound) {
  const MutableByteSpan memory = gang_.pages()[0]->span();
  const uint64_t body = 4096 + gang_.layouts()[0].Encode().size();
  for (uint64_t at = 0; at < body; at = at == 111 ? 4096 : at + 1) {
    memory[at] ^= std::byte{0x20};
    const auto opened = StagingRegion::Open(memory);
    EXPECT_EQ(opened.status().code(), Code::kDataLoss) << at;
    memory[at] ^= std::byte{0x20};
  }
}

}  // namespace
}  // namespace ckpt::engine
