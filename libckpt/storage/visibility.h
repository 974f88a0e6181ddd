// Who may commit, what is visible, and what a new epoch adopts: pure decisions on what a listing of
// the job's directory showed. Every store decides by these functions and by nothing else, so that
// the rules of docs/format/commit.md stand in one place; the tests run them through every order of
// events that models the protocol.
//
// The tempting alternative, "visible is what has a COMMIT", resurrects what was answered as fenced
// (S4): a COMMIT by itself proves nothing within a job; the list of the newest epoch does.
//
// I1  A claim without its list decides nothing: neither "fenced" nor "may commit".
// I2  What a list names is carried over by every later list until it is known to be dead.
// I3  A fenced attempt is on no later list, committed or not.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "libckpt/base/ids.h"
#include "libckpt/base/status.h"

namespace ckpt::storage {

// EPOCH.n: the attempts of older epochs that epoch n keeps.
struct EpochList {
  Epoch epoch;  // 0: there is none
  std::vector<AttemptId> adopted;
  bool Names(const AttemptId& id) const;
};

// What a look needs: the highest number of any claim or list, and the highest complete list.
struct EpochView {
  Epoch newest_claim;
  EpochList newest_list;
};

enum class Verdict {
  kYes,        // no newer claim, or the newest claim's list names the attempt
  kFenced,     // the newest claim has its list, and the attempt is not on it
  kUndecided,  // the newest claim has no list yet: wait (I1)
  kUnclaimed,  // the attempt's epoch never finished its claim in this store
};
Verdict MayCommit(const AttemptId& id, const EpochView& view);

bool IsVisible(const AttemptId& id, bool committed, const EpochList& newest);

// One attempt in a listing, under its own name or one that retention gave it.
enum class Place { kOwn, kTrash, kDead };
struct SeenAttempt {
  AttemptId id;
  Place place = Place::kOwn;
  bool committed = false;
  bool draining = false;
  bool operator==(const SeenAttempt&) const = default;
};

// The list of epoch `claimed`: the entries of `base` (the highest complete list below it) that are
// not known to be dead, the committed and the draining attempts of `base`'s epoch, and `adopt_also`
// as far as it is older than the claim. Sorted, without duplicates.
std::vector<AttemptId> ComposeList(Epoch claimed, const EpochList& base,
                                   const std::vector<SeenAttempt>& seen,
                                   const std::vector<AttemptId>& adopt_also);

// The names of a job's directory. Whatever parses as none of these is foreign: ignored, never
// deleted.
enum class NameKind {
  kForeign,
  kJob,      // JOB
  kClaim,    // EPOCH.<n>.claim
  kList,     // EPOCH.<n>
  kAttempt,  // s<step>.e<epoch>.a<attempt>
  kTrash,    // .trash-<epoch>-s…: being retired by that epoch
  kDead,     // .dead-<epoch>-s…: being deleted by that epoch
};
struct ParsedName {
  NameKind kind = NameKind::kForeign;
  Epoch epoch;   // of claim and list; of the retiring epoch
  AttemptId id;  // of attempt, trash and dead
};
ParsedName ParseName(std::string_view name);
std::string TrashName(Epoch by, const AttemptId& id);
std::string DeadName(Epoch by, const AttemptId& id);

// The refusal that names both epochs; `where` is the store's Describe().
Status FencedError(const AttemptId& id, const EpochView& view, std::string_view where);
Status UndecidedError(const AttemptId& id, const EpochView& view, std::string_view where);
Status UnclaimedError(const AttemptId& id, const EpochView& view, std::string_view where);

// Epochs are counted up by one; a number beyond this is no epoch of ours.
inline constexpr uint64_t kEpochMax = uint64_t{1} << 62;

}  // namespace ckpt::storage
