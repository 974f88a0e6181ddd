// Notices ("give way by D") of one job, merged: an operator's, a scheduler's, a signal, a cloud's
// metadata. The gang obeys one effective notice; this book computes it.
//
// I1  The effective deadline is the earliest of those that stand, recomputed when one is withdrawn.
// I2  kill overrides everything.
// I3  If the next boundary is predicted later than deadline − stage − kill, that is known at once
// and
//     the fallback (kill, with the last checkpoint) is chosen now, not at the deadline.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/gang/messages.h"
#include "libckpt/base/status.h"

namespace ckpt::gang {

struct NoticeRequest {
  uint64_t id = 0;     // not 0
  std::string source;  // operator, scheduler, SIGTERM, slurm, preStop, metadata, hook:NAME
  Request request = Request::kSuspend;
  int64_t deadline_ns = 0;  // absolute, of this node's clock; 0 none
  bool hard = false;
  std::vector<uint32_t> ranks;  // empty: all
};

// What a rank's program said about itself: no boundary will come before `until_ns`.
struct PhaseHint {
  uint32_t rank = 0;
  std::string kind;  // set-up, compile, evaluation
  int64_t until_ns = 0;
  bool unknown = false;  // it did not say until when: `until_ns` is when it was heard of
};

struct NoticeTimes {
  int64_t step_ns = 0;   // one step, as measured
  int64_t stage_ns = 0;  // capture, as measured or bytes / measured bandwidth
  int64_t kill_ns = 0;
};

enum class Answer : uint8_t { kAck, kDefer, kFallback };
struct Effective {
  Request request = Request::kNone;  // kNone: nothing is asked
  int64_t deadline_ns = 0;
  bool hard = false;             // what is not released at this deadline is killed
  int64_t kill_deadline_ns = 0;  // the earliest deadline that kills; 0 none
  std::vector<uint64_t> ids;     // all that were merged, ascending
  std::vector<uint32_t> ranks;   // union; empty: all
  std::string sources;           // "SIGTERM, operator"
  Answer answer = Answer::kAck;
  int64_t eta_ns = 0;  // predicted arrival at a boundary (absolute)
  std::string why;     // kDefer, kFallback: for people
};

// Of two requests the one that takes more away.
Request Stronger(Request a, Request b);

class NoticeBook {
 public:
  // kInvalidArgument for id 0 or a request that is no notice. A repeated id replaces the older.
  Status Add(const NoticeRequest& notice);
  // kNotFound if it does not stand.
  Status Withdraw(uint64_t id);
  void SetPhase(const PhaseHint& hint);  // until_ns 0: training again
  bool empty() const { return notices_.empty(); }
  Effective Compute(int64_t now_ns, const NoticeTimes& times) const;

 private:
  std::map<uint64_t, NoticeRequest> notices_;
  std::map<uint32_t, PhaseHint> hints_;
};

}  // namespace ckpt::gang
