// A small world for the core's tests: agents and gangs that behave, time, a network that delays,
// repeats and breaks, and a coordinator that can die around any commit. It keeps its own truth
// (which processes exist, which copies are whole) and compares it with what the core does.
//
// One seed, one run: the same seed gives the same trace.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <queue>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "coordinator/core/core.h"

namespace ckpt::core {

inline constexpr int64_t kMs = 1'000'000;

// A process group of one job on one node: what a ckpt-run and its ranks are.
struct FakeRun {
  Launch launch;
  NodeJobState state = NodeJobState::kStarting;
  uint64_t stop_op = 0;
  bool stopping = false;
  bool suspend_failed = false;
  std::string message;
  PhaseTimes times;
  int64_t step = 0;
  bool run_ended = false;
  uint64_t drain_op = 0;
  std::string resumed_from;
  bool behind = false;
  bool stepped = false;
};

// A copy of a whole gang, and which node holds which ranks of it.
struct FakeCopy {
  uint64_t epoch = 0;
  uint32_t attempt = 0;
  int64_t step = 0;
  bool durable = false;
  std::map<std::string, std::pair<uint32_t, uint32_t>> holders;  // first rank, count
};

struct FakeAgent {
  NodeInfo info;
  bool connected = false;
  uint64_t connection = 0;  // messages of an older one are lost
  std::map<std::pair<std::string, uint64_t>, FakeRun> runs;
  std::map<uint64_t, CommandResult> results;
  std::set<uint64_t> fetched;
};

struct WorldOptions {
  uint32_t seed = 1;
  double duplicate = 0;      // of a report
  double suspend_fails = 0;  // a gang rolls back
  double crash_in_stop = 0;  // a rank dies while it stops
  double die_draining = 0;   // the ckpt-runs of a gang die before its last copy is durable
  int64_t delay_max = 30 * kMs;
  int64_t steps_to_finish = 400;  // of 10 ms
  // Which commit of the coordinator it does not survive, and whether the commit was made.
  uint64_t die_at_commit = 0;
  bool die_after = false;
  double die_chance = 0;
};

class World {
 public:
  explicit World(WorldOptions options) : options_(options), rng_(options.seed) { Restart(); }

  // ---- what a test does

  void AddNode(const std::string& name, uint32_t slots, uint64_t staging = 1ull << 30) {
    FakeAgent& agent = agents_[name];
    agent.info.name = name;
    agent.info.address = "127.0.0.1";
    agent.info.data_address = name + ":1";
    agent.info.slots = slots;
    agent.info.staging_budget_bytes = staging;
    agent.info.memcpy_gbps = 8;
    agent.info.boot_ns = 1;
    Connect(name);
  }
  void Connect(const std::string& name) {
    FakeAgent& agent = agents_.at(name);
    agent.connected = true;
    ++agent.connection;
    ToCore(name, NodeConnected{agent.info});
    for (const auto& [key, run] : agent.runs) Report(name, key);
  }
  void Disconnect(const std::string& name) {
    FakeAgent& agent = agents_.at(name);
    if (!agent.connected) return;
    agent.connected = false;
    ++agent.connection;
    After(0, [this, name] { Step(NodeLost{name, "test"}); });
  }
  // The agent's process is new; its ckpt-runs live and come back to it.
  void RestartAgent(const std::string& name) {
    Disconnect(name);
    agents_.at(name).info.boot_ns += 1;
    agents_.at(name).results.clear();
    After(50 * kMs, [this, name] { Connect(name); });
  }
  // Its answer; nothing if the coordinator died of it.
  std::optional<Reply> Step(const Event& event);
  void CrashRank(const std::string& job) {
    for (auto& [name, agent] : agents_) {
      for (auto& [key, run] : agent.runs) {
        if (key.first != job || run.state != NodeJobState::kRunning) continue;
        run.message = "rank " + std::to_string(run.launch.place.first_rank) + " died";
        SetState(name, key, NodeJobState::kFailed);
        return;
      }
    }
  }
  // From now on.
  void StopsTake(int64_t stage_ns, int64_t exit_ns) {
    stage_ns_ = stage_ns;
    exit_ns_ = exit_ns;
  }
  // The next `times` gangs that write after their release do not live to end it.
  void DieDraining(int times) { die_draining_ = times; }
  void RunFor(int64_t ns) {
    const int64_t until = now_ + ns;
    while (!queue_.empty() && queue_.top().at <= until) RunNext();
    now_ = until;
  }
  // False if it does not become true within `ns`.
  bool RunUntil(const std::function<bool()>& condition, int64_t ns = 600 * kSecond) {
    const int64_t until = now_ + ns;
    while (!condition()) {
      if (queue_.empty() || queue_.top().at > until) return false;
      RunNext();
    }
    return true;
  }
  void StopFaults() {
    options_.duplicate = options_.suspend_fails = options_.crash_in_stop = options_.die_chance = 0;
    options_.die_draining = 0;
    options_.die_at_commit = 0;
    for (auto& [name, agent] : agents_) {
      if (!agent.connected) Connect(name);
    }
  }

  // ---- what a test looks at

  Core& core() { return *core_; }
  const Job* job(const std::string& name) { return core_->FindJob(name); }
  JobState state(const std::string& name) {
    const Job* found = job(name);
    return found == nullptr ? JobState::kUnspecified : core_->VisibleState(*found);
  }
  int64_t now() const { return now_; }
  uint64_t commits() const { return commits_; }
  uint64_t deaths() const { return deaths_; }
  uint64_t trace() const { return trace_; }
  uint64_t drains() const { return drains_; }
  const std::vector<std::string>& violations() const { return violations_; }
  const std::map<std::string, std::vector<FakeCopy>>& copies() const { return copies_; }
  std::mt19937& rng() { return rng_; }
  std::map<std::string, FakeAgent>& agents() { return agents_; }
  std::set<std::string>& may_lose_steps() { return may_lose_; }
  static constexpr int64_t kSecond = 1'000'000'000;

 private:
  using RunKey = std::pair<std::string, uint64_t>;
  struct Task {
    int64_t at;
    uint64_t order;
    std::function<void()> run;
    bool operator>(const Task& other) const {
      return at != other.at ? at > other.at : order > other.order;
    }
  };

  bool Chance(double p) { return p > 0 && std::uniform_real_distribution<>(0, 1)(rng_) < p; }
  int64_t Delay() { return std::uniform_int_distribution<int64_t>(kMs, options_.delay_max)(rng_); }
  void After(int64_t ns, std::function<void()> run) {
    queue_.push({now_ + ns, ++order_, std::move(run)});
  }
  void RunNext() {
    const Task task = queue_.top();
    queue_.pop();
    now_ = std::max(now_, task.at);
    task.run();
  }
  void Violation(const std::string& what) {
    violations_.push_back(std::to_string(now_ / kMs) + " ms: " + what);
  }

  void Restart();
  void TickForEver(uint64_t life);
  void Deliver(const Send& send);
  void OnCommand(const std::string& node, const Command& command);
  void Obey(const std::string& node, const Launch& launch);
  void ObeyDrain(const std::string& node, const Launch& launch);
  void Obey(const std::string& node, const Stop& stop);
  void Obey(const std::string& node, const SaveNow& save);
  void Obey(const std::string& node, const Fetch& fetch);
  void Obey(const std::string& node, const Forget& forget);
  void Answer(const std::string& node, uint64_t op_id, const RunKey& key, bool accepted,
              std::string error);
  void ToCore(const std::string& node, Event event) {
    // In order, as a stream delivers.
    FakeAgent& agent = agents_.at(node);
    const uint64_t connection = agent.connection;
    int64_t& last = stream_time_[node];
    last = std::max(last + 1, now_ + Delay());
    After(last - now_, [this, node, connection, event = std::move(event)] {
      const FakeAgent& a = agents_.at(node);
      if (a.connected && a.connection == connection) Step(event);
    });
  }
  void Report(const std::string& node, const RunKey& key);
  void SetState(const std::string& node, const RunKey& key, NodeJobState state);
  FakeRun* RunOf(const std::string& node, const RunKey& key) {
    auto& runs = agents_.at(node).runs;
    const auto it = runs.find(key);
    return it == runs.end() ? nullptr : &it->second;
  }
  std::vector<std::string> NodesOf(const RunKey& key);
  void TryStartGang(const RunKey& key);
  void GangStep(const RunKey& key);
  void SuspendGang(const RunKey& key);
  void FinishSuspend(const RunKey& key, int64_t noticed);
  void SaveGang(const RunKey& key);
  void Drain(const std::string& job, uint64_t epoch, uint32_t attempt);
  const FakeCopy* Newest(const std::string& job, bool durable_only) const;
  void CheckTruth();
  void CheckHolds();

  WorldOptions options_;
  std::mt19937 rng_;
  std::unique_ptr<Core> core_;
  std::map<std::string, std::string> disk_;
  std::map<std::string, FakeAgent> agents_;
  std::map<std::string, int64_t> stream_time_;
  std::map<std::string, std::vector<FakeCopy>> copies_;
  std::map<std::string, uint32_t> attempts_;
  std::set<std::string> may_lose_;
  std::priority_queue<Task, std::vector<Task>, std::greater<>> queue_;
  std::vector<std::string> violations_;
  int64_t now_ = 1000 * kSecond;
  uint64_t order_ = 0;
  uint64_t commits_ = 0;
  int die_draining_ = 0;
  int64_t stage_ns_ = kMs, exit_ns_ = 0;
  uint64_t drains_ = 0;
  uint64_t deaths_ = 0;
  uint64_t life_ = 0;
  uint64_t trace_ = 0;
};

}  // namespace ckpt::core
