#include "coordinator/core/core.h"

#include <algorithm>

#include "coordinator/core/impl.h"
#include "coordinator/core/records.h"
#include "libckpt/base/digest.h"
#include "libckpt/base/log.h"

namespace ckpt::core {

std::string_view JobStateName(JobState state) {
  static constexpr std::string_view kNames[] = {"unspecified", "pending",   "starting",  "running",
                                                "suspending",  "suspended", "preempted", "finished",
                                                "failed",      "cancelled", "unknown"};
  const auto index = static_cast<size_t>(state);
  return index < std::size(kNames) ? kNames[index] : kNames[0];
}

std::string_view OperationKindName(OperationKind kind) {
  static constexpr std::string_view kNames[] = {"preempt",    "suspend", "resume",
                                                "checkpoint", "migrate", "cancel"};
  const auto index = static_cast<size_t>(kind);
  return index < std::size(kNames) ? kNames[index] : "?";
}

std::string_view PhaseName(Phase phase) {
  static constexpr std::string_view kNames[] = {"PLANNED", "RESERVED", "NOTIFIED", "QUIESCED",
                                                "STAGED",  "RELEASED", "FETCHED",  "GRANTED",
                                                "DONE",    "ABORTED"};
  const auto index = static_cast<size_t>(phase);
  return index < std::size(kNames) ? kNames[index] : "?";
}

std::string Plural(uint64_t count, const std::string& noun) {
  return std::to_string(count) + " " + noun + (count == 1 ? "" : "s");
}

Placement PlacementOf(const Job& job) {
  Placement placement;
  for (const Member& member : job.members) placement.push_back(member.place);
  return placement;
}

namespace {
bool IsMemberNode(const Job& job, const std::string& node) {
  return std::any_of(job.members.begin(), job.members.end(),
                     [&](const Member& member) { return member.place.node == node; });
}
}  // namespace

// A copy of which one node has lost its part is no gang-wide copy.
std::vector<CopyState> MergedCopies(const Job& job) {
  std::map<std::array<int64_t, 3>, CopyState> merged;
  for (const auto& [from, copies] : job.copies) {
    for (const CopyState& copy : copies) {
      CopyState& out = merged[copy.Key()];
      out.epoch = copy.epoch;
      out.attempt = copy.attempt;
      out.step = copy.step;
      out.staged_gang |= copy.staged_gang;
      out.durable |= copy.durable;
      out.lost |= copy.lost && IsMemberNode(job, from.first);
      out.bytes = std::max(out.bytes, copy.bytes);
      // Each node writes its own part.
      out.bytes_durable += copy.bytes_durable;
      out.bytes_to_write += copy.bytes_to_write;
      if (out.failure.empty()) out.failure = copy.failure;
      std::vector<std::string> nodes = copy.ram_nodes;
      for (std::string& node : nodes) out.ram_nodes.push_back(std::move(node));
    }
  }
  std::vector<CopyState> result;
  for (auto it = merged.rbegin(); it != merged.rend(); ++it) {
    auto& nodes = it->second.ram_nodes;
    CopyState& copy = it->second;
    copy.staged_gang = copy.staged_gang && !copy.lost;
    if (copy.durable) copy.bytes_durable = copy.bytes_to_write = copy.bytes;
    std::sort(nodes.begin(), nodes.end());
    nodes.erase(std::unique(nodes.begin(), nodes.end()), nodes.end());
    result.push_back(std::move(copy));
  }
  return result;
}

// ---- records

Status Core::Impl::LoadRecord(const Record& record, bool* has_meta) {
  const std::string& key = record.key;
  stored_[key] = Hash64(AsBytes(record.value));
  if (key == kMetaKey) {
    CKPT_ASSIGN_OR_RETURN(const Meta meta, DecodeMeta(record.value));
    cluster_id_ = meta.cluster_id;
    data_token_ = meta.data_token;
    term_ = meta.term;
    *has_meta = true;
  } else if (key.starts_with("job/")) {
    CKPT_ASSIGN_OR_RETURN(Job job, DecodeJob(record.value));
    const std::string name = job.spec.name;
    jobs_[name] = std::move(job);
  } else if (key.starts_with("node/")) {
    CKPT_ASSIGN_OR_RETURN(Node node, DecodeNode(record.value));
    const std::string name = node.info.name;
    nodes_[name] = std::move(node);
  } else if (key.starts_with("op/")) {
    CKPT_ASSIGN_OR_RETURN(Operation op, DecodeOperation(record.value));
    ops_[op.op_id] = std::move(op);
  } else if (key.starts_with("event/")) {
    CKPT_ASSIGN_OR_RETURN(EventRecord event, DecodeEvent(record.value));
    revision_ = std::max(revision_, event.revision);
    events_.push_back(std::move(event));
  } else {
    return FailedPrecondition("a newer coordinator wrote it");
  }
  return OkStatus();
}

Result<Actions> Core::Impl::Recover(Time now, const std::vector<Record>& records,
                                    const std::string& cluster_id) {
  now_ = now;
  bool has_meta = false;
  for (const Record& record : records) {
    CKPT_RETURN_IF_ERROR(LoadRecord(record, &has_meta).Annotate("record " + record.key));
  }
  if (!has_meta && !records.empty()) return DataLoss("the cluster record is missing");
  if (!has_meta) {
    cluster_id_ = cluster_id;
    data_token_ = options_.mint_token();
  }
  std::sort(events_.begin(), events_.end(),
            [](const EventRecord& a, const EventRecord& b) { return a.revision < b.revision; });
  ++term_;
  meta_dirty_ = true;
  RearmAfterRestart();
  return Finish();
}

// Deadlines are durations, armed again in full: a machine that slept or rebooted has another clock.
void Core::Impl::RearmAfterRestart() {
  for (auto& [op_id, op] : ops_) {
    op.deadline_ns = now_.boot_ns + op.budget_ns;
    if (op.state == OperationState::kRunning) running_ops_.insert(op_id);
  }
  for (auto& [name, job] : jobs_) {
    job.stop_deadline_ns = now_.boot_ns + job.stop_budget_ns;
    job.drain.until_ns = now_.boot_ns + job.drain.wait_ns;
    job.drain.progress_ns = now_.boot_ns;
    draining_.insert(name);  // looked at once
    job.running_since_ns = std::min(job.running_since_ns, now_.boot_ns);
    job.last_copy_ns = std::min(job.last_copy_ns, now_.boot_ns);
    if (IsLive(job.state)) stopping_.insert(name);
  }
}

void Core::Impl::PutRecord(const std::string& key, std::string bytes) {
  const uint64_t hash = Hash64(AsBytes(bytes));
  auto [it, fresh] = stored_.try_emplace(key, hash);
  if (!fresh && it->second == hash) return;
  it->second = hash;
  out_.writes.push_back({key, std::move(bytes)});
}

void Core::Impl::DropRecord(const std::string& key) {
  if (stored_.erase(key) != 0) out_.writes.push_back({key, std::nullopt});
}

void Core::Impl::CollectWrites() {
  if (meta_dirty_) {
    PutRecord(std::string(kMetaKey), EncodeMeta({cluster_id_, data_token_, term_}));
  }
  for (const std::string& name : dirty_jobs_) PutRecord(JobKey(name), EncodeJob(jobs_.at(name)));
  for (const std::string& name : dirty_nodes_) {
    PutRecord(NodeKey(name), EncodeNode(nodes_.at(name)));
  }
  for (const uint64_t op_id : dirty_ops_) {
    PutRecord(OperationKey(op_id), EncodeOperation(ops_.at(op_id)));
  }
  for (const EventRecord& event : out_.events) {
    PutRecord(EventKey(event.revision), EncodeEvent(event));
    events_.push_back(event);
  }
  while (events_.size() > options_.events_max) {
    DropRecord(EventKey(events_.front().revision));
    events_.pop_front();
  }
  dirty_jobs_.clear();
  dirty_nodes_.clear();
  dirty_ops_.clear();
  meta_dirty_ = false;
}

void Core::Impl::PruneOperations() {
  for (auto it = ops_.begin(); it != ops_.end();) {
    const Operation& op = it->second;
    const bool old = op.state != OperationState::kRunning &&
                     now_.wall_ns - op.done_wall_ns > options_.operation_kept_ns;
    if (old) DropRecord(OperationKey(it->first));
    it = old ? ops_.erase(it) : std::next(it);
  }
}

// ---- step

Actions Core::Impl::Step(Time now, const Event& event) {
  now_ = now;
  std::visit(
      [this](const auto& e) {
        if constexpr (std::is_same_v<decltype(On(e)), Reply>) {
          out_.reply = On(e);
        } else {
          On(e);
        }
      },
      event);
  return Finish();
}

Actions Core::Impl::Finish() {
  Settle();
  CollectWrites();
  Actions result = std::move(out_);
  out_ = Actions();
  return result;
}

// Operations and waiting jobs go as far as they can now. Each pass that changes something may
// enable another; the bound only guards against a mistake.
void Core::Impl::Settle() {
  for (int pass = 0; settle_ && pass < 100; ++pass) {
    settle_ = false;
    AdvanceOps();
    Schedule();
    Drains();
  }
}

Job& Core::Impl::Edit(const std::string& name) {
  dirty_jobs_.insert(name);
  return jobs_.at(name);
}

Operation& Core::Impl::EditOp(uint64_t op_id) {
  dirty_ops_.insert(op_id);
  return ops_.at(op_id);
}

Job* Core::Impl::Find(const std::string& name) {
  const auto it = jobs_.find(name);
  return it == jobs_.end() ? nullptr : &it->second;
}

Operation* Core::Impl::FindOp(uint64_t op_id) {
  const auto it = ops_.find(op_id);
  return it == ops_.end() ? nullptr : &it->second;
}

// `job` may be null. The reference is good until the next Emit.
EventRecord& Core::Impl::Emit(std::string kind, const Job* job, std::string message) {
  EventRecord event;
  event.revision = ++revision_;
  event.wall_ns = now_.wall_ns;
  event.boottime_ns = now_.boot_ns;
  event.kind = std::move(kind);
  event.message = std::move(message);
  if (job != nullptr) {
    event.job = job->spec.name;
    event.epoch = job->epoch;
    event.op_id = job->op_id;
  }
  out_.events.push_back(std::move(event));
  return out_.events.back();
}

void Core::Impl::SendTo(const std::string& node, Command command) {
  if (Connected(node)) out_.sends.push_back({node, std::move(command)});
}

bool Core::Impl::Connected(const std::string& node) const {
  const auto it = nodes_.find(node);
  return it != nodes_.end() && it->second.connected;
}

std::string Core::Impl::OutOfReach(const Job& job) const {
  std::string names;
  if (!IsLive(job.state)) return names;
  for (const Member& member : job.members) {
    if (IsOver(member.state) || Connected(member.place.node)) continue;
    names += (names.empty() ? "" : ", ") + member.place.node;
  }
  return names;
}

JobState Core::Impl::VisibleState(const Job& job) const {
  return OutOfReach(job).empty() ? job.state : JobState::kUnknown;
}

// ---- the public face

Core::Core(Options options) : impl_(std::make_unique<Impl>(std::move(options))) {}
Core::~Core() = default;

Result<Actions> Core::Recover(Time now, const std::vector<Record>& records,
                              const std::string& cluster_id) {
  return impl_->Recover(now, records, cluster_id);
}
Actions Core::Step(Time now, const Event& event) { return impl_->Step(now, event); }

const std::string& Core::cluster_id() const { return impl_->cluster_id_; }
const std::string& Core::data_token() const { return impl_->data_token_; }
uint64_t Core::term() const { return impl_->term_; }
const std::map<std::string, Job>& Core::jobs() const { return impl_->jobs_; }
const std::map<std::string, Node>& Core::nodes() const { return impl_->nodes_; }
const std::map<uint64_t, Operation>& Core::operations() const { return impl_->ops_; }
const Job* Core::FindJob(const std::string& name) const { return impl_->Find(name); }
const Operation* Core::FindOperation(uint64_t op_id) const { return impl_->FindOp(op_id); }
JobState Core::VisibleState(const Job& job) const { return impl_->VisibleState(job); }

std::string Core::VisibleReason(const Job& job) const {
  const std::string lost = impl_->OutOfReach(job);
  if (lost.empty()) return job.reason;
  return "no contact with node " + lost + "; was " + std::string(JobStateName(job.state)) +
         ", and goes on when the node is back" +
         (job.reason.empty() ? "" : " (" + job.reason + ")");
}

std::vector<CopyState> Core::Copies(const Job& job) const { return MergedCopies(job); }

uint32_t Core::FreeSlots(const std::string& node) const {
  for (const Room& room : impl_->Rooms()) {
    if (room.node == node) return room.slots;
  }
  return 0;
}

std::vector<std::string> Core::JobsOn(const std::string& node) const {
  std::vector<std::string> names;
  for (const auto& [name, job] : impl_->jobs_) {
    if (!IsLive(job.state)) continue;
    for (const Member& member : job.members) {
      if (member.place.node == node) names.push_back(name);
    }
  }
  return names;
}

std::vector<std::string> Core::HoldsOn(const std::string& node) const {
  std::vector<std::string> holds;
  for (const uint64_t op_id : impl_->running_ops_) {
    const Operation& op = impl_->ops_.at(op_id);
    for (const NodePlacement& place : op.placement) {
      if (place.node != node || impl_->HoldsOf(op).empty()) continue;
      holds.push_back(Plural(place.rank_count, "slot") + " for " + op.job + " (" +
                      std::string(OperationKindName(op.kind)) + ")");
    }
  }
  return holds;
}

uint64_t Core::revision() const { return impl_->revision_; }

std::vector<EventRecord> Core::EventsSince(uint64_t revision, size_t max) const {
  const auto first =
      std::upper_bound(impl_->events_.begin(), impl_->events_.end(), revision,
                       [](uint64_t r, const EventRecord& event) { return r < event.revision; });
  const auto count = std::min<size_t>(max, impl_->events_.end() - first);
  return {first, first + static_cast<ptrdiff_t>(count)};
}

std::string Core::DrainInWords(const Job& job) const { return impl_->DrainInWords(job); }

bool Core::NeedsTicks() const {
  return !impl_->running_ops_.empty() || !impl_->stopping_.empty() || !impl_->delayed_.empty() ||
         !impl_->draining_.empty();
}

}  // namespace ckpt::core
