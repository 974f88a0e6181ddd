// What goes wrong, all of it before the weather is quiet: crashes at chosen points, partitions,
// stopped processes, clocks that leap, members that return.
#include <algorithm>

#include "coordinator/gang/sim/world.h"

namespace ckpt::gang::sim {

void World::PlanFaults() {
  for (uint32_t i = 0; i < weather_.faults; ++i) {
    const int64_t at = random_.Range(10, 500) * kMs;
    PlanFault(at, static_cast<uint32_t>(random_.Range(0, static_cast<int64_t>(ranks_.size()) - 1)));
  }
}

void World::PlanFault(int64_t at, uint32_t rank) {
  const uint32_t member = ranks_[rank].member;
  const int64_t lasts = random_.Range(5, 250) * kMs;
  switch (random_.Range(0, 15)) {
    case 0:
    case 1:
      return At(at, [this, rank] {
        Say("RANK ", rank, " DIES");
        Exit(ranks_[rank], random_.Chance(0.5) ? 1 : 0, random_.Chance(0.5) ? 9 : 11);
      });
    case 2:
      return At(at, [this] { KillLeader(random_.Chance(0.75)); });
    case 3:
      return At(at, [this] { ArmCrash(LeaderCrash::Point::kBeforePersist); });
    case 4:
      return At(at, [this] { ArmCrash(LeaderCrash::Point::kAfterPersist); });
    case 5:
      return At(at, [this] { ArmCrash(LeaderCrash::Point::kAfterSend); });
    case 6:
      return At(at, [this, member] {
        if (random_.Chance(0.5)) return KillMember(member);
        members_[member].crash_after_sends = static_cast<int>(random_.Range(1, 6));
      });
    case 7:
      ranks_[rank].stuck = true;
      return;
    case 8:
    case 9:
      return At(at, [this, lasts] { Partition(lasts); });
    case 10:
      return At(at, [this, member, lasts] { StopMember(member, lasts); });
    case 11:
      return At(at, [this, rank, lasts] {
        Say("RANK ", rank, " is stopped for ", lasts / kMs, " ms");
        ranks_[rank].stopped_until_ns = now_ + lasts;
        trouble_ns_ = now_ + lasts;
      });
    case 12:
      return At(at, [this, lasts] { StopLeader(lasts); });
    case 13:
      return At(at, [this, member] { Leap(member, random_.Range(5, 400) * kMs); });
    default:
      At(at, [this, member] { Link(member, false); });
      return At(at + lasts, [this, member] { Link(member, true); });
  }
}

// ---- the leader dies at a chosen point of its work
void World::ArmCrash(LeaderCrash::Point point) {
  if (leader_ == nullptr) return;
  crash_.point = point;
  crash_.countdown = static_cast<int>(random_.Range(1, 8));
  crash_.returns = random_.Chance(0.75);
}

bool World::CrashesHere(LeaderCrash::Point point) {
  if (crash_.point != point || Quiet()) return false;
  if (--crash_.countdown > 0) return false;
  static constexpr const char* kWhere[] = {"", "before it stores", "after it stored",
                                           "after it sent"};
  Say("the leader dies ", kWhere[static_cast<int>(point)]);
  return true;
}

// ---- some members cannot be reached from the others for a while, and nobody is told at first.
// Two members that do not reach each other, but both the leader, only hold up the collectives.
void World::Partition(int64_t for_ns) {
  std::vector<uint32_t> off;
  const bool pair = random_.Chance(0.3);
  for (uint32_t m = 1; m < members_.size() && !pair; ++m) {
    if (!members_[m].cut_off && random_.Chance(0.5)) off.push_back(m);
  }
  Say("PARTITION for ", for_ns / kMs, " ms: ", off.size(), " members are cut off");
  ++partitions_;
  trouble_ns_ = now_ + for_ns;
  for (const uint32_t m : off) {
    members_[m].cut_off = true;
    const int64_t noticed = random_.Range(20, 150) * kMs;  // keepalive
    if (noticed < for_ns) After(noticed, [this, m] { Link(m, false); });
  }
  After(for_ns, [this, off] {
    Say("the partition heals");
    --partitions_;
    for (const uint32_t m : off) {
      members_[m].cut_off = false;
      After(Delay(), [this, m] { Link(m, true); });
    }
    CompleteCollectives();
    for (SimRank& rank : ranks_) {
      if (rank.pc == Pc::kRebuilding) return JoinRebuild(rank);
    }
  });
}

// ---- SIGSTOP and SIGCONT: what comes meanwhile lies in its sockets
void World::StopMember(uint32_t member, int64_t for_ns) {
  SimMember& m = members_[member];
  if (!m.alive || m.stopped) return;
  Say("MEMBER ", member, " is stopped for ", for_ns / kMs, " ms");
  m.stopped = true;
  trouble_ns_ = now_ + for_ns;
  After(for_ns, [this, member] { ContinueMember(member); });
}

void World::ContinueMember(uint32_t member) {
  SimMember& m = members_[member];
  if (!m.alive || !m.stopped) return;
  Say("member ", member, " goes on");
  m.stopped = false;
  m.continued_ns = trouble_ns_ = now_;
  std::deque<MemberEvent> backlog = std::move(m.backlog);
  m.backlog.clear();
  for (const MemberEvent& event : backlog) StepMember(member, event);
  StepMember(member, Tick{});
}

void World::StopLeader(int64_t for_ns) {
  if (leader_ == nullptr || leader_stopped_) return;
  Say("LEADER is stopped for ", for_ns / kMs, " ms");
  leader_stopped_ = true;
  trouble_ns_ = now_ + for_ns;
  const uint64_t life = leader_life_;
  After(for_ns, [this, life] {
    if (leader_ == nullptr || leader_life_ != life) return;
    Say("leader goes on");
    leader_stopped_ = false;
    trouble_ns_ = now_;
    std::deque<LeaderEvent> backlog = std::move(leader_backlog_);
    leader_backlog_.clear();
    for (const LeaderEvent& event : backlog) StepLeader(event);
    StepLeader(LeaderTick{});
  });
}

// The node was suspended, or its clock jumped: a deadline may be there before its time.
void World::Leap(uint32_t node, int64_t by_ns) {
  Say("the clock of node ", node, " leaps ", by_ns / kMs, " ms ahead");
  members_[node].clock_ns += by_ns;
  trouble_ns_ = now_ + by_ns;
  if (members_[node].alive) StepMember(node, Tick{});
  if (node == 0 && leader_ != nullptr) StepLeader(LeaderTick{});
  for (SimRank& rank : ranks_) {
    if (rank.member == node && rank.pc == Pc::kAtCut) ArmTimeout(rank);
  }
}

// A dead member comes back as a new process that knows nothing. Its ranks did not live on.
void World::ReturnMember(uint32_t member) {
  SimMember& m = members_[member];
  if (m.alive) return;
  Say("MEMBER ", member, " returns");
  for (SimRank& rank : ranks_) {
    if (rank.member == member) Exit(rank, 0, 9);
  }
  m.machine = std::make_unique<Member>(member_configs_[member], this);
  m.alive = true;
  m.linked = false;
  m.tick_ns = INT64_MAX;
  m.sealed_round = 0;
  for (auto& [attempt, writer] : m.writers) {
    if (writer.active) {
      writer.active = false;
      for (SimRank& rank : ranks_) {
        if (rank.member == member) --rank.slots[writer.slot].readers;
      }
    }
  }
  for (SimRank& rank : ranks_) {
    if (rank.member == member) StepMember(member, RankExited{Rank(rank.index), 0, 9});
  }
  StepMember(member, AllReleased{});
  After(Delay(), [this, member] { Link(member, true); });
}

}  // namespace ckpt::gang::sim
