// ckptctl: asks the coordinator, and looks at checkpoints without one.
#include <CLI/CLI.hpp>
#include <cstdlib>
#include <iostream>

#include "coordinator/ckptctl/client.h"
#include "coordinator/ckptctl/completion.h"
#include "coordinator/ckptctl/offline.h"
#include "coordinator/ckptctl/verb.h"
#include "libckpt/os/process.h"

namespace {

using namespace ckpt::ckptctl;  // NOLINT: this is its program

// What follows `--` is the job's command, and none of our business.
std::vector<std::string> SplitCommand(int argc, char** argv, std::vector<std::string>* command) {
  std::vector<std::string> words(argv + 1, argv + argc);
  const auto dashes = std::find(words.begin(), words.end(), "--");
  if (dashes != words.end() && !words.empty()) {
    command->assign(dashes + 1, words.end());
    words.erase(dashes, words.end());
  }
  std::reverse(words.begin(), words.end());  // as CLI11 wants them
  return words;
}

}  // namespace

int main(int argc, char** argv) {
  ckpt::os::HoldStandardDescriptors();
  setenv("GRPC_VERBOSITY", "NONE", 0);
  Globals globals;
  Run run;
  CLI::App app("Jobs, nodes, preemptions, migrations; and checkpoints on disk.", "ckptctl");
  app.add_option("--server", globals.server,
                 "the coordinator: unix:PATH or HOST:PORT (CKPT_SERVER; else its default socket)");
  app.add_option("-o,--output", globals.output, "table | json")
      ->check(CLI::IsMember({"table", "json"}));
  app.require_subcommand(1);
  RegisterSubmit(app, globals, &run);
  RegisterViewVerbs(app, globals, &run);
  RegisterLogs(app, globals, &run);
  RegisterWhy(app, globals, &run);
  RegisterOperationVerbs(app, globals, &run);
  RegisterOfflineVerbs(app, globals, &run);
  RegisterDoctor(app, globals, &run);
  RegisterCompletion(app, globals, &run);
  if (argc > 1 && std::string_view(argv[1]) == kCompleteWord) {
    globals.server = FindServer("");
    return Complete(app, globals, {argv + 2, argv + argc}, std::cout);
  }
  std::vector<std::string> command;
  try {
    app.parse(SplitCommand(argc, argv, &command));
  } catch (const CLI::ParseError& error) {
    const auto unknown = app.remaining();
    if (app.get_subcommands().empty() && !unknown.empty()) {
      std::cerr << "ckptctl: there is no command \"" << unknown.front()
                << "\"; `ckptctl --help` lists them\n";
      return kExitUsage;
    }
    return app.exit(error) == 0 ? kExitDone : kExitUsage;
  }
  SetSubmitCommand(std::move(command));
  globals.server = FindServer(globals.server);
  return run ? run() : kExitUsage;
}
