#include "coordinator/agent/options.h"

#include <cmath>
#include <cstdlib>

#include "libckpt/base/ids.h"
#include "libckpt/os/file.h"
#include "libckpt/os/memory_room.h"
#include "libckpt/os/process.h"
#include "libckpt/os/socket.h"

namespace ckpt::agent {
namespace {

constexpr uint32_t kSlotsMax = 4096;
constexpr uint64_t kLogBytesMin = 64 << 10;

Status BeyondLoopback(const std::string& what, const std::string& host) {
  return Unimplemented(what + " " + host +
                       " is not loopback: connections between machines need TLS, which this "
                       "version does not have; use 127.0.0.1, ::1, localhost or unix:/path");
}

Result<uint64_t> UnitOf(std::string_view unit) {
  static constexpr std::string_view kLetters = "KMGT";
  if (unit.empty() || unit == "B") return 1;
  const size_t power = kLetters.find(unit[0]);
  const std::string_view tail = unit.substr(1);
  if (power == std::string_view::npos || (!tail.empty() && tail != "iB" && tail != "B")) {
    return InvalidArgument("unknown unit '" + std::string(unit) + "'");
  }
  return uint64_t{1} << (10 * (power + 1));
}

Status CheckPrograms(AgentOptions* options) {
  os::FileSystem& fs = os::PosixFileSystem();
  if (options->ckpt_run.empty()) {
    CKPT_ASSIGN_OR_RETURN(const std::string self, os::SelfExecutable());
    options->ckpt_run = os::JoinPath(os::ParentOf(self), "ckpt-run");
  }
  const Result<bool> there = os::Exists(fs, options->ckpt_run);
  if (there.ok() && *there) return OkStatus();
  return InvalidArgument("--ckpt-run " + options->ckpt_run + ": there is no such program");
}

}  // namespace

Status CheckOptions(AgentOptions* options) {
  CKPT_RETURN_IF_ERROR(CheckName("--name", options->name));
  if (options->coordinator.empty()) {
    return InvalidArgument("--coordinator is missing: unix:/path or host:port of ckptd");
  }
  CKPT_RETURN_IF_ERROR(GrpcTarget(options->coordinator).status());
  if (options->slots == 0 || options->slots > kSlotsMax) {
    return InvalidArgument("--slots must be 1 to " + std::to_string(kSlotsMax));
  }
  if (!os::IsLoopbackHost(options->address)) return BeyondLoopback("--address", options->address);
  if (options->state_dir.empty()) return InvalidArgument("--state-dir is missing");
  if (options->store_root.empty()) options->store_root = os::JoinPath(options->state_dir, "store");
  if (options->staging_budget_bytes == 0) {
    CKPT_ASSIGN_OR_RETURN(const os::MemoryRoom room, os::AvailableMemory());
    options->staging_budget_bytes = room.bytes / 2;
  }
  if (options->log_bytes_max < kLogBytesMin) {
    return InvalidArgument("--log-limit must be at least " + FormatBytes(kLogBytesMin));
  }
  return CheckPrograms(options);
}

Result<uint64_t> ParseBytes(std::string_view text) {
  const std::string copy(text);
  char* end = nullptr;
  const double number = std::strtod(copy.c_str(), &end);
  std::string_view unit(end);
  while (unit.starts_with(' ')) unit.remove_prefix(1);
  const Result<uint64_t> factor = UnitOf(unit);
  const double bytes = factor.ok() ? number * static_cast<double>(*factor) : 0;
  if (end == copy.c_str() || !factor.ok() || !(bytes >= 0) || bytes > 9e18) {
    return InvalidArgument("'" + copy + "' is not a size, as in 4096, 512MiB or 1.5GiB");
  }
  return static_cast<uint64_t>(std::llround(bytes));
}

Result<std::string> GrpcTarget(const std::string& address) {
  if (address.starts_with("unix:")) return address;
  CKPT_ASSIGN_OR_RETURN(const os::HostPort parsed, os::ParseHostPort(address));
  if (!os::IsLoopbackHost(parsed.host)) return BeyondLoopback("--coordinator", parsed.host);
  return address;
}

}  // namespace ckpt::agent
