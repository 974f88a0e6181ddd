// Bugs that tests plant in the machines, by name; the simulator must find each. They exist only in
// builds with fault points: elsewhere every flag is a constant false and the branch is gone.
#pragma once

namespace ckpt::gang {

#if defined(CKPT_FAULTS)
#define CKPT_MUTATION(name) bool name = false
#else
#define CKPT_MUTATION(name) static constexpr bool name = false
#endif

struct Mutations {
  CKPT_MUTATION(passed_is_beyond);   // boundary > cut instead of >= (G7)
  CKPT_MUTATION(ignore_rounds);      // messages of lower rounds count (G4)
  CKPT_MUTATION(reuse_attempt);      // one attempt number for all rounds (G5)
  CKPT_MUTATION(no_rank_timeout);    // a rank at a committed cut waits for ever (G6)
  CKPT_MUTATION(back_after_sealed);  // a member goes back by itself after it voted (G1)
  CKPT_MUTATION(back_after_crash);   // a dead rank after barrier 2 rolls back (G8)
  CKPT_MUTATION(rebuild_waits);      // a rebuild that misses its deadline goes on waiting (G8)
  CKPT_MUTATION(free_draining);      // a slot is reused while its writers run (G2)
  CKPT_MUTATION(forget_filling);     // a slot is called free while a rank fills it
  CKPT_MUTATION(save_supersedes);    // a periodic save throws a drain away (G9)
  CKPT_MUTATION(cancel_early);       // one slot: the older save is cancelled before barrier 1 (G3)
  CKPT_MUTATION(tell_before_store);  // outcomes are told before they are stored
  CKPT_MUTATION(release_before_mark);      // barrier 3 without the DRAINING mark
  CKPT_MUTATION(comms_down_early);         // barrier 2 passes without the last vote
  CKPT_MUTATION(answer_saves_apart);       // each member's request for a save is answered by itself
  CKPT_MUTATION(kind_from_latest);         // a save's cut is turned into a stop in place (G11)
  CKPT_MUTATION(forget_finished);          // a finished rank does not refuse
  CKPT_MUTATION(keep_withdrawn_deadline);  // a withdrawn notice's deadline goes on counting
  CKPT_MUTATION(expire_together);          // one merged deadline that passes refuses all
  CKPT_MUTATION(late_is_not_said);         // nobody hears that a boundary will come too late
  CKPT_MUTATION(forget_loss);              // a gang ends and nobody books what it lost
  CKPT_MUTATION(drop_stop_copy);           // a stop's own copy is dropped when its drain fails
  CKPT_MUTATION(lost_is_settled);  // what a member that is out of reach must hear is forgotten
  CKPT_MUTATION(kill_waits);       // a kill waits like any other command
};
#undef CKPT_MUTATION

}  // namespace ckpt::gang
