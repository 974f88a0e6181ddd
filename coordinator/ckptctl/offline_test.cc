// The verbs that need no coordinator, as transcripts; and one damaged byte anywhere, named exactly.
#include "coordinator/ckptctl/offline.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

#include "coordinator/ckptctl/check.h"
#include "coordinator/ckptctl/inspect.h"
#include "coordinator/ckptctl/ls.h"
#include "coordinator/ckptctl/verify.h"
#include "libckpt/format/index.h"
#include "libckpt/format/manifest.h"
#include "libckpt/storage/file/file_store.h"

namespace ckpt::ckptctl {
namespace {

using format::DType;
using format::Placement;

constexpr uint64_t kChunkBytes = 4096;  // so that there are many

AttemptId Id(uint64_t epoch, int64_t step) {
  return AttemptId{Epoch(epoch), Step(step), Attempt(1)};
}

format::TensorMeta Tensor(std::string name, DType dtype, Placement placement,
                          std::vector<uint64_t> shape, format::Box local) {
  format::TensorMeta meta;
  meta.name = std::move(name);
  meta.dtype = dtype;
  meta.placement = placement;
  meta.global_shape = std::move(shape);
  meta.local = std::move(local);
  return meta;
}

// Two ranks: a tensor sharded by rows, and one that rank 0 writes for both.
std::vector<format::RankLayout> Layouts() {
  std::vector<format::RankLayout> layouts(2);
  for (uint32_t rank = 0; rank < 2; ++rank) {
    layouts[rank].rank = Rank(rank);
    layouts[rank].tensors = {Tensor("bias", DType::kF32, Placement::kReplicated, {16}, {{0}, {16}}),
                             Tensor("layer.weight", DType::kBF16, Placement::kSharded, {128, 64},
                                    {{rank * 64, 0}, {64, 64}})};
  }
  return layouts;
}

std::vector<format::ShardTensor> ShardTensors(uint32_t rank) {
  std::vector<format::ShardTensor> tensors;
  if (rank == 0)
    tensors.push_back({"bias", DType::kF32, Placement::kReplicated, {16}, {{0}, {16}}});
  tensors.push_back(
      {"layer.weight", DType::kBF16, Placement::kSharded, {128, 64}, {{rank * 64, 0}, {64, 64}}});
  return tensors;
}

class Offline : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "ckptctl-XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
    path_ = root_ + "/train";
    store_ = storage::OpenFileStore(path_);
    job_ = *store_->OpenJob(*JobId::Parse("00112233445566778899aabbccddeeff"));
    ASSERT_TRUE(store_->ClaimEpoch(Epoch(1), {}, {}).ok());
  }
  void TearDown() override { os::PosixFileSystem().RemoveTree(root_).IgnoreError(); }

  void WriteFile(const AttemptId& id, const std::string& name, const std::string& bytes) {
    auto writer = store_->CreateFile(id, name, bytes.size());
    ASSERT_TRUE(writer.ok()) << writer.status().ToString();
    ASSERT_TRUE((*writer)->Write(0, AsBytes(bytes)).ok());
    ASSERT_TRUE((*writer)->Finish().ok());
  }

  format::ManifestFile WriteShard(const AttemptId& id, uint32_t rank) {
    const auto layout = format::LayOutShard(ShardTensors(rank), kChunkBytes);
    EXPECT_TRUE(layout.ok()) << layout.status().ToString();
    std::string stream = layout->header;
    std::mt19937 rng(static_cast<uint32_t>(id.step.value()) * 10 + rank);
    while (stream.size() < layout->stream_bytes) stream += static_cast<char>(rng());
    const format::Uid uid = format::CheckpointUid(job_, id);
    std::vector<Digest> digests;
    for (size_t c = 0; c < layout->chunks.size(); ++c) {
      const format::ChunkRange& range = layout->chunks[c];
      digests.push_back(DigestOf(AsBytes(stream).subspan(range.begin, range.end - range.begin),
                                 ChunkSeed(uid, rank, c)));
    }
    const std::string index = format::MakeRawIndex(uid, Rank(rank), *layout, digests).Encode();
    format::ManifestFile file{Rank(rank),    format::ShardFileName(Rank(rank)),
                              stream.size(), format::IndexFileName(Rank(rank)),
                              index.size(),  format::IndexDigest(index)};
    WriteFile(id, file.name, stream);
    WriteFile(id, file.index_name, index);
    return file;
  }

  void Save(const AttemptId& id, bool commit = true) {
    ASSERT_TRUE(store_->BeginAttempt(id).ok());
    format::Manifest manifest;
    manifest.job = job_;
    manifest.id = id;
    manifest.layouts = Layouts();
    manifest.values.resize(2);
    for (format::RankValues& values : manifest.values) {
      values.values = {{"lr", format::Scope::kShared, format::Value{0.25}},
                       {"step", format::Scope::kShared, format::Value{id.step.value()}}};
    }
    for (uint32_t rank = 0; rank < 2; ++rank) manifest.files.push_back(WriteShard(id, rank));
    if (!commit) return;
    const auto bytes = manifest.Encode();
    ASSERT_TRUE(bytes.ok()) << bytes.status().ToString();
    const Status committed =
        store_->Commit(id, *bytes, {format::ManifestDigest(*bytes), Epoch(1), ""},
                       Deadline("test", std::chrono::seconds(30)));
    ASSERT_TRUE(committed.ok()) << committed.ToString();
  }

  std::string PathOf(const AttemptId& id, const std::string& name = "") const {
    return path_ + "/" + id.ToString() + (name.empty() ? "" : "/" + name);
  }
  static std::string Slurp(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(in), {});
  }
  static void FlipByte(const std::string& path, uint64_t at) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(at));
    const int byte = file.get();
    file.seekp(static_cast<std::streamoff>(at));
    file.put(static_cast<char>(byte ^ 0x20));
  }
  // Verifies one checkpoint with one byte changed, and changes it back.
  std::vector<Damage> DamageOf(const AttemptId& id, const std::string& name, uint64_t at) {
    FlipByte(PathOf(id, name), at);
    auto checkpoint = storage::OpenCheckpointDirectory(PathOf(id));
    EXPECT_TRUE(checkpoint.ok()) << checkpoint.status().ToString();
    const auto report = CheckCheckpoint(**checkpoint, id);
    EXPECT_TRUE(report.ok()) << report.status().ToString();
    FlipByte(PathOf(id, name), at);
    return report.ok() ? report->damage : std::vector<Damage>{};
  }
  OfflineOptions Options(std::string path, bool json = false) {
    OfflineOptions options;
    options.path = std::move(path);
    options.json = json;
    return options;
  }
  // The output, with this run's directory replaced.
  std::string Out(OfflineWork work, const OfflineOptions& options, Code expected = Code::kOk) {
    std::ostringstream out;
    const Status status = work(options, out);
    EXPECT_EQ(status.code(), expected) << status.ToString();
    last_ = status;
    return out.str();
  }

  std::string root_, path_;
  std::unique_ptr<storage::Store> store_;
  JobId job_;
  Status last_;
};

TEST_F(Offline, LsListsNewestFirst) {
  Save(Id(1, 100));
  Save(Id(1, 200));
  Save(Id(1, 300), false);
  EXPECT_EQ(Out(ListCheckpoints, Options(path_)),
            "CHECKPOINT  STEP  EPOCH  RANKS  SIZE      STATE\n"
            "s200.e1.a1  200   1      2      24.8 KiB  visible\n"
            "s100.e1.a1  100   1      2      24.8 KiB  visible\n"
            "(1 more not visible: unfinished, or of a run that was overtaken; --all shows them)\n");
  OfflineOptions all = Options(path_, true);
  all.all = true;
  const auto json = nlohmann::json::parse(Out(ListCheckpoints, all));
  EXPECT_EQ(json["job"], "00112233445566778899aabbccddeeff");
  ASSERT_EQ(json["checkpoints"].size(), 3u);
  EXPECT_EQ(json["checkpoints"][0]["name"], "s300.e1.a1");
  EXPECT_EQ(json["checkpoints"][0]["state"], "incomplete");
  EXPECT_EQ(json["checkpoints"][1]["step"], 200);
  EXPECT_EQ(json["checkpoints"][1]["visible"], true);
}

TEST_F(Offline, LsOfAStoreNamesItsJobs) {
  Save(Id(1, 100));
  Out(ListCheckpoints, Options(root_), Code::kNotFound);
  EXPECT_NE(last_.message().find("jobs in it: train"), std::string::npos) << last_.message();
  Out(ListCheckpoints, Options(root_ + "/nowhere"), Code::kNotFound);
  EXPECT_NE(last_.message().find(root_ + "/nowhere"), std::string::npos) << last_.message();
  EXPECT_EQ(OfflineExitCode(last_), 1);
}

TEST_F(Offline, InspectShowsWhatIsInIt) {
  Save(Id(1, 100));
  Save(Id(1, 200));
  const std::string text = Out(Inspect, Options(path_));
  for (const char* part :
       {"checkpoint  s200.e1.a1\n", "job         00112233445566778899aabbccddeeff\n",
        "TENSOR        DTYPE  SHAPE      PLACEMENT   RANKS  SIZE\n",
        "bias          F32    [16]       replicated  2      64 B\n",
        "layer.weight  BF16   [128, 64]  sharded     2      16.0 KiB\n", "VALUE  RANK  CONTENT\n",
        "shard-00000.safetensors", "shard-00001.index"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "\nnot in\n" << text;
  }
  OfflineOptions older = Options(path_, true);
  older.checkpoint = "s100.e1.a1";
  const auto json = nlohmann::json::parse(Out(Inspect, older));
  EXPECT_EQ(json["step"], 100);
  EXPECT_EQ(json["tensors"][1]["name"], "layer.weight");
  EXPECT_EQ(json["tensors"][1]["shape"], (std::vector<int>{128, 64}));
  older.checkpoint = "s7.e1.a1";
  Out(Inspect, older, Code::kNotFound);
  older.checkpoint = "nonsense";
  Out(Inspect, older, Code::kInvalidArgument);
  EXPECT_EQ(OfflineExitCode(last_), 2);
}

TEST_F(Offline, InspectAndVerifyOfAnUnfinishedOneSaySo) {
  Save(Id(1, 100), false);
  OfflineOptions options = Options(path_);
  options.checkpoint = "s100.e1.a1";
  Out(Inspect, options, Code::kFailedPrecondition);
  EXPECT_NE(last_.message().find("not committed"), std::string::npos) << last_.message();
  Out(Verify, Options(path_), Code::kNotFound);
  const std::string text = Out(Verify, options, Code::kDataLoss);
  EXPECT_NE(text.find("COMMIT: is missing"), std::string::npos) << text;
}

TEST_F(Offline, VerifyOfWholeOnes) {
  Save(Id(1, 100));
  Save(Id(1, 200));
  const std::string text = Out(Verify, Options(path_));
  EXPECT_EQ(text.find("s200.e1.a1: ok, 2 shards, "), 0u) << text;
  EXPECT_NE(text.find("\ns100.e1.a1: ok, 2 shards, "), std::string::npos) << text;
  const auto json = nlohmann::json::parse(Out(Verify, Options(PathOf(Id(1, 100)), true)));
  EXPECT_EQ(json["checkpoints"][0]["ok"], true);
}

TEST_F(Offline, VerifyNamesTensorShardChunkAndRange) {
  Save(Id(1, 100));
  Save(Id(1, 200));
  const std::string name = "shard-00001.safetensors";
  FlipByte(PathOf(Id(1, 200), name), 4096 + 4096 + 17);
  const std::string text = Out(Verify, Options(path_), Code::kDataLoss);
  EXPECT_EQ(text.find("s200.e1.a1: DAMAGED\n"
                      "  shard-00001.safetensors, shard 1, chunk 2, bytes 8192 to 12288, "
                      "tensor 'layer.weight': does not have its digest\n"
                      "s100.e1.a1: ok, "),
            0u)
      << text;
  EXPECT_EQ(OfflineExitCode(last_), 4);
  EXPECT_NE(last_.message().find("1 of 2 checkpoints damaged"), std::string::npos);
  const auto json =
      nlohmann::json::parse(Out(Verify, Options(path_, true), Code::kDataLoss))["checkpoints"][0];
  EXPECT_EQ(json["damage"][0]["chunk"], 2);
  EXPECT_EQ(json["damage"][0]["tensors"][0], "layer.weight");
}

// Every 97th byte of every file, one at a time.
TEST_F(Offline, OneDamagedByteAnywhereIsNamed) {
  const AttemptId id = Id(1, 100);
  Save(id);
  for (const char* name : {"shard-00000.safetensors", "shard-00001.safetensors",
                           "shard-00000.index", "shard-00001.index", "MANIFEST", "COMMIT"}) {
    const uint64_t bytes = Slurp(PathOf(id, name)).size();
    ASSERT_GT(bytes, 0u);
    for (uint64_t at = 0; at < bytes; at += (bytes > 2000 ? 97 : 13)) {
      SCOPED_TRACE(std::string(name) + " at " + std::to_string(at));
      const std::vector<Damage> damage = DamageOf(id, name, at);
      ASSERT_EQ(damage.size(), 1u) << damage[0].ToString();
      EXPECT_EQ(damage[0].file, name) << damage[0].ToString();
      if (std::string_view(name) == "COMMIT") continue;
      EXPECT_LE(damage[0].begin, at) << damage[0].ToString();
      EXPECT_GT(damage[0].end, at) << damage[0].ToString();
      EXPECT_FALSE(damage[0].tensors.empty()) << damage[0].ToString();
    }
  }
}

// Headers and indexes are functions of what else is known: the very byte is found.
TEST_F(Offline, DamageOfHeaderAndIndexIsFoundToTheByte) {
  const AttemptId id = Id(1, 100);
  Save(id);
  const std::string shard = "shard-00000.safetensors", index = "shard-00000.index";
  const std::string header = Slurp(PathOf(id, shard));
  const uint64_t key = header.find("layer.weight");
  std::vector<Damage> damage = DamageOf(id, shard, key + 2);
  ASSERT_EQ(damage.size(), 1u);
  EXPECT_EQ(damage[0].begin, key + 2);
  EXPECT_EQ(damage[0].end, key + 3);
  EXPECT_EQ(*damage[0].chunk, 0u);
  EXPECT_EQ(damage[0].tensors, std::vector<std::string>{"layer.weight"});

  const std::string bytes = Slurp(PathOf(id, index));
  const uint64_t last_chunk = bytes.size() - 16 - 48;
  damage = DamageOf(id, index, last_chunk + 40);
  ASSERT_EQ(damage.size(), 1u);
  EXPECT_EQ(damage[0].begin, last_chunk + 40);
  EXPECT_EQ(damage[0].end, last_chunk + 41);
  EXPECT_EQ(damage[0].tensors, std::vector<std::string>{"layer.weight"});
  EXPECT_NE(damage[0].what.find("data are whole"), std::string::npos) << damage[0].what;

  damage = DamageOf(id, index, bytes.find("bias"));
  ASSERT_EQ(damage.size(), 1u);
  EXPECT_EQ(damage[0].tensors, std::vector<std::string>{"bias"});
}

TEST_F(Offline, MissingAndShortFilesAreNamed) {
  const AttemptId id = Id(1, 100);
  Save(id);
  auto& fs = os::PosixFileSystem();
  ASSERT_TRUE(fs.Unlink(PathOf(id, "shard-00000.index")).ok());
  {
    const auto file = fs.Open(PathOf(id, "shard-00001.safetensors"), os::OpenOptions::ReadWrite());
    ASSERT_TRUE((*file)->Truncate(5000).ok());
  }
  const std::string text = Out(Verify, Options(PathOf(id)), Code::kDataLoss);
  EXPECT_NE(text.find("shard-00000.index, shard 0"), std::string::npos) << text;
  EXPECT_NE(text.find("is missing"), std::string::npos) << text;
  EXPECT_NE(text.find("shard-00001.safetensors, shard 1, bytes 5000 to 12288, tensors 'bias', "
                      "'layer.weight': has 5000 bytes instead of 12288"),
            std::string::npos)
      << text;
}

TEST_F(Offline, ADamagedListIsDamage) {
  Save(Id(1, 100));
  FlipByte(path_ + "/EPOCH.1", 20);
  Out(Verify, Options(path_), Code::kDataLoss);
  EXPECT_NE(last_.message().find("EPOCH.1"), std::string::npos) << last_.message();
  EXPECT_EQ(OfflineExitCode(last_), 4);
  // The way out that the message names.
  Out(Verify, Options(PathOf(Id(1, 100))));
}

}  // namespace
}  // namespace ckpt::ckptctl
