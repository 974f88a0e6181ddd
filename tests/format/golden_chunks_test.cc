// The golden files of compressed and referred chunks: a job with two checkpoints, the second of
// which refers to the first. What compresses is not compared byte for byte (it may change with the
// library that compresses), but stays readable. `CKPT_GOLDEN_WRITE=1` makes the files if they are
// not there.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <set>

#include "libckpt/format/index.h"
#include "libckpt/storage/file/file_store.h"
#include "libckpt/testing/test_gang.h"

namespace ckpt::engine {
namespace {

using format::DType;
using format::Placement;
using testing::Meta;
using testing::TestGang;
using testing::TestRank;

std::vector<TestRank> OneRank() {
  std::vector<TestRank> ranks(1);
  const auto add = [&](const char* name, DType dtype, uint64_t count) {
    ranks[0].tensors.emplace_back(Meta(name, dtype, Placement::kReplicated, {count}), 0);
  };
  add("weights", DType::kF32, 16384);
  add("half", DType::kBF16, 16384);
  add("double", DType::kF64, 2048);
  add("text", DType::kU8, 40000);
  add("noise", DType::kU8, 9000);
  return ranks;
}

// Few exponents, many mantissas; the same on every machine.
void FillStep(TestGang* gang, int64_t step) {
  gang->Fill(1);
  Rng rng(17);
  auto& tensors = gang->ranks()[0].tensors;
  const auto bytes = [&](size_t t) { return static_cast<std::byte*>(tensors[t].live().data); };
  for (uint64_t i = 0; i < 16384; ++i) {
    const auto word = static_cast<uint32_t>(0x3c000000u + rng.Below(1u << 24));
    std::memcpy(bytes(0) + 4 * i, &word, 4);
    const auto half = static_cast<uint16_t>(word >> 16);
    std::memcpy(bytes(1) + 2 * i, &half, 2);
  }
  for (uint64_t i = 0; i < 2048; ++i) {
    const uint64_t word = 0x3fb0000000000000u + (rng.Next() >> 14);
    std::memcpy(bytes(2) + 8 * i, &word, 8);
  }
  for (uint64_t i = 0; i < 40000; ++i) bytes(3)[i] = std::byte("to be or not to be, "[i % 20]);
  if (step == 2) bytes(3)[20000] = std::byte{'!'};
}

std::string Contents(TestGang& gang) {
  std::string all;
  for (const auto& tensor : gang.ranks()[0].tensors)
    all.append(static_cast<const char*>(tensor.live().data), tensor.live().meta.LocalBytes());
  return all;
}

AttemptId IdOf(int64_t step) { return {Epoch(1), Step(step), Attempt(1)}; }

void WriteGolden(const std::string& directory) {
  auto store = storage::OpenFileStore(directory);
  const auto job = store->OpenJob(JobId::Parse("000102030405060708090a0b0c0d0e0f").value());
  ASSERT_TRUE(job.ok() && store->ClaimEpoch(Epoch(1), {}, {}).ok());
  TestGang gang(OneRank());
  gang.MakeRegions(*job);
  WriteOptions options;
  options.chunk_bytes = 16384;
  options.compression_level = 3;
  options.references = true;
  for (const int64_t step : {1, 2}) {
    FillStep(&gang, step);
    ASSERT_CKPT_OK(gang.Save(store.get(), *job, IdOf(step), false, options));
  }
}

TEST(GoldenChunks, TodaysReaderReadsThem) {
  const std::string directory = CKPT_GOLDEN_CHUNKS_DIR;
  if (std::getenv("CKPT_GOLDEN_WRITE") != nullptr && !std::filesystem::exists(directory))
    WriteGolden(directory);
  auto store = storage::OpenFileStore(directory);
  for (const int64_t step : {1, 2}) {
    auto reader = OpenCheckpoint(store.get(), IdOf(step));
    ASSERT_TRUE(reader.ok()) << reader.status().ToString();
    TestGang expected(OneRank()), loaded(OneRank());
    FillStep(&expected, step);
    loaded.Clear();
    ASSERT_CKPT_OK(loaded.LoadAll(reader.value().get()));
    EXPECT_TRUE(Contents(loaded) == Contents(expected)) << "step " << step;
    EXPECT_CKPT_OK(reader.value()->Verify({}));
  }
}

TEST(GoldenChunks, TheyHaveEveryCodecAndReferences) {
  auto store = storage::OpenFileStore(CKPT_GOLDEN_CHUNKS_DIR);
  std::set<format::Codec> codecs;
  uint64_t referred = 0;
  for (const int64_t step : {1, 2}) {
    const auto manifest = format::Manifest::Decode(store->ReadManifest(IdOf(step)).value());
    ASSERT_TRUE(manifest.ok());
    EXPECT_EQ(manifest->origins.size(), step == 2 ? 1u : 0u);
    auto file = store->OpenFile(IdOf(step), manifest->files[0].index_name);
    ASSERT_TRUE(file.ok());
    std::string bytes(file.value()->size(), '\0');
    ASSERT_CKPT_OK(file.value()->Read(0, std::as_writable_bytes(std::span(bytes))));
    const auto index = format::ShardIndex::Decode(bytes, manifest->files[0].bytes);
    ASSERT_TRUE(index.ok()) << index.status().ToString();
    for (const format::ChunkEntry& chunk : index->chunks) {
      codecs.insert(chunk.codec);
      referred += chunk.referred() ? 1 : 0;
    }
  }
  EXPECT_EQ(codecs.size(), 3u);
  EXPECT_GE(referred, 5u);
}

}  // namespace
}  // namespace ckpt::engine
