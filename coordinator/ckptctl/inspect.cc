#include "coordinator/ckptctl/inspect.h"

#include <CLI/CLI.hpp>
#include <map>
#include <nlohmann/json.hpp>
#include <ostream>

#include "coordinator/ckptctl/cuts.h"
#include "libckpt/base/clock.h"
#include "libckpt/format/manifest.h"

namespace ckpt::ckptctl {
namespace {

using Json = nlohmann::ordered_json;

std::string_view PlacementName(format::Placement placement) {
  switch (placement) {
    case format::Placement::kUnsharded:
      return "unsharded";
    case format::Placement::kReplicated:
      return "replicated";
    case format::Placement::kSharded:
      return "sharded";
    case format::Placement::kPerRank:
      return "per rank";
  }
  return "unknown";
}

// One name over all ranks that hold it.
struct TensorRow {
  const format::TensorMeta* meta = nullptr;
  uint32_t ranks = 0;
  uint64_t bytes = 0;  // of the whole tensor; per rank: of all ranks together
  CutGatherer cut;     // if it is sharded
  bool sharded() const { return meta->placement == format::Placement::kSharded; }
};

std::map<std::string, TensorRow> Tensors(const format::Manifest& manifest) {
  std::map<std::string, TensorRow> rows;
  for (const format::RankLayout& layout : manifest.layouts) {
    for (const format::TensorMeta& tensor : layout.tensors) {
      TensorRow& row = rows[tensor.name];
      const format::Box whole{{}, tensor.global_shape};
      const uint64_t bytes = whole.ElementCount() * format::ElementBytes(tensor.dtype);
      const bool adds = tensor.placement == format::Placement::kPerRank || row.meta == nullptr;
      if (row.meta == nullptr) row.meta = &tensor;
      if (adds && tensor.tied_to.empty()) row.bytes += bytes;
      ++row.ranks;
      if (tensor.placement == format::Placement::kSharded) row.cut.Add(tensor.local);
    }
  }
  return rows;
}

std::string PlacementText(const TensorRow& row) {
  const std::string name(PlacementName(row.meta->placement));
  return row.sharded() ? name + " " + row.cut.Shape().ToString() : name;
}

// Null for what is not cut; its parts are null if they are no grid, its copies if they differ.
Json CutJson(const TensorRow& row) {
  if (!row.sharded()) return nullptr;
  const CutShape cut = row.cut.Shape();
  return {{"parts", cut.parts.empty() ? Json(nullptr) : Json(cut.parts)},
          {"boxes", cut.boxes},
          {"copies", cut.copies == 0 ? Json(nullptr) : Json(cut.copies)}};
}

std::string ShapeText(const std::vector<uint64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + "]";
}

std::string Shortened(std::string text) {
  constexpr size_t kMax = 60;
  if (text.size() > kMax) text = text.substr(0, kMax) + "…";
  return text;
}

void PrintFiles(const format::Manifest& manifest, std::ostream& out) {
  std::vector<std::vector<std::string>> table = {{"FILE", "SIZE", "INDEX", "INDEX DIGEST"}};
  for (const format::ManifestFile& file : manifest.files) {
    table.push_back(
        {file.name, FormatBytes(file.bytes), file.index_name, file.index_digest.ToString()});
  }
  PrintTable(table, out);
}

void PrintTensors(const format::Manifest& manifest, std::ostream& out) {
  std::vector<std::vector<std::string>> table = {
      {"TENSOR", "DTYPE", "SHAPE", "PLACEMENT", "RANKS", "SIZE"}};
  for (const auto& [name, row] : Tensors(manifest)) {
    const bool tied = !row.meta->tied_to.empty();
    table.push_back({name, std::string(format::DTypeName(row.meta->dtype)),
                     ShapeText(row.meta->global_shape), PlacementText(row),
                     std::to_string(row.ranks),
                     tied ? "= " + row.meta->tied_to : FormatBytes(row.bytes)});
  }
  PrintTable(table, out);
}

// A value that all ranks share is shown once.
void PrintValues(const format::Manifest& manifest, std::ostream& out) {
  std::vector<std::vector<std::string>> table = {{"VALUE", "RANK", "CONTENT"}};
  for (size_t rank = 0; rank < manifest.values.size(); ++rank) {
    for (const format::NamedValue& value : manifest.values[rank].values) {
      const bool shared = value.scope == format::Scope::kShared;
      if (shared && rank != 0) continue;
      table.push_back(
          {value.name, shared ? "all" : std::to_string(rank), Shortened(value.value.ToJson())});
    }
    for (const format::NamedBlob& blob : manifest.values[rank].blobs) {
      const bool shared = blob.scope == format::Scope::kShared;
      if (shared && rank != 0) continue;
      table.push_back({blob.name, shared ? "all" : std::to_string(rank),
                       blob.media_type + ", " + FormatBytes(blob.bytes.size())});
    }
  }
  if (table.size() == 1) return;
  out << "\n";
  PrintTable(table, out);
}

void PrintPeople(const format::Manifest& manifest, const storage::CommitRecord& commit,
                 std::ostream& out) {
  PrintTable({{"checkpoint", manifest.id.ToString()},
              {"job", manifest.job.ToString()},
              {"step", std::to_string(manifest.id.step.value())},
              {"epoch", std::to_string(manifest.id.epoch.value()) + ", committed by epoch " +
                            std::to_string(commit.epoch.value())},
              {"commit", manifest.mode == format::CommitMode::kManaged ? "managed" : "standalone"},
              {"written by", "ckpt " + manifest.writer},
              {"ranks", std::to_string(manifest.world())}},
             out);
  out << "\n";
  PrintFiles(manifest, out);
  out << "\n";
  PrintTensors(manifest, out);
  PrintValues(manifest, out);
}

Json FilesJson(const format::Manifest& manifest) {
  Json files = Json::array();
  for (const format::ManifestFile& file : manifest.files) {
    files.push_back({{"shard", file.shard.value()},
                     {"name", file.name},
                     {"bytes", file.bytes},
                     {"index_name", file.index_name},
                     {"index_bytes", file.index_bytes},
                     {"index_digest", file.index_digest.ToString()}});
  }
  return files;
}

Json ValuesJson(const format::Manifest& manifest) {
  Json values = Json::array();
  for (size_t rank = 0; rank < manifest.values.size(); ++rank) {
    for (const format::NamedValue& value : manifest.values[rank].values) {
      // Value::ToJson is JSON by itself, kept as text here: it has its own tags.
      values.push_back({{"rank", rank},
                        {"name", value.name},
                        {"shared", value.scope == format::Scope::kShared},
                        {"value", value.value.ToJson()}});
    }
  }
  return values;
}

void PrintJson(const format::Manifest& manifest, const storage::CommitRecord& commit,
               std::ostream& out) {
  Json json;
  json["checkpoint"] = manifest.id.ToString();
  json["job"] = manifest.job.ToString();
  json["step"] = manifest.id.step.value();
  json["epoch"] = manifest.id.epoch.value();
  json["attempt"] = manifest.id.attempt.value();
  json["committed_by_epoch"] = commit.epoch.value();
  json["managed"] = manifest.mode == format::CommitMode::kManaged;
  json["writer"] = manifest.writer;
  json["ranks"] = manifest.world();
  json["files"] = FilesJson(manifest);
  json["tensors"] = Json::array();
  for (const auto& [name, row] : Tensors(manifest)) {
    json["tensors"].push_back({{"name", name},
                               {"dtype", format::DTypeName(row.meta->dtype)},
                               {"shape", row.meta->global_shape},
                               {"placement", PlacementName(row.meta->placement)},
                               {"cut", CutJson(row)},
                               {"ranks", row.ranks},
                               {"bytes", row.bytes},
                               {"tied_to", row.meta->tied_to}});
  }
  json["values"] = ValuesJson(manifest);
  out << json.dump(2, ' ', false, Json::error_handler_t::replace) << "\n";
}

}  // namespace

Status Inspect(const OfflineOptions& options, std::ostream& out) {
  CKPT_ASSIGN_OR_RETURN(Target target, OpenTarget(options.path));
  CKPT_ASSIGN_OR_RETURN(const AttemptId id, SelectCheckpoint(target, options));
  CKPT_ASSIGN_OR_RETURN(const format::Manifest manifest, ReadManifestOf(*target.store, id));
  CKPT_ASSIGN_OR_RETURN(const storage::CommitRecord commit, target.store->ReadCommit(id));
  if (options.json)
    PrintJson(manifest, commit, out);
  else
    PrintPeople(manifest, commit, out);
  return OkStatus();
}

void RegisterInspect(CLI::App& app, const Globals& globals, Run* run) {
  RegisterOffline(
      app, globals, run, "inspect", "what a checkpoint holds; needs no coordinator", Inspect,
      [](CLI::App* verb, OfflineOptions* options) { AddCheckpointFlag(verb, options); });
}

}  // namespace ckpt::ckptctl
