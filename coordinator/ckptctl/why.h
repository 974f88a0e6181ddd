// Why a job is where it is, in words: the reason that the coordinator keeps, what it comes from
// (room, nodes, copies, earlier failures, what the job cannot do), and what to type. Pure:
// everything is looked up before.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ckpt/v1/coordinator.pb.h"

namespace ckpt::ckptctl {

struct WhyInput {
  v1::Job job;
  v1::ListJobsResponse jobs;
  v1::ListNodesResponse nodes;
  std::vector<v1::Event> events;           // of the job, oldest first
  std::optional<v1::Operation> operation;  // in progress
  std::optional<v1::Plan> plan;            // of a job that waits: what making room would cost
  std::string no_plan;                     // why there is none
};

struct Why {
  std::string summary;  // one paragraph
  std::vector<std::string> facts;
  std::vector<std::string> commands;  // "`ckptctl resume train`: lets it go on"
};

Why Explain(const WhyInput& input);

}  // namespace ckpt::ckptctl
