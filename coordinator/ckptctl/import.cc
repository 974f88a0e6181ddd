// import: safetensors files of somebody else as a checkpoint, whole, every byte of it verified.
#include <CLI/CLI.hpp>
#include <iostream>
#include <nlohmann/json.hpp>

#include "coordinator/ckptctl/check.h"
#include "coordinator/ckptctl/import_files.h"
#include "coordinator/ckptctl/offline.h"
#include "coordinator/ckptctl/work_progress.h"
#include "libckpt/base/clock.h"
#include "libckpt/os/uring/uring_file.h"
#include "libckpt/storage/file/file_store.h"

namespace ckpt::ckptctl {
namespace {

using Json = nlohmann::ordered_json;

// The beginning of a training that has made no step.
const AttemptId kImported{Epoch(1), Step(0), Attempt(1)};

Status WriteTo(const ImportSource& source, const JobId& job, const std::string& to) {
  auto store = storage::NewCheckpointDirectory(os::UringFileSystem(), to, job);
  WorkProgress progress("imported");
  engine::ImportOptions options;
  options.progress = [&](uint64_t done, uint64_t total) { progress.Show(done, total); };
  options.cancelled = [] { return InterruptNote::Noted(); };
  Status status =
      engine::ImportCheckpoint(source.tensors, source.values, job, kImported, store.get(), options);
  progress.Clear();
  return status;
}

Status VerifyIt(const std::string& to) {
  CKPT_ASSIGN_OR_RETURN(const Target target, OpenTarget(to));
  WorkProgress progress("verified");
  const Result<CheckReport> report = CheckCheckpoint(
      *target.store, kImported, [&](uint64_t done, uint64_t total) { progress.Show(done, total); });
  progress.Clear();
  if (!report.ok()) return report.status();
  if (report->ok()) return OkStatus();
  return DataLoss("what was written is not what is read: " + report->damage[0].ToString());
}

Status WriteAndVerify(const ImportSource& source, const JobId& job, const std::string& to) {
  CKPT_ASSIGN_OR_RETURN(const bool taken, os::Exists(os::PosixFileSystem(), to));
  if (taken) return AlreadyExists(to + " exists already: name a directory that is to be made");
  const InterruptNote note;
  Status status = WriteTo(source, job, to);
  if (status.ok()) status = VerifyIt(to);
  return status.ok() ? status : LeaveNothing(std::move(status), to);
}

Status Import(std::vector<std::string> paths, bool json, std::ostream& out) {
  const std::string to = paths.back();
  paths.pop_back();
  CKPT_ASSIGN_OR_RETURN(const ImportSource source, OpenImport(paths));
  const JobId job = JobId::Random();
  CKPT_RETURN_IF_ERROR(WriteAndVerify(source, job, to));
  if (json) {
    Json files = Json::array();
    for (const ImportFile& file : source.files) files.push_back(file.path);
    out << Json{{"checkpoint", kImported.ToString()},
                {"to", to},
                {"job", job.ToString()},
                {"files", files},
                {"tensors", source.tensors.size()},
                {"bytes", source.bytes}}
               .dump(2, ' ', false, Json::error_handler_t::replace)
        << "\n";
  } else {
    out << kImported.ToString() << ": " << source.tensors.size() << " tensors, "
        << FormatBytes(source.bytes) << ", of " << source.files.size()
        << (source.files.size() == 1 ? " file" : " files") << ", in " << to
        << ", every chunk verified\n";
  }
  return OkStatus();
}

}  // namespace

void RegisterImport(CLI::App& app, const Globals& globals, Run* run) {
  auto paths = std::make_shared<std::vector<std::string>>();
  CLI::App* verb = app.add_subcommand("import",
                                      "make a checkpoint of safetensors files, or of a model's "
                                      "directory, in a new directory");
  verb->fallthrough();
  verb->add_option("PATH", *paths,
                   "safetensors files, a directory of them, or an index of theirs; then the "
                   "directory to be made")
      ->required()
      ->expected(-2);
  verb->callback([=, &globals] {
    *run = [=, &globals] {
      const Status status = Import(*paths, globals.json(), std::cout);
      if (!status.ok()) Fail(status);
      return OfflineExitCode(status);
    };
  });
}

}  // namespace ckpt::ckptctl
