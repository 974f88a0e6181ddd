// A job of two ranks on a directory, small enough to be saved some thousand times.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "libckpt/storage/file/file_store.h"
#include "libckpt/testing/test_gang.h"

namespace ckpt::engine::testing {

inline std::vector<TestRank> SmallRanks() {
  std::vector<TestRank> ranks(2);
  for (uint32_t r = 0; r < 2; ++r) {
    ranks[r].tensors.emplace_back(
        Shard("weights", format::DType::kF32, {4000}, {{r * 2000u}, {2000}}), r);
    ranks[r].tensors.emplace_back(
        Meta("shared", format::DType::kBF16, format::Placement::kReplicated, {3000}), r);
    ranks[r].tensors.emplace_back(
        Meta("own", format::DType::kI64, format::Placement::kPerRank, {100}), r);
  }
  return ranks;
}

class SmallJob {
 public:
  explicit SmallJob(std::string directory, os::FileSystem& fs = os::PosixFileSystem())
      : fs_(fs), directory_(std::move(directory)) {
    store_ = Open();
    auto job = store_->OpenJob(JobId{});
    if (!job.ok()) return;  // then every save fails
    job_ = *job;
    Claim().IgnoreError();
    gang_.MakeRegions(job_);
    options_.chunk_bytes = 4096;
    options_.block_bytes = 4096;  // several of each shard
    options_.references = true;
    options_.compression_level = 1;
    options_.threads = 2;
  }
  std::unique_ptr<storage::EpochStore> Open() { return storage::OpenFileStore(fs_, directory_); }
  // What a new launch does.
  Status Claim() {
    CKPT_ASSIGN_OR_RETURN(const storage::EpochClaim claim, store_->ClaimEpoch(Epoch(1), {}, {}));
    epoch_ = claim.epoch;
    return OkStatus();
  }
  // Step 1 and 2 differ in all bytes, 3 and 4 in none from 2.
  Status Save(int64_t step) {
    if (gang_.regions().empty()) return FailedPrecondition("the job did not start");
    gang_.Fill(std::min<int64_t>(step, 2));
    return gang_.Save(store_.get(), job_, {epoch_, Step(step), Attempt(++attempts_)}, false,
                      options_);
  }
  Status Prune(uint32_t last) {
    CKPT_ASSIGN_OR_RETURN(const storage::PrunePlan plan,
                          store_->PlanPrune({.last = last}, nullptr));
    return store_->Prune(plan).status();
  }
  // The newest has at least `step`, and loads bit for bit, by a process that knows nothing.
  Status CheckNewest(int64_t step) {
    auto store = Open();
    std::vector<std::string> skipped;
    CKPT_ASSIGN_OR_RETURN(const auto reader, OpenNewest(store.get(), &skipped));
    if (!skipped.empty()) return DataLoss("passed over: " + skipped[0]);
    const int64_t found = reader->id().step.value();
    if (found < step) return DataLoss("the newest is step " + std::to_string(found));
    TestGang loaded(SmallRanks());
    loaded.Clear();
    CKPT_RETURN_IF_ERROR(loaded.LoadAll(reader.get()));
    if (loaded.CountWrong(std::min<int64_t>(found, 2)) != 0)
      return DataLoss("step " + std::to_string(found) + " has other bytes");
    return reader->Verify({});
  }

 private:
  os::FileSystem& fs_;
  const std::string directory_;
  std::unique_ptr<storage::EpochStore> store_;
  JobId job_;
  Epoch epoch_;
  uint32_t attempts_ = 0;
  TestGang gang_{SmallRanks()};
  WriteOptions options_;
};

// A directory of its own, removed at the end; in RAM where there is some.
class Scratch {
 public:
  explicit Scratch(const std::string& beneath = ::access("/dev/shm", W_OK) == 0
                                                    ? "/dev/shm"
                                                    : ::testing::TempDir()) {
    std::string pattern = beneath + "/ckpt-storage-XXXXXX";
    path_ = ::mkdtemp(pattern.data()) != nullptr ? pattern : std::string();
    EXPECT_FALSE(path_.empty());
  }
  ~Scratch() { os::PosixFileSystem().RemoveTree(path_).IgnoreError(); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Whether large files there are written by a queue of the kernel.
inline bool Queues(os::FileSystem& fs) {
  const Scratch scratch;
  os::OpenOptions options = os::OpenOptions::CreateNew();
  options.direct = true;
  const auto file = fs.Open(scratch.path() + "/probe", options);
  return file.ok() && (*file)->depth() > 1;
}

}  // namespace ckpt::engine::testing
