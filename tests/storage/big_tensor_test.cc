// A tensor of more than 4 GiB, from memory to a file and back: nothing counts its bytes in 32 bits.
// Takes 5 GiB of memory and of disk, so only under ./run soak storage.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstdlib>

#include "libckpt/format/manifest.h"
#include "tests/storage/small_job.h"

namespace ckpt::engine::testing {
namespace {

constexpr uint64_t kFourGiB = uint64_t{4} << 30;
constexpr uint64_t kBytes = kFourGiB + 70'000;
constexpr uint64_t kMarked[] = {0, kFourGiB - 1, kFourGiB, kFourGiB + 1, kBytes - 1};

// Pages that take no memory before they are written.
class Untouched {
 public:
  explicit Untouched(uint64_t bytes)
      : bytes_(bytes),
        data_(::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {
    EXPECT_NE(data_, MAP_FAILED);
  }
  ~Untouched() { ::munmap(data_, bytes_); }
  std::byte* data() const { return static_cast<std::byte*>(data_); }
  MutableByteSpan span() const { return {data(), bytes_}; }

 private:
  const uint64_t bytes_;
  void* const data_;
};

Status SaveIt(storage::Store* store, const AttemptId& id) {
  CKPT_ASSIGN_OR_RETURN(const JobId job, store->OpenJob(JobId{}));
  CKPT_RETURN_IF_ERROR(store->ClaimEpoch(Epoch(1), {}, {}).status());
  const Untouched tensor(kBytes);
  for (const uint64_t at : kMarked) tensor.data()[at] = std::byte(1 + at % 251);
  LiveTensor live;
  live.meta = Meta("big", format::DType::kU8, format::Placement::kReplicated, {kBytes});
  live.data = tensor.data();
  format::RankLayout layout;
  layout.rank = Rank(0);
  layout.tensors = {live.meta};
  CKPT_ASSIGN_OR_RETURN(const plan::GangPlan plan, plan::MakePlan({layout}, {0}));
  const Untouched memory(AlignUp(StagingRegion::BytesNeeded(layout, plan.ranks[0]), kPageBytes));
  CKPT_ASSIGN_OR_RETURN(
      StagingRegion region,
      StagingRegion::Format(memory.span(), {job, Rank(0), 1, plan.hash}, layout, plan.ranks[0]));
  region.Begin(GenerationInfo{1, id, 1, false});
  CKPT_RETURN_IF_ERROR(
      Capture({live}, &region, nullptr, Deadline("capture", std::chrono::minutes(5))));
  CKPT_RETURN_IF_ERROR(region.Seal(id.step));
  CKPT_RETURN_IF_ERROR(store->BeginAttempt(id));
  CKPT_ASSIGN_OR_RETURN(const ShardReport report, WriteShard(&region, store, {}));
  CKPT_ASSIGN_OR_RETURN(const std::string manifest,
                        BuildManifest(job, id, {layout}, {report}, false));
  return store->Commit(id, manifest, {format::ManifestDigest(manifest), id.epoch, ""}, Soon());
}

TEST(BigTensor, EveryByteBeyondFourGiBComesBack) {
  if (std::getenv("CKPT_SOAK") == nullptr) GTEST_SKIP() << "takes 5 GiB: ./run soak storage";
  const Scratch scratch(::testing::TempDir());
  const auto store = storage::OpenFileStore(scratch.path() + "/job");
  const AttemptId id{Epoch(1), Step(1), Attempt(1)};
  ASSERT_CKPT_OK(SaveIt(store.get(), id));
  auto reader = OpenCheckpoint(store.get(), id);
  ASSERT_TRUE(reader.ok()) << reader.status().ToString();
  ASSERT_CKPT_OK((*reader)->Verify({}));
  // What one of many ranks would hold of it: the part around 4 GiB and to the end.
  constexpr uint64_t kBegin = kFourGiB - 5000;
  std::vector<std::byte> part(kBytes - kBegin, std::byte{0xEE});
  LiveTensor live;
  live.meta = Shard("big", format::DType::kU8, {kBytes}, {{kBegin}, {part.size()}});
  live.data = part.data();
  ASSERT_CKPT_OK((*reader)->Load(Rank(0), {live}, {.world = 2}));
  for (uint64_t at = kBegin; at < kBytes; ++at) {
    const bool marked = std::find(std::begin(kMarked), std::end(kMarked), at) != std::end(kMarked);
    ASSERT_EQ(part[at - kBegin], marked ? std::byte(1 + at % 251) : std::byte{0}) << "byte " << at;
  }
}

}  // namespace
}  // namespace ckpt::engine::testing
