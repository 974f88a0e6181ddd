#include "coordinator/ckptctl/cuts.h"

#include <gtest/gtest.h>

namespace ckpt::ckptctl {
namespace {

std::string CutOf(const std::vector<format::Box>& boxes) {
  CutGatherer gatherer;
  for (const format::Box& box : boxes) gatherer.Add(box);
  return gatherer.Shape().ToString();
}

TEST(Cuts, GridsAreSaidByDimensionAndOthersByTheirBoxes) {
  EXPECT_EQ(CutOf({{{0, 0}, {2, 8}}, {{2, 0}, {2, 8}}}), "2 x 1");
  EXPECT_EQ(CutOf({{{0, 0}, {3, 8}}, {{3, 0}, {1, 8}}}), "2 x 1") << "uneven";
  EXPECT_EQ(CutOf({{{0}, {3}}, {{3}, {1}}, {{4}, {0}}}), "2") << "one rank has nothing";
  EXPECT_EQ(CutOf({{{0, 0}, {2, 4}}, {{0, 4}, {2, 4}}, {{2, 0}, {2, 4}}, {{2, 4}, {2, 4}}}),
            "2 x 2");
  EXPECT_EQ(CutOf({{{0}, {4}}, {{0}, {4}}, {{4}, {4}}, {{4}, {4}}}), "2, 2 copies");
  EXPECT_EQ(CutOf({{{0}, {4}}, {{0}, {4}}, {{4}, {4}}}), "2, some held by more ranks");
  // A row, and the rest of it cut the other way.
  EXPECT_EQ(CutOf({{{0, 0}, {1, 4}}, {{1, 0}, {1, 2}}, {{1, 2}, {1, 2}}}), "in 3 boxes");
  EXPECT_EQ(CutOf({{{}, {}}, {{}, {}}}), "in 1 box, 2 copies") << "a scalar";
}

}  // namespace
}  // namespace ckpt::ckptctl
