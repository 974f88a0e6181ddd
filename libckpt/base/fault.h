// Fault points: one line in the code under test, nothing at all in a release build (CKPT_FAULTS
// off).
//
//   CKPT_FAULT("store.commit.before_link");      // returns the armed Status from the enclosing
//   function
//
// A test arms a point and must check fired() before it ends: a fault that was never reached proves
// nothing. Points of another process are armed by its environment, and say on its stderr that they
// fired:
//
//   CKPT_FAULT_AT=POINT[:NTH][@RANK]=kill|stop|fail|sleep<MS>|wait:<FILE>,...
//
// NTH: that passage of it (1); @RANK: only where RANK says so. kill and stop are SIGKILL and
// SIGSTOP at this process, fail is UNAVAILABLE from the enclosing function (nothing where that has
// no status), wait lasts until the file exists, at each passage from that one on.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "libckpt/base/status.h"

namespace ckpt {

// Arms `point`: its n-th passage (1 = next) returns `status`, or every one from there on if
// `sticky`. The point "*" counts passages of all points.
class ArmedFault {
 public:
  ArmedFault(std::string_view point, Status status, uint64_t nth = 1, bool sticky = false);
  ~ArmedFault();  // disarms
  ArmedFault(const ArmedFault&) = delete;
  ArmedFault& operator=(const ArmedFault&) = delete;
  bool fired() const;
};

// Calls `hook` on the n-th passage of `point` from now (1 = next), once, under no lock, and disarms
// it before: what the hook does passes points again. This is how a test runs another actor's steps
// in the middle of one's own. Several may be armed.
class FaultHook {
 public:
  FaultHook(std::string_view point, std::function<void()> hook, uint64_t nth = 1);
  ~FaultHook();
  FaultHook(const FaultHook&) = delete;
  FaultHook& operator=(const FaultHook&) = delete;
  bool fired() const;

 private:
  uint64_t id_;
};

// What the macro calls.
Status PassFaultPoint(std::string_view point);

// CKPT_PASS: a point in a function that returns no status.
#if defined(CKPT_FAULTS)
#define CKPT_FAULT(point) CKPT_RETURN_IF_ERROR(::ckpt::PassFaultPoint(point))
#define CKPT_PASS(point) ::ckpt::PassFaultPoint(point).IgnoreError()
#else
#define CKPT_FAULT(point) \
  do {                    \
  } while (0)
#define CKPT_PASS(point) \
  do {                   \
  } while (0)
#endif

}  // namespace ckpt
