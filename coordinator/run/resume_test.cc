#include "coordinator/run/resume.h"

#include <gtest/gtest.h>

namespace ckpt::run {
namespace {

using Kind = ResumeDecision::Kind;

AttemptId Id(uint64_t epoch, int64_t step, uint32_t attempt) {
  return AttemptId{Epoch(epoch), Step(step), Attempt(attempt)};
}
RamCopy Ram(AttemptId id, std::vector<uint32_t> ranks, bool full = true, bool complete = true) {
  return RamCopy{.id = id, .gang_complete = complete, .full = full, .ranks = std::move(ranks)};
}
storage::CheckpointInfo Stored(AttemptId id) {
  return {.id = id, .committed = true, .visible = true};
}

TEST(Resume, NothingIsAFreshStart) {
  const ResumeDecision d = DecideResume({.nodes = {{{0, 1}, {}}}});
  EXPECT_EQ(d.kind, Kind::kFresh);
  EXPECT_EQ(d.message, "");
}

TEST(Resume, TheNewestVisibleCheckpoint) {
  auto hidden = Stored(Id(2, 90, 1));
  hidden.visible = false;
  const ResumeDecision d = DecideResume(
      {.nodes = {{{0}, {}}}, .checkpoints = {hidden, Stored(Id(1, 50, 2)), Stored(Id(1, 40, 1))}});
  EXPECT_EQ(d.kind, Kind::kStore);
  EXPECT_EQ(d.copy.id, Id(1, 50, 2));
}

TEST(Resume, I2RamOnlyIfEveryNodeHoldsItsRanks) {
  const AttemptId id = Id(3, 120, 2);
  ResumeInput input{.nodes = {{{0, 1}, {Ram(id, {0, 1})}}, {{2, 3}, {Ram(id, {2, 3})}}},
                    .checkpoints = {Stored(Id(3, 100, 1))}};
  EXPECT_EQ(DecideResume(input).kind, Kind::kRam);
  EXPECT_EQ(DecideResume(input).copy.id, id);

  input.nodes[1].ram[0].ranks = {2};  // a rank has moved here without its copy
  input.may_wait = false;
  EXPECT_EQ(DecideResume(input).kind, Kind::kStore);
}

TEST(Resume, SealedByAllIsCompleteThoughNobodySaidSo) {
  const AttemptId id = Id(3, 120, 2);
  const ResumeInput input{
      .nodes = {{{0}, {Ram(id, {0}, true, false)}}, {{1}, {Ram(id, {1}, true, false)}}}};
  EXPECT_EQ(DecideResume(input).kind, Kind::kRam);
  EXPECT_EQ(AdoptableAttempts(input.nodes), std::vector<AttemptId>{id});
}

TEST(Resume, SealedBySomeIsNothing) {
  const AttemptId id = Id(3, 120, 2);
  const ResumeInput input{.nodes = {{{0}, {Ram(id, {0}, true, false)}}, {{1}, {}}}};
  EXPECT_EQ(DecideResume(input).kind, Kind::kFresh);
  EXPECT_TRUE(AdoptableAttempts(input.nodes).empty());
}

TEST(Resume, I3ADrainingNewerSaveIsWaitedFor) {
  const AttemptId id = Id(3, 120, 2);
  ResumeInput input{.nodes = {{{0, 1}, {Ram(id, {0, 1}, /*full=*/false)}}},
                    .checkpoints = {Stored(Id(3, 100, 1))}};
  EXPECT_EQ(DecideResume(input).kind, Kind::kWait);
  EXPECT_TRUE(DecideResume(input).drain_alive);
  input.may_wait = false;
  EXPECT_EQ(DecideResume(input).kind, Kind::kStore);
  input.may_wait = true;
  input.checkpoints.push_back(Stored(id));
  EXPECT_EQ(DecideResume(input).kind, Kind::kStore);
  EXPECT_EQ(DecideResume(input).copy.id, id);
}

// Its ckpt-run was killed, or the store is full: nobody writes it while this gang is there.
TEST(Resume, WhoeverLaunchedThisHearsSoonOfACopyThatDoesNotBecomeDurable) {
  const AttemptId id = Id(3, 120, 2);
  ResumeInput input{.nodes = {{{0, 1}, {Ram(id, {0, 1}, /*full=*/false)}}},
                    .checkpoints = {Stored(Id(3, 100, 1))}};
  EXPECT_EQ(WaitNs(input, DecideResume(input)), kDrainWaitNs);
  input.expect = id;
  EXPECT_LT(WaitNs(input, DecideResume(input)), kDrainWaitNs / 10);
  input.may_wait = false;
  EXPECT_EQ(DecideResume(input).kind, Kind::kBehind);
  input.may_wait = true;
  input.nodes[0].ram.clear();
  EXPECT_LT(WaitNs(input, DecideResume(input)), kDrainWaitNs / 100);
}

TEST(Resume, ACopyThatHasLostAPartIsNotWaitedForAsIfSomebodyWroteIt) {
  const AttemptId id = Id(3, 120, 2);
  ResumeInput input{.nodes = {{{0, 1}, {Ram(id, {0, 1})}}, {{2}, {}}},
                    .checkpoints = {Stored(Id(3, 100, 1))}};
  EXPECT_EQ(DecideResume(input).kind, Kind::kWait);
  EXPECT_FALSE(DecideResume(input).drain_alive);
  input.checkpoints.push_back({.id = id, .draining = true});
  EXPECT_FALSE(DecideResume(input).drain_alive);
}

TEST(Resume, ADrainingMarkWithoutAHolder) {
  storage::CheckpointInfo draining{.id = Id(3, 120, 2), .draining = true};
  const ResumeDecision d =
      DecideResume({.nodes = {{{0}, {}}}, .checkpoints = {draining, Stored(Id(3, 100, 1))}});
  EXPECT_EQ(d.kind, Kind::kWait);
  EXPECT_FALSE(d.drain_alive);
}

TEST(Resume, RamBeatsAnEqualDurableCopyAndADamagedOneIsSkipped) {
  const AttemptId id = Id(3, 120, 2);
  ResumeInput input{.nodes = {{{0}, {Ram(id, {0})}}},
                    .checkpoints = {Stored(id), Stored(Id(3, 100, 1))}};
  EXPECT_EQ(DecideResume(input).kind, Kind::kRam);
  input.damaged.insert(id);
  EXPECT_EQ(DecideResume(input).kind, Kind::kStore);
  EXPECT_EQ(DecideResume(input).copy.id, Id(3, 100, 1));
}

TEST(Resume, NeverSilentlyFromZero) {
  const AttemptId id = Id(3, 120, 2);
  const ResumeDecision d =
      DecideResume({.nodes = {{{0}, {}}}, .checkpoints = {Stored(id)}, .damaged = {id}});
  EXPECT_EQ(d.kind, Kind::kFresh);
  EXPECT_NE(d.message.find("s120.e3.a2 is damaged"), std::string::npos);
}

TEST(Resume, I4NothingOlderThanWhatIsExpected) {
  const AttemptId id = Id(3, 120, 2);
  ResumeInput input{.nodes = {{{0}, {}}}, .checkpoints = {Stored(Id(3, 100, 1))}, .expect = id};
  EXPECT_EQ(DecideResume(input).kind, Kind::kWait) << "the store may be slow to show it";
  EXPECT_EQ(DecideResume(input).copy.id, id);
  input.may_wait = false;
  const ResumeDecision behind = DecideResume(input);
  EXPECT_EQ(behind.kind, Kind::kBehind);
  EXPECT_NE(behind.message.find("s120.e3.a2 is neither"), std::string::npos) << behind.message;
  EXPECT_NE(behind.message.find("s100.e3.a1"), std::string::npos) << behind.message;
  input.checkpoints.clear();
  EXPECT_EQ(DecideResume(input).kind, Kind::kBehind) << "least of all from the beginning";
  input.checkpoints = {Stored(id)};
  EXPECT_EQ(DecideResume(input).kind, Kind::kStore);
  input.checkpoints = {Stored(Id(4, 20, 1))};
  EXPECT_EQ(DecideResume(input).kind, Kind::kStore) << "a later epoch is newer";
  input.checkpoints = {Stored(Id(3, 100, 1)), Stored(id)};
  input.damaged = {id};
  EXPECT_EQ(DecideResume(input).kind, Kind::kStore) << "what cannot be loaded is not insisted on";
  EXPECT_EQ(DecideResume(input).copy.id, Id(3, 100, 1));
}

}  // namespace
}  // namespace ckpt::run
