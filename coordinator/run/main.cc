// ckpt-run: see docs/cli_ckpt_run.md.
#include <cstdio>

#include "coordinator/run/runner.h"
#include "libckpt/base/log.h"
#include "libckpt/os/process.h"

namespace {

void PrintLog(ckpt::LogLevel level, std::string_view message) {
  if (level < ckpt::LogLevel::kInfo) return;
  const char* kind = level == ckpt::LogLevel::kWarning ? "warning: " : "";
  ckpt::run::Say(kind + std::string(message));
}

}  // namespace

int main(int argc, char** argv) {
  ckpt::os::HoldStandardDescriptors();
  const ckpt::Result<ckpt::run::ParsedOptions> parsed =
      ckpt::run::ParseOptions(argc, argv, ckpt::run::ProcessEnvironment());
  if (!parsed.ok()) {
    fprintf(stderr, "ckpt-run: %s\n", parsed.status().message().c_str());
    return 2;
  }
  if (!parsed->help.empty()) {
    fputs(parsed->help.c_str(), stdout);
    return 0;
  }
  ckpt::SetLogSink(PrintLog);
  return ckpt::run::Runner(parsed->options).Run();
}
