// A whole gang under one seed: time, messages, words, ranks, crashes. The same seed gives the same
// run, event by event.
//
// The machines under test are the real Leader and Member. Ranks are simulated as libckpt's session
// behaves: they train in lock-step (a rank leaves the collective of step b only when all have
// entered it), wait at cuts, stage chunk by chunk, are in phases without boundaries, and run on by
// themselves when their time is up. Messages are delayed, lost, doubled and overtaken. Ranks and
// members die and return; the leader dies before it stores, after it stored, after it sent, and may
// return with the page it stored, or stay away, and then a gang without ranks drains. Members are
// cut off from the others and come back; processes are stopped and go on; clocks leap.
//
// What must hold (each has a name that a failure prints), checked at every event:
//  the cut
//   one-boundary     one attempt is staged at one boundary, for one kind
//   one-round        one round names one cut, attempt, slot and kind
//   before-cut       a word becomes PROPOSED only while its boundary is before the cut
//   own-round        a commit counts only for its round
//   legal-word       words change only as the page says
//   own-deadline     a rank gives up at the cut at its leader's deadline, not at one that was moved
//  barriers
//   stored-first     nothing is told that is not stored
//   one-outcome      no round is released and also something else
//   vote-binds       who has voted SEALED goes back only on a stored outcome
//   no-return        nobody goes back after barrier 3
//   torn-comms       no rank enters a collective while another's communicators are down
//   staged-gang      "staged" only when every rank has sealed that generation
//   early-release    a rank is let go only after barrier 3 is stored, with the DRAINING mark set
//   released-whole   ... and with a whole copy in RAM of every rank, or in the store
//   finished-wins    a gang with a rank that had finished before is not released
//   crash-forward    a dead rank never leads to a roll back
//   crash-is-crash   ... and ends the gang at once
//  copies
//   restorable       the newest complete generation can be restored at every moment
//   torn-checkpoint  a committed checkpoint holds one boundary only
//   aborted-commit   an attempt that was aborted is not committed
//   refilled         no slot is filled, or called free, while a rank fills it or a writer reads it
//   thrown-away      only a stop gives up a drain, and with one slot only after barrier 1
//   same-answer      one answer for all ranks that ask for a save at one boundary
//   drain-lost       a drain gang makes what was released durable, and throws nothing away
//   rests            a machine that was ticked has no deadline behind it
//  notices
//   merged-deadline  what is answered names the earliest deadline of those that stand, and kill
//   said-late        whoever is killed at a deadline was told before that it would come to that
//   deadline-kept    a notice that kills is not given up before its deadline
//   kill-overrides   a kill ends the gang in the step in which it is heard
//   loss-booked      a gang that ends books what it loses, from the copy that stands
//   one-result       an operation has one result
//   notice-lost      ... and has one in the end
//  ends
//   ended-alive      no rank that can be reached outlives its gang
//   dead-end         in the end all ranks run, or have finished, or are gone
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "coordinator/gang/mutations.h"

namespace ckpt::gang::sim {

struct SimOptions {
  uint64_t seed = 1;
  uint32_t members = 0;  // 0: drawn from the seed, 1 to 8
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
  uint32_t losses = 0, fallbacks = 0, deferred = 0, withdrawn = 0, kills = 0, drained = 0;
  uint32_t rebuilt = 0, refused = 0, restarts = 0, superseded = 0, raised = 0, mixed = 0;
  bool ok() const { return violation.empty(); }
};

SimResult RunSchedule(const SimOptions& options);

}  // namespace ckpt::gang::sim
