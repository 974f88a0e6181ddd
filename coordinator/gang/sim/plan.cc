// What is asked of the gang: notices with deadlines, withdrawn or not, saves, kills; and the phases
// that its ranks are in meanwhile.
#include "coordinator/gang/sim/world.h"

namespace ckpt::gang::sim {

Command World::DrawCommand(int64_t at) {
  static constexpr const char* kSources[] = {"operator", "scheduler", "SIGTERM", "preStop"};
  Command command;
  command.operation = next_operation_++;
  command.source = kSources[random_.Range(0, 3)];
  command.request = random_.Chance(0.3) ? Request::kSave : Request::kSuspend;
  if (random_.Chance(0.06)) command.request = Request::kKill;
  if (command.request != Request::kKill && random_.Chance(0.5)) {
    command.deadline_ns = at + random_.Range(60, 700) * kMs;
    command.hard = command.request == Request::kSuspend && random_.Chance(0.5);
  }
  if (random_.Chance(0.1)) {
    command.ranks.push_back(static_cast<uint32_t>(random_.Range(0, int64_t(ranks_.size()) - 1)));
  }
  return command;
}

void World::PlanCommands() {
  for (uint32_t i = 0; i < weather_.notices; ++i) {
    const int64_t at = random_.Range(5, 500) * kMs;
    const Command command = DrawCommand(at);
    notices_[command.operation].command = command;
    // A command that met no leader is said again, as ckpt-run says it again.
    for (const int64_t again : {at, at + 200 * kMs, at + 500 * kMs, 1900 * kMs}) {
      At(again, [this, command] { Deliver(command); });
    }
    if (!random_.Chance(0.2)) continue;
    const int64_t withdrawn = at + random_.Range(1, 300) * kMs;
    for (const int64_t again : {int64_t{0}, 200 * kMs}) {
      At(withdrawn + again, [this, command] {
        if (leader_ == nullptr) return;
        Say("WITHDRAW ", command.operation);
        notices_[command.operation].withdrawn = true;
        StepLeader(gang::Withdraw{command.operation, "operator"});
      });
    }
  }
}

void World::Deliver(const Command& command) {
  if (leader_ == nullptr) return;
  if (!leader_stopped_) notices_[command.operation].heard_ns = now_;
  Say("COMMAND ", command.operation, " ", Name(command.request), " of ", command.source,
      command.hard ? ", kills at " : ", until ", command.deadline_ns / kMs, " ms");
  if (command.request == Request::kSuspend) ++stop_open_;
  Command heard = command;
  // What is left travels; the leader adds its own now.
  if (command.deadline_ns != 0) heard.deadline_ns = command.deadline_ns + members_[0].clock_ns;
  if (command.request == Request::kKill) ++result_.kills;
  StepLeader(heard);
}

// Instead of a step: something that takes long and has no boundary.
bool World::EnterPhase(SimRank& rank) {
  if (weather_.phases == 0 || rank.in_phase || Quiet()) {
    rank.in_phase = false;
    return false;
  }
  if (!random_.Chance(weather_.phases)) return false;
  static constexpr const char* kKinds[] = {"set-up", "compile", "evaluation"};
  const char* kind = kKinds[random_.Range(0, 2)];
  const int64_t expected = random_.Range(10, 300) * kMs;
  const int64_t takes = std::min(expected * random_.Range(4, 16) / 8,
                                 std::max<int64_t>(kMs, weather_.quiet_ns - now_));
  Say("rank ", rank.index, " is in ", kind, ", says ", expected / kMs, " ms, takes ", takes / kMs);
  rank.in_phase = true;
  rank.progress_ns = now_;
  Frame(rank.index, RankInPhase{Rank(rank.index), kind, random_.Chance(0.1) ? 0 : expected});
  const uint32_t index = rank.index;
  const uint64_t version = ++rank.version;
  After(takes, [this, index, version] {
    SimRank& r = ranks_[index];
    if (r.version != version) return;
    Frame(index, RankInPhase{Rank(index), "", 0});
    GoAfter(index, 0);
  });
  return true;
}

}  // namespace ckpt::gang::sim
