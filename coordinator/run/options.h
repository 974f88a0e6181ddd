// What a person (or an agent) asks of ckpt-run: flags over environment over defaults. Parsing has
// no side effect but reading the environment; what can be checked before anything starts is checked
// by CheckOptions.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "libckpt/base/clock.h"
#include "libckpt/base/ids.h"
#include "libckpt/base/status.h"
#include "libckpt/engine/engine.h"

namespace ckpt::run {

struct Options {
  std::string job;    // --job, CKPT_JOB, else the command's base name
  std::string store;  // --store, CKPT_STORE, else ./ckpt/<job>
  JobId job_id;       // --job-id: refuse a store of another job; zero accepts any

  uint32_t rank_count = 1;  // --ranks: on this node
  uint32_t node_count = 1;  // --nnodes
  uint32_t node_rank = 0;   // --node-rank
  uint32_t first_rank = 0;  // --first-rank, else node_rank * rank_count
  bool launcher = false;    // --launcher, or COMMAND is torchrun: it starts the ranks itself
  std::string rendezvous;   // --rendezvous HOST:PORT: where node 0 serves the gang
  std::string listen_host;  // --listen HOST: node 0 serves there on a port of the kernel's choice
  uint64_t epoch = 0;       // --epoch: claim this or a later one; 0 the next free one
  std::optional<AttemptId> expect;  // --expect: resume from this copy or a newer one, else refuse
  uint64_t operation = 0;           // --operation: the launch's id, repeated in reports
  std::string gang_token;           // CKPT_GANG_TOKEN: shared by the ckpt-runs of one gang
  std::string agent_socket;         // CKPT_AGENT; empty: agentless

  uint64_t staging_budget_bytes = 0;  // --staging-budget; 0: half of the memory that is available
  Nanos grace = std::chrono::seconds(30);         // --grace: from a notice to the kill
  Nanos join_timeout = std::chrono::minutes(10);  // --join-timeout: launch may be out of order
  Nanos member_grace = std::chrono::seconds(60);  // a node out of reach this long is given up
  uint32_t restarts_max = 0;                      // --restarts, agentless only
  uint32_t save_every = 0;                        // --save-every: CKPT_SAVE_EVERY of the ranks
  engine::WriteSettings write;                    // --compress, --references, --write-threads
  std::optional<storage::KeepRules> keep;         // --keep-last, --keep-every, --keep-hours
  std::string result_path;                        // --result: the last report, for the agent
  std::string log_dir;                            // --log-dir, else "[rank r]" lines on stderr

  std::vector<std::string> command;  // after "--"

  bool drain = false;  // --drain: starts no rank, makes what is in RAM durable

  bool leads() const { return node_rank == 0; }
};

// Reads one variable of the environment; nullopt if it is not set.
using Environment = std::function<std::optional<std::string>(const char* name)>;
Environment ProcessEnvironment();

struct ParsedOptions {
  Options options;
  std::string help;  // not empty: --help or --version was asked for; print it and leave with 0
};

// Errors: kInvalidArgument that names the flag and what would be right.
Result<ParsedOptions> ParseOptions(int argc, const char* const* argv, const Environment& env);

// "512MiB", "4G", "1048576": binary multiples. kInvalidArgument for anything else.
Result<uint64_t> ParseByteCount(std::string_view text);

// The file that the command names, searched in PATH as execvp does. kNotFound, kPermissionDenied.
Result<std::string> FindCommand(const std::string& name, const Environment& env);

}  // namespace ckpt::run
