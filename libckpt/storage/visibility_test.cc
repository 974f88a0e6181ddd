#include "libckpt/storage/visibility.h"

#include <gtest/gtest.h>

namespace ckpt::storage {
namespace {

AttemptId Id(uint64_t epoch, int64_t step) {
  return AttemptId{Epoch(epoch), Step(step), Attempt(1)};
}
EpochView View(uint64_t claim, uint64_t list, std::vector<AttemptId> adopted = {}) {
  return {Epoch(claim), {Epoch(list), std::move(adopted)}};
}

TEST(Visibility, WhoMayCommit) {
  const AttemptId b = Id(2, 20);
  EXPECT_EQ(MayCommit(b, View(2, 2)), Verdict::kYes);
  EXPECT_EQ(MayCommit(b, View(3, 2)), Verdict::kUndecided);
  EXPECT_EQ(MayCommit(b, View(3, 3)), Verdict::kFenced);
  EXPECT_EQ(MayCommit(b, View(3, 3, {b})), Verdict::kYes);
  // The newest claim decides, not an older list that names it.
  EXPECT_EQ(MayCommit(b, View(4, 3, {b})), Verdict::kUndecided);
  EXPECT_EQ(MayCommit(b, View(2, 1)), Verdict::kUnclaimed);
  EXPECT_EQ(MayCommit(b, View(1, 1)), Verdict::kUnclaimed);
  EXPECT_EQ(MayCommit(b, View(0, 0)), Verdict::kUnclaimed);
}

TEST(Visibility, WhatIsVisible) {
  const EpochList list{Epoch(3), {Id(1, 10), Id(2, 20)}};
  EXPECT_TRUE(IsVisible(Id(1, 10), true, list));
  EXPECT_FALSE(IsVisible(Id(1, 10), false, list));
  EXPECT_TRUE(IsVisible(Id(3, 1), true, list));
  EXPECT_FALSE(IsVisible(Id(2, 21), true, list));
  EXPECT_FALSE(IsVisible(Id(4, 1), true, list));
  EXPECT_FALSE(IsVisible(AttemptId{}, true, EpochList{}));
}

TEST(Visibility, WhatAnEpochAdopts) {
  const EpochList base{Epoch(2), {Id(1, 10), Id(1, 11)}};
  const std::vector<SeenAttempt> seen = {
      {Id(1, 11), Place::kDead, false, false},  // retired for good
      {Id(1, 12), Place::kOwn, true, false},    // committed, but epoch 2 did not adopt it
      {Id(2, 20), Place::kOwn, true, false},    // committed
      {Id(2, 21), Place::kTrash, true, false},  // committed, being retired by somebody
      {Id(2, 22), Place::kOwn, false, true},    // draining
      {Id(2, 23), Place::kOwn, false, false},   // unfinished
      {Id(2, 24), Place::kDead, true, false},   // retired for good
      {Id(3, 30), Place::kOwn, true, false}};   // of an epoch that never had a list
  EXPECT_EQ(ComposeList(Epoch(4), base, seen, {Id(3, 31), Id(4, 40), Id(2, 20)}),
            (std::vector{Id(1, 10), Id(2, 20), Id(2, 21), Id(2, 22), Id(3, 31)}));
  EXPECT_TRUE(ComposeList(Epoch(1), {}, seen, {}).empty());
}

TEST(Visibility, NamesAreParsedExactly) {
  EXPECT_EQ(ParseName("JOB").kind, NameKind::kJob);
  EXPECT_EQ(ParseName("EPOCH.7").kind, NameKind::kList);
  EXPECT_EQ(ParseName("EPOCH.7.claim").kind, NameKind::kClaim);
  EXPECT_EQ(ParseName("EPOCH.7.claim").epoch, Epoch(7));
  EXPECT_EQ(ParseName("s-5.e2.a1").kind, NameKind::kAttempt);
  const ParsedName trash = ParseName(TrashName(Epoch(3), Id(2, -5)));
  EXPECT_EQ(trash.kind, NameKind::kTrash);
  EXPECT_EQ(trash.epoch, Epoch(3));
  EXPECT_EQ(trash.id, Id(2, -5));
  EXPECT_EQ(ParseName(DeadName(Epoch(3), Id(2, 5))).kind, NameKind::kDead);
  for (const char* name :
       {"", "job", "JOB ", "EPOCH.", "EPOCH.0", "EPOCH.-1", "EPOCH.07", "EPOCH.7.claim.claim",
        "EPOCH.7 ", "EPOCH.18446744073709551615", "s1.e1", "s01.e1.a1", ".trash-s1.e1.a1",
        ".trash-1-", ".trash-0-s1.e1.a1", ".dead-1-x", ".tmp-1-EPOCH.7", ".", ".."}) {
    EXPECT_EQ(ParseName(name).kind, NameKind::kForeign) << name;
  }
}

}  // namespace
}  // namespace ckpt::storage
