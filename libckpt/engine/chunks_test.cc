// Chunks that are compressed, and chunks that are stored in an older checkpoint only: what is read
// is what was saved, what is written is as little as promised, and what is damaged is named.
#include <gtest/gtest.h>

#include <set>

#include "libckpt/base/fault.h"
#include "libckpt/engine/copy.h"
#include "libckpt/engine/engine.h"
#include "libckpt/format/index.h"
#include "libckpt/format/names.h"
#include "libckpt/testing/test_gang.h"

namespace ckpt::engine {
namespace {

using format::DType;
using format::Placement;
using testing::Meta;
using testing::Shard;
using testing::Soon;
using testing::TestGang;
using testing::TestRank;
using testing::TestStore;

constexpr uint64_t kChunk = 4096;
constexpr uint64_t kElements = 64 * 1024;

// Two ranks with a sharded tensor each rank holds half of, and one that is all theirs.
std::vector<TestRank> TwoRanks() {
  std::vector<TestRank> ranks(2);
  for (uint32_t r = 0; r < 2; ++r) {
    ranks[r].tensors.emplace_back(
        Shard("weights", DType::kF32, {2 * kElements}, {{r * kElements}, {kElements}}), r);
    ranks[r].tensors.emplace_back(Meta("counts", DType::kI64, Placement::kPerRank, {1000}), r);
    ranks[r].tensors.emplace_back(Meta("half", DType::kBF16, Placement::kPerRank, {3000}), r);
  }
  return ranks;
}

class Chunks : public ::testing::Test {
 protected:
  void SetUp() override {
    gang_.MakeRegions(store_.job);
    options_.chunk_bytes = kChunk;
  }
  float* weights(uint32_t rank) {
    return static_cast<float*>(gang_.ranks()[rank].tensors[0].live().data);
  }
  // What compresses: few exponents.
  void FillLikeWeights() {
    gang_.Fill(1);
    Rng rng(3);
    for (uint32_t r = 0; r < 2; ++r) {
      for (uint64_t i = 0; i < kElements; ++i)
        weights(r)[i] = 0.01f + 1e-4f * static_cast<float>(rng.Below(1000));
    }
  }
  Status Save(int64_t step) {
    return gang_.Save(store_.store.get(), store_.job, store_.Id(step), false, options_);
  }
  std::vector<std::string> Contents() {
    std::vector<std::string> bytes;
    for (TestRank& rank : gang_.ranks()) {
      for (TestTensor& tensor : rank.tensors) {
        bytes.emplace_back(static_cast<const char*>(tensor.live().data),
                           tensor.live().meta.LocalBytes());
      }
    }
    return bytes;
  }
  // Loads into cleared memory and verifies.
  void ExpectLoads(storage::Store* store, int64_t step, const std::vector<std::string>& contents) {
    gang_.Clear();
    auto reader = OpenCheckpoint(store, store_.Id(step));
    ASSERT_TRUE(reader.ok()) << reader.status().ToString();
    ASSERT_CKPT_OK(gang_.LoadAll(reader.value().get()));
    EXPECT_TRUE(Contents() == contents) << "step " << step;
    EXPECT_CKPT_OK(reader.value()->Verify({}));
  }
  format::Manifest ManifestOf(int64_t step) {
    auto manifest = format::Manifest::Decode(store_.store->ReadManifest(store_.Id(step)).value());
    EXPECT_TRUE(manifest.ok());
    return manifest.value();
  }
  format::ShardIndex IndexOf(int64_t step, uint32_t rank) {
    const format::ManifestFile file = ManifestOf(step).files[rank];
    auto reader = store_.store->OpenFile(store_.Id(step), file.index_name);
    EXPECT_TRUE(reader.ok());
    std::string bytes(reader.value()->size(), '\0');
    EXPECT_CKPT_OK(reader.value()->Read(0, std::as_writable_bytes(std::span(bytes))));
    auto index = format::ShardIndex::Decode(bytes, file.bytes);
    EXPECT_TRUE(index.ok()) << index.status().ToString();
    return index.value();
  }
  uint64_t WrittenBytes(int64_t step) {
    uint64_t bytes = 0;
    for (const format::ManifestFile& file : ManifestOf(step).files) bytes += file.bytes;
    return bytes;
  }
  // One element of every `each`-th chunk of the weights.
  void Change(uint64_t each) {
    for (uint32_t r = 0; r < 2; ++r) {
      for (uint64_t i = 0; i < kElements; i += each * kChunk / 4) weights(r)[i] += 1.0f;
    }
  }
  using TestTensor = testing::TestTensor;

  TestStore store_;
  TestGang gang_{TwoRanks()};
  WriteOptions options_;
};

TEST_F(Chunks, CompressedOnesReadBackAndTakeLess) {
  FillLikeWeights();
  const auto contents = Contents();
  ASSERT_CKPT_OK(Save(1));
  options_.compression_level = 1;
  ASSERT_CKPT_OK(Save(2));
  EXPECT_LT(WrittenBytes(2), WrittenBytes(1) * 9 / 10);
  std::set<format::Codec> seen;
  for (const format::ChunkEntry& chunk : IndexOf(2, 0).chunks) seen.insert(chunk.codec);
  EXPECT_TRUE(seen.count(format::Codec::kPlanes));
  EXPECT_TRUE(seen.count(format::Codec::kRaw));  // the header, and what is noise
  ExpectLoads(store_.store.get(), 1, contents);
  ExpectLoads(store_.store.get(), 2, contents);
}

TEST_F(Chunks, NoiseIsStoredRaw) {
  gang_.Fill(5);
  options_.compression_level = 3;
  ASSERT_CKPT_OK(Save(1));
  for (const format::ChunkEntry& chunk : IndexOf(1, 1).chunks)
    EXPECT_EQ(chunk.codec, format::Codec::kRaw);
}

TEST_F(Chunks, ALevelThatDoesNotExistIsRefused) {
  gang_.Fill(1);
  options_.compression_level = 99;
  EXPECT_EQ(Save(1).code(), Code::kInvalidArgument);
}

TEST_F(Chunks, OneChangedByteOfACompressedShardIsFound) {
  FillLikeWeights();
  options_.compression_level = 1;
  ASSERT_CKPT_OK(Save(1));
  const std::string key = store_.Id(1).ToString() + "/" + format::ShardFileName(Rank(0));
  auto file = store_.store->OpenFile(store_.Id(1), format::ShardFileName(Rank(0)));
  std::string good(file.value()->size(), '\0');
  ASSERT_CKPT_OK(file.value()->Read(0, std::as_writable_bytes(std::span(good))));
  Rng rng(9);
  for (size_t at = 0; at < good.size(); at += 1 + rng.Below(good.size() / 100)) {
    std::string bad = good;
    bad[at] ^= static_cast<char>(1 << rng.Below(8));
    storage::PlantFile(*store_.place, key, bad);
    auto reader = OpenCheckpoint(store_.store.get(), store_.Id(1));
    ASSERT_TRUE(reader.ok());
    const Status status = reader.value()->Verify({});
    EXPECT_EQ(status.code(), Code::kDataLoss) << "byte " << at;
    EXPECT_NE(status.message().find("shard-00000"), std::string::npos) << status.message();
  }
}

TEST_F(Chunks, WhatDidNotChangeIsNotWrittenAgain) {
  options_.references = true;
  gang_.Fill(1);
  ASSERT_CKPT_OK(Save(1));
  EXPECT_TRUE(ManifestOf(1).origins.empty());
  Change(8);  // of 64 chunks 8
  const auto contents = Contents();
  ASSERT_CKPT_OK(Save(2));
  // Header and the chunks that changed.
  EXPECT_LE(WrittenBytes(2), 2 * (IndexOf(2, 0).header_bytes + 8 * kChunk));
  ASSERT_EQ(ManifestOf(2).origins.size(), 1u);
  EXPECT_EQ(ManifestOf(2).origins[0].id, store_.Id(1));
  ExpectLoads(store_.store.get(), 2, contents);
}

TEST_F(Chunks, ReferencesGoToTheOriginAndToFourAtMost) {
  options_.references = true;
  gang_.Fill(1);
  ASSERT_CKPT_OK(Save(1));
  std::vector<std::vector<std::string>> contents(1);
  for (int64_t step = 2; step <= 9; ++step) {
    for (uint32_t r = 0; r < 2; ++r) weights(r)[step * kChunk / 4] += 1.0f;
    contents.push_back(Contents());
    ASSERT_CKPT_OK(Save(step));
    const format::Manifest manifest = ManifestOf(step);
    EXPECT_LE(manifest.origins.size(), format::kOriginsMax);
    EXPECT_EQ(manifest.origins[0].id, store_.Id(1)) << "the one that holds most is never given up";
    // What one more change costs: itself, and what the origin held that is given up.
    EXPECT_LE(WrittenBytes(step), 2 * (IndexOf(step, 0).header_bytes + 4 * kChunk));
    for (const format::ManifestOrigin& origin : manifest.origins) {
      const auto index = IndexOf(origin.id.step.value(), 0);
      EXPECT_FALSE(index.chunks.empty());
    }
  }
  for (int64_t step = 2; step <= 9; ++step)
    ExpectLoads(store_.store.get(), step, contents[static_cast<size_t>(step - 1)]);
}

TEST_F(Chunks, AnOriginThatIsMostlyDeadIsGivenUp) {
  options_.references = true;
  gang_.Fill(1);
  ASSERT_CKPT_OK(Save(1));
  gang_.Fill(2);
  for (uint32_t r = 0; r < 2; ++r) {  // a third of the weights is as it was
    TestGang old(TwoRanks());
    old.Fill(1);
    std::memcpy(weights(r), old.ranks()[r].tensors[0].live().data, kElements);
  }
  ASSERT_CKPT_OK(Save(2));
  EXPECT_EQ(ManifestOf(2).origins.size(), 1u);
  ASSERT_CKPT_OK(Save(3));  // nothing changed: but what step 1 holds is written anew
  ASSERT_EQ(ManifestOf(3).origins.size(), 1u);
  EXPECT_EQ(ManifestOf(3).origins[0].id, store_.Id(2));
}

TEST_F(Chunks, AnotherLayoutOrADamagedBaseMakesAWholeShard) {
  options_.references = true;
  gang_.Fill(1);
  ASSERT_CKPT_OK(Save(1));
  options_.chunk_bytes = 2 * kChunk;
  ASSERT_CKPT_OK(Save(2));
  EXPECT_TRUE(ManifestOf(2).origins.empty());
  storage::PlantFile(*store_.place, store_.Id(2).ToString() + "/MANIFEST", "torn");
  ASSERT_CKPT_OK(Save(3));
  EXPECT_TRUE(ManifestOf(3).origins.empty());
}

TEST_F(Chunks, AMissingOriginIsNamed) {
  options_.references = true;
  gang_.Fill(1);
  ASSERT_CKPT_OK(Save(1));
  Change(8);
  ASSERT_CKPT_OK(Save(2));
  ASSERT_CKPT_OK(storage::RemoveFile(
      *store_.place, store_.Id(1).ToString() + "/" + format::ShardFileName(Rank(1))));
  auto reader = OpenCheckpoint(store_.store.get(), store_.Id(2));
  ASSERT_TRUE(reader.ok());
  const Status status = reader.value()->Verify({});
  EXPECT_EQ(status.code(), Code::kDataLoss);
  EXPECT_NE(status.message().find(store_.Id(1).ToString()), std::string::npos) << status.message();
}

TEST_F(Chunks, ACopyHoldsEverythingItself) {
  options_.references = true;
  FillLikeWeights();
  ASSERT_CKPT_OK(Save(1));
  Change(8);
  options_.compression_level = 1;
  const auto contents = Contents();
  ASSERT_CKPT_OK(Save(2));
  ASSERT_FALSE(ManifestOf(2).origins.empty());
  auto place = storage::NewMemoryJob();
  auto other = storage::NewMemoryStore(place);
  ASSERT_TRUE(other->OpenJob(store_.job).ok());
  ASSERT_TRUE(other->ClaimEpoch(store_.epoch, {}, {}).ok());
  ASSERT_CKPT_OK(CopyCheckpoint(store_.store.get(), store_.Id(2), other.get(), {}));
  for (const std::string& key : storage::AllKeys(*store_.place)) {
    if (key.starts_with(store_.Id(1).ToString())) {
      ASSERT_CKPT_OK(storage::RemoveFile(*store_.place, key));
    }
  }
  ExpectLoads(other.get(), 2, contents);
}

TEST_F(Chunks, WhatRetentionTakesWhileASaveBeginsIsWrittenWhole) {
#if !defined(CKPT_FAULTS)
  GTEST_SKIP() << "this build has no fault points (CKPT_FAULTS)";
#else
  options_.references = true;
  gang_.Fill(1);
  ASSERT_CKPT_OK(Save(1));
  Change(8);
  const auto contents = Contents();
  {
    FaultHook hook("store.origins.after_put", [&] {
      EXPECT_CKPT_OK(storage::PlantRename(*store_.place, store_.Id(1).ToString(),
                                          ".trash-1-" + store_.Id(1).ToString()));
    });
    ASSERT_CKPT_OK(Save(2));
    ASSERT_TRUE(hook.fired());
  }
  EXPECT_TRUE(ManifestOf(2).origins.empty());
  ExpectLoads(store_.store.get(), 2, contents);
#endif
}

// Eight ranks with a slice each.
std::vector<TestRank> EightRanks() {
  std::vector<TestRank> ranks(8);
  for (uint32_t r = 0; r < 8; ++r)
    ranks[r].tensors.emplace_back(Shard("weights", DType::kF32, {8 * 100}, {{r * 100u}, {100}}), r);
  return ranks;
}

TEST(Lazy, ARankReadsTheIndexesOfItsOwnShardsOnly) {
#if !defined(CKPT_FAULTS)
  GTEST_SKIP() << "this build has no fault points (CKPT_FAULTS)";
#else
  TestStore store;
  TestGang gang(EightRanks());
  gang.MakeRegions(store.job);
  gang.Fill(1);
  ASSERT_CKPT_OK(gang.Save(store.store.get(), store.job, store.Id(1)));
  auto reader = OpenCheckpoint(store.store.get(), store.Id(1));
  ASSERT_TRUE(reader.ok()) << reader.status().ToString();
  gang.Clear();
  // The same ranks: one index each.
  for (uint32_t r = 0; r < 8; ++r) {
    ArmedFault second("engine.open.index", Unavailable("a second index was read"), 2, true);
    ASSERT_CKPT_OK(reader.value()->Load(Rank(r), gang.ranks()[r].Live(), {}));
  }
  EXPECT_EQ(gang.CountWrong(1), 0u);
  // Two ranks: those of the four shards that hold each half.
  std::vector<TestRank> halves(2);
  for (uint32_t r = 0; r < 2; ++r)
    halves[r].tensors.emplace_back(Shard("weights", DType::kF32, {800}, {{r * 400u}, {400}}), r);
  TestGang two(std::move(halves));
  two.Clear();
  auto again = OpenCheckpoint(store.store.get(), store.Id(1));
  ASSERT_TRUE(again.ok());
  LoadOptions options;
  options.world = 2;
  {
    ArmedFault fifth("engine.open.index", Unavailable("a fifth index was read"), 5, true);
    ASSERT_CKPT_OK(again.value()->Load(Rank(0), two.ranks()[0].Live(), options));
  }
  ASSERT_CKPT_OK(again.value()->Load(Rank(1), two.ranks()[1].Live(), options));
  EXPECT_EQ(two.CountWrong(1), 0u);
#endif
}

}  // namespace
}  // namespace ckpt::engine
