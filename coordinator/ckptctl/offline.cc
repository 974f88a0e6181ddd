#include "coordinator/ckptctl/offline.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <set>

#include "libckpt/os/uring/uring_file.h"
#include "libckpt/storage/file/file_store.h"

namespace ckpt::ckptctl {

void RegisterOfflineVerbs(CLI::App& app, const Globals& globals, Run* run) {
  RegisterLs(app, globals, run);
  RegisterInspect(app, globals, run);
  RegisterVerify(app, globals, run);
  RegisterDiff(app, globals, run);
  RegisterExport(app, globals, run);
  RegisterImport(app, globals, run);
  RegisterCopy(app, globals, run);
  RegisterUpkeep(app, globals, run);
}

void RegisterOffline(CLI::App& app, const Globals& globals, Run* run, const char* name,
                     const char* help, OfflineWork work,
                     const std::function<void(CLI::App*, OfflineOptions*)>& extend) {
  auto options = std::make_shared<OfflineOptions>();
  CLI::App* verb = app.add_subcommand(name, help);
  verb->fallthrough();
  verb->add_option("PATH", options->path, "a job's directory in a store, or one checkpoint's")
      ->required();
  extend(verb, options.get());
  verb->callback([=, &globals] {
    *run = [=, &globals] {
      options->json = globals.json();
      const Status status = work(*options, std::cout);
      std::cout.flush();
      if (!status.ok()) Fail(status);
      return OfflineExitCode(status);
    };
  });
}

void AddCheckpointFlag(CLI::App* verb, OfflineOptions* options) {
  verb->add_option("--checkpoint", options->checkpoint,
                   "one checkpoint of the job, as ls names it (s<step>.e<epoch>.a<attempt>)");
}

int OfflineExitCode(const Status& status) {
  if (status.ok()) return kExitDone;
  if (status.code() == Code::kDataLoss) return kExitDamaged;
  return status.code() == Code::kInvalidArgument ? kExitUsage : kExitRefused;
}

Result<Target> OpenTarget(const std::string& path) {
  CKPT_ASSIGN_OR_RETURN(const storage::DirectoryKind kind, storage::KindOfDirectory(path));
  Target target;
  if (kind == storage::DirectoryKind::kCheckpoint) {
    CKPT_ASSIGN_OR_RETURN(target.store,
                          storage::OpenCheckpointDirectory(os::UringFileSystem(), path));
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
  auto store = storage::OpenFileStore(os::UringFileSystem(), path);
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
    return NotFound(options.path + " has no checkpoint " + options.checkpoint + "; 'ckptctl ls " +
                    options.path + "' lists those it has");
  }
  for (const storage::CheckpointInfo& info : infos) {
    if (info.visible) return info.id;
  }
  return NotFound(options.path + " has no visible checkpoint");
}

Result<format::Manifest> ReadManifestOf(storage::Store& store, const AttemptId& id) {
  const std::string where = store.Describe() + ", " + id.ToString();
  Result<storage::CommitRecord> commit = store.ReadCommit(id);
  if (!commit.ok() && commit.status().code() == Code::kNotFound) {
    return FailedPrecondition(where + " is not committed: it is unfinished and holds nothing to " +
                              "rely on");
  }
  if (!commit.ok()) return std::move(commit).status().Annotate(where);
  CKPT_ASSIGN_OR_RETURN(const std::string bytes, store.ReadManifest(id));
  if (format::ManifestDigest(bytes) != commit->manifest_digest) {
    return DataLoss(where + ": MANIFEST is damaged: it is not the one that COMMIT names; " +
                    "'ckptctl verify' says more");
  }
  Result<format::Manifest> manifest = format::Manifest::Decode(bytes);
  if (!manifest.ok()) return std::move(manifest).status().Annotate(where + ": MANIFEST");
  return manifest;
}

uint64_t LogicalBytes(const format::Manifest& manifest) {
  std::set<std::string> seen;
  uint64_t bytes = 0;
  for (const format::RankLayout& layout : manifest.layouts) {
    for (const format::TensorMeta& tensor : layout.tensors) {
      if (!tensor.tied_to.empty()) continue;
      const bool own = tensor.placement == format::Placement::kPerRank;
      if (!own && !seen.insert(tensor.name).second) continue;
      const format::Box whole{{}, tensor.global_shape};
      bytes +=
          own ? tensor.LocalBytes() : whole.ElementCount() * format::ElementBytes(tensor.dtype);
    }
  }
  return bytes;
}

Status LeaveNothing(Status failed, const std::string& to) {
  if (failed.code() == Code::kAlreadyExists) return failed.Annotate("making " + to);
  const Status removed = os::PosixFileSystem().RemoveTree(to);
  return failed.Annotate(
      "making " + to +
      (removed.ok() ? " (nothing is left there)" : " (remove what is left there)"));
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
