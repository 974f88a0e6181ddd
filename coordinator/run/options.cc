#include "coordinator/run/options.h"

#include <stdlib.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <sstream>

#include "libckpt/base/limits.h"
#include "libckpt/os/socket.h"

namespace ckpt::run {
namespace {

constexpr char kUsage[] =
    "Runs the ranks of a job on this node: stops all of them at one step on a notice, keeps their "
    "state in RAM,\nmakes it durable, and goes on from there the next time.\n\n"
    "  ckpt-run --ranks 4 -- ./train --lr 0.1\n\n"
    "SIGTERM, SIGUSR1, SIGINT or SIGHUP to ckpt-run, or to any rank, suspends the whole gang.\n"
    "Exit codes: 0 finished, 75 suspended and durable, 76 suspended but not durable (the message "
    "says why), 2 usage, 1 failed.";

struct Raw {
  std::string job_id, staging_budget, expect;
  double grace_seconds = 30;
  double join_seconds = 600;
  std::optional<uint32_t> first_rank, rank_count;
  uint64_t keep_last = 0, keep_every = 0, keep_hours = 0;
};

void AddKeepFlags(CLI::App* app, Raw* raw) {
  app->add_option("--keep-last", raw->keep_last,
                  "After each save remove all checkpoints but the newest N whole ones "
                  "(CKPT_KEEP_LAST; 0: remove none)")
      ->envname("CKPT_KEEP_LAST");
  app->add_option("--keep-every", raw->keep_every,
                  "... and the first at or after each multiple of so many steps (CKPT_KEEP_EVERY)")
      ->envname("CKPT_KEEP_EVERY");
  app->add_option("--keep-hours", raw->keep_hours,
                  "... and the newest of each period of so many hours (CKPT_KEEP_HOURS)")
      ->envname("CKPT_KEEP_HOURS");
}

void AddJobFlags(CLI::App* app, Options* o, Raw* raw) {
  app->add_option("--job", o->job, "Name of the job (CKPT_JOB, else the command's base name)");
  app->add_option("--store", o->store,
                  "Directory of its checkpoints (CKPT_STORE, else ./ckpt/JOB)");
  app->add_option("--job-id", raw->job_id,
                  "32 hex digits: refuse a store that belongs to another job");
  app->add_option("--epoch", o->epoch, "Claim this epoch or a later one (0: the next free one)");
  app->add_option("--expect", raw->expect,
                  "A copy, as s120.e3.a2: refuse to start from an older one, or from none");
  app->add_option("--operation", o->operation, "Id of the launch, repeated in reports");
  app->add_option("--save-every", o->save_every,
                  "Boundaries between periodic saves (0: the program decides)");
  app->add_option("--restarts", o->restarts_max, "Restarts after a crash, without an agent");
  app->add_flag("--drain", o->drain,
                "Start no rank: write the newest complete copy that the agents hold (CKPT_AGENT)");
  app->add_option("--compress", o->write.compression_level,
                  "Compress shards with this level of zstd (CKPT_COMPRESS; 0: plain safetensors)")
      ->envname("CKPT_COMPRESS")
      ->check(CLI::Range(0, 19));
  app->add_flag("--references", o->write.references,
                "Do not write again what has not changed since the newest checkpoint "
                "(CKPT_REFERENCES=1)")
      ->envname("CKPT_REFERENCES");
  app->add_option("--write-threads", o->write.threads,
                  "Threads that write one shard (CKPT_WRITE_THREADS; 0 chooses)")
      ->envname("CKPT_WRITE_THREADS")
      ->check(CLI::Range(0u, 16u));
  app->add_option("--result", o->result_path,
                  "Leave the last report to the agent in FILE, should it be away then");
  app->add_option("--log-dir", o->log_dir, "Write rank output to DIR/e<epoch>/rank<r>.log");
}

void AddGangFlags(CLI::App* app, Options* o, Raw* raw) {
  app->add_option("--ranks", raw->rank_count, "Ranks on this node (1; of torchrun what it says)")
      ->check(CLI::Range(1u, kRanksMax));
  app->add_flag(
      "--launcher", o->launcher,
      "COMMAND starts the ranks of this node itself, as torchrun does (known by its name)");
  app->add_option("--nnodes", o->node_count, "Nodes of the gang")
      ->check(CLI::Range(1u, kMembersMax));
  app->add_option("--node-rank", o->node_rank, "This node's number; 0 leads");
  app->add_option("--first-rank", raw->first_rank,
                  "First rank on this node (else node rank * ranks)");
  CLI::Option* rendezvous =
      app->add_option("--rendezvous", o->rendezvous, "HOST:PORT where node 0 serves the gang");
  app->add_option("--listen", o->listen_host, "HOST where node 0 serves the gang on a free port")
      ->excludes(rendezvous);
  app->add_option("--staging-budget", raw->staging_budget,
                  "RAM for staged copies, as 8GiB (else half of what is available)");
  app->add_option("--grace", raw->grace_seconds, "Seconds from a notice to the kill");
  app->add_option("--join-timeout", raw->join_seconds, "Seconds to wait for the other nodes");
}

std::string BaseName(const std::string& path) {
  const size_t slash = path.find_last_of('/');
  return slash == std::string::npos ? path : path.substr(slash + 1);
}

bool IsTorchrun(const std::vector<std::string>& command) {
  if (command.empty()) return false;
  if (BaseName(command[0]) == "torchrun") return true;
  const auto module = std::find(command.begin(), command.end(), "-m");
  return module != command.end() && module + 1 != command.end() &&
         *(module + 1) == "torch.distributed.run";
}

// How many ranks torchrun starts: its --nproc-per-node, spelled one way or the other; 1 without it.
Result<uint32_t> RanksOfTorchrun(const std::vector<std::string>& command) {
  for (size_t i = 1; i < command.size(); ++i) {
    std::string flag = command[i];
    const size_t equals = flag.find('=');
    std::string text = equals == std::string::npos ? "" : flag.substr(equals + 1);
    flag.resize(std::min(equals, flag.size()));
    if (flag != "--nproc-per-node" && flag != "--nproc_per_node") continue;
    if (equals == std::string::npos && i + 1 < command.size()) text = command[i + 1];
    uint32_t count = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
    if (error == std::errc() && end == text.data() + text.size() && count > 0 && count <= kRanksMax)
      return count;
    return InvalidArgument("torchrun's --nproc-per-node is '" + text +
                           "', which is no number: say how many ranks it starts with --ranks");
  }
  return 1u;
}

void ApplyEnvironment(Options* o, const Environment& env) {
  if (o->job.empty()) o->job = env("CKPT_JOB").value_or("");
  if (o->job.empty() && !o->command.empty()) o->job = BaseName(o->command[0]);
  if (o->store.empty()) o->store = env("CKPT_STORE").value_or("");
  if (o->store.empty()) o->store = "./ckpt/" + o->job;
  o->agent_socket = env("CKPT_AGENT").value_or("");
  o->gang_token = env("CKPT_GANG_TOKEN").value_or("");
}

Status CheckAddresses(const Options& o) {
  if (o.node_count > 1 && o.rendezvous.empty() && !(o.leads() && !o.listen_host.empty())) {
    return InvalidArgument("--nnodes " + std::to_string(o.node_count) +
                           " needs --rendezvous HOST:PORT, the same on all nodes");
  }
  std::string host = o.listen_host;
  if (!o.rendezvous.empty()) {
    CKPT_ASSIGN_OR_RETURN(const auto address, os::ParseHostPort(o.rendezvous));
    if (address.port == 0) {
      return InvalidArgument("--rendezvous " + o.rendezvous + ": port 0 cannot be found by others");
    }
    host = address.host;
  }
  if (!host.empty() && !os::IsLoopbackHost(host)) {
    return InvalidArgument("the gang would be served at " + host +
                           ", which is not loopback; without TLS only 127.0.0.1, ::1 or localhost "
                           "is allowed");
  }
  return OkStatus();
}

Status CheckNumbers(const Options& o) {
  if (o.node_rank >= o.node_count) {
    return InvalidArgument("--node-rank " + std::to_string(o.node_rank) +
                           " does not fit --nnodes " + std::to_string(o.node_count) +
                           ": node ranks count from 0");
  }
  if (uint64_t{o.first_rank} + o.rank_count > kRanksMax) {
    return InvalidArgument("ranks up to " + std::to_string(uint64_t{o.first_rank} + o.rank_count) +
                           " are more than " + std::to_string(kRanksMax));
  }
  if (o.restarts_max > 0 && o.node_count > 1 && o.agent_socket.empty()) {
    return InvalidArgument(
        "--restarts works on one node only; a gang of several nodes is restarted by a coordinator, "
        "or by running its ckpt-runs again");
  }
  return OkStatus();
}

// Not "nan", not "inf", not what a clock cannot hold.
Result<Nanos> FromSeconds(const char* flag, double seconds) {
  constexpr double kSecondsMax = 1e8;  // three years
  if (seconds > 0 && seconds <= kSecondsMax) return Nanos(static_cast<int64_t>(seconds * 1e9));
  std::ostringstream text;
  text << flag << " " << seconds << ": write seconds, more than 0 and at most " << kSecondsMax;
  return InvalidArgument(text.str());
}

Status Finish(const Raw& raw, const Environment& env, Options* o) {
  if (o->command.empty() && !o->drain) {
    return InvalidArgument("no command: put it after --, as in ckpt-run --ranks 2 -- ./train");
  }
  const bool torchrun = IsTorchrun(o->command);
  o->launcher = o->launcher || torchrun;
  if (raw.rank_count) {
    o->rank_count = *raw.rank_count;
  } else if (torchrun) {
    CKPT_ASSIGN_OR_RETURN(o->rank_count, RanksOfTorchrun(o->command));
  }
  ApplyEnvironment(o, env);
  if (o->drain && o->job.empty()) {
    return InvalidArgument("--drain needs the job's name: --job, CKPT_JOB or its command after --");
  }
  CKPT_RETURN_IF_ERROR(CheckName("job", o->job));
  if (o->drain && o->agent_socket.empty()) {
    return InvalidArgument(
        "--drain writes copies that an agent holds, and CKPT_AGENT names none; without an agent a "
        "copy in RAM goes with its ckpt-run");
  }
  if (!raw.job_id.empty()) {
    CKPT_ASSIGN_OR_RETURN(o->job_id, JobId::Parse(raw.job_id));
  }
  if (!raw.expect.empty()) {
    Result<AttemptId> expect = AttemptId::Parse(raw.expect);
    if (!expect.ok()) return std::move(expect).status().Annotate("--expect");
    o->expect = *expect;
  }
  if (!raw.staging_budget.empty()) {
    Result<uint64_t> bytes = ParseByteCount(raw.staging_budget);
    if (!bytes.ok()) return std::move(bytes).status().Annotate("--staging-budget");
    o->staging_budget_bytes = *bytes;
  }
  CKPT_ASSIGN_OR_RETURN(o->keep,
                        storage::MakeKeepRules(raw.keep_last, raw.keep_every, raw.keep_hours));
  CKPT_ASSIGN_OR_RETURN(o->grace, FromSeconds("--grace", raw.grace_seconds));
  if (o->grace < std::chrono::milliseconds(1)) {
    return InvalidArgument(
        "--grace must be a millisecond at least: what has not left then is killed");
  }
  CKPT_ASSIGN_OR_RETURN(o->join_timeout, FromSeconds("--join-timeout", raw.join_seconds));
  o->first_rank = raw.first_rank.value_or(o->node_rank * o->rank_count);
  CKPT_RETURN_IF_ERROR(CheckNumbers(*o));
  return CheckAddresses(*o);
}

// What the parser takes for flags: everything before the first "--"; the rest is the command.
std::vector<std::string> SplitCommand(int argc, const char* const* argv, Options* o) {
  std::vector<std::string> flags;
  int i = 1;
  for (; i < argc && std::string_view(argv[i]) != "--"; ++i) flags.emplace_back(argv[i]);
  for (++i; i < argc; ++i) o->command.emplace_back(argv[i]);
  return flags;
}

}  // namespace

Environment ProcessEnvironment() {
  return [](const char* name) -> std::optional<std::string> {
    const char* value = getenv(name);
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  };
}

Result<ParsedOptions> ParseOptions(int argc, const char* const* argv, const Environment& env) {
  ParsedOptions parsed;
  Raw raw;
  CLI::App app(kUsage, "ckpt-run");
  app.option_defaults()->take_last();  // a flag that comes twice: the last one counts
  AddJobFlags(&app, &parsed.options, &raw);
  AddKeepFlags(&app, &raw);
  AddGangFlags(&app, &parsed.options, &raw);
  std::vector<std::string> flags = SplitCommand(argc, argv, &parsed.options);
  std::reverse(flags.begin(), flags.end());  // CLI11 takes them from the back
  // The one place where a library throws: its parse errors become ours.
  try {
    app.parse(flags);
  } catch (const CLI::CallForHelp&) {
    parsed.help = app.help() + "\nThe command follows after --.\n";
    return parsed;
  } catch (const CLI::ParseError& error) {
    return InvalidArgument(std::string(error.what()) + "; see ckpt-run --help");
  }
  CKPT_RETURN_IF_ERROR(Finish(raw, env, &parsed.options));
  return parsed;
}

Result<uint64_t> ParseByteCount(std::string_view text) {
  uint64_t count = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  const std::string_view unit(end, static_cast<size_t>(text.data() + text.size() - end));
  static constexpr std::pair<std::string_view, int> kUnits[] = {
      {"", 0},     {"B", 0},  {"K", 10},   {"KiB", 10}, {"M", 20},
      {"MiB", 20}, {"G", 30}, {"GiB", 30}, {"T", 40},   {"TiB", 40}};
  for (const auto& [name, shift] : kUnits) {
    if (error == std::errc() && unit == name && count <= (UINT64_MAX >> shift))
      return count << shift;
  }
  return InvalidArgument("'" + std::string(text) + "' is no number of bytes; write 512MiB or 8GiB");
}

Result<std::string> FindCommand(const std::string& name, const Environment& env) {
  std::vector<std::string> candidates;
  if (name.find('/') != std::string::npos) {
    candidates.push_back(name);
  } else {
    std::istringstream path(env("PATH").value_or("/usr/local/bin:/usr/bin:/bin"));
    for (std::string dir; std::getline(path, dir, ':');) {
      candidates.push_back((dir.empty() ? "." : dir) + "/" + name);
    }
  }
  bool exists = false;
  for (const std::string& file : candidates) {
    if (access(file.c_str(), X_OK) == 0) return file;
    exists = exists || access(file.c_str(), F_OK) == 0;
  }
  if (exists) return PermissionDenied("command '" + name + "' is not executable");
  return NotFound("command '" + name + "' is not there" +
                  (name.find('/') == std::string::npos ? " in any directory of PATH" : ""));
}

}  // namespace ckpt::run
