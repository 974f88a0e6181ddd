// cp: a checkpoint to another place, whole and by itself, every chunk checked on its way.
#include "libckpt/engine/copy.h"

#include <CLI/CLI.hpp>
#include <iostream>
#include <nlohmann/json.hpp>

#include "coordinator/ckptctl/offline.h"
#include "coordinator/ckptctl/work_progress.h"
#include "libckpt/base/clock.h"
#include "libckpt/os/uring/uring_file.h"
#include "libckpt/storage/file/file_store.h"

namespace ckpt::ckptctl {
namespace {

// What a copy that failed has begun is no checkpoint: it has no COMMIT.
Status CopyTo(Target& source, const AttemptId& id, const std::string& to, WorkProgress* progress) {
  auto store = storage::NewCheckpointDirectory(os::UringFileSystem(), to, source.job);
  engine::CopyOptions options;
  options.progress = [progress](uint64_t done, uint64_t total) { progress->Show(done, total); };
  options.cancelled = [] { return InterruptNote::Noted(); };
  return engine::CopyCheckpoint(source.store.get(), id, store.get(), options);
}

Status Copy(const OfflineOptions& options, const std::string& to, std::ostream& out) {
  CKPT_ASSIGN_OR_RETURN(Target source, OpenTarget(options.path));
  CKPT_ASSIGN_OR_RETURN(const AttemptId id, SelectCheckpoint(source, options));
  CKPT_ASSIGN_OR_RETURN(const bool taken, os::Exists(os::PosixFileSystem(), to));
  if (taken) {
    return AlreadyExists(to +
                         " exists already: name a directory that is to be made; nothing was "
                         "copied");
  }
  const InterruptNote note;
  WorkProgress progress("copied");
  Status status = CopyTo(source, id, to, &progress);
  progress.Clear();
  if (!status.ok()) return LeaveNothing(std::move(status), to).Annotate("copying " + id.ToString());
  if (options.json) {
    const nlohmann::ordered_json json{
        {"from", options.path}, {"checkpoint", id.ToString()}, {"to", to}};
    out << json.dump(2) << "\n";
  } else {
    out << id.ToString() << " is whole and by itself in " << to << ", every chunk checked\n";
  }
  return OkStatus();
}

}  // namespace

void RegisterCopy(CLI::App& app, const Globals& globals, Run* run) {
  auto options = std::make_shared<OfflineOptions>();
  auto to = std::make_shared<std::string>();
  CLI::App* verb =
      app.add_subcommand("cp", "copy a checkpoint to a new directory, with all that it refers to");
  verb->fallthrough();
  verb->add_option("PATH", options->path, "a job's directory, or one checkpoint's")->required();
  verb->add_option("TO", *to, "the directory to be made")->required();
  AddCheckpointFlag(verb, options.get());
  verb->callback([=, &globals] {
    *run = [=, &globals] {
      options->json = globals.json();
      const Status status = Copy(*options, *to, std::cout);
      if (!status.ok()) Fail(status);
      return OfflineExitCode(status);
    };
  });
}

}  // namespace ckpt::ckptctl
