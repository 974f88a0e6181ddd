// A whole gang under one seed: time, messages, words, ranks, crashes. The same seed gives the same
// run, event by event.
//
// The machines under test are the real Leader and Member. Ranks are simulated as libckpt's session
// behaves: they train in lock-step (a rank leaves the collective of step b only when all have
// entered it), wait at cuts, stage chunk by chunk, and run on by themselves when their time is up.
// Messages are delayed, lost, doubled and overtaken; ranks, members and the leader die; the leader
// may return with the page it stored, or stay away.
//
// What must hold (each has a name that a failure prints):
//   one-boundary       one attempt is staged at one boundary, for one kind
//   before-cut         a word becomes PROPOSED only while its boundary is before the cut
//   own-round          a commit counts only for its round
//   legal-word         words change only as the page says
//   torn-comms         no rank enters a collective while another's communicators are down
//   staged-gang        "staged" only when every rank has sealed that generation
//   early-release      a rank is let go only after barrier 3 is stored, with the DRAINING mark set
//   stored-first       nothing is told that is not stored
//   restorable         the newest complete generation can be restored at every moment
//   torn-checkpoint    a committed checkpoint holds one boundary only
//   refilled           no slot is filled, or called free, while a rank fills it or a writer reads
//   it thrown-away        only a stop gives up a drain, and with one slot only after barrier 1
//   same-answer        one answer for all ranks that ask for a save at one boundary
//   crash-forward      a dead rank never leads to a roll back
//   dead-end           in the end all ranks run, or have finished, or are gone
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "coordinator/gang/mutations.h"

namespace ckpt::gang::sim {

struct SimOptions {
  uint64_t seed = 1;
  Mutations mutations;
  bool history = false;  // keep a readable line for each event
};

struct SimResult {
  std::string violation;  // name of what did not hold; empty: all held
  std::string detail;
  uint64_t events = 0;
  uint64_t trace = 0;  // digest of the run
  std::vector<std::string> history;
  // what happened, so that a test can tell that the schedules are worth something
  uint32_t suspended = 0, saved = 0, durable = 0, rolled_back = 0, ended = 0, finished = 0;
  uint32_t rebuilt = 0, refused = 0, restarts = 0, superseded = 0, raised = 0, mixed = 0;
  bool ok() const { return violation.empty(); }
};

SimResult RunSchedule(const SimOptions& options);

}  // namespace ckpt::gang::sim
