#include "coordinator/ckptctl/offline.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <ostream>

#include "libckpt/storage/file/file_store.h"

namespace ckpt::ckptctl {

void RegisterOfflineVerbs(CLI::App* app, std::ostream* out, std::ostream* err, int* exit_code) {
  RegisterLs(app, out, err, exit_code);
  RegisterInspect(app, out, err, exit_code);
  RegisterVerify(app, out, err, exit_code);
}

void AddOfflineFlags(CLI::App* verb, OfflineOptions* options, bool selects) {
  static const std::map<std::string, OfflineFormat> kFormats = {{"table", OfflineFormat::kTable},
                                                                {"json", OfflineFormat::kJson}};
  verb->add_option("PATH", options->path, "a job's directory in a store, or one checkpoint's")
      ->required();
  verb->add_option("-o,--output", options->format, "table or json")
      ->transform(CLI::CheckedTransformer(kFormats, CLI::ignore_case))
      ->default_str("table");
  if (selects) {
    verb->add_option("--checkpoint", options->checkpoint,
                     "one checkpoint of the job, as ls names it (s<step>.e<epoch>.a<attempt>)");
  }
}

int ReportOffline(const Status& status, std::ostream* err) {
  if (status.ok()) return 0;
  *err << "ckptctl: " << status.message() << "\n";
  if (status.code() == Code::kDataLoss) return 4;
  return status.code() == Code::kInvalidArgument ? 2 : 1;
}

Result<Target> OpenTarget(const std::string& path) {
  CKPT_ASSIGN_OR_RETURN(const storage::DirectoryKind kind, storage::KindOfDirectory(path));
  Target target;
  if (kind == storage::DirectoryKind::kCheckpoint) {
    CKPT_ASSIGN_OR_RETURN(target.store, storage::OpenCheckpointDirectory(path));
    CKPT_ASSIGN_OR_RETURN(target.job, target.store->OpenJob({}));
    return target;
  }
  if (kind == storage::DirectoryKind::kNeither) {
    std::string message = path + " is neither a job's directory nor a checkpoint";
    const std::vector<std::string> jobs = storage::JobsBeneath(path);
    for (size_t i = 0; i < jobs.size(); ++i)
      message += (i == 0 ? "; jobs in it: " : ", ") + jobs[i];
    return NotFound(message);
  }
  auto store = storage::OpenFileStore(path);
  const Result<JobId> job = store->ReadJob();
  if (job.ok()) target.job = *job;
  if (!job.ok() && job.status().code() != Code::kNotFound) return job.status();
  target.store = std::move(store);
  target.is_job = true;
  return target;
}

Result<AttemptId> SelectCheckpoint(Target& target, const OfflineOptions& options) {
  CKPT_ASSIGN_OR_RETURN(const std::vector<storage::CheckpointInfo> infos, target.store->List());
  if (!target.is_job && !infos.empty()) return infos.front().id;
  if (!options.checkpoint.empty()) {
    CKPT_ASSIGN_OR_RETURN(const AttemptId id, AttemptId::Parse(options.checkpoint));
    for (const storage::CheckpointInfo& info : infos) {
      if (info.id == id) return id;
    }
    return NotFound(options.path + " has no checkpoint " + options.checkpoint +
                    "; 'ckptctl ls " + options.path + "' lists those it has");
  }
  for (const storage::CheckpointInfo& info : infos) {
    if (info.visible) return info.id;
  }
  return NotFound(options.path + " has no visible checkpoint");
}

void PrintTable(const std::vector<std::vector<std::string>>& rows, std::ostream& out) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
  }
  for (const auto& row : rows) {
    for (size_t c = 0; c < row.size(); ++c) {
      out << row[c];
      if (c + 1 < row.size()) out << std::string(widths[c] - row[c].size() + 2, ' ');
    }
    out << "\n";
  }
}

}  // namespace ckpt::ckptctl
