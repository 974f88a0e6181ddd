#include "tests/e2e_run/harness.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "libckpt/os/stream.h"
#include "libckpt/storage/file/file_store.h"

namespace ckpt::e2e {
namespace {

namespace fs = std::filesystem;

std::string ReadAll(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

// Polls, for what is waited for is in other processes.
template <typename Condition>
bool Eventually(int seconds, Condition condition) {
  const Deadline deadline("a condition of a test", std::chrono::seconds(seconds));
  while (!condition()) {
    if (deadline.Expired()) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return true;
}

}  // namespace

RunProcess::~RunProcess() {
  if (!pidfd_.valid() || exit_code_ >= 0) return;
  Signal(SIGKILL);
  pidfd_.Reap(Deadline("killing ckpt-run", std::chrono::seconds(10))).status().IgnoreError();
}

bool RunProcess::Running() {
  if (exit_code_ >= 0) return false;
  Result<std::optional<os::ExitStatus>> ended = pidfd_.TryReap();
  if (ended.ok() && ended->has_value()) exit_code_ = (*ended)->ShellCode();
  return exit_code_ < 0;
}

int RunProcess::Wait(int seconds) {
  const bool ended = Eventually(seconds, [this] { return !Running(); });
  EXPECT_TRUE(ended) << "ckpt-run does not end; it said:\n" << Output();
  return exit_code_;
}

std::string RunProcess::Output() const { return ReadAll(output_); }

bool RunProcess::WaitFor(const std::string& text, int seconds) {
  bool found = false;
  Eventually(seconds, [&] {
    const bool running = Running();  // first: what it said last is in the file by then
    found = Output().find(text) != std::string::npos;
    return found || !running;
  });
  EXPECT_TRUE(found) << "'" << text << "' was not said; but:\n" << Output();
  return found;
}

Job::Job() {
  std::string path = testing::TempDir() + "e2e-run-XXXXXX";
  dir_ = ::mkdtemp(path.data()) == nullptr ? "" : path;
  EXPECT_FALSE(dir_.empty());
}

Job::~Job() {
  for (const pid_t pid : LivingRanks(dir_)) ::kill(pid, SIGKILL);
  if (testing::Test::HasFailure()) return;  // left for whoever looks into it
  std::error_code error;
  fs::remove_all(dir_, error);
}

RunProcess Job::Start(std::vector<std::string> flags, std::vector<std::string> rank_args) {
  rank_args.insert(rank_args.begin(), {CKPT_RANK_PROGRAM, dir_});
  return StartCommand(std::move(flags), std::move(rank_args));
}

RunProcess Job::StartCommand(std::vector<std::string> flags, std::vector<std::string> command) {
  os::SpawnOptions options;
  options.argv = {CKPT_RUN_PROGRAM, "--job", "t", "--store", store()};
  options.argv.insert(options.argv.end(), flags.begin(), flags.end());
  options.argv.push_back("--");
  options.argv.insert(options.argv.end(), command.begin(), command.end());
  std::vector<std::string> env = os::CurrentEnv();
  os::SetEnv(&env, "XDG_RUNTIME_DIR", dir_);  // what a killed ckpt-run leaves goes with the test
  for (const auto& [name, value] : env_) {
    if (!value.empty()) os::SetEnv(&env, name, value);
  }
  options.env = env;
  const std::string output = dir_ + "/run" + std::to_string(started_++) + ".out";
  Result<os::UniqueFd> out = os::OpenAppend(output);
  EXPECT_TRUE(out.ok());
  options.stdout_fd = options.stderr_fd = print_to_ >= 0 ? print_to_ : out->get();
  Result<os::Pidfd> pidfd = os::Spawn(options);
  EXPECT_TRUE(pidfd.ok()) << pidfd.status().ToString();
  return RunProcess(pidfd.ok() ? std::move(pidfd).value() : os::Pidfd(), output);
}

std::map<long, std::string> Job::Trajectory(int rank) const {
  std::ifstream in(dir_ + "/rank" + std::to_string(rank) + ".steps");
  std::map<long, std::string> steps;
  for (std::string line; std::getline(in, line);) {
    const size_t space = line.find(' ');
    if (space == std::string::npos || line.size() < space + 17) continue;  // being written
    const long step = line.starts_with("done") ? -1 : atol(line.c_str());
    const auto [it, added] = steps.emplace(step, line.substr(space + 1));
    EXPECT_TRUE(added || it->second == line.substr(space + 1))
        << "rank " << rank << " computed step " << step << " twice, differently";
  }
  return steps;
}

bool Job::WaitForStep(int rank, long step) {
  const bool there = Eventually(kGenerousSeconds, [&] { return Trajectory(rank).contains(step); });
  EXPECT_TRUE(there) << "rank " << rank << " did not come to step " << step;
  return there;
}

std::vector<std::string> Job::Durable() const {
  std::vector<std::string> names;
  Result<std::vector<storage::CheckpointInfo>> list = storage::OpenFileStore(store())->List();
  EXPECT_TRUE(list.ok()) << list.status().ToString();
  if (!list.ok()) return names;
  for (const storage::CheckpointInfo& info : *list) {
    if (info.committed && info.visible) names.push_back(info.id.ToString());
  }
  return names;
}

void Job::LetGo() const { std::ofstream(dir_ + "/go"); }

void Job::Reset() {
  std::error_code error;
  fs::remove_all(store(), error);
  for (const auto& entry : fs::directory_iterator(dir_)) {
    if (entry.path().extension() == ".steps") fs::remove(entry.path(), error);
  }
}

std::vector<std::string> With(const std::vector<std::string>& more) {
  std::vector<std::string> args = kTraining;
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

long LastStep(const Job& job, int rank) { return job.Trajectory(rank).rbegin()->first; }

std::vector<std::map<long, std::string>> Reference(int ranks,
                                                   const std::vector<std::string>& rank_args) {
  std::vector<std::string> args = rank_args;
  args[1] = "0";  // no pauses
  static std::map<std::pair<int, std::vector<std::string>>,
                  std::vector<std::map<long, std::string>>>
      known;
  if (const auto it = known.find({ranks, args}); it != known.end()) return it->second;
  Job job;
  RunProcess run = job.Start({"--ranks", std::to_string(ranks)}, args);
  EXPECT_EQ(run.Wait(), 0) << run.Output();
  std::vector<std::map<long, std::string>> trajectories;
  for (int rank = 0; rank < ranks; ++rank) trajectories.push_back(job.Trajectory(rank));
  known[{ranks, args}] = trajectories;
  return trajectories;
}

void ExpectSameTrajectory(const Job& job, int ranks, const std::vector<std::string>& rank_args) {
  const auto reference = Reference(ranks, rank_args);
  for (int rank = 0; rank < ranks; ++rank) {
    const auto steps = job.Trajectory(rank);
    EXPECT_TRUE(steps == reference[static_cast<size_t>(rank)])
        << "rank " << rank << ": " << steps.size() << " steps, the uninterrupted run has "
        << reference[static_cast<size_t>(rank)].size();
  }
}

std::vector<pid_t> LivingRanks(const std::string& dir) {
  std::vector<pid_t> pids;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("/proc", error)) {
    const pid_t pid = atoi(entry.path().filename().c_str());
    if (pid <= 0) continue;
    const std::string command = ReadAll(entry.path().string() + "/cmdline");
    const bool rank = command.find(CKPT_RANK_PROGRAM) == 0;
    if (rank && command.find(dir) != std::string::npos) pids.push_back(pid);
  }
  return pids;
}

}  // namespace ckpt::e2e
