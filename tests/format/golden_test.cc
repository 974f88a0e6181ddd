// The golden files of format v1: today's encoders give exactly the bytes of the first release, and
// today's decoders read them. `CKPT_GOLDEN_WRITE=1` writes files that are missing and never
// replaces one: a file of a release does not change.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>

#include "libckpt/format/index.h"
#include "libckpt/format/manifest.h"
#include "libckpt/format/records.h"
#include "libckpt/format/test_data_test.h"

namespace ckpt::format {
namespace {

constexpr uint64_t kChunkBytes = 256;

using Files = std::map<std::string, std::string>;  // by path within the golden directory

std::filesystem::path GoldenPath(const std::string& name) {
  return std::filesystem::path(CKPT_GOLDEN_DIR) / name;
}

std::string ReadAll(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
}

Files Checkpoint(Manifest* manifest) {
  const std::string directory = manifest->id.ToString() + "/";
  Files files;
  for (uint32_t r = 0; r < manifest->world(); ++r) {
    const Rank rank(r);
    const auto layout = LayOutShard(RichShards()[r], kChunkBytes);
    EXPECT_TRUE(layout.ok());
    const std::string stream = ShardStream(*layout);
    const std::string index = IndexOf(*manifest, rank, *layout, stream).Encode();
    manifest->files.push_back({rank, ShardFileName(rank), stream.size(), IndexFileName(rank),
                               index.size(), IndexDigest(index)});
    files[directory + ShardFileName(rank)] = stream;
    files[directory + IndexFileName(rank)] = index;
  }
  const auto text = manifest->Encode();
  EXPECT_TRUE(text.ok()) << text.status().ToString();
  files[directory + std::string(kManifestFile)] = *text;
  files[directory + std::string(kDrainingFile)] =
      DrainingFile{manifest->job, manifest->id}.Encode();
  files[directory + std::string(kCommitFile)] =
      CommitFile{manifest->job, manifest->id, ManifestDigest(*text), Epoch(3),
                 std::string("record\0\xff", 8)}
          .Encode();
  return files;
}

Files Everything(Manifest* manifest) {
  Files files = Checkpoint(manifest);
  files[std::string(kJobFile)] = JobFile{manifest->job}.Encode();
  for (const uint64_t n : {2, 3}) {
    const Epoch epoch(n);
    files[ClaimFileName(epoch)] =
        ClaimFile{manifest->job, epoch, "claimant " + std::to_string(n)}.Encode();
    EpochFile list{manifest->job, epoch, {}, "2 ranks on 1 node"};
    if (n == 3) list.adopted = {manifest->id};
    files[EpochFileName(epoch)] = list.Encode();
  }
  return files;
}

TEST(Golden, TodaysEncodersGiveTheBytesOfTheFirstRelease) {
  Manifest manifest = RichManifest();
  const Files files = Everything(&manifest);
  for (const auto& [name, bytes] : files) {
    const auto path = GoldenPath(name);
    if (std::getenv("CKPT_GOLDEN_WRITE") != nullptr && !std::filesystem::exists(path)) {
      std::filesystem::create_directories(path.parent_path());
      std::ofstream(path, std::ios::binary) << bytes;
    }
    ASSERT_TRUE(std::filesystem::exists(path)) << path;
    const std::string golden = ReadAll(path);
    const auto differs = std::mismatch(golden.begin(), golden.end(), bytes.begin(), bytes.end());
    EXPECT_TRUE(golden == bytes) << path << " differs at byte " << differs.first - golden.begin();
  }
  size_t found = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(GoldenPath(""))) {
    found += entry.is_regular_file() ? 1 : 0;
  }
  EXPECT_EQ(found, files.size());
}

TEST(Golden, TodaysDecodersReadTheFirstRelease) {
  Manifest expected = RichManifest();
  const std::string directory = expected.id.ToString() + "/";
  (void)Checkpoint(&expected);
  const std::string text = ReadAll(GoldenPath(directory + std::string(kManifestFile)));
  const auto manifest = Manifest::Decode(text);
  ASSERT_TRUE(manifest.ok()) << manifest.status().ToString();
  EXPECT_EQ(*manifest, expected);
  const auto commit = CommitFile::Decode(ReadAll(GoldenPath(directory + std::string(kCommitFile))));
  ASSERT_TRUE(commit.ok());
  EXPECT_EQ(commit->manifest_digest, ManifestDigest(text));
  for (const ManifestFile& file : manifest->files) {
    const std::string stream = ReadAll(GoldenPath(directory + file.name));
    const std::string bytes = ReadAll(GoldenPath(directory + file.index_name));
    EXPECT_EQ(IndexDigest(bytes), file.index_digest);
    const auto index = ShardIndex::Decode(bytes, stream.size());
    ASSERT_TRUE(index.ok()) << index.status().ToString();
    EXPECT_EQ(index->uid, manifest->uid());
    const auto header = ParseShardHeader(stream.substr(0, index->header_bytes), stream.size());
    ASSERT_TRUE(header.ok()) << header.status().ToString();
    EXPECT_TRUE(CheckHeader(*header, index->tensors).ok());
    for (uint64_t c = 0; c < index->chunks.size(); ++c) {
      const ChunkEntry& chunk = index->chunks[c];
      const ByteSpan raw = AsBytes(stream).subspan(chunk.begin, chunk.raw_bytes());
      EXPECT_EQ(DigestOf(raw, index->Seed(c)), chunk.digest) << index->DescribeChunk(c);
    }
  }
}

}  // namespace
}  // namespace ckpt::format
