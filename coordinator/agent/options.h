// What an agent is told at its start, checked before anything runs.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "libckpt/base/clock.h"
#include "libckpt/base/status.h"

namespace ckpt::agent {

struct AgentOptions {
  std::string name;         // of the node; unique in the cluster
  std::string coordinator;  // unix:/path or host:port
  uint32_t slots = 1;
  uint64_t staging_budget_bytes = 0;   // 0: half of the memory that is available at start
  std::string address = "127.0.0.1";   // other nodes reach this one there
  std::string state_dir;               // socket, launches, logs
  std::string ckpt_run;                // program; empty: beside this one
  std::string store_root;              // for jobs that name no store
  uint64_t log_bytes_max = 128 << 20;  // that each log file may take on disk
  std::optional<mode_t> child_umask;   // the user's; the agent's own files are private

  // Waits; tests shorten them.
  Nanos reconnect_min = std::chrono::milliseconds(200);
  Nanos reconnect_max = std::chrono::seconds(5);
  Nanos run_silence = std::chrono::seconds(15);  // of a ckpt-run, before it is called stuck
  Nanos kill_grace = std::chrono::seconds(3);    // for a ckpt-run to carry out a kill by itself
};

// Fills defaults in. Errors: kInvalidArgument naming the flag; kUnimplemented for addresses beyond
// loopback, which need TLS.
Status CheckOptions(AgentOptions* options);

// "4096", "512MiB", "1.5 GiB", "8G": binary units. kInvalidArgument otherwise.
Result<uint64_t> ParseBytes(std::string_view text);

// What gRPC calls it: "unix:…" as it is, "host:port" checked to be loopback.
Result<std::string> GrpcTarget(const std::string& address);

}  // namespace ckpt::agent
