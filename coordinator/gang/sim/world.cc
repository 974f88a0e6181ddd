// Time, messages, machines and what goes wrong with them.
#include "coordinator/gang/sim/world.h"

#include <algorithm>
#include <utility>

namespace ckpt::gang::sim {

SimResult RunSchedule(const SimOptions& options) { return World(options).Run(); }

World::World(const SimOptions& options) : options_(options), random_(options.seed) {
  DrawWeather();
}

void World::DrawWeather() {
  Weather& w = weather_;
  static constexpr uint32_t kMembers[] = {1, 2, 2, 2, 2, 2, 2, 3, 3, 4, 4, 5, 6, 7, 8, 2};
  w.members = kMembers[random_.Range(0, 15)];
  if (options_.members != 0) w.members = options_.members;
  w.ranks_each = static_cast<uint32_t>(random_.Range(1, w.members >= 3 ? 2 : 3));
  if (w.members > 4) w.ranks_each = 1;
  w.slots = random_.Chance(0.35) ? 1 : 2;
  if (random_.Chance(0.25)) w.length = static_cast<uint32_t>(random_.Range(3, 50));
  if (random_.Chance(0.5)) w.save_every = static_cast<uint32_t>(random_.Range(2, 12));
  w.save_waits = random_.Chance(0.3);
  w.step_ns = random_.Chance(0.15) ? kMs * 2 : random_.Range(8, 30) * kMs;
  w.message_ns = random_.Range(100, 4000) * 1000;
  if (random_.Chance(0.5)) {
    w.loss = 0.02 * static_cast<double>(random_.Range(0, 10));
    w.twice = 0.02 * static_cast<double>(random_.Range(0, 10));
    w.slow = 0.02 * static_cast<double>(random_.Range(0, 8));
  }
  if (random_.Chance(0.15)) w.stage_fails = 0.1;
  if (random_.Chance(0.1)) w.comms_fail = 0.3;
  if (random_.Chance(0.1)) w.rebuild_hangs = 0.4;
  if (random_.Chance(0.1)) w.drain_fails = 0.3;
  if (random_.Chance(0.1)) w.commit_fails = 0.3;
  if (random_.Chance(0.6)) w.interleave = 0.05;
  if (random_.Chance(0.3)) w.phases = 0.08;
  static constexpr uint32_t kFaults[] = {0, 0, 1, 1, 1, 2, 2, 3};
  w.faults = kFaults[random_.Range(0, 7)];
  static constexpr uint32_t kNotices[] = {1, 1, 2, 2, 3, 5};
  w.notices = kNotices[random_.Range(0, 5)];
  if (options_.seed % 10 == 7) w.skips = 0.1;
  w.write_ns = random_.Chance(0.3) ? random_.Range(60, 500) * kMs : random_.Range(1, 60) * kMs;
}

SimResult World::Run() {
  StartGang();
  PlanFaults();
  PlanCommands();
  PlanDrain();
  while (result_.ok() && !queue_.empty()) {
    const Entry entry = queue_.top();
    if (entry.at_ns > weather_.horizon_ns) break;
    queue_.pop();
    now_ = entry.at_ns;
    const std::function<void()> what = std::move(nodes_[entry.node]);
    free_nodes_.push_back(entry.node);
    ++result_.events;
    Mix(static_cast<uint64_t>(now_));
    what();
  }
  if (result_.ok()) CheckEnd();
  if (result_.ok()) CheckNotices();
  if (result_.ok()) CheckDrained();
  result_.trace = trace_;
  return std::move(result_);
}

void World::At(int64_t at_ns, std::function<void()> what) {
  uint32_t node = 0;
  if (free_nodes_.empty()) {
    node = static_cast<uint32_t>(nodes_.size());
    nodes_.push_back(std::move(what));
  } else {
    node = free_nodes_.back();
    free_nodes_.pop_back();
    nodes_[node] = std::move(what);
  }
  queue_.push(Entry{std::max(at_ns, now_), seq_++, node});
}

int64_t World::Delay() {
  int64_t delay = random_.Range(weather_.message_ns / 4, weather_.message_ns * 2);
  if (!Quiet() && random_.Chance(weather_.slow)) delay += random_.Range(10, 120) * kMs;
  return delay;
}

void World::StartGang() {
  leader_config_.epoch = Epoch(1);
  leader_config_.slots = weather_.slots;
  leader_config_.retry_ns = 25 * kMs;
  leader_config_.cut_ns = 250 * kMs;
  leader_config_.stage_ns = 150 * kMs;
  leader_config_.comms_ns = 150 * kMs;
  leader_config_.rebuild_ns = 150 * kMs;
  leader_config_.save_ns = 300 * kMs;
  leader_config_.kill_ns = 20 * kMs;
  leader_config_.member_grace_ns = 150 * kMs;
  leader_config_.drain_wait_ns = 60 * kMs;
  leader_config_.stop_needs_ns = 60 * kMs;
  leader_config_.mutations = options_.mutations;
  for (uint32_t m = 0; m < weather_.members; ++m) {
    MemberConfig config;
    config.id = m;
    config.first_rank = Rank(m * weather_.ranks_each);
    config.rank_count = weather_.ranks_each;
    config.epoch = Epoch(1);
    config.poll_ns = 10 * kMs;
    config.retry_ns = 25 * kMs;
    config.patience_ns = 100 * kMs;
    config.kill_after_ns = 80 * kMs;
    config.save_answer_ns = 150 * kMs;
    config.late_ns = 40 * kMs;
    config.mutations = options_.mutations;
    member_configs_.push_back(config);
    leader_config_.members.push_back(MemberRanks{m, config.first_rank, config.rank_count});
    SimMember member;
    member.machine = std::make_unique<Member>(config, this);
    members_.push_back(std::move(member));
    for (uint32_t i = 0; i < weather_.ranks_each; ++i) {
      SimRank rank;
      rank.index = static_cast<uint32_t>(ranks_.size());
      rank.member = m;
      ranks_.push_back(rank);
    }
  }
  Say(weather_.members, " members of ", weather_.ranks_each, " ranks, ", weather_.slots,
      " slots, step ", weather_.step_ns / kMs, " ms, length ", weather_.length, ", save every ",
      weather_.save_every);
  StartLeader();
  for (SimRank& rank : ranks_) GoAfter(rank.index, random_.Range(0, weather_.step_ns));
}

void World::StartLeader() {
  ++leader_life_;
  Result<Leader> leader = Leader::Create(leader_config_, record_);
  if (!leader.ok()) return Fail("stored-first", leader.status().ToString());
  leader_ = std::make_unique<Leader>(std::move(leader).value());
  leader_tick_ns_ = INT64_MAX;
  if (!record_.empty()) ++result_.restarts;
  Say("leader starts, ", record_.empty() ? "new" : "with its page");
  for (uint32_t m = 0; m < members_.size(); ++m) {
    After(Delay(), [this, m] { Link(m, true); });
  }
  StepLeader(LeaderTick{});
}

void World::KillLeader(bool returns) {
  if (leader_ == nullptr) return;
  Say("LEADER DIES", returns ? "" : " for good");
  leader_.reset();
  leader_stopped_ = false;
  leader_backlog_.clear();
  crash_ = LeaderCrash{};
  trouble_ns_ = now_;
  ++leader_life_;
  leader_gone_ = !returns;
  for (uint32_t m = 0; m < members_.size(); ++m) {
    After(Delay(), [this, m] {
      if (leader_ == nullptr) Link(m, false);
    });
  }
  if (returns) After(random_.Range(1, 120) * kMs, [this] { StartLeader(); });
}

void World::Link(uint32_t member, bool up) {
  SimMember& m = members_[member];
  if (!m.alive || (up && leader_ == nullptr) || (m.linked == up && !up)) return;
  if (up && m.cut_off) return;  // it connects when the partition heals
  m.linked = up;
  trouble_ns_ = now_;
  Say("link of member ", member, up ? " up" : " down");
  if (leader_ != nullptr) {
    if (up) {
      StepLeader(MemberJoined{member});
    } else {
      StepLeader(MemberLost{member});
    }
  }
  if (up) {
    StepMember(member, LeaderBack{});
  } else {
    StepMember(member, LeaderLost{});
  }
}

void World::KillMember(uint32_t member) {
  SimMember& m = members_[member];
  if (!m.alive) return;
  Say("MEMBER ", member, " DIES");
  m.alive = false;
  m.linked = false;
  m.stopped = false;
  m.backlog.clear();
  trouble_ns_ = now_;
  if (leader_ != nullptr) {
    const uint64_t life = leader_life_;
    After(Delay(), [this, member, life] {
      if (leader_ != nullptr && leader_life_ == life) StepLeader(MemberLost{member});
    });
  }
  const bool killed_too = random_.Chance(0.5);
  for (SimRank& rank : ranks_) {
    if (rank.member != member || rank.pc == Pc::kExited) continue;
    const uint32_t index = rank.index;
    if (killed_too) {
      After(random_.Range(0, 5) * kMs, [this, index] { Exit(ranks_[index], 0, 9); });
    } else {
      After(random_.Range(120, 200) * kMs, [this, index] { Orphaned(index); });
      if (rank.pc == Pc::kAsksSave) RunOn(rank);
    }
  }
}

// Its socket has closed. A rank that waits at a barrier cannot learn the outcome any more; one that
// is stopped, or copies still, comes to that later.
void World::Orphaned(uint32_t index) {
  SimRank& rank = ranks_[index];
  const bool waits = rank.pc == Pc::kSealed || rank.pc == Pc::kDowning || rank.pc == Pc::kDown ||
                     rank.pc == Pc::kRebuilding;
  if (waits) return Exit(rank, 1, 0);
  if (rank.pc == Pc::kCapture) After(50 * kMs, [this, index] { Orphaned(index); });
}

// ---- machines
void World::StepMember(uint32_t member, const MemberEvent& event) {
  SimMember& m = members_[member];
  if (!m.alive || !result_.ok()) return;
  if (m.stopped) {
    m.backlog.push_back(event);
    return;
  }
  const auto* heard = std::get_if<FromLeader>(&event);
  delivering_commit_ = heard != nullptr && heard->msg.type == MsgType::kCommit;
  delivering_round_ = heard != nullptr ? heard->msg.round : 0;
  const MemberActions actions = m.machine->Step(Clock(member), event);
  delivering_commit_ = false;
  for (const MemberAction& action : actions) {
    if (!m.alive) return;
    DoMember(member, action);
  }
  if (!m.alive) return;
  if (std::holds_alternative<Tick>(event)) {
    CheckRests(m.machine->next_deadline_ns(), Clock(member), &m.restless);
  }
  ArmMember(member);
}

// A machine that has ticked and still has a deadline behind it is ticked again: once, not for ever.
void World::CheckRests(int64_t next_ns, int64_t clock_ns, int* restless) {
  *restless = next_ns > clock_ns ? 0 : *restless + 1;
  if (*restless < 3) return;
  Fail("rests", "a tick left a deadline " + std::to_string(clock_ns - next_ns) + " ns in the past");
}

void World::StepLeader(const LeaderEvent& event) {
  if (leader_ == nullptr || !result_.ok()) return;
  if (leader_stopped_) {
    leader_backlog_.push_back(event);
    return;
  }
  const bool checked = std::holds_alternative<FromMember>(event)
                           ? std::get<FromMember>(event).msg.type == MsgType::kFact
                           : std::holds_alternative<Command>(event);
  const Decision before = checked ? leader_->view().decision : Decision::kNone;
  const LeaderActions actions = leader_->Step(Clock(0), event);
  if (checked) CheckHeard(event, before);
  CheckBatch(actions);
  for (const LeaderAction& action : actions) {
    DoLeader(action);
    if (leader_ == nullptr) return;
  }
  if (std::holds_alternative<LeaderTick>(event)) {
    CheckRests(leader_->next_deadline_ns(), Clock(0), &leader_restless_);
  }
  ArmLeader();
}

void World::ArmMember(uint32_t member) {
  SimMember& m = members_[member];
  const int64_t next = m.machine->next_deadline_ns();
  if (next == INT64_MAX) return;
  const int64_t at = std::max(next - m.clock_ns, now_ + kMs / 10);
  if (at >= m.tick_ns) return;
  m.tick_ns = at;
  At(at, [this, member, at] {
    SimMember& owner = members_[member];
    if (owner.tick_ns != at) return;
    owner.tick_ns = INT64_MAX;
    StepMember(member, Tick{});
  });
}

void World::ArmLeader() {
  const int64_t next = leader_->next_deadline_ns();
  if (next == INT64_MAX) return;
  const int64_t at = std::max(next - members_[0].clock_ns, now_ + kMs / 10);
  if (at >= leader_tick_ns_) return;
  leader_tick_ns_ = at;
  const uint64_t life = leader_life_;
  At(at, [this, at, life] {
    if (leader_ == nullptr || leader_life_ != life || leader_tick_ns_ != at) return;
    leader_tick_ns_ = INT64_MAX;
    StepLeader(LeaderTick{});
  });
}

void World::ToMember(uint32_t member, Msg msg) {
  const int copies = !Quiet() && random_.Chance(weather_.twice) ? 2 : 1;
  for (int i = 0; i < copies; ++i) {
    if (!Quiet() && random_.Chance(weather_.loss)) continue;
    After(Delay(), [this, member, msg] {
      if (!members_[member].alive || members_[member].cut_off) return;
      if (options_.history) Say("member ", member, " hears ", ToString(msg));
      Mix(static_cast<uint64_t>(msg.type) * 7919 + msg.round);
      StepMember(member, FromLeader{msg});
    });
  }
}

void World::ToLeader(uint32_t member, Msg msg) {
  if (msg.vote == Vote::kQuiesced) quiesced_[msg.round].insert(member);
  SimMember& sender = members_[member];
  if (msg.vote == Vote::kSealed) sender.sealed_round = msg.round;
  if (sender.crash_after_sends > 0 && --sender.crash_after_sends == 0) {
    After(0, [this, member] { KillMember(member); });
  }
  const int copies = !Quiet() && random_.Chance(weather_.twice) ? 2 : 1;
  for (int i = 0; i < copies; ++i) {
    if (!Quiet() && random_.Chance(weather_.loss)) continue;
    After(Delay(), [this, member, msg] {
      if (leader_ == nullptr || members_[member].cut_off) return;
      if (options_.history) Say("leader hears from ", member, ": ", ToString(msg));
      Mix(static_cast<uint64_t>(msg.vote) * 104729 + msg.round + msg.number);
      StepLeader(FromMember{member, msg});
    });
  }
}

void World::DoMember(uint32_t member, const MemberAction& action) {
  Mix(action.index() + 1);
  if (const auto* send = std::get_if<SendToLeader>(&action)) {
    if (members_[member].linked) ToLeader(member, send->msg);
  } else if (const auto* barrier = std::get_if<ReleaseBarrier>(&action)) {
    const ReleaseBarrier b = *barrier;
    if (b.barrier == 3) {
      if (stored_.decision != Decision::kRelease) {
        return Fail("early-release", "a rank is let go before barrier 3 is stored");
      }
    }
    ToRank(b.rank.value(), [this, b](SimRank& rank) {
      if (b.barrier == 2) return TakeCommsDown(rank);
      rank.released = true;
      if (rank.stuck) return;
      const uint32_t index = rank.index;
      After(random_.Range(1, 20) * kMs, [this, index] { Exit(ranks_[index], 75, 0); });
    });
  } else if (const auto* back = std::get_if<TellRolledBack>(&action)) {
    const TellRolledBack b = *back;
    CheckSentBack(member, b);
    ToRank(b.rank.value(), [this, b](SimRank& rank) { GoBack(rank, b.rebuild, b.rebuild_id); });
  } else if (const auto* write = std::get_if<WriteShards>(&action)) {
    StartWriters(member, *write);
  } else if (const auto* stop = std::get_if<StopWriters>(&action)) {
    const auto it = members_[member].writers.find(stop->attempt);
    if (it != members_[member].writers.end()) it->second.stopping = true;
  } else if (const auto* grant = std::get_if<GrantSave>(&action)) {
    NoteGrant(*grant);
    const GrantSave g = *grant;
    ToRank(g.rank.value(), [this, g](SimRank& rank) {
      if (rank.pc != Pc::kAsksSave) return;
      BeginCapture(rank, Why::kProgram, g.generation, g.slot, g.attempt);
    });
  } else if (const auto* refuse = std::get_if<RefuseSave>(&action)) {
    NoteRefusal(*refuse);
    ToRank(refuse->rank.value(), [this](SimRank& rank) {
      if (rank.pc == Pc::kAsksSave) RunOn(rank);
    });
  } else if (const auto* free = std::get_if<FreeSlot>(&action)) {
    CheckFreed(member, *free);
  } else if (const auto* kill = std::get_if<KillRanks>(&action)) {
    Say("member ", member, " kills its ranks: ", kill->why);
    for (SimRank& rank : ranks_) {
      if (rank.member != member || rank.pc == Pc::kExited) continue;
      const uint32_t index = rank.index;
      After(random_.Range(1, 10) * kMs, [this, index] { Exit(ranks_[index], 0, 9); });
    }
  } else if (const auto* report = std::get_if<MemberReport>(&action)) {
    Say("member ", member, ": ", report->phase, " ", report->text);
  }
}

void World::DoLeader(const LeaderAction& action) {
  Mix(action.index() + 17);
  const uint64_t life = leader_life_;
  if (const auto* send = std::get_if<SendToMember>(&action)) {
    CheckTold(send->msg);
    if (CrashesHere(LeaderCrash::Point::kAfterSend)) {
      if (members_[send->member].linked) ToMember(send->member, send->msg);
      return KillLeader(crash_.returns);
    }
    if (members_[send->member].linked) ToMember(send->member, send->msg);
  } else if (const auto* persist = std::get_if<Persist>(&action)) {
    const Persist p = *persist;
    if (CrashesHere(LeaderCrash::Point::kBeforePersist)) return KillLeader(crash_.returns);
    persist_ns_ = std::max(persist_ns_, now_ + random_.Range(50, 3000) * 1000);  // in order
    At(persist_ns_, [this, p, life] {
      if (leader_ == nullptr || leader_life_ != life) return;  // it died with the page unwritten
      record_ = p.record;
      Result<Leader::View> stored = Leader::ViewOfRecord(record_);
      if (!stored.ok()) return Fail("stored-first", stored.status().ToString());
      if (stored->decision != Decision::kEnd) decided_before_end_ = stored->decision;
      stored_ = std::move(stored).value();
      for (const auto& generation : stored_.generations) {  // its report may be lost in a crash
        generation_attempt_[generation.generation] = generation.attempt;
        const bool known = !generation.complete || given_up_.contains(generation.generation);
        if (!known) complete_.insert(generation.generation);
      }
      if (CrashesHere(LeaderCrash::Point::kAfterPersist)) return KillLeader(crash_.returns);
      StepLeader(Persisted{p.id});
    });
  } else if (const auto* commit = std::get_if<CommitAttempt>(&action)) {
    CheckCommit(*commit);
    const uint32_t attempt = commit->attempt;
    After(random_.Range(1, 20) * kMs, [this, attempt, life] {
      const bool fails = !Quiet() && random_.Chance(weather_.commit_fails);
      if (!fails || random_.Chance(0.5)) committed_.insert(attempt);
      Say("store: attempt ", attempt, committed_.contains(attempt) ? " committed" : " refused");
      if (leader_ == nullptr || leader_life_ != life) return;
      StepLeader(
          AttemptCommitted{attempt, fails ? Unavailable("the store").MaybeApplied() : OkStatus()});
    });
  } else if (const auto* mark = std::get_if<MarkDraining>(&action)) {
    const uint32_t attempt = mark->attempt;
    After(random_.Range(1, 20) * kMs, [this, attempt, life] {
      const bool fails = !Quiet() && random_.Chance(weather_.commit_fails);
      if (!fails) marked_.insert(attempt);
      Say("store: DRAINING mark of attempt ", attempt, fails ? " refused" : " set");
      if (leader_ == nullptr || leader_life_ != life) return;
      StepLeader(MarkedDraining{attempt, fails ? Unavailable("the store") : OkStatus()});
    });
  } else if (const auto* abort = std::get_if<AbortAttempt>(&action)) {
    CheckAborted(*abort);
  } else if (const auto* report = std::get_if<Report>(&action)) {
    NoteReport(*report);
  } else if (const auto* answer = std::get_if<NoticeAnswer>(&action)) {
    CheckAnswer(*answer);
  } else if (const auto* loss = std::get_if<LossBooked>(&action)) {
    Say("LOSS since generation ", loss->generation, " of step ", loss->step, ": ",
        loss->lost_ns / kMs, " ms, ", loss->why);
    Mix(static_cast<uint64_t>(loss->lost_ns));
    ++result_.losses;
  }
}

// ---- pages
Word World::Load(Rank rank) { return ranks_[rank.value()].word; }

bool World::Cas(Rank rank, Word expected, Word desired) {
  SimRank& r = ranks_[rank.value()];
  // The rank may move between the member's load and its compare-and-swap.
  if (!Quiet() && random_.Chance(weather_.interleave)) {
    const bool at_cut =
        r.pc == Pc::kAtCut && (IsProposed(r.word.state) || IsCommitted(r.word.state));
    if (r.pc == Pc::kLeaving) {
      ++r.version;
      LeaveCollective(r);
    } else if (at_cut && random_.Chance(0.3) && !options_.mutations.no_rank_timeout) {
      r.word.state = WordState::kRefused;
      RunOn(r);
    }
  }
  if (r.word != expected) return false;
  CheckTransition(r, expected, desired);
  r.word = desired;
  return true;
}

void World::StoreOrder(Rank rank, const RankOrder& order) { ranks_[rank.value()].order = order; }

void World::Wake(Rank rank) {
  const uint32_t index = rank.value();
  After(random_.Range(5, 200) * 1000, [this, index] { LookAtCut(index); });
}

int64_t World::StepNs(Rank) { return weather_.step_ns; }

}  // namespace ckpt::gang::sim
