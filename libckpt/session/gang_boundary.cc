// The rank's side of a cut and of the barriers of a stop (gang_session.h).
#include <algorithm>

#include "libckpt/base/fault.h"
#include "libckpt/base/log.h"
#include "libckpt/session/cut.h"
#include "libckpt/session/gang_session.h"

namespace ckpt::session {
namespace {

// At barriers, where the order names no deadline; and how much later than it a rank gives up.
constexpr Nanos kBarrierMax = std::chrono::minutes(10);
constexpr Nanos kBarrierGrace = std::chrono::seconds(30);
constexpr Nanos kBarrierLook = std::chrono::milliseconds(50);

// When a rank at the barriers gives up: by what the order line says now. The gang may have more
// time, or less, than when the rank came there at `since_ns`. With ckpt-run gone since `lost_ns`
// (0: it is there) nobody is left who would decide first.
Deadline BarrierDeadline(const wire::ControlPage& page, const wire::Order& at_cut, int64_t since_ns,
                         int64_t lost_ns) {
  const Result<wire::Order> now = wire::LoadOrder(page);
  const bool same = now.ok() && now->operation == at_cut.operation && now->round == at_cut.round;
  const int64_t deadline_ns = same ? now->deadline_boottime_ns : at_cut.deadline_boottime_ns;
  int64_t until_ns =
      deadline_ns == 0 ? since_ns + kBarrierMax.count() : deadline_ns + kBarrierGrace.count();
  if (lost_ns != 0) {
    const int64_t back_ns = lost_ns + kBarrierGrace.count();
    until_ns = deadline_ns == 0 ? std::min(until_ns, back_ns) : std::min(deadline_ns, back_ns);
  }
  return Deadline::At("the barriers of a stop", until_ns);
}

}  // namespace

Status GangSession::DoBoundary(int64_t user_step, StepResult* out) {
  if (TakeAttention(kPage)) AdoptPage();
  TakeAttention(kSignal);  // the watch thread passes it on; the gang answers with a cut
  CutWait wait;
  wait.peer_alive = [this] { return link_->up(); };
  wait.on_wait = [this] { SetPhaseOf(wire::RankPhase::kAtCut); };
  const CutAction action = AwaitCut(page(), wait);
  Status status;
  if (action == CutAction::kSave) status = SaveAtCut(user_step, out);
  if (action == CutAction::kStop) status = StopAtCut(user_step, out);
  if (out->kind == RequestKind::kStop) return status;
  SetPhaseOf(wire::RankPhase::kRunning);
  if (!SaveIsDue()) return status;
  SaveRequest request;
  request.step = user_step;
  Result<std::shared_ptr<Save>> save = DoBeginSave(request);
  if (save.ok()) out->kind = RequestKind::kSave;
  if (status.ok()) status = save.status();
  return status;
}

// An earlier save that failed is no reason to lose this one.
void GangSession::FenceBeforeCut() {
  if (const Status earlier = DoFence(); !earlier.ok()) LogError(earlier.message());
}

// A save that somebody outside asked for: stage, and run on.
Status GangSession::SaveAtCut(int64_t user_step, StepResult* out) {
  SetPhaseOf(wire::RankPhase::kStaging);
  Result<wire::Order> order = wire::LoadOrder(*page());
  Grant grant;
  Status status = order.status();
  if (order.ok()) {
    grant = Grant{order->slot, order->generation, order->attempt, false};
    FenceBeforeCut();
    status = StageNow(grant, user_step);
  }
  EndSave(page());
  CKPT_PASS("session.save.staged");
  if (status.ok()) status = Sealed(grant, user_step);
  if (!status.ok()) {
    StageFailed(grant, status);
    return status;
  }
  out->kind = RequestKind::kSave;
  return OkStatus();
}

Status GangSession::StopAtCut(int64_t user_step, StepResult* out) {
  SetPhaseOf(wire::RankPhase::kStaging);
  CKPT_ASSIGN_OR_RETURN(const wire::Order order, wire::LoadOrder(*page()));
  const Grant grant{order.slot, order.generation, order.attempt, true};
  CKPT_PASS("session.stop.cut");
  FenceBeforeCut();
  Status status = StageNow(grant, user_step);
  if (!status.ok()) {
    StageFailed(grant, status);
    // All go back, and so does this one; whether it is told or not, it has not voted.
    if (AwaitBarrier(order, 2, BoottimeNs()) == Told::kBack) GoBack(order).IgnoreError();
    if (!link_->up()) TakeBack(page());
    return status;
  }
  if (const Status sealed = Sealed(grant, user_step); !sealed.ok()) {
    TakeBack(page());  // never voted: ckpt-run is gone, training goes on
    return OkStatus();
  }
  SetPhaseOf(wire::RankPhase::kSealed);
  CKPT_PASS("session.stop.sealed");
  return AtBarriers(order, out);
}

// The vote is given: from here on the gang decides (I2).
Status GangSession::AtBarriers(const wire::Order& order, StepResult* out) {
  const int64_t since_ns = BoottimeNs();
  Told told = AwaitBarrier(order, 2, since_ns);
  if (told == Told::kBack) return GoBack(order);
  const Status down =
      comms_->TakeDown(BarrierDeadline(*page(), order, since_ns, lost_ns_.load())
                           .Min(Deadline("taking down communicators", kCommDownMax)));
  if (told == Told::kForward) return Leave(order, told, out);
  SetPhaseOf(wire::RankPhase::kCommsDown);
  CKPT_PASS("session.stop.down");
  link_
      ->Post(wire::CommsDown{order.operation, order.round, static_cast<uint32_t>(down.code()),
                             down.message()})
      .IgnoreError();  // ckpt-run is gone: the outcome on the page decides, or the deadline
  told = AwaitBarrier(order, 3, since_ns);
  return told == Told::kBack ? GoBack(order) : Leave(order, told, out);
}

// Pre: mutex_ is held.
GangSession::Told GangSession::Heard(const wire::Order& order, uint32_t barrier) {
  if (back_ && back_->operation == order.operation && back_->round >= order.round)
    return Told::kBack;
  if (released_ && released_->operation == order.operation && released_->round == order.round &&
      released_->barrier >= barrier)
    return Told::kReleased;
  // ckpt-run stores an outcome on the page before it tells it, and may have died in between.
  const Result<wire::Order> now = wire::LoadOrder(*page());
  if (!now.ok() || now->operation != order.operation) return Told::kGoOn;
  // These two are final; another ckpt-run that answers by now would not tell them again.
  if (now->outcome == wire::PageOutcome::kReleased) return Told::kReleased;
  if (now->outcome == wire::PageOutcome::kEnded) return Told::kForward;
  const bool back = now->outcome == wire::PageOutcome::kRolledBack && !comms_->down();
  if (back && !link_->up()) return Told::kBack;
  return Told::kGoOn;
}

GangSession::Told GangSession::AwaitBarrier(const wire::Order& order, uint32_t barrier,
                                            int64_t since_ns) {
  MutexLock lock(mutex_);
  for (;;) {
    if (const Told told = Heard(order, barrier); told != Told::kGoOn) return told;
    const Deadline deadline = BarrierDeadline(*page(), order, since_ns, lost_ns_.load());
    if (deadline.Expired()) return Told::kForward;
    // Before it has voted, a rank without ckpt-run goes back by itself.
    const bool voted = page()->phase.load() != static_cast<uint32_t>(wire::RankPhase::kStaging);
    if (!voted && !link_->up()) return Told::kBack;
    told_.WaitUntil(mutex_, deadline.Min(Deadline("a look at the page", kBarrierLook)));
  }
}

Status GangSession::Leave(const wire::Order& order, Told why, StepResult* out) {
  if (why == Told::kForward)
    LogError(Who() + ": the gang's decision did not come in time; leaving, the staged copy stays");
  CKPT_PASS("session.stop.leave");
  SetPhaseOf(wire::RankPhase::kReleased);
  out->kind = RequestKind::kStop;
  out->deadline_boottime_ns = order.deadline_boottime_ns;
  return OkStatus();
}

Status GangSession::GoBack(const wire::Order& order) {
  wire::RolledBack told;
  {
    MutexLock lock(mutex_);
    if (back_ && back_->operation == order.operation) told = *back_;
  }
  LogInfo(Who() + ": the stop was taken back: " + told.why);
  if (!told.rebuild) return OkStatus();
  const std::string scope = CommScope() + "/r" + std::to_string(told.rebuild_id);
  const Status status = comms_->Rebuild(scope, Deadline("rebuilding communicators", kCommUpMax));
  link_
      ->Post(wire::CommsUp{order.operation, static_cast<uint32_t>(status.code()), status.message()})
      .IgnoreError();  // the gang's own deadline decides then
  return status;
}

}  // namespace ckpt::session
