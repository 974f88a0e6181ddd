#include "coordinator/run/status_line.h"

#include <gtest/gtest.h>

namespace ckpt::run {
namespace {

TEST(StatusText, SaysWhatRunsAndWhatIsSafe) {
  RunView view{.phase = "running",
               .step = 1200,
               .step_time_ns = 320'000'000,
               .ranks_up = 4,
               .ranks = 4,
               .durable = "s1100.e1.a2"};
  EXPECT_EQ(StatusText(view),
            "running, step 1200, 3.12 steps/s, durable s1100.e1.a2, 4 of 4 ranks up");
  view.step_time_ns = 2'500'000'000;
  EXPECT_EQ(StatusText(view),
            "running, step 1200, 2.500 s a step, durable s1100.e1.a2, 4 of 4 ranks up");
}

TEST(StatusText, BeforeAnythingIsKnownItInventsNothing) {
  EXPECT_EQ(StatusText({.phase = "starting", .ranks = 2}),
            "starting, step 0, nothing durable yet, 0 of 2 ranks up");
}

TEST(StatusText, AnOperationComesFirstWithItsBytesAndTheTimeLeft) {
  const RunView view{.phase = "staging",
                     .step = 40,
                     .step_time_ns = 10'000'000,
                     .ranks_up = 2,
                     .ranks = 2,
                     .operation = "suspend",
                     .waits_for = "rank 1",
                     .doing = "staged",
                     .done = uint64_t{16} << 20,
                     .total = uint64_t{64} << 20,
                     .bytes_per_second = 24.0 * (1 << 20)};
  EXPECT_EQ(StatusText(view),
            "suspend: staging, waits for rank 1, staged 16.0 MiB of 64.0 MiB (25 %), 24.0 MiB/s, "
            "2 s left, step 40, 100 steps/s, nothing durable yet, 2 of 2 ranks up");
}

}  // namespace
}  // namespace ckpt::run
