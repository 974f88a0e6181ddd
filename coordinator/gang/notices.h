// What is known when a notice ("give way by D") comes, and how it is taken.
#pragma once

#include <cstdint>
#include <string>

namespace ckpt::gang {

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

}  // namespace ckpt::gang
