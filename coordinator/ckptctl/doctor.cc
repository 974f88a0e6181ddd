// doctor: looks at everything that must be well for jobs to run, suspend and resume, also where no
// coordinator is in reach; each line that is not OK says what to do.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>

#include "coordinator/ckptctl/client.h"
#include "coordinator/ckptctl/render.h"
#include "libckpt/base/clock.h"
#include "libckpt/base/progress.h"
#include "libckpt/base/version.h"
#include "libckpt/os/machine_check.h"
#include "libckpt/os/uring/uring_file.h"

namespace ckpt::ckptctl {
namespace {

using os::Finding;
using os::FindingLevel;
using Findings = std::vector<Finding>;

constexpr uint64_t kStoreBytesMin = uint64_t{512} << 20;
constexpr int64_t kClockOffMsMax = 2000;
constexpr int64_t kHealthAgeMsMax = 90'000;  // three looks missed

struct DoctorOptions {
  std::vector<std::string> stores;
  bool server_named = false;
};

void Add(Findings* findings, std::string name, bool good, std::string message, std::string remedy,
         FindingLevel otherwise = FindingLevel::kFail) {
  findings->push_back({std::move(name), good ? FindingLevel::kOk : otherwise, std::move(message),
                       good ? "" : std::move(remedy)});
}

Finding FromProto(const v1::Finding& in, const std::string& prefix) {
  return {prefix + in.name(), static_cast<FindingLevel>(std::clamp<int>(in.level(), 0, 2)),
          in.message(), in.remedy()};
}

std::string OffBy(int64_t ms) {
  const int64_t absolute = ms < 0 ? -ms : ms;
  if (absolute < 1000) return std::to_string(absolute) + " ms";
  return RoughDuration(static_cast<double>(absolute) / 1000);
}

void CheckClock(Findings* findings, const std::string& name, int64_t off_ms) {
  const bool good = off_ms < kClockOffMsMax && off_ms > -kClockOffMsMax;
  Add(findings, name, good,
      OffBy(off_ms) + (off_ms < 0 ? " behind" : " ahead of") + " the coordinator's",
      "run an NTP client: times in the timeline and in logs do not fit together (nothing is "
      "decided "
      "by them)",
      FindingLevel::kWarn);
}

void CheckVersion(Findings* findings, const std::string& name, const std::string& version) {
  const std::string own(kVersion);
  Add(findings, name, version == own,
      "version " + (version.empty() ? "unknown" : version) +
          (version == own ? "" : ", this ckptctl is " + own),
      "upgrade the older one; mixed versions run, but not for long", FindingLevel::kWarn);
}

void CheckNode(Findings* findings, const v1::Node& node) {
  const v1::NodeInfo& info = node.info();
  const std::string name = "node " + info.name();
  Add(findings, name, node.connected(),
      node.connected() ? std::to_string(node.slots_free()) + " of " + std::to_string(info.slots()) +
                             " slots free"
                       : "its agent is not connected; jobs that run there go on",
      "start ckpt-agent on that machine, or look at its log and at the network");
  if (!node.connected()) return;
  const uint64_t budget = info.staging_budget_bytes();
  const uint64_t used = std::min(info.staging_used_bytes(), budget);
  Add(findings, name + ": staging", used < budget,
      FormatBytes(budget - used) + " of " + FormatBytes(budget) + " free",
      "resume or cancel suspended jobs whose copies lie there, or raise --staging-budget",
      FindingLevel::kWarn);
  if (node.health().version().empty()) {
    Add(findings, name + ": version", false, "its agent has not said how it is",
        "wait half a minute; if that does not help it is an older one: upgrade it",
        FindingLevel::kWarn);
    return;
  }
  CheckVersion(findings, name + ": version", node.health().version());
  CheckClock(findings, name + ": clock", node.clock_offset_ms());
  Add(findings, name + ": looks", node.health_age_ms() < kHealthAgeMsMax,
      "last look " + OffBy(node.health_age_ms()) + " ago",
      "a folder there does not answer (a network file system that hangs?)", FindingLevel::kWarn);
  for (const v1::Finding& finding : node.health().findings()) {
    findings->push_back(FromProto(finding, name + ": "));
  }
}

Status CheckCluster(Client& client, const std::string& server, Findings* findings) {
  v1::CoordinatorStatus status;
  const int64_t before_ns = WallNs();
  CKPT_RETURN_IF_ERROR(
      client.Call(&v1::Coordinator::Stub::GetStatus, v1::GetStatusRequest(), &status));
  const int64_t middle_ns = before_ns + (WallNs() - before_ns) / 2;
  Add(findings, "coordinator", true,
      "answers at " + server + "; cluster " + status.cluster_id() + ", term " +
          std::to_string(status.term()) + ", up for " +
          RoughDuration(static_cast<double>(status.uptime_ms()) / 1000),
      "");
  CheckVersion(findings, "coordinator: version", status.version());
  CheckClock(findings, "clock of this machine", (middle_ns - status.wall_ns()) / 1'000'000);
  for (const v1::Finding& finding : status.findings()) findings->push_back(FromProto(finding, ""));
  v1::ListNodesResponse nodes;
  CKPT_RETURN_IF_ERROR(
      client.Call(&v1::Coordinator::Stub::ListNodes, v1::ListNodesRequest(), &nodes));
  Add(findings, "nodes", nodes.nodes_size() != 0, std::to_string(nodes.nodes_size()) + " on record",
      "start ckpt-agent on each machine with slots", FindingLevel::kWarn);
  for (const v1::Node& node : nodes.nodes()) CheckNode(findings, node);
  return OkStatus();
}

void CheckCoordinator(const Globals& globals, const DoctorOptions& options, Findings* findings) {
  auto client = Client::Connect(globals.server);
  if (!client.ok()) {
    Add(findings, "coordinator", false, "no coordinator answers at " + globals.server,
        "start `ckptd`, or name another with --server or CKPT_SERVER; ckpt-run alone needs none",
        options.server_named ? FindingLevel::kFail : FindingLevel::kWarn);
    return;
  }
  const Status status = CheckCluster(*client, globals.server, findings);
  if (status.ok()) return;
  const bool older = status.code() == Code::kUnimplemented;
  Add(findings, "coordinator", false,
      older ? "it is older than this ckptctl and cannot say how it is" : status.message(),
      older ? "upgrade ckptd" : "look at the log of ckptd",
      older ? FindingLevel::kWarn : FindingLevel::kFail);
}

const char* Word(FindingLevel level) {
  if (level == FindingLevel::kOk) return "OK";
  return level == FindingLevel::kWarn ? "WARN" : "FAIL";
}

void PrintPeople(const Findings& findings, size_t failed, size_t warned) {
  std::vector<std::vector<std::string>> rows;
  for (const Finding& finding : findings) {
    rows.push_back({Word(finding.level), finding.name, finding.message});
    if (!finding.remedy.empty()) rows.push_back({"", "", "-> " + finding.remedy});
  }
  PrintTable(std::cout, rows);
  std::cout << findings.size() << " looked at, " << failed << " failed, " << warned
            << " with a warning\n";
}

void PrintJson(const Findings& findings, size_t failed, size_t warned) {
  nlohmann::ordered_json json{
      {"failed", failed}, {"warned", warned}, {"findings", nlohmann::ordered_json::array()}};
  for (const Finding& finding : findings) {
    std::string level = Word(finding.level);
    for (char& c : level) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    json["findings"].push_back({{"name", finding.name},
                                {"level", level},
                                {"message", finding.message},
                                {"remedy", finding.remedy}});
  }
  std::cout << json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) << "\n";
}

int Doctor(const DoctorOptions& options, const Globals& globals) {
  Findings findings;
  CheckCoordinator(globals, options, &findings);
  for (Finding& finding : os::CheckKernel()) findings.push_back(std::move(finding));
  findings.push_back(os::CheckUring());
  for (const std::string& store : options.stores) {
    findings.push_back(os::CheckFolder("store", store, kStoreBytesMin));
    if (findings.back().level != FindingLevel::kFail)
      findings.push_back(os::CheckDirect("store: direct I/O", store));
  }
  const auto count = [&](FindingLevel level) {
    return static_cast<size_t>(
        std::count_if(findings.begin(), findings.end(),
                      [&](const Finding& finding) { return finding.level == level; }));
  };
  const size_t failed = count(FindingLevel::kFail);
  const size_t warned = count(FindingLevel::kWarn);
  if (globals.json()) {
    PrintJson(findings, failed, warned);
  } else {
    PrintPeople(findings, failed, warned);
  }
  return failed == 0 ? kExitDone : kExitRefused;
}

}  // namespace

void RegisterDoctor(CLI::App& app, const Globals& globals, Run* run) {
  auto options = std::make_shared<DoctorOptions>();
  CLI::App* verb = app.add_subcommand(
      "doctor", "look at coordinator, nodes, this machine; exit code 1 if something is broken");
  verb->fallthrough();
  verb->add_option("--store", options->stores, "also this folder of checkpoints; may be repeated");
  verb->callback([=, &app, &globals] {
    options->server_named = app.count("--server") != 0 || std::getenv("CKPT_SERVER") != nullptr;
    *run = [=, &globals] { return Doctor(*options, globals); };
  });
}

}  // namespace ckpt::ckptctl
