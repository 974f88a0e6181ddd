// Fault points: one line in the code under test, nothing at all in a release build (CKPT_FAULTS
// off).
//
//   CKPT_FAULT("store.commit.before_link");      // returns the armed Status from the enclosing
//   function
//
// A test arms a point and must check fired() before it ends: a fault that was never reached proves
// nothing.
#pragma once

#include <cstdint>
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

// What the macro calls.
Status PassFaultPoint(std::string_view point);

#if defined(CKPT_FAULTS)
#define CKPT_FAULT(point) CKPT_RETURN_IF_ERROR(::ckpt::PassFaultPoint(point))
#else
#define CKPT_FAULT(point) \
  do {                    \
  } while (0)
#endif

}  // namespace ckpt
