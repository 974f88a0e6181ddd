// A gang without ranks that makes a copy durable after its leader died.
#include <gtest/gtest.h>

#include <deque>

#include "coordinator/gang/leader.h"
#include "coordinator/gang/member.h"

namespace ckpt::gang::sim {
namespace {

constexpr int64_t kSeconds = 1'000'000'000;
constexpr DrainCopy kCopy{.generation = 3, .attempt = 5, .step = 40};

class DrainGang {
 public:
  explicit DrainGang(uint32_t count) {
    LeaderConfig config;
    for (uint32_t m = 0; m < count; ++m) {
      config.members.push_back({m, Rank(m * 2), 2});
      MemberConfig member{.id = m, .first_rank = Rank(m * 2), .rank_count = 2};
      member.ranks_gone = true;
      members_.push_back(std::make_unique<Member>(member, nullptr));
    }
    leader_ = std::make_unique<Leader>(Leader::CreateDrain(config, kCopy).value());
    for (uint32_t m = 0; m < count; ++m) Leads(MemberJoined{m});
  }

  void Leads(const LeaderEvent& event) {
    for (const LeaderAction& action : leader_->Step(now_, event)) {
      if (const auto* send = std::get_if<SendToMember>(&action)) {
        Acts(send->member, FromLeader{send->msg});
      } else if (const auto* persist = std::get_if<Persist>(&action)) {
        Leads(Persisted{persist->id});
      } else if (const auto* report = std::get_if<Report>(&action)) {
        reports.push_back(*report);
      } else if (std::holds_alternative<CommitAttempt>(action)) {
        commits.push_back(std::get<CommitAttempt>(action));
      } else if (std::holds_alternative<AbortAttempt>(action)) {
        ++aborts;
      }
    }
  }

  void Acts(uint32_t member, const MemberEvent& event) {
    for (const MemberAction& action : members_[member]->Step(now_, event)) {
      if (const auto* send = std::get_if<SendToLeader>(&action)) {
        Leads(FromMember{member, send->msg});
      } else {
        done.emplace_back(member, action);
      }
    }
  }

  void Adopts(uint32_t member, int64_t step = kCopy.step) {
    Acts(member, LeaderBack{});
    Acts(member, CopyAdopted{kCopy.generation, 0, kCopy.attempt, step});
  }
  void Passes(int64_t ns) {
    now_ += ns;
    Leads(LeaderTick{});
  }
  template <typename Action>
  size_t Count() const {
    size_t count = 0;
    for (const auto& [member, action] : done) count += std::holds_alternative<Action>(action);
    return count;
  }

  std::vector<std::pair<uint32_t, MemberAction>> done;
  std::vector<Report> reports;
  std::vector<CommitAttempt> commits;
  int aborts = 0;

 private:
  int64_t now_ = 1000 * kSeconds;
  std::unique_ptr<Leader> leader_;
  std::vector<std::unique_ptr<Member>> members_;
};

TEST(GangDrain, TheSameAttemptIsCommittedWhenAllHoldTheirPart) {
  DrainGang gang(2);
  gang.Adopts(0);
  EXPECT_EQ(gang.Count<WriteShards>(), 0u) << "not complete yet";
  gang.Adopts(1);
  EXPECT_EQ(gang.Count<WriteShards>(), 2u);
  gang.Acts(0, ShardsWritten{kCopy.attempt, OkStatus(), "a"});
  gang.Acts(1, ShardsWritten{kCopy.attempt, OkStatus(), "b"});
  ASSERT_EQ(gang.commits.size(), 1u);
  EXPECT_EQ(gang.commits[0].attempt, kCopy.attempt);
  EXPECT_EQ(gang.commits[0].step, kCopy.step);
  gang.Leads(AttemptCommitted{kCopy.attempt, OkStatus()});
  EXPECT_EQ(gang.reports.back().phase, OpPhase::kDurable);
}

TEST(GangDrain, AMissingPartIsNamedAndNothingIsThrownAway) {
  DrainGang gang(3);
  gang.Adopts(0), gang.Adopts(1);
  gang.Leads(MemberLost{2});
  gang.Passes(61 * kSeconds);
  ASSERT_FALSE(gang.reports.empty());
  EXPECT_EQ(gang.reports.back().phase, OpPhase::kNotDurable);
  EXPECT_NE(gang.reports.back().status.message().find("node 2 (out of reach)"), std::string::npos);
  EXPECT_EQ(gang.aborts, 0);
  EXPECT_EQ(gang.Count<FreeSlot>(), 0u);
  gang.Leads(MemberJoined{2});  // it comes after all
  gang.Adopts(2);
  EXPECT_EQ(gang.Count<WriteShards>(), 3u);
}

TEST(GangDrain, AStoreThatRefusesLeavesTheCopiesAndTheAttempt) {
  DrainGang gang(2);
  gang.Adopts(0), gang.Adopts(1);
  gang.Acts(0, ShardsWritten{kCopy.attempt, ResourceExhausted("no space on the store"), ""});
  EXPECT_EQ(gang.reports.back().phase, OpPhase::kNotDurable);
  EXPECT_EQ(gang.aborts, 0);
  EXPECT_EQ(gang.Count<FreeSlot>(), 0u);
}

TEST(GangDrain, AnotherCopyUnderTheSameNumbersIsNotWritten) {
  DrainGang gang(2);
  gang.Adopts(0), gang.Adopts(1, kCopy.step + 1);
  EXPECT_EQ(gang.reports.back().phase, OpPhase::kNotDurable);
  EXPECT_NE(gang.reports.back().status.message().find("node 1 holds step 41"), std::string::npos);
  EXPECT_EQ(gang.Count<WriteShards>(), 0u);
}

TEST(GangDrain, CommandsFindNoRanks) {
  DrainGang gang(1);
  gang.Leads(Command{9, Request::kKill, 0, false, "operator"});
  EXPECT_EQ(gang.reports.back().phase, OpPhase::kRefused);
  gang.Adopts(0);
  EXPECT_EQ(gang.Count<WriteShards>(), 1u) << "a kill does not touch the copies";
}

TEST(GangDrain, NeedsTheNumbersOfTheCopy) {
  LeaderConfig config;
  config.members.push_back({0, Rank(0), 1});
  EXPECT_EQ(Leader::CreateDrain(config, DrainCopy{}).status().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace ckpt::gang::sim
