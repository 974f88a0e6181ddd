// diff: which tensors and values of two checkpoints differ, and by how much.
#include <CLI/CLI.hpp>
#include <cmath>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "coordinator/ckptctl/compare.h"
#include "coordinator/ckptctl/offline.h"
#include "coordinator/ckptctl/tensors.h"
#include "coordinator/ckptctl/work_progress.h"

namespace ckpt::ckptctl {
namespace {

using Json = nlohmann::ordered_json;

struct Side {
  Target target;
  AttemptId id;
  std::unique_ptr<engine::CheckpointReader> reader;
  std::map<std::string, WholeTensor> tensors;
};

// What was found of one name.
struct Finding {
  std::string name;
  std::string what;  // "only in A", "dtype F32 / BF16", "shape [2] / [3]", "differs"
  Difference difference;
  uint64_t elements = 0;
};

struct DiffReport {
  std::vector<Finding> findings;
  size_t same = 0;
};

Result<Side> Open(const std::string& path) {
  Side side;
  OfflineOptions options;
  options.path = path;
  CKPT_ASSIGN_OR_RETURN(side.target, OpenTarget(path));
  CKPT_ASSIGN_OR_RETURN(side.id, SelectCheckpoint(side.target, options));
  CKPT_ASSIGN_OR_RETURN(side.reader, engine::OpenCheckpoint(side.target.store.get(), side.id));
  CKPT_ASSIGN_OR_RETURN(std::vector<WholeTensor> tensors, WholeTensors(*side.reader));
  for (WholeTensor& tensor : tensors) {
    side.tensors.emplace(tensor.name, std::move(tensor));
  }
  return side;
}

std::string Shape(const std::vector<uint64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + "]";
}

// Structure first: contents are compared where it is the same.
std::string StructureChange(const WholeTensor& a, const WholeTensor& b) {
  if (a.meta.dtype != b.meta.dtype) {
    return "dtype " + std::string(format::DTypeName(a.meta.dtype)) + " / " +
           std::string(format::DTypeName(b.meta.dtype));
  }
  if (a.meta.local.shape == b.meta.local.shape) return "";
  return "shape " + Shape(a.meta.local.shape) + " / " + Shape(b.meta.local.shape);
}

Status CompareTensor(Side* a, Side* b, const WholeTensor& in_a, const WholeTensor& in_b,
                     DiffReport* report) {
  Finding finding{in_a.name, StructureChange(in_a, in_b)};
  if (finding.what.empty()) {
    std::vector<std::byte> left;
    std::vector<std::byte> right;
    CKPT_RETURN_IF_ERROR(LoadWhole(a->reader.get(), in_a, &left).Annotate("A"));
    CKPT_RETURN_IF_ERROR(LoadWhole(b->reader.get(), in_b, &right).Annotate("B"));
    finding.difference = Compare(in_a.meta.dtype, left, right);
    finding.elements = in_a.meta.local.ElementCount();
    if (finding.difference.count != 0) finding.what = "differs";
  }
  report->same += finding.what.empty() ? 1 : 0;
  if (!finding.what.empty()) report->findings.push_back(std::move(finding));
  return OkStatus();
}

Status CompareTensors(Side* a, Side* b, DiffReport* report) {
  uint64_t total = 0;
  uint64_t done = 0;
  for (const auto& [name, tensor] : a->tensors) total += tensor.bytes();
  WorkProgress progress("compared");
  for (const auto& [name, tensor] : a->tensors) {
    const auto other = b->tensors.find(name);
    if (other == b->tensors.end()) {
      report->findings.push_back({name, "only in A"});
    } else {
      CKPT_RETURN_IF_ERROR(CompareTensor(a, b, tensor, other->second, report));
    }
    progress.Show(done += tensor.bytes(), total);
  }
  for (const auto& [name, tensor] : b->tensors) {
    if (!a->tensors.contains(name)) report->findings.push_back({name, "only in B"});
  }
  return OkStatus();
}

// Values by name, as JSON; those of each rank under "NAME.rank3".
Result<std::map<std::string, std::string>> ValuesOf(const Side& side) {
  std::map<std::string, std::string> values;
  for (uint32_t rank = 0; rank < side.reader->world(); ++rank) {
    CKPT_ASSIGN_OR_RETURN(const format::RankValues all, side.reader->Values(Rank(rank)));
    const auto key = [&](const std::string& name, format::Scope scope) {
      return scope == format::Scope::kShared ? name : name + ".rank" + std::to_string(rank);
    };
    for (const format::NamedValue& value : all.values) {
      values[key(value.name, value.scope)] = value.value.ToJson();
    }
    for (const format::NamedBlob& blob : all.blobs) {
      values[key(blob.name, blob.scope)] = blob.media_type + ":" + std::string(blob.bytes);
    }
  }
  return values;
}

Status CompareValues(const Side& a, const Side& b, DiffReport* report) {
  CKPT_ASSIGN_OR_RETURN(const auto left, ValuesOf(a));
  CKPT_ASSIGN_OR_RETURN(const auto right, ValuesOf(b));
  for (const auto& [name, value] : left) {
    const auto other = right.find(name);
    if (other == right.end()) report->findings.push_back({name, "value only in A"});
    if (other == right.end() || other->second == value) continue;
    report->findings.push_back({name, "value differs"});
  }
  for (const auto& [name, value] : right) {
    if (!left.contains(name)) report->findings.push_back({name, "value only in B"});
  }
  return OkStatus();
}

std::string Short(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g", value);
  return text;
}

void PrintPeople(const Side& a, const Side& b, const DiffReport& report, std::ostream& out) {
  out << "A: " << a.target.store->Describe() << " " << a.id.ToString() << "\n"
      << "B: " << b.target.store->Describe() << " " << b.id.ToString() << "\n";
  std::vector<std::vector<std::string>> rows = {
      {"NAME", "WHAT", "ELEMENTS", "MAX ABS", "MAX REL", "FIRST"}};
  for (const Finding& finding : report.findings) {
    const Difference& d = finding.difference;
    if (d.count == 0) {
      rows.push_back({finding.name, finding.what});
      continue;
    }
    rows.push_back({finding.name, finding.what,
                    std::to_string(d.count) + " of " + std::to_string(finding.elements),
                    Short(d.max_abs), Short(d.max_rel), std::to_string(d.first)});
  }
  if (!report.findings.empty()) PrintTable(rows, out);
  out << report.same << " tensors are the same, " << report.findings.size() << " differences\n";
}

// JSON has no infinity.
Json NumberOrNull(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

void PrintJson(const Side& a, const Side& b, const DiffReport& report, std::ostream& out) {
  Json json{{"a", a.id.ToString()},
            {"b", b.id.ToString()},
            {"same", report.same},
            {"differences", Json::array()}};
  for (const Finding& finding : report.findings) {
    const Difference& d = finding.difference;
    json["differences"].push_back({{"name", finding.name},
                                   {"what", finding.what},
                                   {"count", d.count},
                                   {"elements", finding.elements},
                                   {"max_abs", NumberOrNull(d.max_abs)},
                                   {"max_rel", NumberOrNull(d.max_rel)},
                                   {"first", d.first}});
  }
  out << json.dump(2, ' ', false, Json::error_handler_t::replace) << "\n";
}

// True if nothing differs.
Result<bool> Diff(const std::string& path_a, const std::string& path_b, bool json,
                  std::ostream& out) {
  CKPT_ASSIGN_OR_RETURN(Side a, Open(path_a));
  CKPT_ASSIGN_OR_RETURN(Side b, Open(path_b));
  DiffReport report;
  CKPT_RETURN_IF_ERROR(CompareTensors(&a, &b, &report));
  CKPT_RETURN_IF_ERROR(CompareValues(a, b, &report));
  if (json) {
    PrintJson(a, b, report, out);
  } else {
    PrintPeople(a, b, report, out);
  }
  return report.findings.empty();
}

}  // namespace

void RegisterDiff(CLI::App& app, const Globals& globals, Run* run) {
  auto a = std::make_shared<std::string>();
  auto b = std::make_shared<std::string>();
  CLI::App* verb = app.add_subcommand(
      "diff", "which tensors of two checkpoints differ, and by how much; exit code 1 if any does");
  verb->fallthrough();
  verb->add_option("PATH", *a, "a checkpoint's directory, or a job's (its newest)")->required();
  verb->add_option("OTHER", *b, "likewise")->required();
  verb->callback([=, &globals] {
    *run = [=, &globals]() -> int {
      const Result<bool> same = Diff(*a, *b, globals.json(), std::cout);
      if (same.ok()) return *same ? kExitDone : kExitRefused;
      Fail(same.status());
      return OfflineExitCode(same.status());
    };
  });
}

}  // namespace ckpt::ckptctl
