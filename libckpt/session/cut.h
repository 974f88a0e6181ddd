// The rank's side of the control word, off the fast path: what to do at this boundary, and the
// compare-and-swaps that take a promise back. Pure but for the wait; coordinator/gang/member.h
// holds the other side.
//
// I1  A rank waits only at the cut, and never longer than the order's deadline: then its
// compare-and-swap to REFUSED wins against the commit and against barrier 1, or loses to exactly
// one of them.
// I2  Without a living ckpt-run a rank that waits takes its promise back and goes on.
#pragma once

#include <functional>

#include "libckpt/base/clock.h"
#include "libckpt/wire/page.h"

namespace ckpt::session {

enum class CutAction {
  kGoOn = 0,  // nothing is asked of this boundary (any more)
  kStop = 1,  // barrier 1 passed: stage everything, then wait for barriers
  kSave = 2,  // the word is STAGING by our own hand: stage what this rank writes, then EndSave
};

struct CutWait {
  Nanos max = std::chrono::seconds(60);        // where the order names no deadline
  Nanos look = std::chrono::milliseconds(50);  // how often peer_alive is asked
  std::function<bool()> peer_alive;
  std::function<void()> on_wait;  // once, before the first wait
};

// Pre: on the loop's thread, right after its fetch_add. Blocks: at the cut only.
CutAction AwaitCut(wire::ControlPage* page, const CutWait& wait);

// After a save at a cut, done or failed: STAGING → IDLE.
void EndSave(wire::ControlPage* page);

// Takes back a stop that was not sealed, without a ckpt-run to ask: STAGING → REFUSED.
void TakeBack(wire::ControlPage* page);

// → FINISHED from every state but STAGING; false at the deadline if it stays STAGING.
bool FinishWord(wire::ControlPage* page, const Deadline& deadline);

}  // namespace ckpt::session
