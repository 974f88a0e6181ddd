// The JobReport that goes up to the agent: a full snapshot of what this ckpt-run knows of its
// launch.
#pragma once

#include <string>

#include "coordinator/run/drain_node.h"
#include "coordinator/run/gang_leader.h"
#include "coordinator/run/node_host.h"
#include "coordinator/run/services.h"

namespace ckpt::run {

struct ReportInput {
  const Services* services = nullptr;
  const NodeHost* node = nullptr;
  const GangLeader* leader = nullptr;  // null: another node leads
  std::string gang_address;
  double memcpy_ratio = 0;
  int exit_code = -1;  // decided; -1 not yet
  std::string message;
};

// ckpt.v1.AgentMsg with `job`, serialized.
std::string MakeReport(const ReportInput& input);
// The same of a ckpt-run that only drains: released, and how far its copies are. `message` is why
// it ended.
std::string MakeDrainReport(const Services& services, const DrainNode& node,
                            const std::string& gang_address, const std::string& message);

}  // namespace ckpt::run
