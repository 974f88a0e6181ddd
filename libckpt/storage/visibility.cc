#include "libckpt/storage/visibility.h"

#include <algorithm>
#include <set>

#include "libckpt/format/names.h"

namespace ckpt::storage {
namespace {

constexpr std::string_view kTrashPrefix = ".trash-";
constexpr std::string_view kDeadPrefix = ".dead-";

ParsedName ParseEpochName(std::string_view name) {
  const Result<Epoch> list = format::ParseEpochFileName(name);
  const Result<Epoch> claim = format::ParseClaimFileName(name);
  if (list.ok() && list->value() <= kEpochMax) return {NameKind::kList, *list, {}};
  if (claim.ok() && claim->value() <= kEpochMax) return {NameKind::kClaim, *claim, {}};
  return {};
}

ParsedName ParseRetired(NameKind kind, std::string_view rest) {
  const size_t dash = rest.find('-');
  if (dash == std::string_view::npos) return {};
  // The number of an epoch is spelled as in a list's name.
  const ParsedName by = ParseEpochName("EPOCH." + std::string(rest.substr(0, dash)));
  const Result<AttemptId> id = AttemptId::Parse(rest.substr(dash + 1));
  if (by.kind != NameKind::kList || !id.ok()) return {};
  return {kind, by.epoch, *id};
}

std::string Epochs(const EpochView& view) {
  return "epoch " + std::to_string(view.newest_claim.value());
}

}  // namespace

bool EpochList::Names(const AttemptId& id) const {
  return std::binary_search(adopted.begin(), adopted.end(), id);
}

Verdict MayCommit(const AttemptId& id, const EpochView& view) {
  const bool newer_claim = view.newest_claim > id.epoch;
  if (newer_claim && view.newest_list.epoch < view.newest_claim) return Verdict::kUndecided;
  if (newer_claim) return view.newest_list.Names(id) ? Verdict::kYes : Verdict::kFenced;
  return view.newest_list.epoch == id.epoch ? Verdict::kYes : Verdict::kUnclaimed;
}

bool IsVisible(const AttemptId& id, bool committed, const EpochList& newest) {
  if (!committed || newest.epoch.value() == 0) return false;
  return id.epoch == newest.epoch || newest.Names(id);
}

std::vector<AttemptId> ComposeList(Epoch claimed, const EpochList& base,
                                   const std::vector<SeenAttempt>& seen,
                                   const std::vector<AttemptId>& adopt_also) {
  std::set<AttemptId> list(base.adopted.begin(), base.adopted.end());
  for (const SeenAttempt& attempt : seen) {
    const bool counts = attempt.committed || attempt.draining;
    if (attempt.id.epoch == base.epoch && counts && attempt.place != Place::kDead)
      list.insert(attempt.id);
  }
  for (const AttemptId& id : adopt_also) {
    if (id.epoch < claimed) list.insert(id);
  }
  for (const SeenAttempt& attempt : seen) {
    if (attempt.place == Place::kDead) list.erase(attempt.id);
  }
  return {list.begin(), list.end()};
}

ParsedName ParseName(std::string_view name) {
  if (name == format::kJobFile) return {NameKind::kJob, {}, {}};
  if (name.starts_with(kTrashPrefix))
    return ParseRetired(NameKind::kTrash, name.substr(kTrashPrefix.size()));
  if (name.starts_with(kDeadPrefix))
    return ParseRetired(NameKind::kDead, name.substr(kDeadPrefix.size()));
  const Result<AttemptId> id = AttemptId::Parse(name);
  if (!id.ok()) return ParseEpochName(name);
  return {NameKind::kAttempt, id->epoch, *id};
}

std::string TrashName(Epoch by, const AttemptId& id) {
  return std::string(kTrashPrefix) + std::to_string(by.value()) + "-" + id.ToString();
}
std::string DeadName(Epoch by, const AttemptId& id) {
  return std::string(kDeadPrefix) + std::to_string(by.value()) + "-" + id.ToString();
}

Status FencedError(const AttemptId& id, const EpochView& view, std::string_view where) {
  return FailedPrecondition(
      std::string(where) + ": " + id.ToString() + " of epoch " + std::to_string(id.epoch.value()) +
      " is fenced: " + Epochs(view) +
      " has taken over the job and did not adopt it; end this run, the newer one goes on");
}

Status UndecidedError(const AttemptId& id, const EpochView& view, std::string_view where) {
  return Unavailable(
             std::string(where) + ": whether " + id.ToString() + " of epoch " +
             std::to_string(id.epoch.value()) + " is committed is not decided: " + Epochs(view) +
             " has claimed the job but not written " + format::EpochFileName(view.newest_claim) +
             "; keep the copy and try again, or claim the next epoch")
      .MaybeApplied();
}

Status UnclaimedError(const AttemptId& id, const EpochView& view, std::string_view where) {
  return FailedPrecondition(
      std::string(where) + ": epoch " + std::to_string(id.epoch.value()) + " of " + id.ToString() +
      " has no complete claim here (the newest list is that of epoch " +
      std::to_string(view.newest_list.epoch.value()) + "); claim an epoch before saving");
}

}  // namespace ckpt::storage
