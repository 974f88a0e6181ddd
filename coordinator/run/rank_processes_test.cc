#include "coordinator/run/rank_processes.h"

#include <gtest/gtest.h>

namespace ckpt::run {
namespace {

Deadline Soon() { return Deadline("a test of rank processes", std::chrono::seconds(60)); }

RankCommand Shell(const std::string& script) {
  return {
      .rank = 0, .argv = {"sh", "-c", script}, .env = os::CurrentEnv(), .log_file = "/dev/null"};
}

struct Launched {
  std::unique_ptr<os::EventLoop> loop = os::EventLoop::Create().value();
  bool blind = false;  // /proc cannot be read
  bool gone = false;
  std::string stuck;
  RankProcesses processes{loop.get(),
                          {.exited = [](uint32_t, const os::ExitStatus&) {},
                           .all_gone = [this] { gone = true; },
                           .stuck = [this](const std::string& why) { stuck = why; }},
                          [this]() -> Result<std::vector<os::ProcessInfo>> {
                            if (blind) return Unavailable("/proc is not there");
                            return os::LivingDescendants();
                          }};

  template <typename Condition>
  bool Until(Condition condition) {
    const Deadline deadline = Soon();
    while (!condition() && !deadline.Expired()) EXPECT_TRUE(loop->RunOnce(deadline).ok());
    return condition();
  }
};

TEST(RankProcesses, GoneIsSaidOnlyOfWhatWasMeasured) {
  ASSERT_TRUE(os::BecomeSubreaper().ok());
  Launched launched;
  launched.blind = true;
  ASSERT_TRUE(launched.processes.Start({Shell("exit 0")}).ok());
  ASSERT_TRUE(launched.Until([&] { return launched.gone || !launched.stuck.empty(); }));
  EXPECT_FALSE(launched.gone);
  EXPECT_NE(launched.stuck.find("/proc is not there"), std::string::npos) << launched.stuck;
  launched.blind = false;
  EXPECT_TRUE(launched.Until([&] { return launched.gone; }));
}

TEST(RankProcesses, WhatTheRanksLeaveBehindIsKilledBeforeGoneIsSaid) {
  ASSERT_TRUE(os::BecomeSubreaper().ok());
  Launched launched;
  ASSERT_TRUE(launched.processes.Start({Shell("setsid sleep 1000 & exit 0")}).ok());
  ASSERT_TRUE(launched.Until([&] { return launched.gone; }));
  EXPECT_TRUE(os::LivingDescendants()->empty());
}

}  // namespace
}  // namespace ckpt::run
