// Operations: commands, how they merge, how they end, and their deadlines.
#include <algorithm>
#include <utility>

#include "coordinator/gang/leader_impl.h"
#include "libckpt/base/clock.h"

namespace ckpt::gang {
namespace {

constexpr size_t kDoneKept = 256;

bool IsStop(Request request) {
  return request == Request::kSuspend || request == Request::kPark || request == Request::kMigrate;
}

// How much a request takes away.
int Weight(Request request) {
  switch (request) {
    case Request::kNone:
      return 0;
    case Request::kSave:
      return 1;
    case Request::kPark:
      return 2;
    case Request::kSuspend:
      return 3;
    case Request::kMigrate:
      return 4;
    case Request::kKill:
      return 5;
  }
  return 0;
}

}  // namespace

// Of what was merged, the one that takes most away.
Request Leader::Impl::OpRequest() const {
  Request strongest = Request::kNone;
  for (const Command& command : r_.commands) {
    if (Weight(command.request) > Weight(strongest)) strongest = command.request;
  }
  return strongest;
}

void Leader::Impl::RefuseCommand(const Command& command, Status why) {
  Report report;
  report.operation = command.operation;
  report.request = command.request;
  report.phase = OpPhase::kRefused;
  report.status = std::move(why);
  report.at_ns = now_;
  report.noticed_ns = command.noticed_ns;
  Emit(std::move(report));
}

// A repeated operation is answered with its stored result.
bool Leader::Impl::AnswerKnown(const Command& command) {
  const auto same = [&](const auto& known) { return known.operation == command.operation; };
  const auto done = std::find_if(r_.done.begin(), r_.done.end(), same);
  if (done != r_.done.end()) {
    Report report;
    report.operation = done->operation;
    report.request = done->request;
    report.phase = done->phase;
    if (done->code != 0) report.status = Status(CodeOf(done->code), done->text);
    report.attempt = done->attempt;
    report.generation = done->generation;
    report.step = done->step;
    report.repeated = true;
    report.at_ns = now_;
    Emit(std::move(report));
    return true;
  }
  return std::any_of(r_.commands.begin(), r_.commands.end(), same) ||
         std::any_of(r_.queued.begin(), r_.queued.end(), same);
}

// Nothing overrides a kill, and it waits for nothing.
void Leader::Impl::Kill(const Command& command) {
  if (!open()) {
    r_.operation = command.operation;
    r_.noticed_ns = command.noticed_ns;
  }
  r_.commands.push_back(command);
  if (r_.decision != Decision::kRelease) return End(Aborted("killed by " + command.source));
  r_.hurry = true;  // suspended it is; who has not left yet is killed
  Store();
  Broadcast();
}

void Leader::Impl::On(const Command& event) {
  if (AnswerKnown(event)) return;
  Command command = event;
  if (command.noticed_ns == 0) command.noticed_ns = now_;
  if (r_.ended || r_.released || r_.finished) {
    return RefuseCommand(command, FailedPrecondition("the gang has no running ranks any more"));
  }
  const uint32_t world = WorldSize();
  for (const uint32_t rank : command.ranks) {
    if (rank < world) continue;
    return RefuseCommand(command, InvalidArgument("there is no rank " + std::to_string(rank) +
                                                  ": the gang has " + std::to_string(world)));
  }
  if (command.request == Request::kKill && config_.mutations.kill_waits && open()) {
    r_.queued.push_back(command);
    return Store();
  }
  if (command.request == Request::kKill) return Kill(command);
  if (command.request != Request::kSave && !IsStop(command.request)) {
    return RefuseCommand(command,
                         InvalidArgument("the gang knows save, suspend, park, migrate, kill"));
  }
  if (r_.decision == Decision::kRelease) {
    return RefuseCommand(command, FailedPrecondition("the gang is being released already"));
  }
  if (command.request == Request::kSave && config_.slots == 0) {
    return RefuseCommand(
        command, FailedPrecondition(not_ready_why_.empty()
                                        ? "not all ranks have registered and called track yet"
                                        : not_ready_why_));
  }
  if (!open()) return StartOperation({command});
  if (!IsStop(command.request)) {
    return RefuseCommand(
        command, ResourceExhausted(OpenStop() ? "a suspend is under way" : "a save is under way"));
  }
  const bool going_back = r_.decision == Decision::kBack || r_.decision == Decision::kUp;
  if (OpenStop() && going_back) {  // once all run again
    r_.queued.push_back(command);
    return Store();
  }
  if (OpenStop()) {  // merged: each has its own deadline, also in the stage that is open
    const int64_t before = OpDeadline();
    r_.commands.push_back(command);
    OpDeadline() > before ? Extend() : Store();
    return TryStart();
  }
  // A stop meets a save: one that is not committed gives way, another is waited for.
  r_.queued.push_back(command);
  Store();
  const bool committed = r_.stage == Stage::kCommitted;
  if (config_.mutations.kind_from_latest && committed) {
    r_.kind = Kind::kStop;
    r_.commands[0].request = command.request;
    return Broadcast();
  }
  if (!committed) WithdrawRound(OpPhase::kRefused, Aborted("superseded by a suspend"));
}

void Leader::Impl::StartOperation(std::vector<Command> commands) {
  r_.commands = std::move(commands);
  r_.operation = r_.commands[0].operation;
  r_.noticed_ns = r_.commands[0].noticed_ns;
  for (const Command& command : r_.commands) {
    r_.noticed_ns = std::min(r_.noticed_ns, command.noticed_ns);
  }
  r_.kind = IsStop(r_.commands[0].request) ? Kind::kStop : Kind::kSave;
  r_.decision = Decision::kNone;
  r_.op_attempt = r_.op_generation = r_.cut = r_.rounds = 0;
  r_.op_rebuild = 0;
  r_.step = 0;
  r_.cut_deadline_ns = kNever;
  r_.back_code = Code::kOk;
  r_.stage = Stage::kWaiting;  // keeps on repeating a withdrawal that is still open
  wait_until_ns_ = now_;
  WaitForSlot();
  lead_ = 0;
  Store();
  Tell(OpPhase::kQueued, OkStatus());
  // A rank that waits for a slot cannot reach the cut.
  RefuseWaitingSaves(Code::kResourceExhausted,
                     std::string(Name(r_.commands[0].request)) + " is under way");
  if (r_.kind == Kind::kStop) {
    if (!finished_ranks_.empty()) {
      return FinishOperation(OpPhase::kFinished, FailedPrecondition("the training has finished"));
    }
  }
  TryStart();
}

// A notice that comes before the ranks have staging memory is kept as long as that takes.
void Leader::Impl::WaitForSlot() {
  r_.deadline_ns = config_.slots == 0 ? kNever : now_ + config_.save_ns;
  const int64_t drained = Bounded(now_ + config_.drain_wait_ns + config_.stop_needs_ns);
  drain_until_ns_ = std::max(now_, drained - config_.stop_needs_ns);
  Store();
}

void Leader::Impl::RecordDone(const Command& command, OpPhase phase, const Status& status) {
  r_.done.push_back(DoneOperation{command.operation, command.request, phase,
                                  static_cast<int32_t>(status.code()), status.message(),
                                  r_.op_attempt, r_.op_generation, r_.step});
  if (r_.done.size() > kDoneKept) r_.done.erase(r_.done.begin());
}

void Leader::Impl::FinishOperation(OpPhase phase, Status status, std::vector<uint32_t> missing) {
  Tell(phase, status, std::move(missing));
  for (const Command& command : r_.commands) RecordDone(command, phase, status);
  // Nothing is left to stage, but who does not leave by himself is still in the way.
  if (phase == OpPhase::kFinished) leave_by_ns_ = std::min(leave_by_ns_, KillAt());
  r_.commands.clear();
  supersede_ = 0;
  if (r_.stage != Stage::kDecided) {
    r_.stage = Stage::kIdle;
    r_.deadline_ns = kNever;
  }
  Store();
  StartQueued();
  ServeWaitingSaves();
}

void Leader::Impl::StartQueued() {
  if (open() || r_.queued.empty()) return;
  std::vector<Command> queued = std::move(r_.queued);
  r_.queued.clear();
  if (r_.ended || r_.released || r_.finished) {
    for (const Command& command : queued) {
      RefuseCommand(command, FailedPrecondition("the gang has no running ranks any more"));
    }
    return Store();
  }
  StartOperation(std::move(queued));
}

// When the first of those that were merged is too late; he is refused then, see ExpireCommands.
int64_t Leader::Impl::FirstDeadline() const {
  int64_t deadline = kNever;
  for (const Command& command : r_.commands) {
    if (command.deadline_ns != 0) deadline = std::min(deadline, command.deadline_ns);
  }
  return deadline;
}

// When all of them are: the operation is worth trying until then.
int64_t Leader::Impl::OpDeadline() const {
  if (config_.mutations.expire_together) return FirstDeadline();
  int64_t deadline = 0;
  for (const Command& command : r_.commands) {
    deadline = std::max(deadline, command.deadline_ns == 0 ? kNever : command.deadline_ns);
  }
  return deadline == 0 ? kNever : deadline;
}

// When the ranks are killed if they have not been released.
int64_t Leader::Impl::KillAt() const {
  int64_t at = leave_by_ns_;
  for (const auto* commands : {&r_.commands, &r_.queued}) {
    for (const Command& command : *commands) {
      if (command.hard && command.deadline_ns != 0) {
        at = std::min(at, command.deadline_ns - config_.kill_ns);
      }
    }
  }
  return at;
}

int64_t Leader::Impl::Bounded(int64_t deadline_ns) const {
  return std::min({deadline_ns, OpDeadline(), KillAt()});
}

// Of the open stage: its own, cut short by what stands of the operation's.
int64_t Leader::Impl::StageDeadline() const {
  const bool said = r_.decision == Decision::kRelease && r_.deadline_ns == kNever;
  if (!open() || said || r_.decision >= Decision::kBack) return r_.deadline_ns;
  return Bounded(r_.deadline_ns);
}

// A stop that must be out by a hard deadline is tried until then.
bool Leader::Impl::TriesAgain() const {
  const bool hard = std::any_of(r_.commands.begin(), r_.commands.end(), [](const Command& command) {
    return command.hard && command.deadline_ns != 0;
  });
  return OpenStop() && hard && now_ < KillAt() && finished_ranks_.empty();
}

void Leader::Impl::CheckDeadlines() {
  if (r_.ended || r_.released || r_.finished) return;
  const bool alive = r_.decision != Decision::kRelease;
  if (alive && now_ >= KillAt()) {
    if (!open()) {
      return End(DeadlineExceeded("the training had finished, but had not left in time: " +
                                  StayingText()));
    }
    return End(DeadlineExceeded("the deadline is near and " + WaitText()));
  }
  ExpireCommands();
  if (r_.stage != Stage::kIdle && now_ >= StageDeadline()) OnStageDeadline();
  for (const auto& [id, member] : members_) {
    if (!alive || r_.ended || member.lost_ns == kNever) continue;
    if (now_ - member.lost_ns < config_.member_grace_ns) continue;
    return End(Unavailable(
        "the ckpt-run of ranks " + std::to_string(member.first_rank.value()) + " to " +
        std::to_string(member.first_rank.value() + member.rank_count - 1) + " is out of reach"));
  }
}

// Who has had his time is refused; others that were merged with him, or wait, go on with theirs. A
// stop that kills must not be lost with one that did not.
void Leader::Impl::ExpireCommands() {
  if (!open() || r_.decision >= Decision::kRelease || config_.mutations.expire_together) return;
  const auto late = [this](const Command& command) {
    return command.deadline_ns != 0 && now_ >= command.deadline_ns;
  };
  const auto take = [&](std::vector<Command>* commands) {
    const auto first = std::stable_partition(commands->begin(), commands->end(),
                                             [&](const Command& one) { return !late(one); });
    std::vector<Command> taken(first, commands->end());
    commands->erase(first, commands->end());
    return taken;
  };
  const bool all = std::all_of(r_.commands.begin(), r_.commands.end(), late);
  std::vector<Command> expired = take(&r_.queued);
  const Status why = DeadlineExceeded(
      "not in time: " + WaitText() +
      (OpenStop() ? "; the gang still stops for another notice" : "; the ranks run on"));
  if (!all) {
    const std::vector<Command> merged = take(&r_.commands);
    expired.insert(expired.end(), merged.begin(), merged.end());
    if (!merged.empty()) Extend();
  }
  for (const Command& command : expired) {
    RefuseCommand(command, why);
    RecordDone(command, OpPhase::kRefused, why);
  }
  if (!expired.empty()) Store();
}

// Who keeps a finished training from its end: ranks that have not finished, else those that have
// and stay.
std::string Leader::Impl::StayingText() const {
  const bool all_finished = finished_ranks_.size() >= WorldSize();
  std::string text;
  for (uint32_t rank = 0; rank < WorldSize(); ++rank) {
    if ((all_finished ? exited_ranks_ : finished_ranks_).contains(rank)) continue;
    text += (text.empty() ? "rank " : ", ") + std::to_string(rank);
  }
  return text;
}

// What the open operation waits for.
std::string Leader::Impl::WaitText() const {
  if (r_.stage == Stage::kSuperseding) return "the older save's writers had not stopped";
  if (r_.stage != Stage::kWaiting) {
    return (MissingRanks().empty() ? "the ranks" : MissingText()) + " had not been released";
  }
  if (config_.slots == 0) {
    return not_ready_why_.empty() ? "not all ranks had registered and called track"
                                  : not_ready_why_;
  }
  for (const Gen& gen : r_.generations) {
    if (gen.state != Gen::State::kFilling) continue;
    return "the save at boundary " + std::to_string(gen.boundary) +
           " had not been staged by all ranks; missing: " + LateText(gen);
  }
  return "no staging slot was free: the last save drains";
}

// How long the open stage has taken.
std::string Leader::Impl::Took() const {
  return FormatDuration(Nanos(std::max<int64_t>(0, now_ - stage_ns_)));
}

// Of a save: whoever is past the cut stages by itself. False while a member has not said so.
bool Leader::Impl::AllAtCut() const {
  return std::all_of(members_.begin(), members_.end(), [this](const auto& entry) {
    const MemberState& member = entry.second;
    const bool reached =
        std::all_of(member.places.begin(), member.places.end(),
                    [this](const Place& place) { return !Later(r_.cut, place.boundary); });
    return member.placed && reached;
  });
}

// The cut is behind all ranks: what is still to come has the time of a save, and is named by it.
void Leader::Impl::WaitForSeals() {
  const Gen* gen = FindGeneration(r_.op_generation);
  if (gen == nullptr || r_.deadline_ns >= gen->fill_deadline_ns) return;
  r_.deadline_ns = gen->fill_deadline_ns;
  ++r_.extension;
  Store();
  Broadcast();
}

void Leader::Impl::OnStageDeadline() {
  const std::vector<uint32_t> missing = MissingRanks();
  const std::string who = MissingText();
  switch (r_.stage) {
    case Stage::kIdle:
      return;
    case Stage::kWaiting:
      return WithdrawRound(OpPhase::kRefused,
                           DeadlineExceeded("could not begin in time: " + WaitText()));
    case Stage::kAsking:
    case Stage::kProposed:
      return WithdrawRound(OpPhase::kRefused,
                           DeadlineExceeded("no common cut within " + Took() + "; missing: " + who +
                                            ": its ckpt-run does not answer; the ranks run on, "
                                            "ask again"));
    case Stage::kCommitted:
      if (r_.kind == Kind::kSave && AllAtCut()) return WaitForSeals();
      return WithdrawRound(
          OpPhase::kRolledBack,
          DeadlineExceeded("barrier 1; missing: " + who + " at boundary " + std::to_string(r_.cut) +
                           " after " + Took() +
                           ": it did not call step(); all ranks run on. Call "
                           "step() or phase() in that part of the program, or ask again with a "
                           "later deadline"),
          missing);
    case Stage::kSuperseding:
      return WithdrawRound(OpPhase::kRolledBack,
                           DeadlineExceeded("the older save's writers did not stop within " +
                                            Took() + ": the store is slow; all ranks run on"));
    case Stage::kMarking:
      return GoBack(DeadlineExceeded("the store did not take the DRAINING mark within " + Took() +
                                     ": nothing is released; look after the store, ask again"));
    case Stage::kDecided:
      break;
  }
  switch (r_.decision) {
    case Decision::kStage:
      return GoBack(DeadlineExceeded("barrier 2; missing: " + who + " after " + Took() +
                                     ": staging is not done; all ranks run on, ask again with a "
                                     "later deadline"));
    case Decision::kCommsDown:
      return GoBack(DeadlineExceeded("barrier 3; missing: " + who + " after " + Took() +
                                     ": a communicator is not down; they are rebuilt and all run "
                                     "on"));
    case Decision::kBack:
      if (r_.op_rebuild != 0 && !config_.mutations.rebuild_waits) {
        End(DeadlineExceeded("communicators were not rebuilt within " + Took() + "; missing: " +
                             who + ": the ranks end and resume from " + StandingText()));
      }
      return;
    case Decision::kRelease:
      r_.deadline_ns = kNever;  // members kill what does not leave; this only says who
      Tell(OpPhase::kReleasing, DeadlineExceeded("not released in time: " + who), missing);
      return Store();
    default:
      return;
  }
}

}  // namespace ckpt::gang
