// Reading trusts nothing: damage is found and named, a state that does not fit is refused whole.
#include <gtest/gtest.h>

#include "libckpt/base/rng.h"
#include "libckpt/engine/engine.h"
#include "libckpt/format/names.h"
#include "libckpt/testing/seed.h"
#include "libckpt/testing/test_gang.h"

namespace ckpt::engine {
namespace {

using format::DType;
using format::Placement;
using testing::Meta;
using testing::Part;
using testing::Shard;
using testing::Soon;
using testing::TestGang;
using testing::TestRank;
using testing::TestStore;

#define EXPECT_HAS(text, part) \
  EXPECT_NE((text).find(part), std::string::npos) << part << " is not in: " << (text)

std::vector<TestRank> TwoRanks() {
  std::vector<TestRank> ranks(2);
  for (uint32_t r = 0; r < 2; ++r) {
    const std::vector<uint64_t> shape{64, 20};
    ranks[r].tensors.emplace_back(
        Meta("layer.weight", DType::kF32, Placement::kReplicated, {40, 50}), r);
    ranks[r].tensors.emplace_back(Shard("experts", DType::kBF16, shape, Part(shape, 0, r, 2)), r);
    ranks[r].tensors.emplace_back(Meta("rng", DType::kU64, Placement::kPerRank, {5}), r);
    ranks[r].values.values.push_back({"epoch", format::Scope::kShared, format::Value{int64_t{3}}});
    ranks[r].values.values.push_back(
        {"position", format::Scope::kPerRank, format::Value{int64_t{r + 10}}});
  }
  return ranks;
}

class Reading : public ::testing::Test {
 protected:
  void SetUp() override {
    gang_.MakeRegions(store_.job);
    for (int64_t step = 1; step <= 2; ++step) {
      gang_.Fill(step);
      ASSERT_CKPT_OK(gang_.Save(store_.store.get(), store_.job, store_.Id(step)));
    }
  }
  std::string Bytes(const std::string& name) {
    if (name == format::kManifestFile) return store_.store->ReadManifest(newest()).value();
    auto file = store_.store->OpenFile(newest(), name);
    EXPECT_TRUE(file.ok()) << file.status().ToString();
    std::string bytes(file.value()->size(), '\0');
    EXPECT_CKPT_OK(file.value()->Read(0, std::as_writable_bytes(std::span(bytes))));
    return bytes;
  }
  void Plant(const std::string& name, std::string bytes) {
    storage::PlantFile(*store_.place, newest().ToString() + "/" + name, std::move(bytes));
  }
  AttemptId newest() const { return store_.Id(2); }
  Status OpenAndVerify() {
    auto reader = OpenCheckpoint(store_.store.get(), newest());
    if (!reader.ok()) return std::move(reader).status();
    return reader.value()->Verify({});
  }

  TestStore store_;
  TestGang gang_{TwoRanks()};
};

TEST_F(Reading, OneFlippedByteAnywhereIsFound) {
  Rng rng = ckpt::testing::TestRng("flipped bytes", 4);
  ASSERT_CKPT_OK(OpenAndVerify());
  for (const std::string& name :
       {format::ShardFileName(Rank(0)), format::ShardFileName(Rank(1)),
        format::IndexFileName(Rank(1)), std::string(format::kManifestFile)}) {
    const std::string good = Bytes(name);
    const bool shard =
        name == format::ShardFileName(Rank(0)) || name == format::ShardFileName(Rank(1));
    for (size_t at = 0; at < good.size(); at += shard ? 1 + rng.Below(40) : 1) {
      std::string bad = good;
      bad[at] ^= static_cast<char>(1 << rng.Below(8));
      Plant(name, bad);
      const Status status = OpenAndVerify();
      ASSERT_FALSE(status.ok()) << name << " byte " << at;
      EXPECT_TRUE(status.code() == Code::kDataLoss || status.code() == Code::kFailedPrecondition)
          << name << " byte " << at << ": " << status.ToString();
      EXPECT_HAS(status.message(), newest().ToString());
      EXPECT_HAS(status.message(), name.substr(0, name.find('.')));
    }
    Plant(name, good);
  }
  EXPECT_CKPT_OK(OpenAndVerify());
}

TEST_F(Reading, TruncatedFilesAreFound) {
  Rng rng = ckpt::testing::TestRng("truncated files", 5);
  for (const std::string& name : {format::ShardFileName(Rank(0)), format::IndexFileName(Rank(0)),
                                  std::string(format::kManifestFile)}) {
    const std::string good = Bytes(name);
    for (int i = 0; i < 60; ++i) {
      Plant(name, good.substr(0, rng.Below(good.size())));
      EXPECT_EQ(OpenAndVerify().code(), Code::kDataLoss) << name;
    }
    Plant(name, good + "x");
    EXPECT_EQ(OpenAndVerify().code(), Code::kDataLoss) << name;
    Plant(name, good);
  }
}

TEST_F(Reading, DamageNamesShardTensorChunkAndBytes) {
  const std::string name = format::ShardFileName(Rank(1));
  std::string bad = Bytes(name);
  bad[bad.size() - 3] ^= 0x10;  // in the last tensor: the narrowest elements
  Plant(name, bad);
  auto reader = OpenCheckpoint(store_.store.get(), newest());
  ASSERT_TRUE(reader.ok()) << reader.status().ToString();
  for (const Status& status : {reader.value()->Verify({}), gang_.LoadAll(reader.value().get())}) {
    EXPECT_EQ(status.code(), Code::kDataLoss);
    EXPECT_HAS(status.message(), name);
    EXPECT_HAS(status.message(), "'experts'");
    EXPECT_HAS(status.message(), "chunk ");
    EXPECT_HAS(status.message(), "bytes ");
  }
  // A rank that needs none of it does not mind.
  LoadOptions unverified;
  unverified.verify = false;
  EXPECT_CKPT_OK(gang_.LoadAll(reader.value().get(), unverified));
}

TEST_F(Reading, VerifyListsEveryDamagedChunk) {
  for (const Rank rank : {Rank(0), Rank(1)}) {
    const std::string name = format::ShardFileName(rank);
    std::string bad = Bytes(name);
    bad[2000] ^= 1;  // the header
    bad[bad.size() - 3] ^= 1;
    Plant(name, bad);
  }
  const Status status = OpenAndVerify();
  EXPECT_EQ(status.code(), Code::kDataLoss);
  EXPECT_EQ(std::count(status.message().begin(), status.message().end(), '\n'), 3);
  EXPECT_HAS(status.message(), format::ShardFileName(Rank(0)));
  EXPECT_HAS(status.message(), format::ShardFileName(Rank(1)));
}

TEST_F(Reading, SwappedShardsAreFound) {
  const std::string a = Bytes(format::ShardFileName(Rank(0)));
  const std::string b = Bytes(format::ShardFileName(Rank(1)));
  Plant(format::ShardFileName(Rank(0)), b);
  Plant(format::ShardFileName(Rank(1)), a);
  EXPECT_EQ(OpenAndVerify().code(), Code::kDataLoss);
}

TEST_F(Reading, ShardsOfAnotherCheckpointAreFound) {
  auto other = store_.store->OpenFile(store_.Id(1), format::ShardFileName(Rank(0)));
  ASSERT_TRUE(other.ok());
  std::string bytes(other.value()->size(), '\0');
  ASSERT_CKPT_OK(other.value()->Read(0, std::as_writable_bytes(std::span(bytes))));
  Plant(format::ShardFileName(Rank(0)), bytes);  // same layout, older content
  EXPECT_EQ(OpenAndVerify().code(), Code::kDataLoss);
}

TEST_F(Reading, FallsBackByOneGenerationAndSaysSo) {
  const std::string index = format::IndexFileName(Rank(0));
  std::string bad = Bytes(index);
  bad[bad.size() / 2] ^= 4;
  Plant(index, bad);
  std::vector<std::string> skipped;
  auto reader = OpenNewest(store_.store.get(), &skipped);
  ASSERT_TRUE(reader.ok()) << reader.status().ToString();
  EXPECT_EQ(reader.value()->id(), store_.Id(1));
  ASSERT_EQ(skipped.size(), 1u);
  EXPECT_HAS(skipped[0], newest().ToString());
  EXPECT_HAS(skipped[0], index);
  gang_.Clear();
  ASSERT_CKPT_OK(gang_.LoadAll(reader.value().get()));
  EXPECT_EQ(gang_.CountWrong(1), 0u);
  // A caller whose load failed passes over that one too.
  auto none = OpenNewest(store_.store.get(), &skipped, {store_.Id(1)});
  EXPECT_EQ(none.status().code(), Code::kDataLoss);
}

TEST_F(Reading, NeverStartsFromZeroWhileCheckpointsExist) {
  for (const int64_t step : {1, 2}) {
    ASSERT_CKPT_OK(storage::RemoveFile(
        *store_.place, store_.Id(step).ToString() + "/" + format::ShardFileName(Rank(0))));
  }
  std::vector<std::string> skipped;
  auto reader = OpenNewest(store_.store.get(), &skipped);
  EXPECT_EQ(reader.status().code(), Code::kDataLoss) << reader.status().ToString();
  EXPECT_EQ(skipped.size(), 2u);
  TestStore empty;
  EXPECT_EQ(OpenNewest(empty.store.get(), &skipped).status().code(), Code::kNotFound);
}

TEST_F(Reading, ListsAllThatDoesNotFitBeforeAByteIsWritten) {
  auto reader = OpenCheckpoint(store_.store.get(), newest());
  ASSERT_TRUE(reader.ok());
  std::vector<TestRank> other(1);
  other[0].tensors.emplace_back(Meta("layer.weight", DType::kF64, Placement::kReplicated, {40, 51}),
                                0);
  other[0].tensors.emplace_back(Meta("added", DType::kF32, Placement::kReplicated, {2}), 0);
  other[0].tensors.emplace_back(Meta("rng", DType::kU64, Placement::kReplicated, {5}), 0);
  for (auto& tensor : other[0].tensors) tensor.Fill(77);
  const Status status = reader.value()->Load(Rank(0), other[0].Live(), {});
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  for (const char* part :
       {"'layer.weight'", "F64", "F32", "[40,51]", "[40,50]",
        "'added' is missing in the checkpoint",
        "'experts' is in the checkpoint, but not in this state", "'rng'", "per rank"}) {
    EXPECT_HAS(status.message(), part);
  }
  for (auto& tensor : other[0].tensors) EXPECT_EQ(tensor.CountWrong(77), 0u);
}

TEST_F(Reading, PerRankStateOfARankThatIsNotThere) {
  auto reader = OpenCheckpoint(store_.store.get(), newest());
  ASSERT_TRUE(reader.ok());
  std::vector<TestRank> third(1);
  third[0].tensors.emplace_back(Meta("layer.weight", DType::kF32, Placement::kReplicated, {40, 50}),
                                2);
  third[0].tensors.emplace_back(Meta("rng", DType::kU64, Placement::kPerRank, {5}), 2);
  LoadOptions options;
  options.world = 3;
  const Status status = reader.value()->Load(Rank(2), third[0].Live(), options);
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_HAS(status.message(), "'rng' is per rank");
  EXPECT_HAS(status.message(), "rank 2");
  const auto values = reader.value()->Values(Rank(2));
  EXPECT_EQ(values.status().code(), Code::kFailedPrecondition);
  EXPECT_HAS(values.status().message(), "'position'");
  EXPECT_EQ(reader.value()->Values(Rank(1)).value(), gang_.ranks()[1].values);
}

TEST_F(Reading, TiedTensorsAreStoredOnceAndLoadedAsAliases) {
  TestStore store;
  std::vector<TestRank> ranks(1);
  ranks[0].tensors.emplace_back(Meta("embedding", DType::kF32, Placement::kReplicated, {30, 8}), 0);
  format::TensorMeta head = Meta("head", DType::kF32, Placement::kReplicated, {30, 8});
  head.tied_to = "embedding";
  ranks[0].tensors.emplace_back(head, 0);
  TestGang gang(std::move(ranks));
  gang.MakeRegions(store.job);
  gang.Fill(1);
  EXPECT_EQ(gang.plan().ranks[0].pieces.size(), 1u);
  ASSERT_CKPT_OK(gang.Save(store.store.get(), store.job, store.Id(1)));
  auto reader = OpenNewest(store.store.get(), nullptr);
  ASSERT_TRUE(reader.ok());
  gang.Clear();
  ASSERT_CKPT_OK(gang.LoadAll(reader.value().get()));
  EXPECT_EQ(gang.CountWrong(1), 0u);
  // A program that keeps them apart gets the content twice.
  std::vector<TestRank> apart(1);
  for (const char* name : {"embedding", "head"}) {
    apart[0].tensors.emplace_back(Meta(name, DType::kF32, Placement::kReplicated, {30, 8}), 0);
    apart[0].tensors.back().SaltAs("embedding");
  }
  ASSERT_CKPT_OK(reader.value()->Load(Rank(0), apart[0].Live(), {}));
  for (auto& tensor : apart[0].tensors) EXPECT_EQ(tensor.CountWrong(1), 0u);
}

TEST(Claims, DifferentContentUnderOneUnshardedName) {
  for (const bool same : {true, false}) {
    TestStore store;
    std::vector<TestRank> ranks(3);
    for (uint32_t r = 0; r < 3; ++r) {
      ranks[r].tensors.emplace_back(Meta("vocabulary", DType::kI32, Placement::kUnsharded, {9}), r);
      ranks[r].tensors[0].Fill(1);
    }
    if (!same) ranks[2].tensors[0].Fill(2);
    TestGang gang(std::move(ranks));
    gang.MakeRegions(store.job);
    const Status status = gang.Save(store.store.get(), store.job, store.Id(1));
    if (same) {
      EXPECT_CKPT_OK(status);
      continue;
    }
    EXPECT_EQ(status.code(), Code::kFailedPrecondition);
    for (const char* part : {"'vocabulary'", "rank 0", "rank 2"}) {
      EXPECT_HAS(status.message(), part);
    }
  }
}

TEST(Claims, DifferentSharedValues) {
  TestStore store;
  std::vector<TestRank> ranks(2);
  for (uint32_t r = 0; r < 2; ++r) {
    ranks[r].values.values.push_back({"lr", format::Scope::kShared, format::Value{0.5 + r}});
  }
  TestGang gang(std::move(ranks));
  gang.MakeRegions(store.job);
  const Status status = gang.Save(store.store.get(), store.job, store.Id(1));
  EXPECT_EQ(status.code(), Code::kFailedPrecondition);
  for (const char* part : {"'lr'", "rank 0", "rank 1"}) EXPECT_HAS(status.message(), part);
}

TEST(ShardReport, DecodeTakesNoDamagedBytes) {
  Rng rng = ckpt::testing::TestRng("damaged reports", 6);
  ShardReport report;
  report.rank = Rank(3);
  report.file = "shard-00003.safetensors";
  report.claims = {{"a", DigestOf({})}, {"b", DigestOf({}, 1)}};
  const std::string good = report.Encode();
  auto back = ShardReport::Decode(good);
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(back->claims, report.claims);
  for (size_t size = 0; size < good.size(); ++size) {
    EXPECT_FALSE(ShardReport::Decode(good.substr(0, size)).ok());
  }
  for (int i = 0; i < 2000; ++i) {
    std::string bad = good;
    bad[rng.Below(bad.size())] = static_cast<char>(rng.Next());
    ShardReport::Decode(bad).status().IgnoreError();
  }
}

}  // namespace
}  // namespace ckpt::engine
