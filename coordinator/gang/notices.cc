#include "coordinator/gang/notices.h"

#include <algorithm>
#include <set>

#include "libckpt/base/clock.h"

namespace ckpt::gang {
namespace {

void Merge(const NoticeRequest& notice, Effective* out) {
  out->request = Stronger(out->request, notice.request);
  out->ids.push_back(notice.id);
  out->sources += (out->sources.empty() ? "" : ", ") + notice.source;
  if (notice.deadline_ns == 0) return;
  if (out->deadline_ns == 0 || notice.deadline_ns < out->deadline_ns) {
    out->deadline_ns = notice.deadline_ns;
  }
}

std::vector<uint32_t> UnionOfRanks(const std::map<uint64_t, NoticeRequest>& notices) {
  std::set<uint32_t> all;
  for (const auto& [id, notice] : notices) {
    if (notice.ranks.empty()) return {};
    all.insert(notice.ranks.begin(), notice.ranks.end());
  }
  return {all.begin(), all.end()};
}

}  // namespace

Request Stronger(Request a, Request b) {
  const auto weight = [](Request request) {
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
  };
  return weight(a) >= weight(b) ? a : b;
}

Status NoticeBook::Add(const NoticeRequest& notice) {
  if (notice.id == 0) return InvalidArgument("a notice needs an id other than 0");
  if (notice.request == Request::kNone) {
    return InvalidArgument("notice " + std::to_string(notice.id) + " asks for nothing");
  }
  notices_[notice.id] = notice;
  return OkStatus();
}

Status NoticeBook::Withdraw(uint64_t id) {
  if (notices_.erase(id) == 0) return NotFound("no notice " + std::to_string(id) + " stands");
  return OkStatus();
}

void NoticeBook::SetPhase(const PhaseHint& hint) {
  if (hint.until_ns == 0) {
    hints_.erase(hint.rank);
  } else {
    hints_[hint.rank] = hint;
  }
}

Effective NoticeBook::Compute(int64_t now_ns, const NoticeTimes& times) const {
  Effective out;
  for (const auto& [id, notice] : notices_) Merge(notice, &out);
  if (out.request == Request::kNone) return out;
  // The earliest deadline is obeyed; it kills only if one that kills is as early.
  for (const auto& [id, notice] : notices_) {
    if (!notice.hard || notice.deadline_ns == 0) continue;
    out.hard |= notice.deadline_ns == out.deadline_ns;
    if (out.kill_deadline_ns == 0 || notice.deadline_ns < out.kill_deadline_ns) {
      out.kill_deadline_ns = notice.deadline_ns;
    }
  }
  out.ranks = UnionOfRanks(notices_);
  out.eta_ns = now_ns + times.step_ns;
  const PhaseHint* slowest = nullptr;
  for (const auto& [rank, hint] : hints_) {
    if (hint.until_ns > out.eta_ns) {
      out.eta_ns = hint.until_ns;
      slowest = &hint;
    }
  }
  if (out.request == Request::kKill) return out;
  if (slowest != nullptr) {
    out.answer = Answer::kDefer;
    out.why = "rank " + std::to_string(slowest->rank) + " is in " + slowest->kind +
              " for another " + FormatDuration(Nanos(slowest->until_ns - now_ns));
  }
  const int64_t latest = out.deadline_ns - times.stage_ns - times.kill_ns;
  if (out.deadline_ns != 0 && out.eta_ns > latest) {
    out.answer = Answer::kFallback;
    const std::string reason = slowest != nullptr ? " (" + out.why + ")" : "";
    out.why = "the next boundary is expected in " + FormatDuration(Nanos(out.eta_ns - now_ns)) +
              reason + ", but it is needed within " +
              FormatDuration(Nanos(std::max<int64_t>(0, latest - now_ns))) +
              ": falling back to the newest complete copy";
  }
  return out;
}

}  // namespace ckpt::gang
