// Notices: what the gang answers to them, now and whenever that changes; phases without
// boundaries; withdrawals; what is lost when the ranks end without a release.
#include <algorithm>

#include "coordinator/gang/leader_impl.h"
#include "libckpt/base/clock.h"

namespace ckpt::gang {
namespace {

std::string For(int64_t ns) { return FormatDuration(Nanos(std::max<int64_t>(0, ns))); }

}  // namespace

void Leader::Impl::On(const Measured& event) {
  if (event.times.step_ns > 0) step_ns_ = event.times.step_ns;
  if (event.times.stage_ns > 0) times_.stage_ns = event.times.stage_ns;
  if (event.times.kill_ns > 0) config_.kill_ns = event.times.kill_ns;
}

// ---- phases
void Leader::Impl::OnPhase(const Msg& msg) {
  uint64_t& newest = phase_numbers_[msg.rank];
  if (msg.number <= newest) return;
  newest = msg.number;
  if (msg.text.empty()) {
    phases_.erase(msg.rank);
    return;
  }
  const bool unknown = msg.left_ns <= 0;
  phases_[msg.rank] = PhaseHint{msg.rank, msg.text, now_ + (unknown ? 0 : msg.left_ns), unknown};
  const bool waits =
      r_.stage == Stage::kAsking || r_.stage == Stage::kProposed || r_.stage == Stage::kCommitted;
  if (waits && CutDeadlineFromNow() > r_.cut_deadline_ns) Extend();
}

// The rank whose phase ends last; null: all train.
const PhaseHint* Leader::Impl::Slowest() const {
  const PhaseHint* slowest = nullptr;
  for (const auto& [rank, hint] : phases_) {
    if (finished_ranks_.contains(rank)) continue;
    if (slowest == nullptr || hint.until_ns > slowest->until_ns) slowest = &hint;
  }
  return slowest;
}

// A rank in a phase has its time until that ends, and then as long as anybody: the step that it is
// in and the next one, as they were measured, and some time for what is not a step.
int64_t Leader::Impl::CutDeadlineFromNow() const {
  const PhaseHint* slowest = Slowest();
  const int64_t from = slowest != nullptr ? std::max(now_, slowest->until_ns) : now_;
  return from + config_.cut_ns + 2 * step_ns_;
}

// There is more time than the members know of: their ranks must not give up before the leader.
void Leader::Impl::Extend() {
  const bool cut_open = r_.stage > Stage::kWaiting && r_.stage < Stage::kDecided;
  if (cut_open) {
    r_.cut_deadline_ns = std::max(r_.cut_deadline_ns, CutDeadlineFromNow());
    r_.deadline_ns = std::max(r_.deadline_ns, r_.cut_deadline_ns);
    Gen* gen = r_.kind == Kind::kSave ? FindGeneration(r_.op_generation) : nullptr;
    if (gen != nullptr && gen->state == Gen::State::kFilling) {
      gen->fill_deadline_ns =
          std::max(gen->fill_deadline_ns, Bounded(r_.cut_deadline_ns + config_.save_ns));
    }
  }
  ++r_.extension;
  Store();
  if (r_.stage <= Stage::kWaiting) return;
  sent_ns_ = now_;
  for (const auto& [id, member] : members_) Send(id, CurrentMsg());
}

// ---- withdrawals
void Leader::Impl::On(const gang::Withdraw& event) {
  WithdrawOne(event.operation, Cancelled(event.why.empty() ? "withdrawn" : event.why));
}

void Leader::Impl::WithdrawOne(uint64_t operation, const Status& why) {
  const auto same = [&](const auto& known) { return known.operation == operation; };
  const auto queued = std::find_if(r_.queued.begin(), r_.queued.end(), same);
  if (queued != r_.queued.end()) {
    const Command command = *queued;
    r_.queued.erase(queued);
    RefuseCommand(command, why);
    RecordDone(command, OpPhase::kRefused, why);
    return Store();
  }
  const auto it = std::find_if(r_.commands.begin(), r_.commands.end(), same);
  if (it == r_.commands.end()) {
    if (AnswerKnown(Command{.operation = operation})) return;
    return RefuseCommand(Command{.operation = operation, .request = Request::kNone},
                         NotFound("no operation " + std::to_string(operation) + " stands"));
  }
  if (PastRelease()) {
    Report report{.operation = it->operation, .request = it->request, .phase = OpPhase::kTooLate};
    report.status = FailedPrecondition(r_.ended ? "too late to withdraw: the gang ends already"
                                                : "too late to withdraw: barrier 3 has passed");
    report.at_ns = now_;
    report.noticed_ns = it->noticed_ns;
    return Emit(std::move(report));
  }
  if (r_.commands.size() > 1) {  // others stand, with more time perhaps
    const Command command = *it;
    r_.commands.erase(it);
    RefuseCommand(command, why);
    RecordDone(command, OpPhase::kRefused, why);
    Store();
    if (r_.decision < Decision::kRelease && !config_.mutations.keep_withdrawn_deadline) Extend();
    return;
  }
  it->hard = false;  // withdrawn: it kills nobody, and is not tried again
  Store();
  if (r_.decision == Decision::kNone) return WithdrawRound(OpPhase::kRefused, why);
  if (r_.decision == Decision::kStage || r_.decision == Decision::kCommsDown) GoBack(why);
}

// ---- answers
std::string Leader::Impl::StandingText() const {
  const Gen* standing = Standing();
  if (standing == nullptr) return "what this launch began with";
  return "the copy of step " + std::to_string(standing->step) + " (attempt " +
         std::to_string(standing->attempt) + ")";
}

// Until a step has been measured, a part of the time that there is.
int64_t Leader::Impl::StepGuess() const {
  const int64_t kill = KillAt();
  if (step_ns_ > 0 || kill == kNever) return step_ns_;
  return std::max<int64_t>(0, kill - r_.noticed_ns) / 4;
}

// When it must be said that the ranks will be killed, if nothing else happens before.
int64_t Leader::Impl::FallbackAt() const {
  const int64_t kill = KillAt();
  return kill == kNever ? kNever : kill - times_.stage_ns - StepGuess();
}

Answer Leader::Impl::Foresee(std::string* why) const {
  const PhaseHint* slow = Slowest();
  std::string who;
  if (slow != nullptr) {
    who = "rank " + std::to_string(slow->rank) + " is in " + slow->kind;
    if (slow->unknown) {
      who += " for an unknown time";
    } else if (slow->until_ns > now_) {
      who += " for another " + For(slow->until_ns - now_);
    } else {
      who += ", " + For(now_ - slow->until_ns) + " longer than it said";
    }
  } else if (config_.slots == 0) {
    who = not_ready_why_.empty() ? "not all ranks have registered and called track yet"
                                 : not_ready_why_;
  }
  const int64_t eta = std::max(now_ + StepGuess(), slow != nullptr ? slow->until_ns : 0);
  const int64_t kill = KillAt();
  if (kill != kNever && (never_ready_ || eta > kill - times_.stage_ns)) {
    const bool ranks = r_.stage != Stage::kWaiting && r_.stage != Stage::kSuperseding;
    if (who.empty() && !ranks) who = WaitText();
    if (who.empty()) who = MissingText() + " is not at a boundary, a step takes " + For(step_ns_);
    *why = who + ": the ranks are killed in " + For(kill - now_) +
           " unless all have stopped by then, and resume from " + StandingText() +
           "; a longer grace, or a save before such a phase, loses less";
    return Answer::kFallback;
  }
  if (!who.empty()) {
    *why = who + ": the notice is kept, all ranks " + (OpenStop() ? "stop" : "save") +
           " at the first boundary after it";
    return Answer::kDefer;
  }
  *why =
      "all ranks " + std::string(OpenStop() ? "stop" : "save") + " at their next common boundary";
  return Answer::kAck;
}

// What does not kill and cannot be met is refused at once: who asked may have another plan.
void Leader::Impl::RefuseHopeless() {
  const PhaseHint* slow = Slowest();
  if (slow == nullptr && !never_ready_) return;
  std::vector<std::pair<uint64_t, Status>> hopeless;
  for (const auto* commands : {&r_.commands, &r_.queued}) {
    for (const Command& command : *commands) {
      if (command.hard && command.deadline_ns != 0) continue;
      const std::string name(Name(command.request));
      if (never_ready_) {
        hopeless.emplace_back(command.operation,
                              FailedPrecondition("no " + name + " is possible: " + not_ready_why_ +
                                                 "; the ranks run on, what is durable stays"));
        continue;
      }
      const int64_t latest = command.deadline_ns - times_.stage_ns;
      if (command.deadline_ns == 0 || slow->until_ns <= latest) continue;
      hopeless.emplace_back(
          command.operation,
          DeadlineExceeded("rank " + std::to_string(slow->rank) + " is in " + slow->kind +
                           " for another " + For(slow->until_ns - now_) +
                           ", and the deadline of this " + name + " needs a boundary within " +
                           For(latest - now_) + "; the ranks run on, what stands is " +
                           StandingText() + ": ask again with a later deadline"));
    }
  }
  for (const auto& [operation, why] : hopeless) WithdrawOne(operation, why);
}

void Leader::Impl::AnswerNotices() {
  const bool asked = open() && r_.decision == Decision::kNone && !PastRelease() && !r_.finished;
  if (asked && !config_.mutations.late_is_not_said) RefuseHopeless();
  if (!open() || r_.decision != Decision::kNone || PastRelease() || r_.finished) {
    said_.reset();
    return;
  }
  if (config_.mutations.late_is_not_said) return;
  NoticeAnswer answer;
  answer.answer = Foresee(&answer.why);
  const PhaseHint* slow = Slowest();
  const int64_t deadline = FirstDeadline(), kill = KillAt();
  const Said said{answer.answer,
                  slow != nullptr ? slow->rank : 0,
                  slow != nullptr ? slow->until_ns : 0,
                  deadline,
                  kill,
                  r_.commands.size() + r_.queued.size(),
                  config_.slots != 0};
  if (said_ == said) return;
  said_ = said;
  for (const auto* commands : {&r_.commands, &r_.queued}) {
    for (const Command& command : *commands) answer.operations.push_back(command.operation);
  }
  answer.eta_ns = std::max(now_ + step_ns_, slow != nullptr ? slow->until_ns : 0);
  if (config_.slots == 0 || (slow != nullptr && slow->unknown)) answer.eta_ns = 0;
  answer.deadline_ns = deadline == kNever ? 0 : deadline;
  answer.kill_at_ns = kill == kNever ? 0 : kill;
  Emit(std::move(answer));
}

// ---- losses
void Leader::Impl::BookLoss(const Status& why, bool waited) {
  if (config_.mutations.forget_loss) return;
  const Gen* standing = Standing();
  LossBooked loss;
  loss.operation = open() ? r_.commands[0].operation : 0;
  int64_t since = r_.started_ns;
  if (standing != nullptr) {
    loss.generation = standing->generation;
    loss.attempt = standing->attempt;
    loss.step = standing->step;
    loss.boundary = standing->boundary;
    since = standing->captured_ns;
  }
  loss.lost_ns = waited ? 0 : std::max<int64_t>(0, now_ - since);
  loss.why = why.message();
  Emit(std::move(loss));
}

}  // namespace ckpt::gang
