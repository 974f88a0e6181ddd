// The verbs of ckptctl that need no coordinator: they read a store's directory. Each verb is one
// file that parses its flags and one function on options and a stream.
//
// Exit codes: 0 done · 1 refused or failed · 2 usage · 4 damage found.
#pragma once

#include <iosfwd>
#include <memory>
#include <string>
#include <vector>

#include "libckpt/base/status.h"
#include "libckpt/storage/store.h"

namespace CLI {
class App;
}

namespace ckpt::ckptctl {

// Adds ls, inspect and verify to `app`. Parsing one of them runs it: what it found goes to `out`,
// an error to `err`, its exit code to `exit_code`. All must outlive `app`.
void RegisterOfflineVerbs(CLI::App* app, std::ostream* out, std::ostream* err, int* exit_code);

// Each registers itself.
void RegisterLs(CLI::App* app, std::ostream* out, std::ostream* err, int* exit_code);
void RegisterInspect(CLI::App* app, std::ostream* out, std::ostream* err, int* exit_code);
void RegisterVerify(CLI::App* app, std::ostream* out, std::ostream* err, int* exit_code);

enum class OfflineFormat { kTable, kJson };
struct OfflineOptions {
  std::string path;
  OfflineFormat format = OfflineFormat::kTable;
  std::string checkpoint;  // in a job's directory: this one only; empty: the verb's default
  bool all = false;        // also what is not visible
};
// PATH, -o and what else `options` has a flag for.
void AddOfflineFlags(CLI::App* verb, OfflineOptions* options, bool selects);

// Runs `verb` and reports: the exit code of its status.
int ReportOffline(const Status& status, std::ostream* err);

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

// Columns aligned, two spaces between; the last is not padded.
void PrintTable(const std::vector<std::vector<std::string>>& rows, std::ostream& out);

}  // namespace ckpt::ckptctl
