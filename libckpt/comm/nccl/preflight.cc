#include "libckpt/comm/nccl/preflight.h"

#include <cstdlib>
#include <cstring>

namespace ckpt::comm::nccl {
namespace {

constexpr const char* kGraphs = "graphs";
constexpr int kDriverForItsCheckpoint = 12080;

std::string DriverText(int version) {
  return "CUDA " + std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

Finding OfMode(const device::CudaDevice::Limits& limits) {
  switch (limits.compute_mode) {
    case device::cuda::kComputeModeProhibited:
      return {"compute mode", Verdict::kNo,
              "prohibited: no process may have a context on this GPU (nvidia-smi -c DEFAULT)"};
    case device::cuda::kComputeModeExclusiveProcess:
      return {"compute mode", Verdict::kYes,
              "exclusive process: another job can use this GPU only after this process has ended, "
              "so a park makes no room for one"};
    default:
      return {"compute mode", Verdict::kYes, "default"};
  }
}

Finding OfNvls(const device::CudaDevice::Limits& limits) {
  const char* const text = std::getenv("NCCL_NVLS_ENABLE");
  if (!limits.multicast) return {"nvls", Verdict::kYes, "no multicast on this GPU"};
  if (text != nullptr && std::strcmp(text, "0") == 0)
    return {"nvls", Verdict::kYes, "NCCL_NVLS_ENABLE is 0"};
  return {"nvls", Verdict::kYes,
          "multicast memory goes and comes with the communicators; the driver's own checkpoint "
          "refuses while it is there"};
}

const char* NameOf(Verdict verdict) {
  switch (verdict) {
    case Verdict::kYes:
      return "yes";
    case Verdict::kNo:
      return "no";
    case Verdict::kUnknown:
      return "unknown";
  }
  return "unknown";
}

std::string Quoted(const std::string& text) {
  std::string json = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') json += '\\';
    json += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return json + "\"";
}

}  // namespace

std::vector<Finding> Preflight(const Library& library, const device::CudaDevice& device,
                               uint32_t world, const Status& graphs) {
  std::vector<Finding> findings;
  findings.push_back(
      {"nccl", Verdict::kYes, VersionText(library.version()) + ", " + library.path()});
  findings.push_back({kGraphs, graphs.ok() ? Verdict::kYes : Verdict::kNo,
                      graphs.ok() ? "none was declared" : graphs.message()});
  findings.push_back({"ipc", Verdict::kUnknown,
                      "handles that this process gave to others cannot be seen from here: close "
                      "them before a stop"});
  const Result<device::CudaDevice::Limits> limits = device.limits();
  if (!limits.ok()) {
    for (const char* check : {"driver", "mig", "compute mode", "nvls"})
      findings.push_back({check, Verdict::kUnknown, limits.status().message()});
    return findings;
  }
  const std::string driver = DriverText(limits->driver_version);
  findings.push_back({"driver", Verdict::kYes,
                      limits->driver_version < kDriverForItsCheckpoint
                          ? driver + ", before 12.8: without the driver's own checkpoint"
                          : driver});
  // NVIDIA's name for such a device: "NVIDIA A100-SXM4-40GB MIG 1g.5gb".
  const bool mig = device.info().name.find(" MIG ") != std::string::npos;
  findings.push_back(
      {"mig", mig && world > 1 ? Verdict::kNo : Verdict::kYes,
       mig ? device.info().name + ": NCCL connects no instances of a split GPU" : "a whole GPU"});
  findings.push_back(OfMode(*limits));
  findings.push_back(OfNvls(*limits));
  return findings;
}

Status Refusal(const std::vector<Finding>& findings) {
  std::string reasons;
  for (const Finding& finding : findings) {
    if (finding.verdict != Verdict::kNo || finding.check == kGraphs) continue;
    reasons += (reasons.empty() ? "" : "; ") + finding.check + ": " + finding.reason;
  }
  return reasons.empty() ? OkStatus() : FailedPrecondition("NCCL cannot be used here: " + reasons);
}

std::string ToJson(const std::vector<Finding>& findings) {
  std::string json;
  for (const Finding& finding : findings) {
    json += (json.empty() ? "{" : ",{") + std::string("\"check\":") + Quoted(finding.check) +
            ",\"verdict\":" + Quoted(NameOf(finding.verdict)) +
            ",\"reason\":" + Quoted(finding.reason) + "}";
  }
  return "[" + json + "]";
}

}  // namespace ckpt::comm::nccl
