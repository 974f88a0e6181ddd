// What must hold. Each check has a name; sim.h says what it means.
#include <algorithm>

#include "coordinator/gang/sim/world.h"

namespace ckpt::gang::sim {

void World::Fail(std::string_view name, std::string detail) {
  if (!result_.ok()) return;
  result_.violation = name;
  result_.detail = std::move(detail);
  if (options_.history) {
    result_.history.push_back("VIOLATION " + result_.violation + ": " + result_.detail);
  }
}

void World::CheckTransition(const SimRank& rank, Word from, Word to) {
  const std::string who = "rank " + std::to_string(rank.index);
  if (from.boundary != to.boundary) return Fail("legal-word", who + ": a member moved a boundary");
  if (IsProposed(to.state) && AtOrPast(to.boundary, to.cut)) {
    return Fail("before-cut", who + " is proposed a cut that it is at or past");
  }
  if (IsCommitted(to.state) && delivering_commit_ && delivering_round_ != rank.order.round) {
    return Fail("own-round", "a commit of round " + std::to_string(delivering_round_) +
                                 " counts for round " + std::to_string(rank.order.round));
  }
  using enum WordState;
  bool legal = false;
  switch (to.state) {
    case kIdle:
      legal = from.state != kIdle && from.state != kFinished;
      break;
    case kProposedStop:
    case kProposedSave:
      legal = from.state == kIdle || from.state == kRefused || IsProposed(from.state);
      break;
    case kCommittedStop:
      legal = from.state == kProposedStop;
      break;
    case kCommittedSave:
      legal = from.state == kProposedSave;
      break;
    case kStaging:
      legal = from.state == kCommittedStop && from.cut == to.cut;
      break;
    case kRefused:
    case kFinished:
      legal = false;
      break;
  }
  // A save that stages is the rank's own.
  if (from.state == kStaging && rank.why == Why::kCutSave && rank.pc == Pc::kCapture) legal = false;
  if (legal) return;
  Fail(from.state == kCommittedSave && to.state == kCommittedStop ? "one-boundary" : "legal-word",
       who + ": state " + std::to_string(static_cast<int>(from.state)) + " to " +
           std::to_string(static_cast<int>(to.state)));
}

// Nothing is told that is not stored; barrier 3 needs the mark, barrier 2 the seals.
void World::CheckTold(const Msg& msg) {
  const bool numbered = msg.type == MsgType::kAsk || msg.type == MsgType::kPropose ||
                        msg.type == MsgType::kCommit || msg.type == MsgType::kDecision;
  if (!numbered) return;
  CheckRounds(msg);
  const Leader::View* stored = &stored_;
  const bool known = stored->round >= msg.round && stored->attempt >= msg.attempt;
  if (!known) {
    return Fail("stored-first", ToString(msg) + " is told before its numbers are stored");
  }
  if (msg.type != MsgType::kDecision) return;
  const bool later = stored->decision >= msg.decision || stored->round > msg.round;
  if (!later) return Fail("stored-first", ToString(msg) + " is told before it is stored");
  CheckOutcome(msg);
  if (msg.decision == Decision::kCommsDown) CheckStaged(msg.generation);
  if (msg.decision == Decision::kRelease && !marked_.contains(msg.attempt)) {
    Fail("early-release",
         "barrier 3 is told, but attempt " + std::to_string(msg.attempt) + " has no DRAINING mark");
  }
}

bool World::HoldsWhole(const SimRank& rank, uint32_t generation) const {
  for (uint32_t slot = 0; slot < weather_.slots; ++slot) {
    const SlotState& state = rank.slots[slot];
    const bool whole = std::all_of(state.chunks.begin(), state.chunks.end(),
                                   [&](uint32_t chunk) { return chunk == generation; });
    if (whole && state.generation == generation && state.sealed) return true;
  }
  return false;
}

void World::CheckStaged(uint32_t generation) {
  if (committed_.contains(generation_attempt_[generation])) return;
  if (given_up_.contains(generation)) return;
  for (const SimRank& rank : ranks_) {
    if (HoldsWhole(rank, generation)) continue;
    return Fail("staged-gang", "generation " + std::to_string(generation) +
                                   " is staged(gang), but rank " + std::to_string(rank.index) +
                                   " has not sealed it");
  }
}

// The newest complete generation, or a newer one, can be restored: from RAM on every rank, or from
// the store.
void World::CheckRestorable() {
  if (complete_.empty()) return;
  const uint32_t newest = *complete_.rbegin();
  const bool whole = committed_.contains(generation_attempt_[newest]) ||
                     std::all_of(ranks_.begin(), ranks_.end(),
                                 [&](const SimRank& rank) { return HoldsWhole(rank, newest); });
  if (!whole) {
    Fail("restorable", "generation " + std::to_string(newest) + " was staged(gang) and is gone");
  }
}

// A complete copy that is not durable is given up only by a stop, and the newest one only where
// there is one slot, after barrier 1, when all wait at the cut.
void World::CheckAborted(const AbortAttempt& action) {
  if (!aborted_.insert(action.attempt).second) return;  // a leader that returned says it again
  if (!complete_.contains(action.generation)) return;
  if (committed_.contains(action.attempt)) return;
  if (!store_failed_.contains(action.attempt)) {
    ++result_.superseded;
    const bool newest = *complete_.rbegin() == action.generation;
    // What the leader can know: every member has voted that all its ranks wait in one round. That
    // may have been withdrawn since: the action waited for its Persisted, or for a returned leader.
    const bool all_wait =
        std::any_of(quiesced_.begin(), quiesced_.end(),
                    [this](const auto& round) { return round.second.size() == members_.size(); });
    if (stop_open_ == 0) {
      return Fail("thrown-away", "generation " + std::to_string(action.generation) +
                                     " drained, and no stop needs its slot: " + action.why);
    }
    if (newest && (weather_.slots != 1 || !all_wait)) {
      return Fail("thrown-away",
                  "generation " + std::to_string(action.generation) +
                      " is the newest complete one and is given up before barrier 1");
    }
  }
  if (weather_.slots == 1 || *complete_.rbegin() != action.generation) {
    complete_.erase(action.generation);
    given_up_.insert(action.generation);
  }
}

void World::CheckFreed(uint32_t member, const FreeSlot& action) {
  freed_.insert({member, action.generation});
  for (const SimRank& rank : ranks_) {
    if (rank.member != member) continue;
    const bool fills = rank.pc == Pc::kCapture && rank.capture_generation == action.generation;
    const SlotState& slot = rank.slots[action.slot];
    const bool read = slot.generation == action.generation && slot.readers != 0;
    if (!fills && !read) continue;
    return Fail("refilled", "slot " + std::to_string(action.slot) + " is free, but rank " +
                                std::to_string(rank.index) +
                                (fills ? " still fills" : "'s writer reads") + " generation " +
                                std::to_string(action.generation));
  }
}

void World::CheckCommit(const CommitAttempt& action) {
  if (aborted_.contains(action.attempt)) {
    return Fail("aborted-commit",
                "attempt " + std::to_string(action.attempt) + " was aborted and is committed");
  }
  CheckContent(action);
}

void World::CheckContent(const CommitAttempt& action) {
  for (const SimRank& rank : ranks_) {
    for (uint32_t chunk = 0; chunk < kChunks; ++chunk) {
      const auto it = disk_.find({action.attempt, rank.index, chunk});
      if (it != disk_.end() && it->second == action.generation) continue;
      return Fail("torn-checkpoint",
                  "attempt " + std::to_string(action.attempt) + " of generation " +
                      std::to_string(action.generation) + " holds " +
                      (it == disk_.end() ? "nothing" : "generation " + std::to_string(it->second)) +
                      " in a chunk of rank " + std::to_string(rank.index));
    }
  }
}

void World::NoteCapture(const SimRank& rank, uint32_t attempt) {
  Say("rank ", rank.index, " stages attempt ", attempt, " generation ", rank.capture_generation,
      " slot ", rank.capture_slot, " at boundary ", rank.word.boundary);
  const auto [it, added] = attempts_.emplace(attempt, AttemptNote{rank.word.boundary, rank.why});
  if (added) return;
  if (it->second.boundary != rank.word.boundary || it->second.why != rank.why) {
    Fail("one-boundary", "attempt " + std::to_string(attempt) + " is staged at boundary " +
                             std::to_string(it->second.boundary) + " and at " +
                             std::to_string(rank.word.boundary));
  }
}

void World::NoteGrant(const GrantSave& grant) {
  const auto [it, added] = grants_.emplace(SaveKey(grant.boundary, grant.sequence), grant.attempt);
  if (!added && it->second != grant.attempt) {
    Fail("same-answer", "two attempts are granted at boundary " + std::to_string(grant.boundary));
  }
}

// The gang's own refusal; one that a member gives because no answer came does not count.
void World::NoteRefusal(const RefuseSave& refusal) {
  if (refusal.status.code() != Code::kResourceExhausted) return;
  const auto [it, added] = grants_.emplace(SaveKey(refusal.boundary, refusal.sequence), 0);
  if (!added && it->second != 0) {
    Fail("same-answer", "granted and refused at boundary " + std::to_string(refusal.boundary));
  }
}

void World::NoteReport(const Report& report) {
  Say("REPORT op ", report.operation, " ", Name(report.phase), " attempt ", report.attempt,
      " generation ", report.generation, " ", report.status.ToString());
  Mix(static_cast<uint64_t>(report.phase));
  NoteResult(report);
  if (report.repeated) return;
  const bool stop = report.request == Request::kSuspend;
  switch (report.phase) {
    case OpPhase::kQueued:
      break;
    case OpPhase::kStaged:
      complete_.insert(report.generation);
      generation_attempt_[report.generation] = report.attempt;
      CheckStaged(report.generation);
      CheckRestorable();
      if (!stop) ++result_.saved;
      break;
    case OpPhase::kDurable:
      ++result_.durable;
      if (!committed_.contains(report.attempt)) {
        Fail("stored-first", "durable is reported for an attempt that is not committed");
      }
      break;
    case OpPhase::kReleased:
      ++result_.suspended;
      for (const SimRank& rank : ranks_) {
        if (rank.pc != Pc::kExited) {
          Fail("early-release",
               "released is reported while rank " + std::to_string(rank.index) + " lives");
        }
      }
      break;
    case OpPhase::kRolledBack:
      ++result_.rolled_back;
      break;
    case OpPhase::kEnded:
      ++result_.ended;
      break;
    case OpPhase::kFinished:
      ++result_.finished;
      break;
    case OpPhase::kRefused:
      ++result_.refused;
      break;
    default:
      break;
  }
}

// Bounded time after the last fault: all run, or all have finished, or all are gone.
void World::CheckEnd() {
  const int64_t recent = weather_.horizon_ns - 200 * kMs - 4 * weather_.step_ns;
  uint32_t still = 0, running = 0, cut_off = 0;  // cut off: ended without having finished
  std::string where;
  for (const SimRank& rank : ranks_) {
    const bool out = rank.pc == Pc::kExited;
    still += !out && rank.progress_ns < recent ? 1 : 0;
    running += !out && rank.pc != Pc::kFinished ? 1 : 0;
    cut_off += out && rank.gone ? 1 : 0;
    where += " " + std::to_string(rank.index) + ":pc" + std::to_string(static_cast<int>(rank.pc)) +
             "@" + std::to_string(rank.word.boundary) + "/s" +
             std::to_string(static_cast<int>(rank.word.state));
  }
  if (still == 0 && (running == 0 || cut_off == 0)) return;
  Fail("dead-end", "in the end" + where);
}

}  // namespace ckpt::gang::sim
