// The verbs of ckptctl that need no coordinator: they read a store's directory. Each verb is one
// file that parses its flags and one function on options and a stream.
#pragma once

#include <iosfwd>
#include <memory>
#include <string>
#include <vector>

#include "coordinator/ckptctl/verb.h"
#include "libckpt/base/status.h"
#include "libckpt/format/manifest.h"
#include "libckpt/storage/store.h"

namespace ckpt::ckptctl {

// All of them.
void RegisterOfflineVerbs(CLI::App& app, const Globals& globals, Run* run);
// Each registers itself.
void RegisterLs(CLI::App& app, const Globals& globals, Run* run);
void RegisterInspect(CLI::App& app, const Globals& globals, Run* run);
void RegisterVerify(CLI::App& app, const Globals& globals, Run* run);
void RegisterUpkeep(CLI::App& app, const Globals& globals, Run* run);  // prune du repair
void RegisterCopy(CLI::App& app, const Globals& globals, Run* run);
void RegisterDiff(CLI::App& app, const Globals& globals, Run* run);
void RegisterExport(CLI::App& app, const Globals& globals, Run* run);
void RegisterImport(CLI::App& app, const Globals& globals, Run* run);

struct OfflineOptions {
  std::string path;
  bool json = false;
  std::string checkpoint;  // in a job's directory: this one only; empty: the verb's default
  bool all = false;        // also what is not visible
};

// A sub-command with PATH that runs `work` on options and standard output. `extend` adds flags.
using OfflineWork = Status (*)(const OfflineOptions&, std::ostream&);
void RegisterOffline(CLI::App& app, const Globals& globals, Run* run, const char* name,
                     const char* help, OfflineWork work,
                     const std::function<void(CLI::App*, OfflineOptions*)>& extend);
void AddCheckpointFlag(CLI::App* verb, OfflineOptions* options);
// Damage is 4, a bad name 2, anything else 1.
int OfflineExitCode(const Status& status);

// What PATH names: a job's directory, or one checkpoint by its own path.
struct Target {
  std::unique_ptr<storage::Store> store;
  bool is_job = false;
  JobId job;  // zero if JOB is missing
};
// Errors: kNotFound naming the jobs beneath PATH, if it holds some.
Result<Target> OpenTarget(const std::string& path);
// The checkpoint that `options` select; by default the newest visible one.
Result<AttemptId> SelectCheckpoint(Target& target, const OfflineOptions& options);

// MANIFEST, held against COMMIT. Errors: kDataLoss; kFailedPrecondition if it is not committed.
Result<format::Manifest> ReadManifestOf(storage::Store& store, const AttemptId& id);
// Bytes of all tensors, each once: replicated and tied ones are no more than one.
uint64_t LogicalBytes(const format::Manifest& manifest);

// After a failure to make `to`: removes what was begun there and says so. What was there already,
// or came there meanwhile, is somebody else's and stays: then the failure is kAlreadyExists.
Status LeaveNothing(Status failed, const std::string& to);

// Columns aligned, two spaces between; the last is not padded.
void PrintTable(const std::vector<std::vector<std::string>>& rows, std::ostream& out);

}  // namespace ckpt::ckptctl
