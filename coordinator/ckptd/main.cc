// ckptd: the coordinator. Parses its options, starts the server, waits for a signal.
#include <signal.h>
#include <time.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>

#include "coordinator/ckptd/server.h"
#include "libckpt/base/log.h"
#include "libckpt/os/event_loop.h"
#include "libckpt/os/process.h"

namespace {

using ckpt::Status;

void LogLine(ckpt::LogLevel level, std::string_view message) {
  static constexpr const char* kNames[] = {"debug", "info", "warning", "error"};
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  tm parts{};
  gmtime_r(&now.tv_sec, &parts);
  char stamp[32];
  strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%S", &parts);
  std::fprintf(stderr, "%s.%03ldZ %s %.*s\n", stamp, now.tv_nsec / 1'000'000,
               kNames[static_cast<int>(level)], static_cast<int>(message.size()), message.data());
}

int Fail(const Status& status) {
  std::fprintf(stderr, "ckptd: %s\n", status.message().c_str());
  return status.code() == ckpt::Code::kInvalidArgument ? 2 : 1;
}

// Each value and where it came from.
void PrintConfig(const CLI::App& app, int argc, char** argv) {
  for (const CLI::Option* option : app.get_options()) {
    const std::string name = option->get_name();
    if (!option->get_configurable() || option->get_lnames().empty()) continue;
    bool flag = false;
    for (int i = 1; i < argc; ++i) flag |= std::string_view(argv[i]).starts_with(name);
    const char* origin = flag ? "flag" : option->count() > 0 ? "config" : "default";
    const auto values = option->results();
    const std::string value = values.empty() ? option->get_default_str() : values.front();
    std::printf("%s = \"%s\"  # %s\n", option->get_lnames().front().c_str(), value.c_str(), origin);
  }
}

// Until SIGTERM, SIGINT, or a record that could not be stored.
int Serve(ckpt::ckptd::ServerOptions options) {
  auto loop = ckpt::os::EventLoop::Create();
  if (!loop.ok()) return Fail(loop.status());
  ckpt::os::EventLoop* stop = loop->get();
  int code = 0;
  for (const int signal : {SIGTERM, SIGINT}) {
    const Status added = stop->AddSignal(signal, [stop](const auto&) { stop->Stop(); });
    if (!added.ok()) return Fail(added);
  }
  options.on_fatal = [stop, &code](Status) {
    stop->Post([stop, &code] {
      code = 1;
      stop->Stop();
    });
  };
  auto server = ckpt::ckptd::Server::Start(std::move(options));
  if (!server.ok()) return Fail(server.status());
  std::printf("ckptd listens on %s\n", (*server)->address().c_str());
  std::fflush(stdout);
  const Status ran = stop->Run();
  if (!ran.ok()) return Fail(ran);
  ckpt::LogInfo("ending; jobs and agents go on");
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  ckpt::os::HoldStandardDescriptors();
  setenv("GRPC_VERBOSITY", "NONE", 0);
  ckpt::SetLogSink(LogLine);
  ckpt::ckptd::ServerOptions options;
  options.listen = ckpt::ckptd::DefaultListen();
  options.data = ckpt::ckptd::DefaultData();
  bool print_config = false;

  CLI::App app("The coordinator of ckpt: jobs, nodes, quotes, preemptions, migrations.", "ckptd");
  app.set_config("--config", "", "a TOML file with these options; flags override it");
  app.add_option("--listen", options.listen, "unix:PATH or 127.0.0.1:PORT (0: any free port)")
      ->capture_default_str();
  app.add_option("--data", options.data, "folder of its records")->capture_default_str();
  app.add_option("--heartbeat-ms", options.heartbeat_ms, "how often agents say that they live")
      ->check(CLI::Range(50, 60'000))
      ->capture_default_str();
  app.add_flag("--print-config", print_config, "print each value and where it came from, and end")
      ->configurable(false);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const int code = app.exit(error);
    return code == 0 ? 0 : 2;
  }
  if (print_config) {
    PrintConfig(app, argc, argv);
    return 0;
  }
  if (options.listen.empty()) {
    return Fail(ckpt::InvalidArgument("say where to listen: --listen unix:PATH or 127.0.0.1:PORT"));
  }
  return Serve(std::move(options));
}
