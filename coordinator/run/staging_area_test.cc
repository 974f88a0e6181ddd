#include "coordinator/run/staging_area.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "libckpt/base/limits.h"
#include "libckpt/plan/plan.h"

namespace ckpt::run {
namespace {

TEST(StagingSlot, TakesWhatItNeedsAndIsAdoptedForItsOwnJobOnly) {
  format::RankLayout layout;
  layout.rank = Rank(0);
  format::TensorMeta tensor;
  tensor.name = "weights";
  tensor.global_shape = {1000};
  tensor.local = format::Box{{0}, {1000}};
  layout.tensors.push_back(tensor);
  Result<plan::GangPlan> plan = plan::MakePlan({layout}, {0});
  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  const JobId job = JobId::Random();
  Result<SlotPtr> slot =
      StagingSlot::Create(std::make_shared<StagingBudget>(uint64_t{1} << 30),
                          {job, Rank(0), 1, plan->hash}, 0, layout, plan->ranks[0]);
  ASSERT_TRUE(slot.ok()) << slot.status().ToString();
  const auto adopt = [&](const JobId& expected) {
    Result<os::Memfd> memfd = (*slot)->memfd().Dup();
    EXPECT_TRUE(memfd.ok());
    return StagingSlot::Adopt(std::move(*memfd).TakeFd(), (*slot)->bytes(), 0, expected).status();
  };
  struct stat st;
  ASSERT_EQ(fstat((*slot)->memfd().fd(), &st), 0);
  EXPECT_GT((*slot)->bytes(), kValueBytesMax);
  EXPECT_LT(static_cast<uint64_t>(st.st_blocks) * 512, kValueBytesMax) << "room, but no memory";
  EXPECT_TRUE(adopt(job).ok()) << adopt(job).ToString();
  EXPECT_TRUE(adopt(JobId()).ok()) << "a job whose id is not known yet";
  EXPECT_EQ(adopt(JobId::Random()).code(), Code::kFailedPrecondition);
}

}  // namespace
}  // namespace ckpt::run
