// ckpt-agent: one per node. Parses its options, starts the agent, waits for a signal.
#include <signal.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <utility>

#include "coordinator/agent/agent.h"
#include "libckpt/base/log.h"
#include "libckpt/os/event_loop.h"
#include "libckpt/os/process.h"

namespace {

using ckpt::Status;
using ckpt::agent::AgentOptions;

constexpr ckpt::Nanos kLeaveTime = std::chrono::seconds(60);
constexpr ckpt::Nanos kLeaveLook = std::chrono::milliseconds(100);

void LogLine(ckpt::LogLevel level, std::string_view message) {
  static constexpr spdlog::level::level_enum kLevels[] = {spdlog::level::debug, spdlog::level::info,
                                                          spdlog::level::warn, spdlog::level::err};
  spdlog::log(kLevels[static_cast<int>(level)], "{}", message);
}

int Fail(const Status& status) {
  std::fprintf(stderr, "ckpt-agent: %s\n", status.message().c_str());
  const bool usage =
      status.code() == ckpt::Code::kInvalidArgument || status.code() == ckpt::Code::kUnimplemented;
  return usage ? 2 : 1;
}

// Ends the loop once every copy is durable, or in the hands of a ckpt-run as well: the drain that
// ckptd orders goes on without this agent.
void Leave(ckpt::os::EventLoop* loop, const std::unique_ptr<ckpt::agent::Agent>* agent) {
  const std::string alone = *agent == nullptr ? "" : (*agent)->HeldAlone();
  if (alone.empty()) return loop->Stop();
  ckpt::LogWarning("only this agent holds " + alone + ": ending when it is being written, in " +
                   ckpt::FormatDuration(kLeaveTime) +
                   " at the latest; a second signal ends at once");
  const auto deadline = std::make_shared<ckpt::Deadline>("leaving", kLeaveTime);
  loop->AddPeriodic(kLeaveLook, [loop, agent, deadline] {
    const std::string left = (*agent)->HeldAlone();
    if (!left.empty() && !deadline->Expired()) return;
    if (!left.empty()) ckpt::LogError("ends and takes with it what only it held: " + left);
    loop->Stop();
  });
}

int Serve(const AgentOptions& options) {
  auto loop = ckpt::os::EventLoop::Create();
  if (!loop.ok()) return Fail(loop.status());
  // Before any thread exists: they inherit the mask.
  std::unique_ptr<ckpt::agent::Agent> agent;
  bool leaving = false;
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) {
    const Status added = (*loop)->AddSignal(signal, [&](const auto&) {
      if (std::exchange(leaving, true)) return (*loop)->Stop();  // a second one does not wait
      Leave(loop->get(), &agent);
    });
    if (!added.ok()) return Fail(added);
  }
  auto started = ckpt::agent::Agent::Start(options, loop->get());
  if (!started.ok()) return Fail(started.status());
  agent = std::move(*started);
  ckpt::LogInfo("node " + options.name + ": " + std::to_string(options.slots) +
                " slots, staging budget " + ckpt::FormatBytes(options.staging_budget_bytes) +
                ", data at " + agent->data_address());
  const Status ran = (*loop)->Run();
  if (!ran.ok()) return Fail(ran);
  ckpt::LogInfo("ending; what runs here goes on");
  return 0;
}

int Usage(CLI::App* app, const CLI::ParseError& error) {
  const int code = app->exit(error);
  return code == 0 ? 0 : 2;
}

}  // namespace

int main(int argc, char** argv) {
  ckpt::os::HoldStandardDescriptors();
  setenv("GRPC_VERBOSITY", "NONE", 0);
  AgentOptions options;
  options.child_umask = umask(077);
  options.name = ckpt::os::HostName();
  std::string budget, log_limit = "128MiB", log_level = "info";

  CLI::App app("The agent of one node: starts jobs, keeps and moves their copies.", "ckpt-agent");
  app.set_config("--config", "", "a TOML file with these options; flags override it");
  app.add_option("--name", options.name, "of this node; unique in the cluster")
      ->capture_default_str();
  app.add_option("--coordinator", options.coordinator, "unix:PATH or HOST:PORT of ckptd")
      ->envname("CKPT_SERVER");
  app.add_option("--slots", options.slots, "ranks that may run here")->capture_default_str();
  app.add_option("--staging-budget", budget,
                 "memory for staged copies, as in 512MiB or 64GiB (default: half of what is free)");
  app.add_option("--address", options.address, "host that other nodes reach this one at")
      ->capture_default_str();
  app.add_option("--state-dir", options.state_dir, "folder for socket, launches and logs")
      ->required();
  app.add_option("--ckpt-run", options.ckpt_run, "program (default: beside this one)");
  app.add_option("--store-root", options.store_root,
                 "folder for the stores of jobs that name none (default: STATE_DIR/store)");
  app.add_option("--log-limit", log_limit,
                 "that each log of a rank may take on disk; its oldest part goes first")
      ->capture_default_str();
  app.add_option("--log-level", log_level, "debug, info, warning or error")->capture_default_str();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return Usage(&app, error);
  }
  spdlog::set_default_logger(spdlog::stderr_logger_mt("ckpt-agent"));
  spdlog::set_level(spdlog::level::from_str(log_level));
  spdlog::flush_on(spdlog::level::debug);
  ckpt::SetLogSink(LogLine);
  if (!budget.empty()) {
    const ckpt::Result<uint64_t> bytes = ckpt::agent::ParseBytes(budget);
    if (!bytes.ok()) return Fail(ckpt::Status(bytes.status()).Annotate("--staging-budget"));
    options.staging_budget_bytes = *bytes;
  }
  const ckpt::Result<uint64_t> log_bytes = ckpt::agent::ParseBytes(log_limit);
  if (!log_bytes.ok()) return Fail(ckpt::Status(log_bytes.status()).Annotate("--log-limit"));
  options.log_bytes_max = *log_bytes;
  const Status checked = ckpt::agent::CheckOptions(&options);
  if (!checked.ok()) return Fail(checked);
  return Serve(options);
}
