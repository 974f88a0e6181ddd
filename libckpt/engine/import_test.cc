// Tensors out of files of somebody else, in whatever order they lie there.
#include "libckpt/engine/import.h"

#include <map>

#include "libckpt/engine/engine.h"
#include "libckpt/testing/seed.h"
#include "libckpt/testing/test_gang.h"

namespace ckpt::engine {
namespace {

using format::DType;
using testing::Soon;
using testing::TestStore;

class Import : public ::testing::Test {
 protected:
  // A file that holds these bytes.
  const storage::FileReader* File(const std::string& bytes) {
    const std::string name = "file" + std::to_string(files_.size());
    auto writer = store_.store->CreateFile(store_.Id(1), name, bytes.size());
    EXPECT_TRUE(writer.ok()) << writer.status().ToString();
    EXPECT_CKPT_OK((*writer)->Write(0, AsBytes(bytes)));
    EXPECT_CKPT_OK((*writer)->Finish());
    auto reader = store_.store->OpenFile(store_.Id(1), name);
    EXPECT_TRUE(reader.ok()) << reader.status().ToString();
    return files_.emplace_back(std::move(reader).value()).get();
  }
  Status Run(const std::vector<ForeignTensor>& tensors, const ImportOptions& options = {}) {
    format::RankValues values;
    values.values = {{"said", format::Scope::kShared, format::Value{std::string("so")}}};
    return ImportCheckpoint(tensors, values, store_.job, store_.Id(2), store_.store.get(), options);
  }
  void SetUp() override { ASSERT_CKPT_OK(store_.store->BeginAttempt(store_.Id(1))); }

  TestStore store_;
  std::vector<std::unique_ptr<storage::FileReader>> files_;
};

TEST_F(Import, WhateverLiesInWhateverOrderComesBack) {
  Rng rng = ckpt::testing::TestRng("tensors to import", 1);
  constexpr DType kDTypes[] = {DType::kU8, DType::kBF16, DType::kF32, DType::kI64, DType::kC128};
  std::vector<std::string> bytes(3);
  std::vector<ForeignTensor> tensors;
  std::vector<size_t> file_of;
  std::map<std::string, std::string> content;
  for (int i = 0; i < 120; ++i) {
    ForeignTensor tensor{"t" + std::to_string(rng.Below(1000)) + "." + std::to_string(i),
                         kDTypes[rng.Below(std::size(kDTypes))],
                         {},
                         nullptr,
                         0};
    // Mostly small ones, many in a block; some of several blocks.
    tensor.shape = {rng.Below(4), i % 20 == 7 ? rng.Between(100'000, 400'000) : rng.Below(900)};
    std::string data(tensor.shape[0] * tensor.shape[1] * format::ElementBytes(tensor.dtype), 0);
    for (size_t at = 0; at < data.size(); at += 8) {
      const uint64_t word = rng.Next();
      std::memcpy(&data[at], &word, std::min<size_t>(8, data.size() - at));
    }
    file_of.push_back(rng.Below(bytes.size()));
    if (rng.Chance(50)) bytes[file_of.back()] += "between";
    tensor.offset = bytes[file_of.back()].size();
    bytes[file_of.back()] += data;
    content[tensor.name] = std::move(data);
    tensors.push_back(std::move(tensor));
  }
  std::vector<const storage::FileReader*> readers;
  for (const std::string& file : bytes) readers.push_back(File(file));
  for (size_t i = 0; i < tensors.size(); ++i) tensors[i].file = readers[file_of[i]];
  std::atomic<uint64_t> most{0}, total{0};
  ImportOptions options;
  options.progress = [&](uint64_t done, uint64_t all) {
    total = all;
    uint64_t before = most;
    while (before < done && !most.compare_exchange_weak(before, done)) {
    }
  };
  ASSERT_CKPT_OK(Run(tensors, options));
  EXPECT_EQ(most, total);

  auto reader = OpenCheckpoint(store_.store.get(), store_.Id(2));
  ASSERT_TRUE(reader.ok()) << reader.status().ToString();
  EXPECT_EQ((*reader)->Values(Rank(0))->values[0].name, "said");
  ASSERT_CKPT_OK((*reader)->Verify({}));
  std::vector<LiveTensor> targets;
  std::map<std::string, std::string> loaded;
  for (const ForeignTensor& tensor : tensors) {
    LiveTensor target;
    target.meta =
        testing::Meta(tensor.name, tensor.dtype, format::Placement::kReplicated, tensor.shape);
    std::string& memory = loaded[tensor.name];
    memory.assign(content[tensor.name].size(), '?');
    target.data = memory.data();
    targets.push_back(target);
  }
  ASSERT_CKPT_OK((*reader)->Load(Rank(0), targets, {}));
  EXPECT_TRUE(loaded == content);
}

TEST_F(Import, AnyRankOfAnyWorldLoadsItWholeOrItsPart) {
  std::string bytes(7 * 1000, '\0');
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 7 % 251);
  ASSERT_CKPT_OK(Run({{"w", DType::kU8, {7, 1000}, File(bytes), 0}}));
  auto reader = OpenCheckpoint(store_.store.get(), store_.Id(2));
  ASSERT_TRUE(reader.ok()) << reader.status().ToString();
  constexpr uint32_t kWorld = 3;
  for (uint32_t r = 0; r < kWorld; ++r) {
    LiveTensor target;
    target.meta =
        testing::Shard("w", DType::kU8, {7, 1000}, testing::Part({7, 1000}, 0, r, kWorld));
    const uint64_t begin = target.meta.local.offset[0] * 1000;
    std::string part(target.meta.LocalBytes(), '?');
    target.data = part.data();
    ASSERT_CKPT_OK((*reader)->Load(Rank(r), {target}, {.world = kWorld}));
    EXPECT_TRUE(part == bytes.substr(begin, part.size())) << "rank " << r;
    target.meta = testing::Meta("w", DType::kU8, format::Placement::kReplicated, {7, 1000});
    std::string whole(bytes.size(), '?');
    target.data = whole.data();
    ASSERT_CKPT_OK((*reader)->Load(Rank(r), {target}, {.world = kWorld}));
    EXPECT_TRUE(whole == bytes) << "rank " << r;
  }
}

TEST_F(Import, NothingIsCommittedIfItFails) {
  const storage::FileReader* const file = File(std::string(3'000'000, 'x'));
  const ForeignTensor whole{"w", DType::kU8, {3'000'000}, file, 0};
  const auto not_there = [&] {
    EXPECT_EQ(store_.store->ReadCommit(store_.Id(2)).status().code(), Code::kNotFound);
  };
  // Before anything is made.
  Status status = Run({whole, whole});
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_NE(status.message().find("'w'"), std::string::npos) << status.message();
  EXPECT_CKPT_OK(store_.store->BeginAttempt(store_.Id(2)));
  EXPECT_CKPT_OK(store_.store->Abort(store_.Id(2)));
  // The file ends early.
  status = Run({{"w", DType::kU8, {3'000'000}, file, 1}});
  EXPECT_EQ(status.code(), Code::kDataLoss) << status.ToString();
  not_there();
  EXPECT_CKPT_OK(store_.store->Abort(store_.Id(2)));
  std::atomic<int> asked{0};
  ImportOptions options;
  options.cancelled = [&] { return ++asked > 1; };
  EXPECT_EQ(Run({whole}, options).code(), Code::kCancelled);
  not_there();
  EXPECT_CKPT_OK(store_.store->Abort(store_.Id(2)));
  ASSERT_CKPT_OK(Run({whole}));
}

TEST_F(Import, OfNothingIsACheckpointOfNothing) {
  ASSERT_CKPT_OK(Run({}));
  auto reader = OpenCheckpoint(store_.store.get(), store_.Id(2));
  ASSERT_TRUE(reader.ok()) << reader.status().ToString();
  EXPECT_CKPT_OK((*reader)->Verify({}));
}

}  // namespace
}  // namespace ckpt::engine
