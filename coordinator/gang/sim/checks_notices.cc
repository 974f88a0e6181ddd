// What must hold of notices, rounds, votes, outcomes and losses. sim.h says what the names mean.
#include <algorithm>

#include "coordinator/gang/sim/world.h"

namespace ckpt::gang::sim {
namespace {

constexpr int64_t kAfterTrouble = 150 * kMs;

bool IsFinal(const Report& report) {
  switch (report.phase) {
    case OpPhase::kStaged:
      return report.request == Request::kSave;
    case OpPhase::kReleased:
      return report.status.ok();  // else of a gang that has ended already
    case OpPhase::kRolledBack:
    case OpPhase::kEnded:
    case OpPhase::kRefused:
    case OpPhase::kFinished:
      return true;
    default:
      return false;
  }
}

}  // namespace

void World::CheckRounds(const Msg& msg) {
  if (msg.extension > extension_) {
    extension_ = msg.extension;
    extended_ns_ = now_;
  }
  if (msg.type != MsgType::kPropose && msg.type != MsgType::kCommit) return;
  const RoundNote note{msg.cut, msg.attempt, msg.slot, msg.kind};
  const auto [it, added] = proposed_.emplace(msg.round, note);
  if (!added && !(it->second == note)) {
    Fail("one-round", "round " + std::to_string(msg.round) + " names two cuts: " + ToString(msg));
  }
}

void World::CheckOutcome(const Msg& msg) {
  if (msg.decision < Decision::kRelease) return;
  const bool release = msg.decision == Decision::kRelease;
  const auto [it, added] = outcomes_.emplace(msg.round, msg.decision);
  if (!added && (it->second == Decision::kRelease) != release) {
    return Fail("one-outcome", "round " + std::to_string(msg.round) + " is told " +
                                   std::string(Name(it->second)) + " and " +
                                   std::string(Name(msg.decision)));
  }
  if (release) CheckReleased(msg.generation);
  if (release && !finished_heard_.empty()) {
    Fail("finished-wins", "rank " + std::to_string(*finished_heard_.begin()) +
                              " had finished before barrier 3, and the gang is released");
  }
}

// Who is released can come back: from RAM of every rank, or from the store.
void World::CheckReleased(uint32_t generation) {
  if (committed_.contains(generation_attempt_[generation])) return;
  for (const SimRank& rank : ranks_) {
    if (HoldsWhole(rank, generation)) continue;
    return Fail("released-whole", "barrier 3 is told, and rank " + std::to_string(rank.index) +
                                      " has no whole copy of generation " +
                                      std::to_string(generation));
  }
  for (uint32_t m = 0; m < members_.size(); ++m) {
    if (!freed_.contains({m, generation})) continue;
    return Fail("released-whole", "barrier 3 is told, and member " + std::to_string(m) +
                                      " has freed generation " + std::to_string(generation));
  }
}

// What the leader has just heard decides at once.
void World::CheckHeard(const LeaderEvent& event, Decision before) {
  const Leader::View view = leader_->view();
  const bool over = view.ended || view.finished || before == Decision::kRelease;
  if (const auto* command = std::get_if<Command>(&event)) {
    if (command->request != Request::kKill || over || view.decision == Decision::kRelease) return;
    return Fail("kill-overrides", "a kill was heard and the gang does not end");
  }
  const Msg& msg = std::get<FromMember>(event).msg;
  if (msg.fact == FactKind::kFinished && before != Decision::kRelease) {
    finished_heard_.insert(msg.rank);
  }
  if (msg.fact != FactKind::kExited || (msg.code == 0 && msg.step == 0)) return;
  if (before != Decision::kBack && view.decision == Decision::kBack) {
    return Fail("crash-forward", "the leader rolls back because a rank died");
  }
  if (!over) {
    Fail("crash-is-crash", "rank " + std::to_string(msg.rank) + " died and the gang goes on");
  }
}

// Everything that one step of the leader says is said together.
void World::CheckBatch(const LeaderActions& actions) {
  const LossBooked* loss = nullptr;
  const Report* ended = nullptr;
  for (const LeaderAction& action : actions) {
    if (const auto* booked = std::get_if<LossBooked>(&action)) loss = booked;
    const auto* report = std::get_if<Report>(&action);
    if (report != nullptr && report->phase == OpPhase::kEnded && !report->repeated) ended = report;
  }
  if (ended == nullptr) return;
  const bool trained = std::any_of(ranks_.begin(), ranks_.end(), [](const SimRank& rank) {
    return rank.pc != Pc::kFinished && (rank.pc != Pc::kExited || rank.gone);
  });
  if (loss == nullptr ? trained : loss->generation != ended->generation) {
    return Fail("loss-booked",
                "the gang ends (" + ended->status.message() + ") and what it loses is not booked");
  }
  const auto note = notices_.find(ended->operation);
  const bool by_deadline = ended->status.message().rfind("the deadline is near", 0) == 0;
  if (note == notices_.end() || !by_deadline || stored_.decision != Decision::kEnd) return;
  const auto quiesced = quiesced_.find(stored_.round);
  const bool waited = quiesced != quiesced_.end() && quiesced->second.size() == members_.size();
  const bool calm = now_ - trouble_ns_ > kAfterTrouble && !waited &&
                    decided_before_end_ == Decision::kNone &&
                    now_ - note->second.heard_ns > 20 * kMs;  // there was time to say it
  if (calm && !note->second.fallback) {
    Fail("said-late", "operation " + std::to_string(ended->operation) +
                          " kills at its deadline, and nobody was told before");
  }
}

// The merged deadline is the earliest of those that stand, and so is the one that kills.
void World::CheckAnswer(const NoticeAnswer& answer) {
  Say("ANSWER ", answer.operations.size(), " notices: ",
      answer.answer == Answer::kAck     ? "acknowledged"
      : answer.answer == Answer::kDefer ? "deferred"
                                        : "falls back",
      ", ", answer.why);
  Mix(static_cast<uint64_t>(answer.answer) + 3 * static_cast<uint64_t>(answer.deadline_ns));
  result_.fallbacks += answer.answer == Answer::kFallback ? 1 : 0;
  result_.deferred += answer.answer == Answer::kDefer ? 1 : 0;
  int64_t deadline = 0, kill = 0;
  for (const uint64_t operation : answer.operations) {
    NoticeNote& note = notices_[operation];
    if (answer.answer == Answer::kFallback) note.fallback = true;
    const int64_t at = note.command.deadline_ns;
    if (at == 0) continue;
    if (deadline == 0 || at < deadline) deadline = at;
    const int64_t kills = at - leader_config_.kill_ns;
    if (note.command.hard && (kill == 0 || kills < kill)) kill = kills;
  }
  // A training that was finishing when a notice came has to leave by that notice's deadline.
  const bool finishing = std::any_of(notices_.begin(), notices_.end(), [](const auto& note) {
    return note.second.result == OpPhase::kFinished;
  });
  if (members_[0].clock_ns != 0 || !finished_heard_.empty() || finishing) return;
  const bool queued = leader_ != nullptr && answer.operations.size() > 1;
  const bool merged = answer.deadline_ns == deadline || queued;  // a queued one waits its turn
  if (merged && answer.kill_at_ns == kill) return;
  Fail("merged-deadline", "the deadline of " + std::to_string(answer.operations.size()) +
                              " notices is " + std::to_string(answer.deadline_ns / kMs) +
                              " ms, killing at " + std::to_string(answer.kill_at_ns / kMs) +
                              ", not " + std::to_string(deadline / kMs) + " and " +
                              std::to_string(kill / kMs));
}

// A rank that stops waiting at a cut does so at its leader's deadline, not at one that was moved.
void World::CheckGaveUp(const SimRank& rank) {
  const bool calm = weather_.loss == 0 && weather_.slow == 0 && leader_ != nullptr &&
                    !leader_stopped_ && members_[rank.member].linked &&
                    members_[rank.member].clock_ns == 0 && now_ - trouble_ns_ > kAfterTrouble &&
                    now_ - extended_ns_ > 40 * kMs;
  if (!calm) return;
  const Leader::View view = leader_->view();
  if (view.decision != Decision::kNone || view.round != rank.order.round ||
      view.deadline_ns == INT64_MAX)
    return;
  const int64_t left = view.deadline_ns - Clock(0);
  if (left > 60 * kMs) {
    Fail("own-deadline", "rank " + std::to_string(rank.index) + " gives up at the cut, and the " +
                             "leader waits for another " + std::to_string(left / kMs) + " ms");
  }
}

// Who has voted SEALED goes back only on the leader's stored outcome; nobody after barrier 3.
void World::CheckSentBack(uint32_t member, const TellRolledBack& action) {
  const bool same = stored_.round == action.round;
  if (same && stored_.decision == Decision::kRelease) {
    return Fail("no-return", "member " + std::to_string(member) + " goes back after barrier 3");
  }
  if (members_[member].sealed_round != action.round || stored_.round > action.round) return;
  if (same && stored_.decision >= Decision::kBack) return;
  Fail("vote-binds", "member " + std::to_string(member) +
                         " has voted SEALED and goes back by itself in round " +
                         std::to_string(action.round));
}

void World::NoteResult(const Report& report) {
  if (report.operation == 0 || !IsFinal(report)) return;
  NoticeNote& note = notices_[report.operation];
  if (note.over && note.result != report.phase && note.result != OpPhase::kRefused) {
    return Fail("one-result", "operation " + std::to_string(report.operation) + " ended as " +
                                  std::string(Name(note.result)) + " and as " +
                                  std::string(Name(report.phase)));
  }
  result_.withdrawn += report.status.code() == Code::kCancelled ? 1 : 0;
  note.over = true;
  note.result = report.phase;
  const bool excused = note.withdrawn || !finished_heard_.empty() ||
                       report.status.code() == Code::kFailedPrecondition;
  const bool ends = leader_ != nullptr && leader_->view().ended;
  const bool refused = report.phase == OpPhase::kRefused && !ends;
  const bool given_up = report.phase == OpPhase::kRolledBack || refused;
  if (given_up && note.command.hard && !excused) {
    Fail("deadline-kept",
         "operation " + std::to_string(report.operation) +
             " kills at its deadline and is given up before: " + report.status.ToString());
  }
}

// In the end every notice that a leader has heard has its result.
void World::CheckNotices() {
  if (leader_ == nullptr || leader_stopped_) return;
  // A node that was lost after barrier 3 may still hold ranks: nobody says "released" of it.
  const bool lost = std::any_of(members_.begin(), members_.end(),
                                [](const SimMember& member) { return !member.alive; });
  if (lost && stored_.decision == Decision::kRelease) return;
  for (const auto& [operation, note] : notices_) {
    if (note.over || note.heard_ns < weather_.quiet_ns) continue;
    return Fail("notice-lost", "operation " + std::to_string(operation) + " has no result");
  }
  const bool ended = leader_->view().ended;
  for (const SimRank& rank : ranks_) {
    const SimMember& member = members_[rank.member];
    const bool told = member.alive && member.linked && !member.stopped;
    if (!ended || !told || rank.pc == Pc::kExited) continue;
    return Fail("ended-alive",
                "the gang has ended and rank " + std::to_string(rank.index) + " lives on");
  }
}

}  // namespace ckpt::gang::sim
