#include "coordinator/ckptctl/ls.h"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <ostream>

#include "libckpt/base/clock.h"
#include "libckpt/format/manifest.h"

namespace ckpt::ckptctl {
namespace {

struct Row {
  storage::CheckpointInfo info;
  std::string state;  // visible, hidden, draining, incomplete, damaged
  uint32_t ranks = 0;
  uint64_t bytes = 0;  // of shards and indexes, as MANIFEST says
};

std::string StateOf(const storage::CheckpointInfo& info, bool manifest_ok) {
  if (info.committed && !manifest_ok) return "damaged";
  if (info.visible) return "visible";
  if (info.committed) return "hidden";
  return info.draining ? "draining" : "incomplete";
}

Row MakeRow(storage::Store& store, const storage::CheckpointInfo& info) {
  Row row{info};
  const Result<std::string> bytes = store.ReadManifest(info.id);
  bool good = false;
  if (bytes.ok()) {
    const Result<format::Manifest> manifest = format::Manifest::Decode(*bytes);
    good = manifest.ok();
    if (good) {
      row.ranks = manifest->world();
      for (const format::ManifestFile& file : manifest->files)
        row.bytes += file.bytes + file.index_bytes;
    }
  }
  row.state = StateOf(info, good);
  return row;
}

void PrintPeople(const std::vector<Row>& rows, std::ostream& out) {
  std::vector<std::vector<std::string>> table = {
      {"CHECKPOINT", "STEP", "EPOCH", "RANKS", "SIZE", "STATE"}};
  for (const Row& row : rows) {
    const AttemptId& id = row.info.id;
    const bool known = row.ranks != 0;
    table.push_back({id.ToString(), std::to_string(id.step.value()),
                     std::to_string(id.epoch.value()), known ? std::to_string(row.ranks) : "-",
                     known ? FormatBytes(row.bytes) : "-", row.state});
  }
  PrintTable(table, out);
}

void PrintJson(const Target& target, const OfflineOptions& options, const std::vector<Row>& rows,
               std::ostream& out) {
  nlohmann::ordered_json json;
  json["path"] = options.path;
  json["job"] = target.job.ToString();
  json["checkpoints"] = nlohmann::ordered_json::array();
  for (const Row& row : rows) {
    const AttemptId& id = row.info.id;
    json["checkpoints"].push_back({{"name", id.ToString()},
                                   {"step", id.step.value()},
                                   {"epoch", id.epoch.value()},
                                   {"attempt", id.attempt.value()},
                                   {"ranks", row.ranks},
                                   {"bytes", row.bytes},
                                   {"state", row.state},
                                   {"visible", row.info.visible},
                                   {"committed", row.info.committed},
                                   {"draining", row.info.draining}});
  }
  out << json.dump(2) << "\n";
}

}  // namespace

Status ListCheckpoints(const OfflineOptions& options, std::ostream& out) {
  CKPT_ASSIGN_OR_RETURN(const Target target, OpenTarget(options.path));
  CKPT_ASSIGN_OR_RETURN(const std::vector<storage::CheckpointInfo> infos, target.store->List());
  std::vector<Row> rows;
  size_t left_out = 0;
  for (const storage::CheckpointInfo& info : infos) {
    if (info.visible || options.all)
      rows.push_back(MakeRow(*target.store, info));
    else
      ++left_out;
  }
  if (options.json) {
    PrintJson(target, options, rows, out);
    return OkStatus();
  }
  PrintPeople(rows, out);
  if (left_out != 0)
    out << "(" << left_out << " more not visible: unfinished, or of a run that was overtaken; "
        << "--all shows them)\n";
  return OkStatus();
}

void RegisterLs(CLI::App& app, const Globals& globals, Run* run) {
  RegisterOffline(app, globals, run, "ls",
                  "the checkpoints of a job, newest first; needs no coordinator", ListCheckpoints,
                  [](CLI::App* verb, OfflineOptions* options) {
                    verb->add_flag("--all", options->all, "also those that are not visible");
                  });
}

}  // namespace ckpt::ckptctl
