#include "coordinator/agent/launch_command.h"

#include <algorithm>
#include <string_view>

#include "libckpt/base/ids.h"
#include "libckpt/base/limits.h"
#include "libckpt/os/file.h"

namespace ckpt::agent {
namespace {

constexpr char kMarkName[] = "CKPT_LAUNCH";

// The agent's environment without what says of a launch what only this one may say.
std::vector<std::string> BaseEnv() {
  static constexpr std::string_view kOwn[] = {
      "CKPT_RUN=",   "CKPT_JOB=",        "CKPT_TOKEN_FILE=", "CKPT_EPOCH=",     "CKPT_STORE=",
      "CKPT_AGENT=", "CKPT_SAVE_EVERY=", "CKPT_LAUNCH=",     "CKPT_GANG_TOKEN="};
  std::vector<std::string> env = os::CurrentEnv();
  std::erase_if(env, [](const std::string& entry) {
    return std::any_of(std::begin(kOwn), std::end(kOwn),
                       [&](std::string_view name) { return entry.starts_with(name); });
  });
  return env;
}

std::string ToHex(const std::string& bytes) {
  JobId id;
  if (bytes.size() != id.bytes.size()) return "";
  std::copy(bytes.begin(), bytes.end(), id.bytes.begin());
  return id.IsZero() ? "" : id.ToString();
}

}  // namespace

Status CheckLaunch(const v1::Launch& launch, const AgentOptions& options) {
  CKPT_RETURN_IF_ERROR(CheckName("job", launch.job()));
  if (launch.epoch() == 0) return InvalidArgument("a launch needs an epoch");
  if (launch.spec().command().empty()) {
    return InvalidArgument("job " + launch.job() + " has no command");
  }
  if (launch.rank_count() == 0 || launch.rank_count() > options.slots) {
    return InvalidArgument("job " + launch.job() + ": " + std::to_string(launch.rank_count()) +
                           " ranks for node " + options.name + ", which has " +
                           std::to_string(options.slots) + " slots");
  }
  if (launch.nnodes() == 0 || launch.nnodes() > kMembersMax ||
      launch.node_rank() >= launch.nnodes()) {
    return InvalidArgument("job " + launch.job() + ": node rank " +
                           std::to_string(launch.node_rank()) + " of " +
                           std::to_string(launch.nnodes()) + " nodes");
  }
  if (launch.node_rank() != 0 && launch.leader_address().empty()) {
    return InvalidArgument("job " + launch.job() + ": a member needs its leader's address");
  }
  if (!launch.job_id().empty() && launch.job_id().size() != JobId().bytes.size()) {
    return InvalidArgument("job " + launch.job() + ": its id has not 16 bytes");
  }
  return OkStatus();
}

std::string LaunchMark(const std::string& job, uint64_t epoch, const std::string& socket_path) {
  return std::string(kMarkName) + "=" + job + "/" + std::to_string(epoch) + "@" + socket_path;
}

os::SpawnOptions LaunchCommand(const v1::Launch& launch, const AgentOptions& options,
                               const LaunchPaths& paths, uint64_t staging_budget_bytes) {
  const v1::JobSpec& spec = launch.spec();
  os::SpawnOptions spawn;
  std::vector<std::string>& argv = spawn.argv;
  const auto add = [&argv](const char* flag, const std::string& value) {
    argv.emplace_back(flag);
    argv.push_back(value);
  };
  argv.push_back(options.ckpt_run);
  add("--job", launch.job());
  add("--store",
      spec.store().empty() ? os::JoinPath(options.store_root, launch.job()) : spec.store());
  if (const std::string id = ToHex(launch.job_id()); !id.empty()) add("--job-id", id);
  add("--ranks", std::to_string(launch.rank_count()));
  add("--nnodes", std::to_string(launch.nnodes()));
  add("--node-rank", std::to_string(launch.node_rank()));
  add("--first-rank", std::to_string(launch.first_rank()));
  add("--epoch", std::to_string(launch.epoch()));
  add("--operation", std::to_string(launch.op_id()));
  if (launch.node_rank() != 0) {
    add("--rendezvous", launch.leader_address());
  } else if (launch.nnodes() > 1) {
    add("--listen", launch.listen_host().empty() ? options.address : launch.listen_host());
  }
  add("--staging-budget", std::to_string(staging_budget_bytes));
  add("--log-dir", paths.log_dir);
  add("--result", paths.result);
  if (launch.drain()) argv.emplace_back("--drain");
  if (!launch.expect().empty()) add("--expect", launch.expect());
  if (spec.save_every() != 0) add("--save-every", std::to_string(spec.save_every()));
  argv.emplace_back("--");
  argv.insert(argv.end(), spec.command().begin(), spec.command().end());

  spawn.env = BaseEnv();
  for (const auto& [name, value] : spec.env()) os::SetEnv(&*spawn.env, name, value);
  os::SetEnv(&*spawn.env, "CKPT_AGENT", paths.socket);
  os::SetEnv(&*spawn.env, "CKPT_GANG_TOKEN", launch.token());
  const std::string mark = LaunchMark(launch.job(), launch.epoch(), paths.socket);
  os::SetEnv(&*spawn.env, kMarkName, mark.substr(sizeof kMarkName));
  spawn.cwd = spec.workdir();
  spawn.grouping = os::Grouping::kNewSession;
  spawn.umask = options.child_umask;
  return spawn;
}

}  // namespace ckpt::agent
