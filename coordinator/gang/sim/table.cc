#include "coordinator/gang/sim/table.h"

#include <algorithm>

namespace ckpt::gang::sim {

Table::Table(uint32_t member_count, uint32_t ranks_each,
             const std::function<void(LeaderConfig*)>& configure)
    : words(member_count * ranks_each), orders(member_count * ranks_each), ranks_each_(ranks_each) {
  config_.epoch = Epoch(1);
  for (uint32_t m = 0; m < member_count; ++m) {
    MemberConfig config;
    config.id = m;
    config.first_rank = Rank(m * ranks_each);
    config.rank_count = ranks_each;
    config.epoch = Epoch(1);
    config_.members.push_back(MemberRanks{m, config.first_rank, ranks_each});
    members.push_back(std::make_unique<Member>(config, this));
  }
  if (configure) configure(&config_);
  LeaderReturns();
}

void Table::LeaderDies() { leader.reset(); }

void Table::LeaderReturns(bool all_join) {
  leader = std::make_unique<Leader>(Leader::Create(config_, page).value());
  Leads(LeaderTick{});
  for (uint32_t m = 0; all_join && m < members.size(); ++m) {
    Leads(MemberJoined{m});
    Acts(m, LeaderBack{});
  }
}

void Table::Leads(const LeaderEvent& event) {
  for (const LeaderAction& action : leader->Step(now, event)) {
    led.push_back(action);
    if (const auto* send = std::get_if<SendToMember>(&action)) {
      to_members.push_back(Letter{send->member, send->msg});
    } else if (const auto* persist = std::get_if<Persist>(&action)) {
      if (hold_persists) continue;
      page = persist->record;
      Leads(Persisted{persist->id});
    } else if (const auto* report = std::get_if<Report>(&action)) {
      reports.push_back(*report);
    } else if (const auto* mark = std::get_if<MarkDraining>(&action)) {
      if (auto_mark) Leads(MarkedDraining{mark->attempt, OkStatus()});
    } else if (const auto* commit = std::get_if<CommitAttempt>(&action)) {
      if (auto_commit) Leads(AttemptCommitted{commit->attempt, OkStatus()});
    }
  }
}

void Table::Acts(uint32_t member, const MemberEvent& event) {
  for (const MemberAction& action : members[member]->Step(now, event)) {
    if (const auto* send = std::get_if<SendToLeader>(&action)) {
      // Over the wire and back, as ckpt-run does it.
      to_leader.push_back(Letter{member, Decode(Encode(send->msg)).value()});
    } else {
      done.emplace_back(member, action);
    }
  }
}

void Table::TickAll() {
  if (leader != nullptr) Leads(LeaderTick{});
  for (uint32_t m = 0; m < members.size(); ++m) Acts(m, Tick{});
}

bool Table::ToMember(uint32_t member, MsgType type, bool keep) {
  const auto it = std::find_if(to_members.begin(), to_members.end(), [&](const Letter& letter) {
    return letter.member == member && letter.msg.type == type;
  });
  if (it == to_members.end()) return false;
  const Msg msg = it->msg;
  if (!keep) to_members.erase(it);
  Acts(member, FromLeader{msg});
  return true;
}

bool Table::ToLeader(uint32_t member, MsgType type, bool keep) {
  const auto it = std::find_if(to_leader.begin(), to_leader.end(), [&](const Letter& letter) {
    return letter.member == member && letter.msg.type == type;
  });
  if (it == to_leader.end()) return false;
  const Msg msg = it->msg;
  if (!keep) to_leader.erase(it);
  Leads(FromMember{member, msg});
  return true;
}

void Table::DeliverAll() {
  while (!to_members.empty() || !to_leader.empty()) {
    if (!to_members.empty()) {
      const Letter letter = to_members.front();
      to_members.erase(to_members.begin());
      Acts(letter.member, FromLeader{letter.msg});
    } else {
      const Letter letter = to_leader.front();
      to_leader.erase(to_leader.begin());
      if (leader != nullptr) Leads(FromMember{letter.member, letter.msg});
    }
  }
}

void Table::Lose() {
  to_members.clear();
  to_leader.clear();
}

uint32_t Table::CountToMember(uint32_t member, MsgType type) const {
  return static_cast<uint32_t>(std::count_if(
      to_members.begin(), to_members.end(),
      [&](const Letter& letter) { return letter.member == member && letter.msg.type == type; }));
}

bool Table::Cas(Rank rank, Word expected, Word desired) {
  Word& word = words[rank.value()];
  if (!(word == expected)) return false;
  word = desired;
  return true;
}

void Table::StepsTo(uint32_t rank, uint32_t boundary) { words[rank].boundary = boundary; }

void Table::ReachCut(uint32_t rank) {
  Word& word = words[rank];
  while (!IsAtCut(word.boundary, word.cut)) ++word.boundary;
  Acts(MemberOf(rank), RankPoke{Rank(rank)});
}

void Table::Seals(uint32_t rank) {
  const RankOrder& order = orders[rank];
  if (words[rank].state == WordState::kCommittedSave) {
    words[rank].state = WordState::kIdle;  // the rank's own: STAGING, then IDLE
  }
  Acts(MemberOf(rank),
       RankSealed{Rank(rank), order.generation, order.attempt, int64_t{words[rank].boundary}});
}

void Table::CommsDown(uint32_t rank, Status status) {
  const RankOrder& order = orders[rank];
  Acts(MemberOf(rank), RankCommsDown{Rank(rank), order.operation, order.round, std::move(status)});
}

void Table::CommsUp(uint32_t rank, Status status) {
  const auto* told = Last<TellRolledBack>(MemberOf(rank));
  Acts(MemberOf(rank),
       RankCommsUp{Rank(rank), told == nullptr ? 0 : told->rebuild_id, std::move(status)});
}

void Table::Exits(uint32_t rank, int code, int signal) {
  Acts(MemberOf(rank), RankExited{Rank(rank), code, signal});
}

void Table::AllReach() {
  for (uint32_t rank = 0; rank < words.size(); ++rank) ReachCut(rank);
}
void Table::AllSeal() {
  for (uint32_t rank = 0; rank < words.size(); ++rank) Seals(rank);
}
void Table::AllDown() {
  for (uint32_t rank = 0; rank < words.size(); ++rank) CommsDown(rank);
}

void Table::Released() {
  for (uint32_t rank = 0; rank < words.size(); ++rank) Exits(rank, 75);
  for (uint32_t m = 0; m < members.size(); ++m) Acts(m, AllReleased{});
  DeliverAll();
}

bool Table::ProgramSave() {
  std::vector<uint32_t> before(members.size());
  for (uint32_t m = 0; m < members.size(); ++m) before[m] = Count<GrantSave>(m);
  for (uint32_t rank = 0; rank < words.size(); ++rank) {
    Acts(MemberOf(rank), RankWantsSave{Rank(rank), words[rank].boundary, false, 0});
  }
  DeliverAll();
  for (uint32_t m = 0; m < members.size(); ++m) {
    if (Count<GrantSave>(m) != before[m] + ranks_each_) return false;
  }
  for (uint32_t rank = 0; rank < words.size(); ++rank) {
    const auto* grant = Last<GrantSave>(MemberOf(rank));
    Acts(MemberOf(rank),
         RankSealed{Rank(rank), grant->generation, grant->attempt, int64_t{words[rank].boundary}});
  }
  DeliverAll();
  return true;
}

void Table::Written(uint32_t member, uint32_t attempt, Status status) {
  Acts(member, ShardsWritten{attempt, std::move(status), "report"});
}

void Table::UntilQuiesced(const Command& command) {
  Leads(command);
  DeliverAll();
  AllReach();
  DeliverAll();
}

void Table::UntilSealed(const Command& command) {
  UntilQuiesced(command);
  AllSeal();
}

void Table::UntilDown(const Command& command) {
  UntilSealed(command);
  DeliverAll();
  AllDown();
}

const Report* Table::LastReport(OpPhase phase) const {
  for (auto it = reports.rbegin(); it != reports.rend(); ++it) {
    if (it->phase == phase) return &*it;
  }
  return nullptr;
}

}  // namespace ckpt::gang::sim
