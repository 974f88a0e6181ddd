#include "coordinator/agent/health.h"

#include <algorithm>

#include "libckpt/base/clock.h"
#include "libckpt/base/version.h"
#include "libckpt/os/machine_check.h"

namespace ckpt::agent {
namespace {

constexpr uint64_t kStateBytesMin = uint64_t{64} << 20;   // launches and logs
constexpr uint64_t kStoreBytesMin = uint64_t{512} << 20;  // a small checkpoint

v1::NodeHealth LookAt(const HealthOptions& options) {
  std::vector<os::Finding> findings = os::CheckKernel();
  findings.push_back(os::CheckFolder("state folder", options.state_dir, kStateBytesMin));
  findings.push_back(os::CheckFolder("store root", options.store_root, kStoreBytesMin));
  const uint64_t used = std::min(options.staging_used_bytes, options.staging_budget_bytes);
  findings.push_back(os::CheckMemory("staging memory", options.staging_budget_bytes - used));
  v1::NodeHealth health;
  health.set_version(std::string(kVersion));
  for (const os::Finding& finding : findings) {
    v1::Finding* out = health.add_findings();
    out->set_name(finding.name);
    out->set_level(static_cast<v1::FindingLevel>(finding.level));
    out->set_message(finding.message);
    out->set_remedy(finding.remedy);
  }
  return health;
}

}  // namespace

HealthCheck::~HealthCheck() {
  *alive_ = false;
  thread_.Join();
}

void HealthCheck::Look(const HealthOptions& options) {
  if (looking_) return;
  looking_ = true;
  thread_ = os::Thread("ckpt-health", [this, options, alive = alive_, loop = loop_] {
    v1::NodeHealth health = LookAt(options);
    loop->Post([this, alive, health]() mutable {
      if (!*alive) return;
      thread_.Join();
      looking_ = false;
      health.set_wall_ns(WallNs());
      said_(health);
    });
  });
}

}  // namespace ckpt::agent
