#include "libckpt/format/manifest.h"

#include <gtest/gtest.h>

#include <random>

#include "libckpt/format/json.h"
#include "libckpt/format/test_data_test.h"

namespace ckpt::format {
namespace {

Manifest WithFiles() {
  Manifest manifest = RichManifest();
  for (uint32_t rank = 0; rank < 2; ++rank) {
    manifest.files.push_back({Rank(rank), ShardFileName(Rank(rank)), 5000 + rank,
                              IndexFileName(Rank(rank)), 300, DigestOf(AsBytes("i"))});
  }
  return manifest;
}

void Replace(std::string* text, const std::string& from, const std::string& to) {
  const size_t at = text->find(from);
  ASSERT_NE(at, std::string::npos) << from;
  text->replace(at, from.size(), to);
}

// `text` with `from` replaced by `to`, and a good digest.
std::string Changed(std::string text, const std::string& from, const std::string& to) {
  text.erase(text.find("\"digest\":\"") + 10, 32);
  Replace(&text, from, to);
  return SignDocument(text);
}

TEST(ManifestTest, RoundTrips) {
  const Manifest manifest = WithFiles();
  const auto text = manifest.Encode();
  ASSERT_TRUE(text.ok()) << text.status().ToString();
  const auto decoded = Manifest::Decode(*text);
  ASSERT_TRUE(decoded.ok()) << decoded.status().ToString();
  EXPECT_EQ(*decoded, manifest);
  EXPECT_EQ(*decoded->Encode(), *text);
}

TEST(ManifestTest, EveryTruncationAndEveryChangedByteIsSeen) {
  Manifest manifest = WithFiles();
  for (RankLayout& layout : manifest.layouts) layout.tensors.resize(3);  // keeps it quick
  for (RankValues& values : manifest.values)
    values.values.resize(40 < values.values.size() ? 40 : 5);
  const std::string text = *manifest.Encode();
  ASSERT_TRUE(Manifest::Decode(text).ok());
  for (size_t i = 0; i < text.size(); ++i) {
    ASSERT_EQ(Manifest::Decode(text.substr(0, i)).status().code(), Code::kDataLoss) << i;
    std::string damaged = text;
    damaged[i] = static_cast<char>(damaged[i] ^ 1);
    ASSERT_EQ(Manifest::Decode(damaged).status().code(), Code::kDataLoss) << i << damaged;
  }
}

// L63: a checksum that is not there is damage, not a reason to do without.
TEST(ManifestTest, AMissingDigestIsDamageWhereverItBelongs) {
  const std::string text = *WithFiles().Encode();
  const size_t own = text.find("\"digest\":\"");
  const std::string digest = text.substr(own, 11 + 32 + 1);  // with its comma
  std::string without = text;
  Replace(&without, digest, "");
  std::string empty = text;
  Replace(&empty, digest, "\"digest\":\"\",");
  std::string zero = text;
  Replace(&zero, digest, "\"digest\":\"" + std::string(32, '0') + "\",");
  std::string null = text;
  Replace(&null, digest, "\"digest\":null,");
  for (const std::string& bad : {without, empty, zero, null})
    EXPECT_EQ(Manifest::Decode(bad).status().code(), Code::kDataLoss) << bad.substr(0, 200);
  // Of an index, below a good digest of the whole.
  const size_t at = text.find(",\"index_digest\":\"");
  const std::string of_index = text.substr(at, 18 + 32 + 1);
  for (const char* instead : {"", ",\"index_digest\":\"\"", ",\"index_digest\":null"})
    EXPECT_EQ(Manifest::Decode(Changed(text, of_index, instead)).status().code(), Code::kDataLoss)
        << instead;
}

TEST(ManifestTest, SizeOfALargeIrregularGang) {
  Manifest manifest;
  manifest.id = {Epoch(1), Step(1), Attempt(1)};
  for (uint32_t rank = 0; rank < 64; ++rank) {
    RankLayout layout;
    layout.rank = Rank(rank);
    for (uint32_t i = 0; i < 500; ++i) {
      TensorMeta tensor = WholeTensor("model.layers." + std::to_string(i) + ".mlp.weight",
                                      DType::kBF16, {8192 + 64 * i, 8192}, Placement::kSharded);
      tensor.local = Box{{rank * (128 + i), 0}, {128 + i, 8192}};
      layout.tensors.push_back(tensor);
    }
    manifest.layouts.push_back(layout);
    manifest.values.emplace_back();
  }
  const auto text = manifest.Encode();
  ASSERT_TRUE(text.ok()) << text.status().ToString();
  EXPECT_LT(text->size(), kManifestBytesMax / 32);  // so 2,000 tensors have room eightfold
  const auto decoded = Manifest::Decode(*text);
  ASSERT_TRUE(decoded.ok()) << decoded.status().ToString();
  EXPECT_EQ(decoded->layouts, manifest.layouts);
}

TEST(ManifestTest, UnknownKeysAreIgnoredAndUnknownFeaturesRefusedByName) {
  const std::string text = *WithFiles().Encode();
  const auto ignored =
      Manifest::Decode(Changed(text, ",\"features\"", ",\"extra\":[{}],\"features\""));
  ASSERT_TRUE(ignored.ok()) << ignored.status().ToString();
  const Status refused =
      Manifest::Decode(Changed(text, "\"features\":{}", "\"features\":{\"zstd\":\"0.4.0\"}"))
          .status();
  EXPECT_EQ(refused.code(), Code::kFailedPrecondition);
  EXPECT_NE(refused.message().find("'zstd', known to release 0.4.0"), std::string::npos);
  EXPECT_EQ(Manifest::Decode(Changed(text, "\"format\":1", "\"format\":2")).status().code(),
            Code::kFailedPrecondition);
}

TEST(ManifestTest, HostileChangesWithAGoodDigestAreRefused) {
  const std::string text = *WithFiles().Encode();
  const std::pair<const char*, const char*> changes[] = {
      {"\"world\":2", "\"world\":3"},
      {"\"world\":2", "\"world\":0"},
      {"\"world\":2", "\"world\":4000000000"},
      {"\"tensors_of\":[0,1]", "\"tensors_of\":[0,2]"},
      {"\"tensors_of\":[0,1]", "\"tensors_of\":[0]"},
      {"\"items_of\":[0,1]", "\"items_of\":[0,-1]"},
      {"\"boxes_of\":[0,1]", "\"boxes_of\":[0,2]"},
      {"\"boxes_of\":[0,1]", "\"boxes_of\":[0,-1]"},
      {"\"boxes_of\":[0,1]", "\"boxes_of\":[0,-2]"},
      {"[[2,0],[2,6]]", "[[3,0],[2,6]]"},
      {"[[2,0],[2,6]]", "[[18446744073709551615,0],[2,6]]"},
      {"[[2,0],[2,6]]", "[[2,0]]"},
      {"\"dtype\":\"F64\"", "\"dtype\":\"F65\""},
      {"\"placement\":\"sharded\"", "\"placement\":\"shared\""},
      {"\"tied_to\":\"replicated\"", "\"tied_to\":\"tied\""},
      {"\"tied_to\":\"replicated\"", "\"tied_to\":\"absent\""},
      {"\"name\":\"shard-00001.safetensors\"", "\"name\":\"shard-00000.safetensors\""},
      {"\"name\":\"shard-00001.safetensors\"", "\"name\":\"../shard\""},
      {"\"name\":\"shard-00001.safetensors\"", "\"name\":\"MANIFEST\""},
      {"\"shard\":1", "\"shard\":2"},
      {"\"shard\":1", "\"shard\":0"},
      {"\"epoch\":2", "\"epoch\":3"},
      {"\"kind\":\"MANIFEST\"", "\"kind\":\"COMMIT\""},
      {"\"mode\":\"standalone\"", "\"mode\":\"x\""},
      {"\"scope\":\"per_rank\"", "\"scope\":\"shared\""},
      {"\"step\":-7", "\"step\":-7.0"},
      {"\"frozen\":true", "\"frozen\":false"},
  };
  for (const auto& [from, to] : changes) {
    EXPECT_EQ(Manifest::Decode(Changed(text, from, to)).status().code(), Code::kDataLoss)
        << from << " -> " << to;
  }
}

// Random damage below a good digest: never a crash; what is taken can be written again.
TEST(ManifestTest, RandomChangesWithAGoodDigest) {
  const std::string text = *WithFiles().Encode();
  const size_t digest = text.find("\"digest\":\"") + 10;
  const std::string blank = std::string(text).erase(digest, 32);
  const uint64_t seed = 20240607;
  RecordProperty("seed", std::to_string(seed));
  std::mt19937_64 random(seed);
  constexpr std::string_view kBytes = "0123456789-,:[]{}\"aef$";
  for (int i = 0; i < 3000; ++i) {
    std::string changed = blank;
    for (uint64_t n = random() % 3 + 1; n > 0; --n) {
      // Beyond the digest, where SignDocument would look for it.
      const size_t at = digest + 1 + random() % (changed.size() - digest - 1);
      switch (random() % 3) {
        case 0:
          changed[at] = kBytes[random() % kBytes.size()];
          break;
        case 1:
          changed.erase(at, random() % 8 + 1);
          break;
        default:
          changed.insert(at, 1, kBytes[random() % kBytes.size()]);
          break;
      }
    }
    const auto decoded = Manifest::Decode(SignDocument(changed));
    EXPECT_TRUE(!decoded.ok() || decoded->Encode().ok()) << changed;
  }
}

TEST(ManifestTest, AFewBytesDoNotBecomeManyTensors) {
  std::string lists, ranks, rows;
  for (int i = 0; i < 1000; ++i) {
    rows += std::string(i == 0 ? "" : ",") + "{\"dtype\":\"U8\",\"name\":\"" + std::to_string(i) +
            "\",\"placement\":\"replicated\",\"shape\":[]}";
    lists += (i == 0 ? "" : ",") + std::to_string(i);
  }
  for (uint32_t r = 0; r < kRanksMax; ++r) ranks += r == 0 ? "0" : ",0";
  const JobId job{{1}};
  const AttemptId id{Epoch(1), Step(1), Attempt(1)};
  const std::string bomb =
      "{\"attempt\":1,\"digest\":\"\",\"epoch\":1,\"features\":{},\"files\":[],\"format\":1,"
      "\"items\":[],\"job\":\"" +
      job.ToString() +
      "\",\"kind\":\"MANIFEST\",\"mode\":\"standalone\",\"ranks\":{\"items\":[[]],\"items_of\":[" +
      ranks + "],\"tensors\":[[" + lists + "]],\"tensors_of\":[" + ranks +
      "]},\"step\":1,\"tensors\":[" + rows + "],\"uid\":\"" + UidToString(CheckpointUid(job, id)) +
      "\",\"world\":65536,\"writer\":\"x\"}";
  const Status status = Manifest::Decode(SignDocument(bomb)).status();
  EXPECT_EQ(status.code(), Code::kDataLoss);
  EXPECT_NE(status.message().find("more than"), std::string::npos) << status.message();
}

TEST(ManifestTest, EncodeRefusesByName) {
  const auto refused = [](const Manifest& manifest, const char* why) {
    const Status status = manifest.Encode().status();
    EXPECT_FALSE(status.ok()) << why;
    EXPECT_NE(status.message().find(why), std::string::npos) << status.message();
  };
  Manifest bad;
  refused(bad, "ranks");
  bad = WithFiles();
  bad.values[1].values[3].value = Value{std::string("other")};
  refused(bad, "'value.3'");
  bad = WithFiles();
  bad.layouts[0].tensors[1].name = bad.layouts[0].tensors[0].name;
  refused(bad, "twice");
  bad = WithFiles();
  bad.layouts[1].rank = Rank(0);
  refused(bad, "layout 1");
  bad = WithFiles();
  bad.files[0].name = "a/b";
  refused(bad, "a/b");
  bad = WithFiles();
  bad.values[0].blobs[0].bytes = std::string(kValueBytesMax, 'x');
  refused(bad, "too large");
}

// Thousands of tensors are cut in a few ways.
TEST(ManifestCuts, ACutThatManyTensorsShareIsSpelledOnce) {
  Manifest manifest;
  manifest.id = {Epoch(1), Step(1), Attempt(1)};
  constexpr uint32_t kWorld = 64;
  manifest.values.resize(kWorld);
  for (uint32_t r = 0; r < kWorld; ++r) {
    RankLayout layout;
    layout.rank = Rank(r);
    for (int t = 0; t < 100; ++t) {
      TensorMeta tensor = WholeTensor("w" + std::to_string(t), DType::kF32,
                                      {kWorld * 2, t < 90 ? 3u : 4u}, Placement::kSharded);
      tensor.local = Box{{r * 2u, 0}, {2, t < 90 ? 3u : 4u}};
      layout.tensors.push_back(std::move(tensor));
    }
    manifest.layouts.push_back(std::move(layout));
  }
  const auto text = manifest.Encode();
  ASSERT_TRUE(text.ok()) << text.status().ToString();
  size_t spelled = 0;
  for (size_t at = 0; (at = text->find("\"boxes\":", at)) != std::string::npos; ++at) ++spelled;
  EXPECT_EQ(spelled, 2u);
  EXPECT_LT(text->size(), 25'000u);
  const auto decoded = Manifest::Decode(*text);
  ASSERT_TRUE(decoded.ok()) << decoded.status().ToString();
  EXPECT_EQ(*decoded, manifest);
  // To itself, forward, to one that has none of its own.
  for (const char* like : {"\"boxes_like\":1", "\"boxes_like\":99", "\"boxes_like\":2"}) {
    std::string changed = *text;
    const size_t second = changed.find("\"boxes_like\":0", changed.find("\"w1\"") - 200);
    changed.replace(changed.find("\"boxes_like\":0", second + 1), 14, like);
    const size_t digest = changed.find("\"digest\":\"") + 10;
    changed.erase(digest, 32);
    EXPECT_EQ(Manifest::Decode(SignDocument(changed)).status().code(), Code::kDataLoss) << like;
  }
}

}  // namespace
}  // namespace ckpt::format
