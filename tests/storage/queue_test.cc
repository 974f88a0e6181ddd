// Shards of many blocks written, copied, verified and loaded through io_uring, and through the pool
// that stands behind the same interface: the same bytes, the same damage found.
#include <gtest/gtest.h>

#include "libckpt/engine/copy.h"
#include "libckpt/os/uring/uring_file.h"
#include "tests/storage/small_job.h"

namespace ckpt::engine::testing {
namespace {

// One rank of 17 MiB and a bit, most of it in one tensor; cut where no page ends.
std::vector<TestRank> LargeRank() {
  std::vector<TestRank> ranks(1);
  ranks[0].tensors.emplace_back(
      Meta("large", format::DType::kF32, format::Placement::kReplicated, {4'200'001}), 0);
  ranks[0].tensors.emplace_back(
      Meta("small", format::DType::kU8, format::Placement::kReplicated, {333}), 0);
  ranks[0].tensors.emplace_back(
      Meta("half", format::DType::kBF16, format::Placement::kReplicated, {700'003}), 0);
  return ranks;
}

struct Way {
  const char* name;
  os::FileSystem& (*fs)();
  int compression;
};

class Queue : public ::testing::TestWithParam<Way> {
 protected:
  void SetUp() override {
    if (&GetParam().fs() != &os::PosixFileSystem() && !Queues(GetParam().fs()))
      GTEST_SKIP() << "io_uring or direct I/O is refused here";
    store_ = storage::OpenFileStore(GetParam().fs(), directory_);
    const auto job = store_->OpenJob(JobId{});
    ASSERT_TRUE(job.ok());
    job_ = *job;
    ASSERT_CKPT_OK(store_->ClaimEpoch(Epoch(1), {}, {}).status());
    gang_.MakeRegions(job_);
  }
  Status Save() {
    WriteOptions options;
    options.compression_level = GetParam().compression;
    gang_.Fill(1);
    return gang_.Save(store_.get(), job_, id_, false, options);
  }
  static Status LoadFrom(storage::Store* store, const AttemptId& id) {
    CKPT_ASSIGN_OR_RETURN(const auto reader, OpenCheckpoint(store, id));
    TestGang loaded(LargeRank());
    loaded.Clear();
    CKPT_RETURN_IF_ERROR(loaded.LoadAll(reader.get()));
    if (loaded.CountWrong(1) != 0) return DataLoss("other bytes");
    return reader->Verify({});
  }

  const Scratch scratch_{::testing::TempDir()};  // not in RAM: direct I/O is the point
  const std::string directory_ = scratch_.path() + "/job";
  std::unique_ptr<storage::EpochStore> store_;
  JobId job_;
  const AttemptId id_{Epoch(1), Step(1), Attempt(1)};
  TestGang gang_{LargeRank()};
};

TEST_P(Queue, WhatIsSavedIsLoadedByEitherWay) {
  ASSERT_CKPT_OK(Save());
  EXPECT_CKPT_OK(LoadFrom(store_.get(), id_));
  EXPECT_CKPT_OK(LoadFrom(storage::OpenFileStore(directory_).get(), id_));
}

TEST_P(Queue, ACopyIsWhole) {
  ASSERT_CKPT_OK(Save());
  const std::string copy = scratch_.path() + "/copy";
  const auto to = storage::NewCheckpointDirectory(GetParam().fs(), copy, job_);
  ASSERT_CKPT_OK(CopyCheckpoint(store_.get(), id_, to.get(), {}));
  auto opened = storage::OpenCheckpointDirectory(GetParam().fs(), copy);
  ASSERT_TRUE(opened.ok()) << opened.status().ToString();
  EXPECT_CKPT_OK(LoadFrom(opened->get(), id_));
}

TEST_P(Queue, AFlippedByteIsNamedAndATruncatedFileToo) {
  ASSERT_CKPT_OK(Save());
  const std::string shard = directory_ + "/" + id_.ToString() + "/shard-00000.safetensors";
  auto& fs = os::PosixFileSystem();
  auto file = fs.Open(shard, os::OpenOptions::ReadWrite());
  ASSERT_TRUE(file.ok());
  std::byte byte{};
  const uint64_t at = (*file)->Size().value() / 2;
  ASSERT_CKPT_OK((*file)->PRead(at, {&byte, 1}));
  byte ^= std::byte{4};
  ASSERT_CKPT_OK((*file)->PWrite(at, {&byte, 1}));
  ASSERT_CKPT_OK((*file)->Sync());
  const Status damaged = LoadFrom(store_.get(), id_);
  EXPECT_EQ(damaged.code(), Code::kDataLoss) << damaged.ToString();
  EXPECT_NE(damaged.message().find("'large'"), std::string::npos) << damaged.ToString();
  ASSERT_CKPT_OK((*file)->Truncate(at));
  EXPECT_EQ(LoadFrom(store_.get(), id_).code(), Code::kDataLoss);
}

os::FileSystem& Pool() { return os::PosixFileSystem(); }
constexpr Way kWays[] = {{"Pool", Pool, 0},
                         {"PoolCompressed", Pool, 1},
                         {"Uring", os::UringFileSystem, 0},
                         {"UringCompressed", os::UringFileSystem, 1}};
INSTANTIATE_TEST_SUITE_P(By, Queue, ::testing::ValuesIn(kWays),
                         [](const ::testing::TestParamInfo<Way>& info) { return info.param.name; });

}  // namespace
}  // namespace ckpt::engine::testing
