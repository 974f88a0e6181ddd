// Ranks: training in lock-step, the cut, staging, communicators, ends; and the writers of shards.
#include <algorithm>

#include "coordinator/gang/sim/world.h"

namespace ckpt::gang::sim {

// Frames of one rank keep their order, as on a SEQPACKET socket.
void World::Frame(uint32_t rank, MemberEvent event) {
  SimRank& r = ranks_[rank];
  r.to_member_ns = std::max(r.to_member_ns, now_ + random_.Range(20, 1500) * 1000);
  const uint32_t member = r.member;
  At(r.to_member_ns, [this, member, event] { StepMember(member, event); });
}

void World::ToRank(uint32_t rank, std::function<void(SimRank&)> what) {
  SimRank& r = ranks_[rank];
  r.to_rank_ns = std::max(r.to_rank_ns, now_ + random_.Range(20, 1500) * 1000);
  At(r.to_rank_ns, [this, rank, what = std::move(what)] {
    SimRank& r = ranks_[rank];
    if (r.pc == Pc::kExited) return;
    if (now_ < r.stopped_until_ns)
      return At(r.stopped_until_ns, [this, rank, what] {
        if (ranks_[rank].pc != Pc::kExited) what(ranks_[rank]);
      });
    what(r);
  });
}

void World::GoAfter(uint32_t rank, int64_t delay_ns) {
  const uint64_t version = ++ranks_[rank].version;
  After(delay_ns, [this, rank, version] {
    SimRank& r = ranks_[rank];
    if (r.version != version) return;
    if (now_ < r.stopped_until_ns) return GoAfter(rank, r.stopped_until_ns - now_);
    Go(rank);
  });
}

void World::Go(uint32_t index) {
  SimRank& rank = ranks_[index];
  switch (rank.pc) {
    case Pc::kRunning: {
      const uint32_t b = rank.word.boundary;
      if (weather_.length != 0 && b >= weather_.length) return Finish(rank);
      const bool due = weather_.save_every != 0 && b != 0 && b % weather_.save_every == 0;
      const bool may_skip = due && rank.asked_at != b && weather_.skips > 0 && !Quiet();
      if (may_skip && random_.Chance(weather_.skips)) rank.asked_at = b;
      if (due && rank.asked_at != b && members_[rank.member].alive) return AskSave(rank);
      if (EnterPhase(rank)) return;
      return EnterCollective(rank);
    }
    case Pc::kLeaving:
      return LeaveCollective(rank);
    case Pc::kCapture:
      return CaptureChunk(rank);
    default:
      return;
  }
}

void World::EnterCollective(SimRank& rank) {
  for (const SimRank& other : ranks_) {
    if (other.pc != Pc::kExited && other.comms_down) {
      return Fail("torn-comms", "rank " + std::to_string(rank.index) +
                                    " enters a collective while rank " +
                                    std::to_string(other.index) + "'s communicators are down");
    }
  }
  rank.pc = Pc::kCollective;
  rank.entered = rank.word.boundary + 1;
  CompleteCollectives();
}

void World::CompleteCollectives() {
  if (partitions_ != 0) return;
  uint32_t lowest = UINT32_MAX;
  for (const SimRank& rank : ranks_) {
    if (rank.pc == Pc::kFinished || (rank.pc == Pc::kExited && !rank.gone)) continue;
    lowest = std::min(lowest, rank.entered);
  }
  for (SimRank& rank : ranks_) {
    if (rank.pc != Pc::kCollective || rank.entered > lowest) continue;
    rank.pc = Pc::kLeaving;
    GoAfter(rank.index, random_.Range(10, 3000) * 1000);
  }
  DoomPeers();
}

// A collective with a rank that is gone fails.
void World::DoomPeers() {
  const bool gone = std::any_of(ranks_.begin(), ranks_.end(), [](const SimRank& rank) {
    return rank.pc == Pc::kExited && rank.gone;
  });
  if (!gone) return;
  for (SimRank& rank : ranks_) {
    if (rank.failing || (rank.pc != Pc::kCollective && rank.pc != Pc::kRebuilding)) continue;
    rank.failing = true;
    const uint32_t index = rank.index;
    After(random_.Range(5, 40) * kMs, [this, index] {
      SimRank& r = ranks_[index];
      r.failing = false;
      if (r.pc == Pc::kCollective || r.pc == Pc::kRebuilding) Exit(r, 1, 0);
    });
  }
}

// step(): one more boundary, one look at the word.
void World::LeaveCollective(SimRank& rank) {
  ++rank.word.boundary;
  rank.progress_ns = now_;
  const Word& word = rank.word;
  const bool open = IsProposed(word.state) || IsCommitted(word.state);
  if (!open || !IsAtCut(word.boundary, word.cut)) {
    rank.pc = Pc::kRunning;
    return GoAfter(rank.index, random_.Range(weather_.step_ns / 2, weather_.step_ns));
  }
  Mix(rank.index * 31 + word.boundary);
  rank.pc = Pc::kAtCut;
  ++rank.version;
  if (random_.Chance(0.8)) Frame(rank.index, RankPoke{Rank(rank.index)});
  ArmTimeout(rank);
  LookAtCut(rank.index);
}

void World::ArmTimeout(SimRank& rank) {
  const uint32_t index = rank.index;
  const uint64_t version = rank.version;
  if (rank.order.deadline_ns <= 0) return;
  const int64_t at =
      std::max(rank.order.deadline_ns - members_[rank.member].clock_ns, rank.stopped_until_ns);
  At(at, [this, index, version] {
    SimRank& r = ranks_[index];
    if (r.pc != Pc::kAtCut || r.version != version) return;
    if (Clock(r.member) < r.order.deadline_ns || now_ < r.stopped_until_ns) return ArmTimeout(r);
    const bool committed = IsCommitted(r.word.state);
    if (!committed && !IsProposed(r.word.state)) return;
    if (committed && options_.mutations.no_rank_timeout) return;
    CheckGaveUp(r);
    r.word.state = WordState::kRefused;
    RunOn(r);
  });
}

void World::LookAtCut(uint32_t index) {
  SimRank& rank = ranks_[index];
  if (rank.pc != Pc::kAtCut) return;
  if (now_ < rank.stopped_until_ns) {
    return At(rank.stopped_until_ns, [this, index] { LookAtCut(index); });
  }
  const Word word = rank.word;
  if (word.state == WordState::kStaging) {
    return BeginCapture(rank, Why::kStop, rank.order.generation, rank.order.slot,
                        rank.order.attempt);
  }
  const bool here = IsAtCut(word.boundary, word.cut);
  if (here && word.state == WordState::kCommittedSave) {
    rank.word.state = WordState::kStaging;
    return BeginCapture(rank, Why::kCutSave, rank.order.generation, rank.order.slot,
                        rank.order.attempt);
  }
  if (here && (IsProposed(word.state) || IsCommitted(word.state))) {
    if (IsCommitted(word.state)) {
      const Kind kind = word.state == WordState::kCommittedStop ? Kind::kStop : Kind::kSave;
      const auto [it, added] = round_kinds_.emplace(rank.order.round, kind);
      if (!added && it->second != kind) {
        Fail("one-boundary", "round " + std::to_string(rank.order.round) +
                                 " is a stop for one rank and a save for another");
      }
    }
    return;
  }
  RunOn(rank);
}

void World::RunOn(SimRank& rank) {
  rank.pc = Pc::kRunning;
  GoAfter(rank.index, random_.Range(100, 3000) * 1000);
}

// ---- staging
void World::BeginCapture(SimRank& rank, Why why, uint32_t generation, uint32_t slot,
                         uint32_t attempt) {
  if (slot >= weather_.slots) return Fail("refilled", "a slot that does not exist");
  if (rank.slots[slot].readers != 0) {
    return Fail("refilled", "rank " + std::to_string(rank.index) + " fills slot " +
                                std::to_string(slot) + " for generation " +
                                std::to_string(generation) + " while a writer reads generation " +
                                std::to_string(rank.slots[slot].generation));
  }
  rank.why = why;
  rank.capture_generation = generation;
  rank.capture_slot = slot;
  rank.capture_attempt = attempt;
  rank.capture_chunk = 0;
  rank.slots[slot].generation = generation;
  rank.slots[slot].sealed = false;
  rank.pc = Pc::kCapture;
  generation_attempt_[generation] = attempt;
  NoteCapture(rank, attempt);
  if (why == Why::kCutSave) {
    const auto [it, added] = round_kinds_.emplace(rank.order.round, Kind::kSave);
    if (!added && it->second != Kind::kSave) {
      return Fail("one-boundary", "a round is a stop for one rank and a save for another");
    }
  }
  GoAfter(rank.index, random_.Range(200, 6000) * 1000);
}

void World::CaptureChunk(SimRank& rank) {
  if (!Quiet() && random_.Chance(weather_.stage_fails / kChunks)) return EndCapture(rank, false);
  SlotState& slot = rank.slots[rank.capture_slot];
  slot.chunks[rank.capture_chunk++] = rank.capture_generation;
  CheckRestorable();
  if (rank.capture_chunk == kChunks) {
    slot.sealed = true;
    return EndCapture(rank, true);
  }
  GoAfter(rank.index, random_.Range(200, 6000) * 1000);
}

void World::EndCapture(SimRank& rank, bool ok) {
  const Rank id(rank.index);
  if (rank.why == Why::kCutSave) {
    rank.word.state = WordState::kIdle;
  }
  if (ok) {
    Frame(rank.index, RankSealed{id, rank.capture_generation, rank.capture_attempt,
                                 int64_t{rank.word.boundary} * 10});
  } else {
    Frame(rank.index, RankStageFailed{id, rank.capture_generation, rank.capture_attempt,
                                      ResourceExhausted("device")});
  }
  if (rank.why != Why::kStop) return RunOn(rank);
  rank.pc = Pc::kSealed;
  if (rank.back_pending) GoBack(rank, rank.back_rebuild, rank.rebuild);
}

void World::AskSave(SimRank& rank) {
  rank.asked_at = rank.word.boundary;
  rank.pc = Pc::kAsksSave;
  Frame(rank.index, RankWantsSave{Rank(rank.index), rank.word.boundary, weather_.save_waits,
                                  Clock(rank.member) + random_.Range(60, 200) * kMs});
  AwaitAnswer(rank);
}

// The member answers in any case; if it dies, its socket closes and the rank runs on.
void World::AwaitAnswer(SimRank& rank) {
  const uint32_t index = rank.index, at = rank.asked_at;
  After(400 * kMs, [this, index, at] {
    SimRank& r = ranks_[index];
    if (r.pc != Pc::kAsksSave || r.asked_at != at) return;
    const SimMember& member = members_[r.member];
    const bool stopped = member.stopped || now_ - member.continued_ns < 300 * kMs;
    if (member.alive && stopped) return AwaitAnswer(r);
    if (members_[r.member].alive) {
      return Fail("dead-end", "rank " + std::to_string(index) + " got no answer to its save");
    }
    RunOn(r);
  });
}

// ---- communicators
void World::TakeCommsDown(SimRank& rank) {
  if (rank.pc != Pc::kSealed) return;
  rank.pc = Pc::kDowning;
  rank.comms_down = true;
  const uint32_t index = rank.index;
  const uint64_t version = ++rank.version;
  After(random_.Range(1, 15) * kMs, [this, index, version] {
    SimRank& r = ranks_[index];
    if (r.pc != Pc::kDowning || r.version != version) return;
    r.pc = Pc::kDown;
    const bool fails = !Quiet() && random_.Chance(weather_.comms_fail);
    Frame(index, RankCommsDown{Rank(index), r.order.operation, r.order.round,
                               fails ? DeadlineExceeded("a communicator hangs") : OkStatus()});
  });
}

void World::GoBack(SimRank& rank, bool rebuild, uint64_t id) {
  if (rank.pc == Pc::kAtCut) return LookAtCut(rank.index);
  if (rank.pc == Pc::kCapture && rank.why == Why::kStop) {
    rank.back_pending = true;
    rank.back_rebuild = rebuild;
    rank.rebuild = id;
    return;
  }
  if (rank.pc != Pc::kSealed && rank.pc != Pc::kDowning && rank.pc != Pc::kDown) return;
  rank.back_pending = false;
  ++rank.version;
  if (!rebuild) return RunOn(rank);
  rank.comms_down = true;
  rank.rebuild = id;
  rank.pc = Pc::kRebuilding;
  JoinRebuild(rank);
}

// Collective: done when all ranks have joined.
void World::JoinRebuild(SimRank& rank) {
  DoomPeers();
  if (partitions_ != 0 || (!Quiet() && random_.Chance(weather_.rebuild_hangs))) return;
  const uint64_t id = rank.rebuild;
  const bool all = std::all_of(ranks_.begin(), ranks_.end(), [&](const SimRank& other) {
    return other.pc == Pc::kRebuilding && other.rebuild == id;
  });
  if (!all) return;
  ++result_.rebuilt;
  for (SimRank& other : ranks_) {
    other.comms_down = false;
    Frame(other.index, RankCommsUp{Rank(other.index), id, OkStatus()});
    RunOn(other);
  }
}

// ---- ends
void World::Finish(SimRank& rank) {
  if (rank.word.state == WordState::kStaging) {
    return GoAfter(rank.index, kMs);
  }
  rank.word.state = WordState::kFinished;
  rank.pc = Pc::kFinished;
  rank.progress_ns = now_;
  Frame(rank.index, RankFinished{Rank(rank.index)});
  const uint32_t index = rank.index;
  After(random_.Range(1, 60) * kMs, [this, index] { Exit(ranks_[index], 0, 0); });
}

void World::Exit(SimRank& rank, int code, int signal) {
  if (rank.pc == Pc::kExited) return;
  const bool finished = rank.pc == Pc::kFinished;
  Say("rank ", rank.index, " exits at boundary ", rank.word.boundary, " code ", code, " signal ",
      signal);
  rank.pc = Pc::kExited;
  rank.gone = !finished;
  ++rank.version;
  SimMember& member = members_[rank.member];
  if (member.alive) {
    Frame(rank.index, RankExited{Rank(rank.index), code, signal});
    const bool last = std::all_of(ranks_.begin(), ranks_.end(), [&](const SimRank& other) {
      return other.member != rank.member || other.pc == Pc::kExited;
    });
    const uint32_t m = rank.member;
    if (last) After(random_.Range(2, 30) * kMs, [this, m] { StepMember(m, AllReleased{}); });
  }
  CompleteCollectives();
}

// ---- writers
void World::StartWriters(uint32_t member, const WriteShards& action) {
  Writer& writer = members_[member].writers[action.attempt];
  if (writer.active) return;
  writer = Writer{action.generation, action.slot, action.attempt, 0, false, true};
  for (SimRank& rank : ranks_) {
    if (rank.member != member) continue;
    ++rank.slots[action.slot].readers;
    for (uint32_t chunk = 0; chunk < kChunks; ++chunk) {
      ++writer.left;
      const uint32_t index = rank.index, attempt = action.attempt;
      After(random_.Range(1, weather_.write_ns),
            [this, member, attempt, index, chunk] { WriteChunk(member, attempt, index, chunk); });
    }
  }
}

void World::WriteChunk(uint32_t member, uint32_t attempt, uint32_t rank, uint32_t chunk) {
  SimMember& m = members_[member];
  const auto it = m.writers.find(attempt);
  if (!m.alive || it == m.writers.end() || !it->second.active) return;
  Writer& writer = it->second;
  if (!writer.stopping) {
    disk_[{attempt, rank, chunk}] = ranks_[rank].slots[writer.slot].chunks[chunk];
  }
  if (--writer.left != 0) return;
  Status status;
  if (writer.stopping) {
    status = Cancelled("writers were stopped");
  } else if (!Quiet() && random_.Chance(weather_.drain_fails)) {
    status = ResourceExhausted("no space on the store");
    store_failed_.insert(attempt);
  }
  EndWriter(member, &writer, status);
}

void World::EndWriter(uint32_t member, Writer* writer, Status status) {
  writer->active = false;
  for (SimRank& rank : ranks_) {
    if (rank.member == member) --rank.slots[writer->slot].readers;
  }
  StepMember(member,
             ShardsWritten{writer->attempt, status, "report of member " + std::to_string(member)});
}

}  // namespace ckpt::gang::sim
