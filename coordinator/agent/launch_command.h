// How a ckpt-run is started for a launch: pure, so that it can be looked at in tests.
#pragma once

#include <string>

#include "ckpt/v1/agent.pb.h"
#include "coordinator/agent/options.h"
#include "libckpt/os/process.h"

namespace ckpt::agent {

// kInvalidArgument for what no ckpt-run could run.
Status CheckLaunch(const v1::Launch& launch, const AgentOptions& options);

// "NAME=value": in the environment of a launch's ckpt-run and of everything that descends from it.
std::string LaunchMark(const std::string& job, uint64_t epoch, const std::string& socket_path);

struct LaunchPaths {
  std::string socket;   // CKPT_AGENT
  std::string log_dir;  // of the job
  std::string result;   // where it leaves its last report
};

// A session of its own: it outlives the agent. stdout and stderr are the caller's to set.
os::SpawnOptions LaunchCommand(const v1::Launch& launch, const AgentOptions& options,
                               const LaunchPaths& paths, uint64_t staging_budget_bytes);

}  // namespace ckpt::agent
