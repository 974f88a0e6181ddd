// Gangs without ranks: what agents start when the leader has gone for good after release. Up to two
// at a time, beside a leader that was only believed to be dead; each may die and is started anew.
#include <algorithm>

#include "coordinator/gang/sim/world.h"

namespace ckpt::gang::sim {
namespace {

constexpr int64_t kDrainsAt = 1400 * kMs;
constexpr uint32_t kDrainTriesMax = 4;

}  // namespace

void World::PlanDrain() {
  const bool believed = random_.Chance(0.1), twice = random_.Chance(0.3);
  At(kDrainsAt, [this, believed, twice] {
    const bool gone = std::all_of(ranks_.begin(), ranks_.end(),
                                  [](const SimRank& rank) { return rank.pc == Pc::kExited; });
    if (!gone || stored_.decision != Decision::kRelease || (!leader_gone_ && !believed)) return;
    StartDrain(0);
    if (twice) After(random_.Range(0, 60) * kMs, [this] { StartDrain(1); });
  });
}

void World::StartDrain(uint32_t which) {
  Drain& drain = drains_[which];
  if (drain.tries++ >= kDrainTriesMax || drain.over) return;
  const auto copy = std::find_if(
      stored_.generations.begin(), stored_.generations.end(),
      [this](const auto& generation) { return generation.attempt == stored_.attempt; });
  if (copy == stored_.generations.end()) return;
  const DrainCopy adopted{copy->generation, copy->attempt, copy->step, 400 * kMs};
  LeaderConfig config = leader_config_;
  Result<Leader> leader = Leader::CreateDrain(config, adopted);
  if (!leader.ok()) return Fail("drain-lost", leader.status().ToString());
  ++result_.drained;
  ++drain.life;
  drain.generation = copy->generation;
  drain.attempt = copy->attempt;
  drain.leader = std::make_unique<Leader>(std::move(leader).value());
  drain.members.clear();
  Say("DRAIN ", which, " of attempt ", copy->attempt, " begins");
  const uint64_t life = drain.life;
  const uint32_t slot = copy->slot;
  for (uint32_t m = 0; m < members_.size(); ++m) {
    MemberConfig member = member_configs_[m];
    member.ranks_gone = true;
    drain.members.push_back(std::make_unique<Member>(member, nullptr));
    After(Delay(), [this, which, m, life, adopted, slot] {
      if (drains_[which].life != life) return;
      StepDrainLeader(which, MemberJoined{m});
      StepDrainMember(which, m, LeaderBack{});
      StepDrainMember(which, m,
                      CopyAdopted{adopted.generation, slot, adopted.attempt, adopted.step});
    });
  }
  TickDrain(which, life);
  if (drain.tries >= 3 || !random_.Chance(0.4)) return;  // the last tries are left alone
  After(random_.Range(1, 80) * kMs, [this, which, life] {
    if (drains_[which].life == life) RestartDrain(which, "dies");
  });
}

void World::RestartDrain(uint32_t which, const char* why) {
  if (drains_[which].over) return;
  Say("DRAIN ", which, " ", why);
  ++drains_[which].life;
  After(random_.Range(5, 40) * kMs, [this, which] { StartDrain(which); });
}

void World::TickDrain(uint32_t which, uint64_t life) {
  After(10 * kMs, [this, which, life] {
    Drain& drain = drains_[which];
    if (drain.life != life || drain.over) return;
    StepDrainLeader(which, LeaderTick{});
    for (uint32_t m = 0; m < drain.members.size(); ++m) StepDrainMember(which, m, Tick{});
    TickDrain(which, life);
  });
}

void World::StepDrainLeader(uint32_t which, const LeaderEvent& event) {
  if (!result_.ok()) return;
  const LeaderActions actions = drains_[which].leader->Step(now_, event);
  for (const LeaderAction& action : actions) DoDrainLeader(which, action);
}

void World::DoDrainLeader(uint32_t which, const LeaderAction& action) {
  const uint64_t life = drains_[which].life;
  Mix(action.index() + 41);
  if (const auto* send = std::get_if<SendToMember>(&action)) {
    if (random_.Chance(weather_.loss)) return;
    const SendToMember s = *send;
    After(Delay(), [this, which, life, s] {
      if (drains_[which].life == life) StepDrainMember(which, s.member, FromLeader{s.msg});
    });
  } else if (const auto* persist = std::get_if<Persist>(&action)) {
    StepDrainLeader(which, Persisted{persist->id});  // nobody needs its record
  } else if (const auto* commit = std::get_if<CommitAttempt>(&action)) {
    CheckContent(*commit);
    const uint32_t attempt = commit->attempt;
    After(random_.Range(1, 20) * kMs, [this, which, life, attempt] {
      const bool refused = aborted_.contains(attempt) && !committed_.contains(attempt);
      if (!refused) committed_.insert(attempt);
      Say("store: attempt ", attempt, refused ? " refused" : " committed", " for drain ", which);
      if (drains_[which].life != life) return;
      drains_[which].over = true;
      StepDrainLeader(
          which, AttemptCommitted{attempt, refused ? FailedPrecondition("aborted") : OkStatus()});
    });
  } else if (const auto* abort = std::get_if<AbortAttempt>(&action)) {
    Fail("drain-lost", "a drain aborts attempt " + std::to_string(abort->attempt));
  } else if (const auto* report = std::get_if<Report>(&action)) {
    Say("DRAIN ", which, " reports ", Name(report->phase), " ", report->status.ToString());
    if (report->phase == OpPhase::kNotDurable) RestartDrain(which, "has failed");
  }
}

void World::StepDrainMember(uint32_t which, uint32_t member, const MemberEvent& event) {
  if (!result_.ok()) return;
  const uint64_t life = drains_[which].life;
  const MemberActions actions = drains_[which].members[member]->Step(now_, event);
  for (const MemberAction& action : actions) {
    if (const auto* send = std::get_if<SendToLeader>(&action)) {
      if (random_.Chance(weather_.loss)) continue;
      const Msg msg = send->msg;
      After(Delay(), [this, which, life, member, msg] {
        if (drains_[which].life == life) StepDrainLeader(which, FromMember{member, msg});
      });
    } else if (const auto* write = std::get_if<WriteShards>(&action)) {
      const WriteShards w = *write;
      After(random_.Range(1, 40) * kMs, [this, which, life, member, w] {
        if (drains_[which].life == life) WriteDrained(which, member, w);
      });
    } else if (std::holds_alternative<FreeSlot>(action)) {
      Fail("drain-lost", "a drain frees a copy that is not durable");
    }
  }
}

void World::WriteDrained(uint32_t which, uint32_t member, const WriteShards& write) {
  const bool fails = drains_[which].tries < 2 && random_.Chance(weather_.drain_fails);
  for (const SimRank& rank : ranks_) {
    for (uint32_t chunk = 0; rank.member == member && chunk < kChunks; ++chunk) {
      disk_[{write.attempt, rank.index, chunk}] = rank.slots[write.slot].chunks[chunk];
    }
  }
  StepDrainMember(
      which, member,
      ShardsWritten{write.attempt, fails ? ResourceExhausted("no space on the store") : OkStatus(),
                    "report of member " + std::to_string(member)});
}

// What was released is not lost because its leader died.
void World::CheckDrained() {
  const Drain& drain = drains_[0];
  if (drain.tries == 0 || committed_.contains(drain.attempt)) return;
  if (aborted_.contains(drain.attempt)) return;
  Fail("drain-lost",
       "attempt " + std::to_string(drain.attempt) + " was released and is not durable in the end");
}

}  // namespace ckpt::gang::sim
