#include "coordinator/run/drain_leader.h"

#include <algorithm>

#include "coordinator/run/its_store.h"
#include "coordinator/run/shard_writers.h"
#include "libckpt/base/fault.h"
#include "libckpt/base/log.h"
#include "libckpt/format/manifest.h"
#include "libckpt/os/file.h"

namespace ckpt::run {
namespace {

constexpr Nanos kCommitTimeout = std::chrono::seconds(60);
constexpr uint32_t kCommitsMax = 10;
constexpr int64_t kPauseMinNs = 100'000'000;
constexpr int64_t kPauseMaxNs = 10'000'000'000;

struct Prepared {
  Prepared() = default;
  explicit Prepared(Status s) : status(std::move(s)) {}
  Status status;
  JobId job;
  bool durable = false;
  std::string manifest;  // that the dead one has put; empty: none
};

Prepared Prepare(storage::Store* store, const JobId& expected, const AttemptId& id) {
  Prepared prepared;
  if (Status its = NeedsItsStore(store, id); !its.ok()) return Prepared(std::move(its));
  Result<JobId> job = store->OpenJob(expected);
  if (!job.ok()) return Prepared(std::move(job).status());
  prepared.job = *job;
  Result<std::vector<storage::CheckpointInfo>> list = store->List();
  if (!list.ok()) return Prepared(std::move(list).status());
  for (const storage::CheckpointInfo& info : *list) {
    if (info.id == id && info.committed && info.visible) prepared.durable = true;
  }
  if (prepared.durable) return prepared;
  Status begun = store->BeginAttempt(id);
  if (!begun.ok() && begun.code() != Code::kAlreadyExists) return Prepared(std::move(begun));
  if (Status marked = store->MarkDraining(id); !marked.ok()) return Prepared(std::move(marked));
  Result<std::string> manifest = store->ReadManifest(id);
  if (manifest.ok()) {
    prepared.manifest = std::move(manifest).value();
  } else if (manifest.status().code() != Code::kNotFound) {
    return Prepared(std::move(manifest).status());
  }
  return prepared;
}

Status CommitManifest(storage::Store* store, const AttemptId& id, const std::string& manifest) {
  const Deadline deadline("commit", kCommitTimeout);
  const auto commit = [&](const std::string& bytes) {
    return store->Commit(id, bytes, {format::ManifestDigest(bytes), id.epoch, ""}, deadline);
  };
  Status status = commit(manifest);
  if (status.code() != Code::kAlreadyExists) return status;
  // Whoever was believed to be dead has put its own: what that names is whole as well.
  CKPT_ASSIGN_OR_RETURN(const std::string theirs, store->ReadManifest(id));
  return commit(theirs);
}

// Shards that no MANIFEST names: half-written by the dead one, or by an earlier drain.
void RemoveLeftovers(storage::Store* store, const std::string& directory, const AttemptId& id) {
  const Result<std::string> bytes = store->ReadManifest(id);
  if (!bytes.ok()) return;
  const Result<format::Manifest> manifest = format::Manifest::Decode(*bytes);
  if (!manifest.ok()) return;
  os::FileSystem& fs = os::PosixFileSystem();
  const auto entries = fs.List(directory);
  if (!entries.ok()) return;
  for (const os::DirEntry& entry : *entries) {
    const bool named = std::any_of(
        manifest->files.begin(), manifest->files.end(), [&entry](const format::ManifestFile& file) {
          return file.name == entry.name || file.index_name == entry.name;
        });
    if (named || !entry.name.starts_with("shard-")) continue;
    fs.Unlink(os::JoinPath(directory, entry.name)).IgnoreError();
  }
}

bool MayPass(const Status& status) {
  return status.code() != Code::kFailedPrecondition && status.code() != Code::kInvalidArgument &&
         status.code() != Code::kDataLoss && status.code() != Code::kAborted;
}

}  // namespace

template <typename Work, typename Then>
void DrainLeader::CallStore(Work work, Then then) {
  using Answer = decltype(work());
  const auto finish = [this, alive = alive_, then](Answer result) {
    if (*alive && !over_) then(std::move(result));
  };
  const Status queued = services_->store_calls->TrySubmit([work, finish, loop = services_->loop] {
    loop->Post([finish, result = work()]() mutable { finish(std::move(result)); });
  });
  if (queued.ok()) return;
  services_->loop->Post([finish, queued] { finish(Answer(queued)); });
}

DrainLeader::DrainLeader(Services* services, Host host)
    : services_(services), host_(std::move(host)) {}

DrainLeader::~DrainLeader() {
  *alive_ = false;
  services_->loop->CancelTimer(join_timer_);
  services_->loop->CancelTimer(commit_timer_);
}

void DrainLeader::Start() {
  started_ns_ = BoottimeNs();
  const Nanos timeout = services_->options.join_timeout;
  join_timer_ = services_->loop->AddTimer(timeout, [this, timeout] {
    if (picked_) return;
    std::string missing;
    for (uint32_t i = 0; i < services_->options.node_count; ++i) {
      if (nodes_.contains(i)) continue;
      missing += (missing.empty() ? "node " : ", ") + std::to_string(i);
    }
    End(1, "waited " + FormatDuration(timeout) + " for the drain; missing: " + missing +
               "; start ckpt-run --drain there with the same --rendezvous");
  });
}

void DrainLeader::OnMessage(Peer peer, const GangMessage& message) {
  if (const auto* join = std::get_if<JoinMsg>(&message.body)) return OnJoin(peer, *join);
  const auto from = std::find_if(nodes_.begin(), nodes_.end(),
                                 [peer](const auto& entry) { return entry.second.peer == peer; });
  if (from == nodes_.end()) return host_.close(peer);  // JOIN comes first
  if (const auto* drained = std::get_if<DrainedMsg>(&message.body)) {
    OnDrained(&from->second, *drained);
  }
}

void DrainLeader::OnJoin(Peer peer, const JoinMsg& join) {
  std::string refusal;
  if (const Status ok = CheckJoinOptions(services_->options, join); !ok.ok()) {
    refusal = ok.message();
  } else if (picked_ || over_ || nodes_.contains(join.node_rank)) {
    refusal = "node " + std::to_string(join.node_rank) + " of this drain has joined already";
  }
  if (!refusal.empty()) {
    Say("refused a node: " + refusal);
    host_.send(peer, {0, WelcomeMsg{.error = refusal}});
    return host_.close(peer);
  }
  nodes_[join.node_rank] = Node{.peer = peer, .ram = join.ram, .drained = {}};
  if (nodes_.size() == services_->options.node_count) Pick();
}

void DrainLeader::Pick() {
  picked_ = true;
  services_->loop->CancelTimer(join_timer_);
  std::map<uint32_t, std::vector<RamCopy>> ram;
  for (const auto& [id, node] : nodes_) ram[id] = node.ram;
  pick_ = PickDrain(ram);
  switch (pick_.kind) {
    case DrainPick::Kind::kNothing:
      return End(1, "nothing to write: the agents hold no copy of job " + services_->options.job +
                        "; ckptctl inspect " + services_->options.store + " shows what is durable");
    case DrainPick::Kind::kIncomplete:
      return End(1, "nothing is written: " + pick_.message +
                        "; what is durable stands, and the next launch goes on from it");
    case DrainPick::Kind::kDurable:
      return End(75, pick_.id.ToString() + " is durable already");
    case DrainPick::Kind::kDrain:
      break;
  }
  Say("job " + services_->options.job + ": writing " + pick_.id.ToString() + " of " +
      std::to_string(pick_.world) + (pick_.world == 1 ? " rank" : " ranks") + " from RAM to " +
      services_->store->Describe());
  CallStore([store = services_->store, expected = services_->options.job_id,
             id = pick_.id] { return Prepare(store.get(), expected, id); },
            [this](Prepared p) { OnPrepared(p.status, p.job, p.durable, std::move(p.manifest)); });
}

void DrainLeader::OnPrepared(const Status& status, const JobId& job, bool durable,
                             std::string manifest) {
  CKPT_PASS("run.drain.prepared");
  if (!status.ok()) return End(76, pick_.id.ToString() + " is NOT durable: " + status.message());
  if (durable) return End(75, pick_.id.ToString() + " is durable already");
  job_id_ = job;
  for (const auto& [id, node] : nodes_) {
    host_.send(node.peer, {0, WelcomeMsg{.epoch = pick_.id.epoch.value(), .job_id = job}});
  }
  if (!manifest.empty()) return Commit(std::move(manifest));
  for (const auto& [id, ranks] : pick_.writers) {
    host_.send(nodes_.at(id).peer, {0, DrainMsg{pick_.id, ranks}});
  }
}

void DrainLeader::OnDrained(Node* node, const DrainedMsg& m) {
  if (m.code != 0) return End(76, pick_.id.ToString() + " is NOT durable: " + m.message);
  node->drained = m;
  const bool all =
      std::all_of(pick_.writers.begin(), pick_.writers.end(),
                  [this](const auto& entry) { return nodes_.at(entry.first).drained.has_value(); });
  if (all && commits_ == 0) CommitWritten();
}

void DrainLeader::CommitWritten() {
  struct Shard {
    format::RankLayout layout;
    engine::ShardReport report;
  };
  std::map<uint32_t, Shard> shards;
  for (const auto& [id, node] : nodes_) {
    if (!node.drained) continue;
    Result<std::vector<engine::ShardReport>> reports = DecodeShardReports(node.drained->payload);
    if (!reports.ok() || reports->size() != node.drained->layouts.size()) {
      return End(76, "node " + std::to_string(id) + " reported shards that cannot be read");
    }
    for (size_t i = 0; i < reports->size(); ++i) {
      Result<format::RankLayout> layout = format::RankLayout::Decode(node.drained->layouts[i]);
      if (!layout.ok()) return End(76, layout.status().message());
      const uint32_t rank = (*reports)[i].rank.value();
      shards[rank] = Shard{std::move(layout).value(), std::move((*reports)[i])};
    }
  }
  std::vector<format::RankLayout> layouts;
  std::vector<engine::ShardReport> reports;
  for (auto& [rank, shard] : shards) {
    layouts.push_back(std::move(shard.layout));
    reports.push_back(std::move(shard.report));
  }
  Result<std::string> manifest = engine::BuildManifest(job_id_, pick_.id, layouts, reports, false);
  if (!manifest.ok()) {
    return End(76, pick_.id.ToString() + " is NOT durable: " + manifest.status().message());
  }
  Commit(std::move(manifest).value());
}

void DrainLeader::Commit(std::string manifest) {
  CKPT_PASS("run.drain.commit");
  ++commits_;
  const auto work = [store = services_->store, retention = services_->retention, id = pick_.id,
                     manifest,
                     directory = os::JoinPath(services_->options.store, pick_.id.ToString())] {
    Status status = CommitManifest(store.get(), id, manifest);
    if (status.ok()) RemoveLeftovers(store.get(), directory, id);
    if (status.ok()) retention->AfterCommit(id);
    return status;
  };
  CallStore(work, [this, manifest](const Status& status) {
    if (status.ok()) {
      Say("durable: " + pick_.id.ToString());
      return End(75, "drained " + pick_.id.ToString() + ", durable, in " +
                         FormatDuration(Nanos(BoottimeNs() - started_ns_)) +
                         "; launch the job to go on");
    }
    if (!MayPass(status) || commits_ >= kCommitsMax) {
      return End(76, pick_.id.ToString() + " is NOT durable (" + status.message() +
                         "): the copy stays in the memory of the agents; ckpt-run --drain writes "
                         "it");
    }
    const Nanos pause(std::min(kPauseMaxNs, kPauseMinNs << (commits_ - 1)));
    LogWarning("committing " + pick_.id.ToString() + ": " + status.message() + "; try " +
               std::to_string(commits_ + 1) + " of " + std::to_string(kCommitsMax) + " in " +
               FormatDuration(pause));
    commit_timer_ = services_->loop->AddTimer(pause, [this, manifest] { Commit(manifest); });
  });
}

void DrainLeader::OnClosed(Peer peer) {
  for (const auto& [id, node] : nodes_) {
    if (node.peer != peer) continue;
    if (!picked_) {
      Say("lost the ckpt-run of node " + std::to_string(id));
      nodes_.erase(id);
      return;
    }
    // It was through: the shards are there.
    if (!pick_.writers.contains(id) || node.drained) return;
    return End(76, pick_.id.ToString() + " is NOT durable: node " + std::to_string(id) +
                       " left before its shards were written");
  }
}

void DrainLeader::End(int exit_code, const std::string& message) {
  if (over_) return;
  over_ = true;
  for (const auto& [id, node] : nodes_) {
    host_.send(node.peer, {0, OutcomeMsg{static_cast<uint32_t>(exit_code), message}});
  }
}

}  // namespace ckpt::run
