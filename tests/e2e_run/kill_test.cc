// SIGKILL and SIGSTOP of a rank and of ckpt-run at each stored arrow of a suspend, a save and a
// resume: all ranks stop or none does, what was durable or complete is gone on from, nobody waits
// without end, nothing is left. A slice runs always; the whole matrix:
//   CKPT_KILL_MATRIX=1 tests/e2e_run_test --gtest_filter='*KillAtEveryArrow*'
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>

#include <chrono>
#include <filesystem>
#include <thread>

#include "tests/e2e_run/harness.h"

namespace ckpt::e2e {
namespace {

const std::vector<std::string>& kArgs = kTraining;

enum class During { kSuspend, kSave, kResume };

struct Arrow {
  During during;
  const char* point;  // with :NTH and @RANK
  const char* action;
  bool rank() const { return std::string(point).find('@') != std::string::npos; }
  bool stops() const { return std::string(action) == "stop"; }
};

std::ostream& operator<<(std::ostream& out, const Arrow& arrow) {
  return out << arrow.point << " " << arrow.action;
}

// Points of ckpt-run and of rank 1, in the order in which an operation passes them.
std::vector<Arrow> Arrows() {
  constexpr const char* kSuspend[] = {
      "run.leader.notice",         "run.leader.operation:1",
      "run.leader.operation:2",    "run.leader.operation:3",
      "run.leader.operation:4",    "run.node.barrier2",
      "run.node.write:2",          "store.begin.after_dir:2",
      "engine.write.finish:3",     "store.draining.after_mark",
      "run.node.barrier3",         "run.node.gone",
      "store.commit.after_link:2", "store.commit.after_manifest:2",
      "session.stop.cut@1",        "engine.capture.begin:2@1",
      "engine.staging.seal:2@1",   "session.stop.sealed@1",
      "session.stop.down@1",       "session.stop.leave@1",
  };
  constexpr const char* kSave[] = {
      "run.node.grant",          "engine.write.create",      "store.commit.begin",
      "store.commit.after_link", "engine.capture.begin:1@1", "engine.staging.seal:1@1",
  };
  constexpr const char* kResume[] = {
      "store.claim.after_claim", "store.claim.after_list", "run.node.start",
      "engine.open.manifest@1",  "engine.load.begin@1",    "engine.load.chunk@1",
  };
  const bool whole = getenv("CKPT_KILL_MATRIX") != nullptr;
  std::vector<Arrow> all;
  const auto add = [&all, whole](During during, const char* point, bool slice) {
    if (whole || slice) all.push_back({during, point, "kill"});
    if (whole) all.push_back({during, point, "stop"});
  };
  for (const char* point : kSuspend) {
    const std::string name = point;
    add(During::kSuspend, point, name == "run.node.barrier3" || name == "session.stop.sealed@1");
  }
  for (const char* point : kSave) {
    add(During::kSave, point, std::string(point) == "engine.staging.seal:1@1");
  }
  for (const char* point : kResume) {
    add(During::kResume, point, std::string(point) == "engine.load.begin@1");
  }
  return all;
}

class KillAtEveryArrow : public testing::TestWithParam<Arrow> {
 protected:
  RunProcess Start(const std::string& fault) {
    job_.SetEnv("CKPT_FAULT_AT", fault);
    std::vector<std::string> args = kArgs;
    args.insert(args.end(), {"--save-at", "10"});
    RunProcess run = job_.Start({"--ranks", "2", "--grace", "8"}, args);
    job_.SetEnv("CKPT_FAULT_AT", "");
    return run;
  }
  // False: it never came there.
  bool AwaitFault(RunProcess* run) {
    const Deadline deadline("a fault point", std::chrono::seconds(kGenerousSeconds));
    while (run->Output().find("fault point") == std::string::npos) {
      if (!run->Running() || deadline.Expired()) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return run->Output().find("fault point") != std::string::npos;
  }
  void AwaitNoRank() {
    const Deadline deadline("the end of the ranks", std::chrono::seconds(kGenerousSeconds));
    while (!LivingRanks(job_.dir()).empty() && !deadline.Expired()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    EXPECT_TRUE(LivingRanks(job_.dir()).empty()) << "ranks are left, or wait without end";
  }

  Job job_;
};

TEST_P(KillAtEveryArrow, AllOrNoneAndNothingIsLost) {
  const Arrow& arrow = GetParam();
  const std::string fault = std::string(arrow.point) + "=" + arrow.action;
  std::string durable;
  if (arrow.during == During::kResume) {
    RunProcess first = Start("");
    ASSERT_TRUE(job_.WaitForStep(1, 20));
    first.Signal(SIGTERM);
    ASSERT_EQ(first.Wait(), 75) << first.Output();
    durable = job_.Durable().at(0);
  }
  {
    RunProcess run = Start(fault);
    if (arrow.during == During::kSuspend) {
      ASSERT_TRUE(run.WaitFor("durable: s10.e1.a1"));
      durable = "s10.e1.a1";
      ASSERT_TRUE(job_.WaitForStep(1, 20));
      run.Signal(SIGTERM);
    }
    ASSERT_TRUE(AwaitFault(&run)) << fault << " was never reached:\n" << run.Output();
    if (arrow.stops() && arrow.rank()) {
      // It looks alive and does nothing: a notice gets rid of it in time.
      run.Signal(SIGTERM);
    } else if (arrow.stops()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(500));
      run.Signal(SIGCONT);
      if (arrow.during != During::kSuspend) run.Signal(SIGTERM);
    }
    const int code = run.Wait();
    if (!arrow.stops() && !arrow.rank()) {
      EXPECT_EQ(code, 128 + SIGKILL);
    } else if (arrow.stops() && !arrow.rank()) {
      EXPECT_EQ(code, 75) << run.Output();
    }
    AwaitNoRank();
  }
  const std::vector<std::string> left = job_.Durable();
  if (!durable.empty()) {
    ASSERT_FALSE(left.empty()) << durable << " is lost";
    EXPECT_NE(std::find(left.begin(), left.end(), durable), left.end()) << durable << " is lost";
  }
  RunProcess again = job_.Start({"--ranks", "2"}, kRest);
  EXPECT_EQ(again.Wait(), 0) << again.Output();
  if (!left.empty()) {
    EXPECT_NE(again.Output().find(", " + left[0]), std::string::npos) << again.Output();
  }
  ExpectSameTrajectory(job_, 2, kArgs);
  for (const auto& entry : std::filesystem::directory_iterator(job_.dir())) {
    EXPECT_FALSE(entry.path().filename().string().starts_with("ckpt-run-")) << entry.path();
  }
}

INSTANTIATE_TEST_SUITE_P(All, KillAtEveryArrow, testing::ValuesIn(Arrows()),
                         [](const testing::TestParamInfo<Arrow>& info) {
                           std::string name = std::string(info.param.point) + info.param.action;
                           for (char& c : name) c = isalnum(c) ? c : '_';
                           return name;
                         });

}  // namespace
}  // namespace ckpt::e2e
