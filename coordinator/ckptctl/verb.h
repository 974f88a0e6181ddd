// What every verb of ckptctl has in common. A verb is registered by a function that adds its
// sub-command to the CLI and sets `*run` when it was chosen; `run` does the work and returns the
// exit code.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "libckpt/base/status.h"

namespace CLI {
class App;
}

namespace ckpt::ckptctl {

// Stable: docs/cli.md.
enum ExitCode : int {
  kExitDone = 0,
  kExitRefused = 1,  // refused or failed; stderr says why
  kExitUsage = 2,
  kExitNoCoordinator = 3,
  kExitDamaged = 4,        // verify found damaged data
  kExitInterrupted = 130,  // Ctrl-C while waiting: what was asked for goes on
};

struct Globals {
  std::string server;            // --server, CKPT_SERVER, or where ckptd listens by default
  std::string output = "table";  // -o table | json
  bool json() const { return output == "json"; }
};

using Run = std::function<int()>;

// Prints "ckptctl: MESSAGE" on stderr and returns the exit code that fits.
int Fail(const Status& status);

void RegisterSubmit(CLI::App& app, const Globals& globals, Run* run);
void RegisterViewVerbs(CLI::App& app, const Globals& globals, Run* run);  // jobs job nodes events
void RegisterLogs(CLI::App& app, const Globals& globals, Run* run);
void RegisterWhy(CLI::App& app, const Globals& globals, Run* run);
void RegisterOperationVerbs(CLI::App& app, const Globals& globals, Run* run);  // quote apply …
void RegisterDoctor(CLI::App& app, const Globals& globals, Run* run);
void RegisterCompletion(CLI::App& app, const Globals& globals, Run* run);

// The words behind `--` on the command line of submit.
void SetSubmitCommand(std::vector<std::string> words);

}  // namespace ckpt::ckptctl
