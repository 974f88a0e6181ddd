// What the end-to-end tests of ckpt-run share: a job directory of their own, ckpt-runs started and
// waited for, and the ranks' trajectories.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "libckpt/os/process.h"

namespace ckpt::e2e {

inline constexpr int kGenerousSeconds = 90;  // a loaded machine is no failure

class RunProcess {
 public:
  RunProcess(os::Pidfd pidfd, std::string output)
      : pidfd_(std::move(pidfd)), output_(std::move(output)) {}
  ~RunProcess();
  RunProcess(RunProcess&&) = default;

  void Signal(int signal) const { pidfd_.Signal(signal).IgnoreError(); }
  pid_t pid() const { return pidfd_.pid(); }
  bool Running();
  // Exit code as a shell gives it; -1 (and a failed expectation) if it does not end in time.
  int Wait(int seconds = kGenerousSeconds);
  // stdout and stderr so far, ranks' lines included.
  std::string Output() const;
  // False (and a failed expectation) if `text` does not appear in time.
  bool WaitFor(const std::string& text, int seconds = kGenerousSeconds);

 private:
  os::Pidfd pidfd_;
  std::string output_;
  int exit_code_ = -1;
};

class Job {
 public:
  Job();
  ~Job();

  // ckpt-run with --job t, this job's store, `flags`, and e2e_rank with `rank_args` after DIR.
  RunProcess Start(std::vector<std::string> flags, std::vector<std::string> rank_args);
  RunProcess StartCommand(std::vector<std::string> flags, std::vector<std::string> command);

  // For what is started from here on; an empty value takes it away.
  void SetEnv(const std::string& name, const std::string& value) { env_[name] = value; }
  // What is started from here on waits at these fault points (POINT[:NTH][@RANK]) until LetGo().
  void HoldAt(const std::string& point) {
    SetEnv("CKPT_FAULT_AT", point + "=wait:" + dir_ + "/go");
  }
  void LetGo() const;
  // What is started from here on prints there, and not into what Output() reads.
  void PrintTo(int fd) { print_to_ = fd; }

  const std::string& dir() const { return dir_; }
  std::string store() const { return dir_ + "/store"; }
  // Steps of a rank with the digest of its state; a step that was computed twice must have come out
  // the same. "done" is step -1.
  std::map<long, std::string> Trajectory(int rank) const;
  // Waits until that rank has written this step.
  bool WaitForStep(int rank, long step);
  // Names of the committed checkpoints, newest first.
  std::vector<std::string> Durable() const;
  // Forgets trajectories and checkpoints.
  void Reset();

 private:
  std::string dir_;
  int started_ = 0, print_to_ = -1;
  std::map<std::string, std::string> env_;
};

// Arguments of a rank: 600 steps of at least 5 ms, so that a busy machine comes to stop it before
// it is through, 32 KiB of weights; and more of them. What is left of it, in a hurry.
inline const std::vector<std::string> kTraining = {"600", "5", "4096"};
inline const std::vector<std::string> kRest = {"600", "1", "4096"};
std::vector<std::string> With(const std::vector<std::string>& more);

// The last step that a rank has written.
long LastStep(const Job& job, int rank);

#define EXPECT_SAID(run, text) \
  EXPECT_NE((run).Output().find(text), std::string::npos) << (text) << "\n" << (run).Output()

// The trajectories of an uninterrupted run.
std::vector<std::map<long, std::string>> Reference(int ranks,
                                                   const std::vector<std::string>& rank_args);

// A whole run of the ranks in `job` came out as an uninterrupted one.
void ExpectSameTrajectory(const Job& job, int ranks, const std::vector<std::string>& rank_args);

// Pids of living e2e_rank processes whose environment names this job directory.
std::vector<pid_t> LivingRanks(const std::string& dir);

}  // namespace ckpt::e2e
