#include "coordinator/ckptctl/render.h"

#include <time.h>

#include <algorithm>
#include <cstdio>

#include "libckpt/base/clock.h"
#include "libckpt/os/terminal.h"

namespace ckpt::ckptctl {
namespace {

std::string Fixed(double value, int digits) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

std::string Join(const google::protobuf::RepeatedPtrField<std::string>& words, const char* glue) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : glue) + word;
  return text;
}

// The newest copy in a few words, for a table.
std::string NewestCopy(const v1::Job& job) {
  for (const v1::CopyState& copy : job.copies()) {
    if (!copy.durable() && !copy.staged_gang()) continue;
    return "step " + std::to_string(copy.step()) + (copy.durable() ? ", durable" : ", RAM only");
  }
  return "-";
}

std::string Steps(int64_t steps) {
  return std::to_string(steps) + (steps == 1 ? " step" : " steps");
}

std::string Lost(int64_t steps, double gpu_seconds) {
  return Steps(steps) + ", " + Fixed(gpu_seconds, 1) + " GPU-seconds";
}

// What the next quote goes by.
void PrintMeasured(std::ostream& out, const v1::Measured& measured) {
  std::string text;
  const auto add = [&](const std::string& words) { text += (text.empty() ? "" : ", ") + words; };
  if (measured.stage_bytes_per_second() > 0) {
    add("stages " + Fixed(measured.stage_bytes_per_second() / 1e9, 2) + " GB/s a node");
  }
  if (measured.exit_seconds() > 0) add("exits in " + Fixed(measured.exit_seconds(), 2) + " s");
  if (measured.restore_seconds() > 0) {
    add("resumes in " + Fixed(measured.restore_seconds(), 2) + " s");
  }
  if (!text.empty()) out << "  measured: " << text << "\n";
}

}  // namespace

std::string ClockTime(int64_t wall_ns) {
  const time_t seconds = wall_ns / 1'000'000'000;
  tm parts{};
  gmtime_r(&seconds, &parts);
  char text[64];
  std::snprintf(text, sizeof text, "%02d:%02d:%02d.%03d", parts.tm_hour, parts.tm_min, parts.tm_sec,
                static_cast<int>(wall_ns / 1'000'000 % 1000));
  return text;
}

void PrintTable(std::ostream& out, const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], os::Width(row[i]));
  }
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      line += row[i];
      if (i + 1 < row.size()) line += std::string(widths[i] - os::Width(row[i]) + 2, ' ');
    }
    while (!line.empty() && line.back() == ' ') line.pop_back();
    out << line << "\n";
  }
}

std::string StateWord(v1::JobState state) {
  std::string name = v1::JobState_Name(state);
  name = name.substr(name.rfind("JOB_", 0) == 0 ? 4 : 0);
  for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return name;
}

bool IsEnded(v1::JobState state) {
  return state == v1::JOB_FINISHED || state == v1::JOB_FAILED || state == v1::JOB_CANCELLED;
}

std::string DescribePlacement(const v1::Placement& placement) {
  std::string text;
  for (const v1::NodePlacement& place : placement.nodes()) {
    text += (text.empty() ? "" : ", ") + place.node() + " (";
    if (place.rank_count() == 1) {
      text += "rank " + std::to_string(place.first_rank()) + ")";
    } else {
      text += "ranks " + std::to_string(place.first_rank()) + "-" +
              std::to_string(place.first_rank() + place.rank_count() - 1) + ")";
    }
  }
  return text;
}

std::string DescribeCopy(const v1::CopyState& copy) {
  const std::string nodes = Join(copy.ram_nodes(), " ");
  if (copy.durable()) return nodes.empty() ? "durable" : "durable, and in RAM of " + nodes;
  if (!copy.failure().empty()) {
    return (nodes.empty() ? "not durable" : "in RAM of " + nodes + ", not durable") +
           ", and will not become so: " + copy.failure();
  }
  if (!copy.staged_gang()) return "incomplete: not all ranks have staged it";
  std::string text = "in RAM of " + nodes + ", not durable";
  if (copy.bytes_durable() != 0 && copy.bytes_to_write() != 0) {
    text += " yet (" + FormatBytes(copy.bytes_durable()) + " of " +
            FormatBytes(copy.bytes_to_write()) + " written)";
  }
  return text;
}

std::string DescribeTimes(const v1::PhaseTimes& times) {
  std::string text;
  const auto add = [&](const char* name, int64_t at_ns) {
    if (at_ns == 0 || times.noticed_ns() == 0) return;
    const double ms = static_cast<double>(at_ns - times.noticed_ns()) / 1e6;
    text += (text.empty() ? "" : ", ") + std::string(name) + " " + Fixed(ms, 1) + " ms";
  };
  add("cut", times.cut_ns());
  add("staged", times.staged_ns());
  add("released", times.released_ns());
  add("durable", times.durable_ns());
  if (text.empty()) return text;
  text += " after the notice";
  if (times.staged_bytes() != 0) text += "; " + FormatBytes(times.staged_bytes()) + " staged";
  if (times.stall_ns() != 0) {
    text += ", stall " + Fixed(static_cast<double>(times.stall_ns()) / 1e6, 1) + " ms";
  }
  if (times.memcpy_ratio() > 0) text += " (" + Fixed(times.memcpy_ratio(), 2) + " of a memcpy)";
  return text;
}

void PrintJobs(std::ostream& out, const v1::ListJobsResponse& jobs) {
  std::vector<std::vector<std::string>> rows = {{"NAME", "STATE", "RANKS", "PRIO", "CLASS", "EPOCH",
                                                 "STEP", "COPY", "LOST", "NODES", "REASON"}};
  for (const v1::Job& job : jobs.jobs()) {
    std::string nodes;
    for (const v1::NodePlacement& place : job.placement().nodes()) {
      nodes += (nodes.empty() ? "" : ",") + place.node();
    }
    rows.push_back(
        {job.spec().name(), StateWord(job.state()), std::to_string(job.spec().ranks()),
         std::to_string(job.spec().priority()), job.spec().job_class(), std::to_string(job.epoch()),
         std::to_string(job.step()), NewestCopy(job),
         job.lost_steps() == 0 ? "-" : Steps(job.lost_steps()), nodes.empty() ? "-" : nodes,
         job.reason() + (job.reason().empty() || job.drain().empty() ? "" : "; ") + job.drain()});
  }
  PrintTable(out, rows);
}

void PrintJob(std::ostream& out, const v1::Job& job) {
  const v1::JobSpec& spec = job.spec();
  out << spec.name() << ": " << StateWord(job.state())
      << (job.reason().empty() ? "" : ": " + job.reason()) << "\n";
  out << "  epoch " << job.epoch() << ", step " << job.step();
  if (job.step_seconds() > 0) out << ", " << Fixed(job.step_seconds() * 1e3, 1) << " ms a step";
  if (!job.resumed_from().empty()) out << ", resumed from " << job.resumed_from();
  out << "\n  " << spec.ranks() << " rank" << (spec.ranks() == 1 ? "" : "s") << ", "
      << spec.job_class() << ", priority " << spec.priority()
      << (spec.not_preemptible() ? ", not preemptible" : "") << "; preempted "
      << job.preempted_count() << " x, restarted " << job.restart_count() << " x, lost "
      << Lost(job.lost_steps(), job.lost_gpu_seconds()) << "\n";
  if (job.placement().nodes_size() != 0) {
    out << "  place: " << DescribePlacement(job.placement()) << "\n";
  }
  if (job.op_id() != 0) {
    out << "  operation " << job.op_id() << " is in progress\n";
  }
  out << "  copies, newest first:" << (job.copies_size() == 0 ? " none known" : "") << "\n";
  for (const v1::CopyState& copy : job.copies()) {
    out << "    step " << copy.step() << " (epoch " << copy.epoch() << ", attempt "
        << copy.attempt() << "), " << FormatBytes(copy.bytes()) << ": " << DescribeCopy(copy)
        << "\n";
  }
  if (!job.drain().empty()) out << "  drain: " << job.drain() << "\n";
  const std::string times = DescribeTimes(job.last_stop());
  if (!times.empty()) out << "  last stop: " << times << "\n";
  PrintMeasured(out, job.measured());
  for (const v1::Method& method : job.methods()) {
    out << "  " << method.name() << ": " << (method.yes() ? "yes" : "no, " + method.reason())
        << "\n";
  }
}

void PrintNodes(std::ostream& out, const v1::ListNodesResponse& nodes) {
  std::vector<std::vector<std::string>> rows = {
      {"NAME", "STATE", "SLOTS", "FREE", "STAGING", "USED", "MEMCPY", "JOBS", "HELD"}};
  for (const v1::Node& node : nodes.nodes()) {
    const v1::NodeInfo& info = node.info();
    const std::string jobs = Join(node.jobs(), ",");
    const std::string holds = Join(node.holds(), "; ");
    rows.push_back({info.name(), node.connected() ? "up" : "lost", std::to_string(info.slots()),
                    std::to_string(node.slots_free()), FormatBytes(info.staging_budget_bytes()),
                    FormatBytes(info.staging_used_bytes()),
                    info.memcpy_gbps() > 0 ? Fixed(info.memcpy_gbps(), 1) + " GB/s" : "-",
                    jobs.empty() ? "-" : jobs, holds.empty() ? "-" : holds});
  }
  PrintTable(out, rows);
}

void PrintPlan(std::ostream& out, const v1::Plan& plan) {
  out << "plan " << plan.id() << ": " << plan.job() << " on " << DescribePlacement(plan.placement())
      << "\n";
  if (plan.victims_size() == 0) out << "  there is room: nobody is stopped\n";
  std::vector<std::vector<std::string>> rows = {{"  VICTIM", "SLOTS", "PRICE", "LOST", "STAGE",
                                                 "EXIT", "RESTORE", "REQUEUE", "PREEMPTED", "NODES",
                                                 "TIMES"}};
  for (const v1::Victim& victim : plan.victims()) {
    rows.push_back(
        {"  " + victim.job(), std::to_string(victim.ranks()), Fixed(victim.price(), 1),
         Fixed(victim.lost_seconds(), 2) + " s", Fixed(victim.stage_seconds(), 2) + " s",
         Fixed(victim.exit_seconds(), 2) + " s", Fixed(victim.restore_seconds(), 2) + " s",
         Fixed(victim.requeue_seconds(), 2) + " s", std::to_string(victim.times_preempted()) + " x",
         Join(victim.nodes(), ","), victim.measured() ? "measured" : "assumed"});
  }
  if (plan.victims_size() != 0) PrintTable(out, rows);
  out << "  price " << Fixed(plan.price(), 1) << " GPU-seconds; granted in about "
      << Fixed(plan.grant_seconds(), 1) << " s\n";
  for (const std::string& warning : plan.warnings()) out << "  careful: " << warning << "\n";
  for (const std::string& why : plan.rejected()) out << "  not " << why << "\n";
  out << "  `ckptctl apply " << plan.id() << "` carries it out; nothing has been changed\n";
}

void PrintOperation(std::ostream& out, const v1::Operation& operation) {
  std::string state = v1::OperationState_Name(operation.state());
  state = state.substr(state.find('_') + 1);
  for (char& c : state) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  out << operation.kind() << " of " << operation.job() << " (operation " << operation.op_id()
      << "): " << state << ", " << operation.phase()
      << (operation.message().empty() ? "" : ": " + operation.message()) << "\n";
  for (const v1::VictimProgress& victim : operation.victims()) {
    const std::string times = DescribeTimes(victim.times());
    out << "  " << victim.job() << " " << victim.phase() << (times.empty() ? "" : ": " + times);
    if (victim.lost_steps() != 0 || victim.lost_gpu_seconds() > 0) {
      out << "; lost " << Lost(victim.lost_steps(), victim.lost_gpu_seconds());
    }
    out << "\n";
  }
  if (operation.granted_ns() != 0 && !operation.victims().empty()) {
    const auto ns = operation.granted_ns() - operation.started_ns();
    out << "  granted " << Fixed(static_cast<double>(ns) / 1e6, 1) << " ms after the request\n";
  }
}

void PrintEvent(std::ostream& out, const v1::Event& event) {
  char head[96];
  std::snprintf(head, sizeof head, "%6llu  %s  %-14s",  // NOLINT
                static_cast<unsigned long long>(event.revision()),
                ClockTime(event.wall_ns()).c_str(), event.kind().c_str());
  out << head << (event.job().empty() ? "" : "  " + event.job())
      << (event.epoch() == 0 ? "" : " (epoch " + std::to_string(event.epoch()) + ")")
      << (event.node().empty() ? "" : "  node " + event.node())
      << (event.message().empty() ? "" : "  " + event.message()) << "\n";
}

}  // namespace ckpt::ckptctl
