// A small store in a directory, and the verbs that need no coordinator on it.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

#include "coordinator/ckptctl/check.h"
#include "coordinator/ckptctl/inspect.h"
#include "coordinator/ckptctl/ls.h"
#include "coordinator/ckptctl/offline.h"
#include "coordinator/ckptctl/verify.h"
#include "libckpt/format/index.h"
#include "libckpt/format/manifest.h"
#include "libckpt/storage/file/file_store.h"

namespace ckpt::ckptctl {

using format::DType;
using format::Placement;

inline constexpr uint64_t kChunkBytes = 4096;  // so that there are many

inline AttemptId Id(uint64_t epoch, int64_t step) {
  return AttemptId{Epoch(epoch), Step(step), Attempt(1)};
}

inline format::TensorMeta Tensor(std::string name, DType dtype, Placement placement,
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
inline std::vector<format::RankLayout> Layouts() {
  std::vector<format::RankLayout> layouts(2);
  for (uint32_t rank = 0; rank < 2; ++rank) {
    layouts[rank].rank = Rank(rank);
    layouts[rank].tensors = {Tensor("bias", DType::kF32, Placement::kReplicated, {16}, {{0}, {16}}),
                             Tensor("layer.weight", DType::kBF16, Placement::kSharded, {128, 64},
                                    {{rank * 64, 0}, {64, 64}})};
  }
  return layouts;
}

inline std::vector<format::ShardTensor> ShardTensors(uint32_t rank) {
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

}  // namespace ckpt::ckptctl
