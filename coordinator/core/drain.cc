// Copies that their ckpt-runs did not live to write: while a job does not run, its newest complete
// copy that is only in RAM is written by a gang of ckpt-runs that start no rank, under the epoch of
// the copy. What they write is fenced as any other write of that epoch.
//
// A job that is launched meanwhile has the copy in RAM as before and adopts the attempt by name:
// the drain goes on beside it, as a ckpt-run does that writes after its release.
#include <algorithm>

#include "coordinator/core/impl.h"
#include "libckpt/base/clock.h"

namespace ckpt::core {
namespace {

// The leader says that it is durable; the others may leave a little earlier.
constexpr int64_t kCommitStalls = 6;  // what ten tries of a minute take
constexpr int64_t kLastWordsNs = 15 * kSecondNs;

Member* MemberOn(Drain& drain, const std::string& node) {
  for (Member& member : drain.members) {
    if (member.place.node == node) return &member;
  }
  return nullptr;
}

bool HoldsCopy(const std::vector<CopyState>& copies, const CopyState& like) {
  return std::any_of(copies.begin(), copies.end(), [&](const CopyState& copy) {
    return copy.Key() == like.Key() && copy.staged_gang;
  });
}

std::string Where(const CopyState& copy) {
  std::string text;
  for (const std::string& node : copy.ram_nodes) text += " " + node;
  return text;
}

}  // namespace

// The newest complete copy, if it is not durable.
std::optional<CopyState> Core::Impl::Undrained(const Job& job) const {
  for (const CopyState& copy : MergedCopies(job)) {
    if (copy.durable) return std::nullopt;
    if (copy.staged_gang) return copy;
  }
  return std::nullopt;
}

// Every node of the gang holds its part, and no ckpt-run is left there that would write it.
bool Core::Impl::NobodyWrites(const Job& job, const CopyState& copy) const {
  if (job.members.empty()) return false;
  for (const Member& member : job.members) {
    bool held = false;
    for (const auto& [from, copies] : job.copies) {
      if (from.first != member.place.node || !HoldsCopy(copies, copy)) continue;
      if (!job.run_ended.contains(from)) return false;
      held = true;
    }
    if (!held) return false;
  }
  return true;
}

std::string Core::Impl::SilentWriter(const Job& job, const CopyState& copy) const {
  for (const auto& [key, words] : job.run_silent) {
    if (key.second == copy.epoch && Connected(key.first)) return "node " + key.first + ": " + words;
  }
  return "";
}

void Core::Impl::Drains() {
  for (auto& [name, job] : jobs_) {
    if (job.drain.op != 0) CheckDrain(job);
    if (job.drain.op == 0) ConsiderDrain(job);
  }
}

// Once all is written it is committed, which is tried for minutes and moves no byte.
std::string Core::Impl::Stalled(const Drain& drain, const CopyState& copy) const {
  const bool commits = copy.bytes_to_write != 0 && copy.bytes_durable >= copy.bytes_to_write;
  const int64_t allowed_ns = options_.drain_stall_ns * (commits ? kCommitStalls : 1);
  if (now_.boot_ns - drain.progress_ns <= allowed_ns) return "";
  return (commits ? "it is written, but was not committed for "
                  : "nothing of it was written for ") +
         FormatDuration(Nanos(allowed_ns));
}

void Core::Impl::ConsiderDrain(Job& job) {
  const std::string& name = job.spec.name;
  const auto copy = IsLive(job.state) || job.state == JobState::kCancelled || job.op_id != 0
                        ? std::nullopt
                        : Undrained(job);
  if (!copy) {
    if (job.drain.failures != 0 && !IsLive(job.state)) EndDrain(job);
    draining_.erase(name);
    return;
  }
  Drain& drain = job.drain;
  if (drain.copy != copy->Key()) {
    drain = Drain{.copy = copy->Key(), .progress_ns = now_.boot_ns};
    Edit(name);
  }
  draining_.insert(name);
  if (copy->bytes_durable != drain.bytes_seen) {
    drain.bytes_seen = copy->bytes_durable;
    drain.progress_ns = now_.boot_ns;
  }
  const bool reachable = std::all_of(job.members.begin(), job.members.end(),
                                     [&](const Member& m) { return Connected(m.place.node); });
  const std::string silent = SilentWriter(job, *copy);
  if (!reachable) {
    drain.progress_ns = now_.boot_ns;  // what goes on there is not seen
  } else if (!silent.empty()) {
    if (now_.boot_ns >= drain.until_ns) StartDrain(job, *copy, silent);
  } else if (NobodyWrites(job, *copy)) {
    if (now_.boot_ns >= drain.until_ns)
      StartDrain(job, *copy, "no ckpt-run is left that writes it");
  } else if (const std::string stalled = Stalled(drain, *copy); !stalled.empty()) {
    StartDrain(job, *copy, stalled);
  }
}

void Core::Impl::StartDrain(Job& job, const CopyState& copy, const std::string& why) {
  Drain& drain = Edit(job.spec.name).drain;
  drain.op = MintOpId();
  drain.token = options_.mint_token();
  drain.gang_address.clear();
  drain.members.clear();
  for (const NodePlacement& place : PlacementOf(job)) drain.members.push_back({place});
  drain.progress_ns = now_.boot_ns;
  drain.bytes_seen = 0;
  EventRecord& line = Emit(
      "drain_started", &job,
      "step " + std::to_string(copy.step) + " is written from RAM of" + Where(copy) + ": " + why);
  line.epoch = copy.epoch;
  line.data["step"] = std::to_string(copy.step);
  line.data["attempt"] = std::to_string(copy.attempt);
  SendDrains(job);
}

// The leader first, as in a launch. Also to nodes that are back: the number is the same.
void Core::Impl::SendDrains(Job& job) {
  Drain& drain = job.drain;
  for (Member& member : drain.members) {
    const bool turn = member.place.node_rank == 0 || !drain.gang_address.empty();
    if (!turn || member.launched || IsOver(member.state) || !Connected(member.place.node)) continue;
    Edit(job.spec.name);
    member.launched = true;
    Launch launch;
    launch.job = job.spec.name;
    launch.epoch = static_cast<uint64_t>(drain.copy[0]);
    launch.op_id = drain.op;
    launch.spec = job.spec;
    launch.place = member.place;
    launch.nnodes = static_cast<uint32_t>(drain.members.size());
    if (member.place.node_rank != 0) launch.leader_address = drain.gang_address;
    launch.token = drain.token;
    launch.listen_host = nodes_.at(member.place.node).info.address;
    launch.job_id = job.job_id;
    launch.drain = true;
    SendTo(member.place.node, std::move(launch));
  }
}

void Core::Impl::FoldDrain(Job& job, const std::string& node, const JobReport& report) {
  Drain& drain = job.drain;
  if (drain.op == 0 || report.drain_op != drain.op) return;
  Member* member = MemberOn(drain, node);
  if (member == nullptr) return;
  member->heard = true;
  if (report.run_ended && !IsOver(member->state)) {
    Edit(job.spec.name);
    member->state = NodeJobState::kReleased;
    member->silent_since_ns = now_.boot_ns;
  }
  for (const CopyState& copy : report.copies) {
    if (copy.Key() != drain.copy || copy.failure.empty()) continue;
    member->message = copy.failure;
  }
  if (member->place.node_rank == 0 && drain.gang_address.empty() && !report.gang_address.empty()) {
    Edit(job.spec.name);
    drain.gang_address = report.gang_address;
  }
  SendDrains(job);
  settle_ = true;
}

void Core::Impl::CheckDrain(Job& job) {
  Drain& drain = job.drain;
  draining_.insert(job.spec.name);
  const auto copies = MergedCopies(job);
  const auto copy = std::find_if(copies.begin(), copies.end(),
                                 [&](const CopyState& c) { return c.Key() == drain.copy; });
  if (copy == copies.end() || copy->durable || job.state == JobState::kCancelled) {
    EndDrain(job);
    return;
  }
  if (copy->bytes_durable != drain.bytes_seen) {
    drain.bytes_seen = copy->bytes_durable;
    drain.progress_ns = now_.boot_ns;
  }
  for (const Member& member : drain.members) {
    if (!Connected(member.place.node)) {
      drain.progress_ns = now_.boot_ns;
      return;
    }
  }
  for (const Member& member : drain.members) {
    const bool over = IsOver(member.state);
    const bool late = now_.boot_ns - member.silent_since_ns > kLastWordsNs;
    if (over && (member.place.node_rank == 0 || member.state == NodeJobState::kFailed || late)) {
      DrainFailed(job,
                  "node " + member.place.node + ": " +
                      (member.message.empty() ? "ended before it was durable" : member.message));
      return;
    }
  }
  const auto silent =
      std::find_if(drain.members.begin(), drain.members.end(), [&](const Member& m) {
        return m.heard && job.run_silent.contains({m.place.node, copy->epoch});
      });
  if (copy->lost) {
    DrainFailed(job, "its memory is gone");
  } else if (silent != drain.members.end()) {
    DrainFailed(job, SilentWriter(job, *copy));
  } else if (const std::string stalled = Stalled(drain, *copy); !stalled.empty()) {
    DrainFailed(job, stalled);
  }
}

void Core::Impl::DrainFailed(Job& job, const std::string& why) {
  Drain& drain = Edit(job.spec.name).drain;
  for (const Member& member : drain.members) {  // those that wait for one that will not come
    if (!member.launched || IsOver(member.state)) continue;
    SendTo(member.place.node, Stop{job.spec.name, static_cast<uint64_t>(drain.copy[0]), MintOpId(),
                                   true, 1000, "drain"});
  }
  const uint32_t doublings = std::min<uint32_t>(drain.failures, 16);
  drain.wait_ns = std::min(options_.drain_retry_max_ns, options_.drain_retry_min_ns << doublings);
  drain.until_ns = now_.boot_ns + drain.wait_ns;
  ++drain.failures;
  drain.failure = why;
  drain.op = 0;
  drain.members.clear();
  EventRecord& line =
      Emit("drain_failed", &job,
           "step " + std::to_string(drain.copy[1]) + ": " + why +
               "; it stays in RAM and is tried again in " + FormatDuration(Nanos(drain.wait_ns)));
  line.epoch = static_cast<uint64_t>(drain.copy[0]);
  settle_ = true;
}

void Core::Impl::EndDrain(Job& job) {
  Edit(job.spec.name).drain = {};
  draining_.erase(job.spec.name);
  settle_ = true;
}

void Core::Impl::DrainAnswered(Job& job, const std::string& node, const CommandResult& result) {
  Member* member = MemberOn(job.drain, node);
  if (member == nullptr || result.accepted || IsOver(member->state)) return;
  Edit(job.spec.name);
  member->state = NodeJobState::kFailed;
  member->silent_since_ns = now_.boot_ns;
  member->message = "refused to write it: " + result.error;
  settle_ = true;
}

std::string Core::Impl::DrainInWords(const Job& job) const {
  const Drain& drain = job.drain;
  const std::string step = "step " + std::to_string(drain.copy[1]);
  if (drain.op != 0) {
    return step + " is being written from RAM, try " + std::to_string(drain.failures + 1);
  }
  if (drain.failures == 0 || IsLive(job.state)) return "";
  const int64_t left_ns = std::max<int64_t>(0, drain.until_ns - now_.boot_ns);
  return step + " could not be written (" + drain.failure + "); next try in " +
         FormatDuration(Nanos(left_ns));
}

}  // namespace ckpt::core
