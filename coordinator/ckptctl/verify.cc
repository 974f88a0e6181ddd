#include "coordinator/ckptctl/verify.h"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <ostream>

#include "coordinator/ckptctl/check.h"
#include "coordinator/ckptctl/work_progress.h"
#include "libckpt/base/clock.h"

namespace ckpt::ckptctl {
namespace {

using Json = nlohmann::ordered_json;

Result<std::vector<AttemptId>> WhatToVerify(Target& target, const OfflineOptions& options) {
  std::vector<AttemptId> ids;
  if (!target.is_job || !options.checkpoint.empty()) {
    CKPT_ASSIGN_OR_RETURN(const AttemptId id, SelectCheckpoint(target, options));
    ids.push_back(id);
    return ids;
  }
  CKPT_ASSIGN_OR_RETURN(const std::vector<storage::CheckpointInfo> infos, target.store->List());
  for (const storage::CheckpointInfo& info : infos) {
    if (info.visible || (options.all && info.committed)) ids.push_back(info.id);
  }
  if (ids.empty()) return NotFound(options.path + " has no visible checkpoint to verify");
  return ids;
}

void PrintPeople(const CheckReport& report, std::ostream& out) {
  out << report.id.ToString() << ": ";
  if (report.ok()) {
    out << "ok, " << report.shards << " shards, " << report.chunks << " chunks, "
        << FormatBytes(report.bytes) << " checked\n";
    return;
  }
  out << "DAMAGED\n";
  for (const Damage& damage : report.damage) out << "  " << damage.ToString() << "\n";
}

Json ToJson(const CheckReport& report) {
  Json json{{"checkpoint", report.id.ToString()},
            {"ok", report.ok()},
            {"shards", report.shards},
            {"chunks", report.chunks},
            {"bytes", report.bytes},
            {"damage", Json::array()}};
  for (const Damage& damage : report.damage) {
    Json entry{{"file", damage.file}};
    if (damage.shard) entry["shard"] = *damage.shard;
    if (damage.chunk) entry["chunk"] = *damage.chunk;
    entry["begin"] = damage.begin;
    entry["end"] = damage.end;
    entry["tensors"] = damage.tensors;
    entry["what"] = damage.what;
    json["damage"].push_back(std::move(entry));
  }
  return json;
}

}  // namespace

Status Verify(const OfflineOptions& options, std::ostream& out) {
  CKPT_ASSIGN_OR_RETURN(Target target, OpenTarget(options.path));
  CKPT_ASSIGN_OR_RETURN(const std::vector<AttemptId> ids, WhatToVerify(target, options));
  Json all{{"path", options.path}, {"checkpoints", Json::array()}};
  size_t damaged = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    const std::string which =
        ids.size() == 1 ? ""
                        : " (" + std::to_string(i + 1) + " of " + std::to_string(ids.size()) + ")";
    WorkProgress progress(ids[i].ToString() + which + ": verified");
    Result<CheckReport> checked = CheckCheckpoint(
        *target.store, ids[i], [&](uint64_t done, uint64_t total) { progress.Show(done, total); });
    progress.Clear();
    CKPT_ASSIGN_OR_RETURN(const CheckReport report, std::move(checked));
    damaged += report.ok() ? 0 : 1;
    if (options.json)
      all["checkpoints"].push_back(ToJson(report));
    else
      PrintPeople(report, out);
  }
  if (options.json) out << all.dump(2, ' ', false, Json::error_handler_t::replace) << "\n";
  if (damaged == 0) return OkStatus();
  return DataLoss(options.path + ": " + std::to_string(damaged) + " of " +
                  std::to_string(ids.size()) + (ids.size() == 1 ? " checkpoint" : " checkpoints") +
                  " damaged; a load falls back to an older one that is whole");
}

void RegisterVerify(CLI::App& app, const Globals& globals, Run* run) {
  RegisterOffline(
      app, globals, run, "verify", "read and check every byte; exit code 4 if any is damaged",
      Verify, [](CLI::App* verb, OfflineOptions* options) {
        AddCheckpointFlag(verb, options);
        verb->add_flag("--all", options->all, "also committed checkpoints that are not visible");
      });
}

}  // namespace ckpt::ckptctl
