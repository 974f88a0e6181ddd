#include "coordinator/ckptctl/why.h"

#include <algorithm>
#include <set>

#include "coordinator/ckptctl/render.h"
#include "libckpt/base/clock.h"

namespace ckpt::ckptctl {
namespace {

constexpr size_t kTroublesMax = 4;

std::string Count(uint64_t count, const std::string& noun) {
  return std::to_string(count) + " " + noun + (count == 1 ? "" : "s");
}

std::string Type(const std::string& words, const std::string& what) {
  return "`ckptctl " + words + "`: " + what;
}

const v1::Node* FindNode(const WhyInput& in, const std::string& name) {
  for (const v1::Node& node : in.nodes.nodes()) {
    if (node.info().name() == name) return &node;
  }
  return nullptr;
}

const v1::Event* Last(const WhyInput& in, const std::set<std::string>& kinds) {
  for (auto it = in.events.rbegin(); it != in.events.rend(); ++it) {
    if (kinds.contains(it->kind())) return &*it;
  }
  return nullptr;
}

std::string At(const v1::Event& event) { return " at " + ClockTime(event.wall_ns()) + " UTC"; }

// Where it would go on from, and what that depends on.
void AddCopies(const WhyInput& in, Why* why) {
  const v1::CopyState* newest = nullptr;
  for (const v1::CopyState& copy : in.job.copies()) {
    if (newest == nullptr && (copy.durable() || copy.staged_gang())) newest = &copy;
    if (copy.failure().empty()) continue;
    why->facts.push_back("step " + std::to_string(copy.step()) +
                         " will not become durable: " + copy.failure());
  }
  if (newest == nullptr) {
    why->facts.push_back("no copy of its state is known: it would begin anew");
    return;
  }
  why->facts.push_back("its newest copy is of step " + std::to_string(newest->step()) + ": " +
                       DescribeCopy(*newest));
  for (const std::string& name : newest->ram_nodes()) {
    const v1::Node* node = FindNode(in, name);
    if (newest->durable() || (node != nullptr && node->connected())) continue;
    why->facts.push_back("node " + name +
                         ", which holds that copy in RAM and nowhere else, is out of reach: start "
                         "its ckpt-agent");
  }
}

void AddCapabilities(const WhyInput& in, Why* why) {
  static const std::set<std::string> kAsked = {"suspend", "checkpoint", "migrate"};
  for (const v1::Method& method : in.job.methods()) {
    if (method.yes() || !kAsked.contains(method.name())) continue;
    why->facts.push_back("it cannot " + method.name() + ": " + method.reason());
  }
}

// What went wrong, newest first.
void AddTroubles(const WhyInput& in, Why* why) {
  static const std::set<std::string> kKinds = {
      "failed",    "suspend_failed", "aborted",      "overdue",   "node_lost",
      "unknown",   "silent",         "drain_failed", "restarted", "behind",
      "fell_back", "copy_lost",      "run_silent",   "held_up"};
  size_t count = 0;
  for (auto it = in.events.rbegin(); it != in.events.rend() && count < kTroublesMax; ++it) {
    if (!kKinds.contains(it->kind())) continue;
    ++count;
    why->facts.push_back(ClockTime(it->wall_ns()) + " " + it->kind() +
                         (it->epoch() == 0 ? "" : " (epoch " + std::to_string(it->epoch()) + ")") +
                         ": " + it->message());
  }
}

void AddNodesAway(const WhyInput& in, Why* why) {
  for (const v1::NodePlacement& place : in.job.placement().nodes()) {
    const v1::Node* node = FindNode(in, place.node());
    if (node != nullptr && node->connected()) continue;
    why->facts.push_back("node " + place.node() +
                         " is out of reach: its processes may run on; "
                         "they are not started elsewhere before that is known");
    why->commands.push_back(Type("doctor", "says what is wrong with the nodes"));
  }
}

// Who has the slots, and whether they could be taken.
void AddRoom(const WhyInput& in, Why* why) {
  uint64_t free = 0;
  uint64_t all = 0;
  std::string lost;
  for (const v1::Node& node : in.nodes.nodes()) {
    all += node.info().slots();
    if (node.connected()) free += node.slots_free();
    if (!node.connected()) lost += (lost.empty() ? "" : ", ") + node.info().name();
    for (const std::string& hold : node.holds()) {
      why->facts.push_back("slots of " + node.info().name() + " are held: " + hold);
    }
  }
  why->facts.push_back("it needs " + Count(in.job.spec().ranks(), "slot") + "; " +
                       std::to_string(free) + " of " + std::to_string(all) + " are free" +
                       (lost.empty() ? "" : " (out of reach: " + lost + ")"));
  for (const v1::Job& other : in.jobs.jobs()) {
    const bool holds = other.state() == v1::JOB_RUNNING || other.state() == v1::JOB_STARTING ||
                       other.state() == v1::JOB_SUSPENDING || other.state() == v1::JOB_UNKNOWN;
    if (!holds || other.spec().name() == in.job.spec().name()) continue;
    why->facts.push_back(other.spec().name() + " has " + Count(other.spec().ranks(), "slot") +
                         ": " + StateWord(other.state()) + ", " + other.spec().job_class() +
                         ", priority " + std::to_string(other.spec().priority()) +
                         (other.spec().not_preemptible() ? ", not preemptible" : ""));
  }
}

void AddPlan(const WhyInput& in, Why* why) {
  if (!in.plan) {
    if (!in.no_plan.empty()) why->facts.push_back("room cannot be made: " + in.no_plan);
    return;
  }
  std::string victims;
  for (const v1::Victim& victim : in.plan->victims()) {
    victims += (victims.empty() ? "" : ", ") + victim.job();
  }
  for (const std::string& rejected : in.plan->rejected()) why->facts.push_back("not " + rejected);
  if (victims.empty()) return;
  char cost[64];
  std::snprintf(cost, sizeof cost, "%.0f GPU-seconds, in about %.1f s", in.plan->price(),
                in.plan->grant_seconds());
  why->facts.push_back("room could be made by stopping " + victims + ": " + cost);
  why->commands.push_back(Type("apply " + in.plan->id(), "stops " + victims + " and starts it"));
}

// It has room, and is not started from less than it had.
bool ExplainBehind(const WhyInput& in, Why* why) {
  const v1::Event* newest = Last(in, {"behind", "launched", "copy_given_up"});
  if (newest == nullptr || newest->kind() != "behind") return false;
  const std::string& name = in.job.spec().name();
  why->summary = name + " is not started" + At(*newest) + ": " + in.job.reason() + ".";
  AddCopies(in, why);
  AddTroubles(in, why);
  why->commands.push_back(Type("resume " + name, "tries again now"));
  why->commands.push_back(
      Type("resume " + name + " --from-store", "goes on without that copy, from what is found"));
  why->commands.push_back(Type("doctor", "says what is wrong with the nodes"));
  return true;
}

// There is room; what it waits for is the next try.
bool ExplainRetry(const WhyInput& in, Why* why) {
  const v1::Event* newest = Last(in, {"failed", "launched", "submitted", "released"});
  if (newest == nullptr || newest->kind() != "failed") return false;
  uint64_t free = 0;
  for (const v1::Node& node : in.nodes.nodes()) free += node.connected() ? node.slots_free() : 0;
  if (free < in.job.spec().ranks()) return false;
  const std::string& name = in.job.spec().name();
  why->summary = name + " could not go on" + At(*newest) + ", and is tried again by itself" +
                 (in.job.reason().empty() ? "." : ": " + in.job.reason() + ".");
  AddCopies(in, why);
  AddTroubles(in, why);
  why->commands.push_back(Type("logs " + name, "shows what its ranks have written"));
  why->commands.push_back(Type("resume " + name, "tries again now"));
  why->commands.push_back(Type("cancel " + name, "ends it for good"));
  return true;
}

void ExplainWaiting(const WhyInput& in, Why* why) {
  const std::string& name = in.job.spec().name();
  if (ExplainBehind(in, why) || ExplainRetry(in, why)) return;
  const bool preempted = in.job.state() == v1::JOB_PREEMPTED;
  const v1::Event* event = preempted ? Last(in, {"released"}) : Last(in, {"submitted"});
  why->summary = name + (preempted ? " was stopped to make room" : " waits for capacity") +
                 (event == nullptr ? "" : (preempted ? "" : ", submitted") + At(*event)) + ". " +
                 "It starts by itself as soon as there is room" +
                 (in.job.reason().empty() ? "." : ". What is in the way: " + in.job.reason() + ".");
  AddRoom(in, why);
  AddPlan(in, why);
  if (preempted) AddCopies(in, why);
  AddTroubles(in, why);
  if (preempted)
    why->commands.push_back(Type("suspend " + name, "keeps it from starting by itself"));
  why->commands.push_back(Type("cancel " + name, "ends it for good"));
}

void ExplainSuspended(const WhyInput& in, Why* why) {
  const std::string& name = in.job.spec().name();
  const v1::Event* event = Last(in, {"released", "suspending"});
  why->summary = name + " was suspended" + (event == nullptr ? "" : At(*event)) +
                 " and stays so until somebody resumes it" +
                 (in.job.reason().empty() ? "." : "; it " + in.job.reason() + ".");
  AddCopies(in, why);
  AddTroubles(in, why);
  why->commands.push_back(Type("resume " + name, "lets it go on"));
  why->commands.push_back(Type("cancel " + name, "ends it for good"));
}

void ExplainLive(const WhyInput& in, Why* why) {
  const v1::Job& job = in.job;
  const std::string& name = job.spec().name();
  why->summary = name + " is " + StateWord(job.state()) + " as epoch " +
                 std::to_string(job.epoch()) + " on " + DescribePlacement(job.placement()) + ".";
  if (!job.resumed_from().empty()) why->summary += " It resumed from " + job.resumed_from() + ".";
  if (job.restart_count() > 0) {
    why->summary += " It was restarted after crashes " + Count(job.restart_count(), "time") + ".";
  }
  if (job.preempted_count() > 0) {
    why->summary += " It was preempted " + Count(job.preempted_count(), "time") + ".";
  }
  if (!job.reason().empty()) why->summary += " " + job.reason() + ".";
  AddNodesAway(in, why);
  AddCapabilities(in, why);
  AddCopies(in, why);
  AddTroubles(in, why);
  why->commands.push_back(Type("logs " + name + " -f", "what it prints"));
}

void ExplainEnded(const WhyInput& in, Why* why) {
  const std::string& name = in.job.spec().name();
  const std::string state = StateWord(in.job.state());
  const v1::Event* event = Last(in, {state});
  why->summary = name + " " + (in.job.state() == v1::JOB_CANCELLED ? "was " : "") + state +
                 (event == nullptr ? "" : At(*event)) +
                 (in.job.reason().empty() ? "." : ": " + in.job.reason() + ".");
  if (in.job.state() != v1::JOB_FAILED) return;
  const uint32_t restarts = in.job.restart_count();
  if (restarts > 0) why->facts.push_back("it had been restarted " + Count(restarts, "time"));
  AddCopies(in, why);
  AddTroubles(in, why);
  why->commands.push_back(Type("logs " + name, "what rank 0 printed; --rank R for the others"));
  why->commands.push_back(Type("resume " + name, "tries again, from that copy"));
}

void AddOperation(const WhyInput& in, Why* why) {
  if (!in.operation) return;
  const v1::Operation& op = *in.operation;
  why->facts.insert(why->facts.begin(), "the " + op.kind() + " of " + op.job() +
                                            " is in progress, as far as " + op.phase() +
                                            (op.message().empty() ? "" : ": " + op.message()));
  why->commands.push_back(
      Type("operation " + std::to_string(op.op_id()) + " --wait", "follows it"));
}

}  // namespace

Why Explain(const WhyInput& input) {
  Why why;
  switch (input.job.state()) {
    case v1::JOB_PENDING:
    case v1::JOB_PREEMPTED:
      ExplainWaiting(input, &why);
      break;
    case v1::JOB_SUSPENDED:
      ExplainSuspended(input, &why);
      break;
    case v1::JOB_FINISHED:
    case v1::JOB_FAILED:
    case v1::JOB_CANCELLED:
      ExplainEnded(input, &why);
      break;
    default:
      ExplainLive(input, &why);
  }
  AddOperation(input, &why);
  return why;
}

}  // namespace ckpt::ckptctl
