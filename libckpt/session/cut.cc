#include "libckpt/session/cut.h"

#include "libckpt/os/futex.h"

namespace ckpt::session {
namespace {

Word With(Word word, WordState state) {
  word.state = state;
  return word;
}

// From `from`, if it still is that, to `to`.
void MoveState(wire::ControlPage* page, WordState from, WordState to) {
  for (;;) {
    const Word word = wire::LoadWord(*page);
    if (word.state != from || wire::CasWord(page, word, With(word, to))) return;
  }
}

// The order's own, else `otherwise`.
Deadline OrderDeadline(const wire::ControlPage& page, const Deadline& otherwise) {
  const Result<wire::Order> order = wire::LoadOrder(page);
  if (!order.ok() || order->deadline_boottime_ns == 0) return otherwise;
  return Deadline::At("the gang's decision at the cut", order->deadline_boottime_ns);
}

}  // namespace

CutAction AwaitCut(wire::ControlPage* page, const CutWait& wait) {
  bool waited = false;
  const Deadline without_order("the gang's decision at the cut", wait.max);
  for (;;) {
    const Word word = wire::LoadWord(*page);
    if (!IsAtCut(word.boundary, word.cut)) return CutAction::kGoOn;
    if (word.state == WordState::kStaging) return CutAction::kStop;
    if (!IsProposed(word.state) && !IsCommitted(word.state)) return CutAction::kGoOn;
    if (word.state == WordState::kCommittedSave) {
      if (wire::CasWord(page, word, With(word, WordState::kStaging))) return CutAction::kSave;
      continue;
    }
    if (!waited && wait.on_wait) wait.on_wait();
    waited = true;
    // A raise comes with a deadline of its own, so the order is read anew each time.
    const Deadline deadline = OrderDeadline(*page, without_order);
    if (deadline.Expired() || !wait.peer_alive()) {
      if (wire::CasWord(page, word, With(word, WordState::kRefused))) return CutAction::kGoOn;
      continue;
    }
    const auto low = static_cast<uint32_t>(word.Pack());
    os::FutexWait(wire::FutexOf(*page), low,
                  deadline.Min(Deadline("a look at ckpt-run", wait.look)))
        .IgnoreError();  // woken, changed or time to look: the loop tells
  }
}

void EndSave(wire::ControlPage* page) { MoveState(page, WordState::kStaging, WordState::kIdle); }

void TakeBack(wire::ControlPage* page) {
  MoveState(page, WordState::kStaging, WordState::kRefused);
}

bool FinishWord(wire::ControlPage* page, const Deadline& deadline) {
  for (;;) {
    const Word word = wire::LoadWord(*page);
    if (word.state == WordState::kFinished) return true;
    if (word.state != WordState::kStaging) {
      if (wire::CasWord(page, word, With(word, WordState::kFinished))) return true;
      continue;
    }
    if (deadline.Expired()) return false;
    os::FutexWait(wire::FutexOf(*page), static_cast<uint32_t>(word.Pack()), deadline).IgnoreError();
  }
}

}  // namespace ckpt::session
