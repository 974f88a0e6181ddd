// prune, du, repair: what lies in a job's directory, and what may go. What is decided and how it is
// removed is the store's (libckpt/storage); here it is said before it is done.
#include <CLI/CLI.hpp>
#include <iostream>
#include <nlohmann/json.hpp>

#include "coordinator/ckptctl/check.h"
#include "coordinator/ckptctl/offline.h"
#include "libckpt/base/clock.h"
#include "libckpt/storage/file/file_store.h"

namespace ckpt::ckptctl {
namespace {

using Json = nlohmann::ordered_json;

struct UpkeepOptions {
  std::string path;
  bool json = false;
  uint32_t keep_last = 0;
  uint64_t keep_every = 0;
  bool dry_run = false;
  bool yes = false;
};

Result<std::unique_ptr<storage::EpochStore>> OpenJob(const std::string& path) {
  CKPT_ASSIGN_OR_RETURN(const Target target, OpenTarget(path));
  if (!target.is_job) {
    return InvalidArgument(path + " is one checkpoint; name the job's directory, which holds it");
  }
  return storage::OpenFileStore(path);
}

Json Names(const std::vector<AttemptId>& ids) {
  Json names = Json::array();
  for (const AttemptId& id : ids) names.push_back(id.ToString());
  return names;
}

std::string Joined(const std::vector<AttemptId>& ids) {
  std::string text;
  for (const AttemptId& id : ids) text += (text.empty() ? "" : " ") + id.ToString();
  return text.empty() ? "-" : text;
}

void Print(const Json& json, std::ostream& out) {
  out << json.dump(2, ' ', false, Json::error_handler_t::replace) << "\n";
}

// ---- prune

Json EntriesJson(const std::vector<storage::PruneEntry>& entries) {
  Json list = Json::array();
  for (const storage::PruneEntry& entry : entries) {
    list.push_back(
        {{"checkpoint", entry.id.ToString()}, {"why", entry.why}, {"bytes", entry.bytes}});
  }
  return list;
}

void PrintPrune(const storage::PrunePlan& plan, bool dry_run, std::ostream& out) {
  std::vector<std::vector<std::string>> rows = {{"CHECKPOINT", "", "SIZE", "WHY"}};
  for (const storage::PruneEntry& entry : plan.keep) {
    rows.push_back({entry.id.ToString(), "keep", FormatBytes(entry.bytes), entry.why});
  }
  for (const storage::PruneEntry& entry : plan.remove) {
    rows.push_back({entry.id.ToString(), "remove", FormatBytes(entry.bytes), entry.why});
  }
  PrintTable(rows, out);
  out << (dry_run ? "would remove " : "removes ") << plan.remove.size() << ", "
      << FormatBytes(plan.RemoveBytes()) << (dry_run ? "; nothing was changed" : "") << "\n";
}

Status Prune(const UpkeepOptions& options, std::ostream& out) {
  CKPT_ASSIGN_OR_RETURN(const auto store, OpenJob(options.path));
  storage::KeepRules rules;
  rules.last = options.keep_last;
  rules.every_steps = options.keep_every;
  // Every byte is read: a damaged checkpoint must not be the reason why a whole one goes.
  const auto whole = [&](const AttemptId& id) -> Result<bool> {
    CKPT_ASSIGN_OR_RETURN(const CheckReport report, CheckCheckpoint(*store, id));
    return report.ok();
  };
  CKPT_ASSIGN_OR_RETURN(const storage::PrunePlan plan, store->PlanPrune(rules, whole));
  if (!options.json) PrintPrune(plan, options.dry_run, out);
  storage::PruneReport report;
  if (!options.dry_run) {
    CKPT_ASSIGN_OR_RETURN(report, store->Prune(plan));
  }
  if (options.json) {
    Print({{"path", options.path},
           {"dry_run", options.dry_run},
           {"keep", EntriesJson(plan.keep)},
           {"remove", EntriesJson(plan.remove)},
           {"removed", Names(report.removed)}},
          out);
  } else if (!options.dry_run && report.removed.size() != plan.remove.size()) {
    out << "removed " << report.removed.size()
        << ": the others are referred to by now, or somebody else was faster\n";
  }
  return OkStatus();
}

// ---- du

Status Usage(const UpkeepOptions& options, std::ostream& out) {
  CKPT_ASSIGN_OR_RETURN(const auto store, OpenJob(options.path));
  CKPT_ASSIGN_OR_RETURN(const std::vector<storage::UsageRow> rows, store->Usage());
  uint64_t total = 0;
  Json list = Json::array();
  std::vector<std::vector<std::string>> table = {
      {"DIRECTORY", "STATE", "FILES", "STORED", "HOLDS", "REFERS TO", "NEEDED BY"}};
  for (const storage::UsageRow& row : rows) {
    total += row.bytes;
    // What a load of it gives, wherever it is stored.
    uint64_t logical = 0;
    const Result<format::Manifest> manifest = ReadManifestOf(*store, row.id);
    if (manifest.ok()) logical = LogicalBytes(*manifest);
    table.push_back({row.name, row.state, std::to_string(row.files), FormatBytes(row.bytes),
                     manifest.ok() ? FormatBytes(logical) : "-", Joined(row.origins),
                     Joined(row.needed_by)});
    list.push_back({{"directory", row.name},
                    {"state", row.state},
                    {"files", row.files},
                    {"stored_bytes", row.bytes},
                    {"logical_bytes", logical},
                    {"refers_to", Names(row.origins)},
                    {"needed_by", Names(row.needed_by)}});
  }
  if (options.json) {
    Print({{"path", options.path}, {"stored_bytes", total}, {"directories", list}}, out);
    return OkStatus();
  }
  PrintTable(table, out);
  out << FormatBytes(total) << " stored in " << rows.size() << " directories\n";
  return OkStatus();
}

// ---- repair

const char* Word(storage::RepairKind kind) {
  switch (kind) {
    case storage::RepairKind::kCommit:
      return "commit";
    case storage::RepairKind::kTakeBack:
      return "take back";
    case storage::RepairKind::kFinish:
      return "finish removal";
    case storage::RepairKind::kSweep:
      return "sweep";
  }
  return "";
}

Json PlanJson(const UpkeepOptions& options, const storage::RepairPlan& plan) {
  Json json{{"path", options.path},
            {"done", options.yes},
            {"actions", Json::array()},
            {"left", plan.left}};
  for (const storage::RepairAction& action : plan.actions) {
    json["actions"].push_back({{"kind", Word(action.kind)},
                               {"checkpoint", action.id.ToString()},
                               {"directory", action.name},
                               {"why", action.why},
                               {"bytes", action.bytes}});
  }
  return json;
}

void PrintPlan(const UpkeepOptions& options, const storage::RepairPlan& plan, std::ostream& out) {
  std::vector<std::vector<std::string>> rows;
  for (const storage::RepairAction& action : plan.actions) {
    rows.push_back({Word(action.kind), action.name, FormatBytes(action.bytes), action.why});
  }
  PrintTable(rows, out);
  for (const std::string& line : plan.left) out << "left alone: " << line << "\n";
  if (plan.actions.empty()) {
    out << "nothing to repair in " << options.path << "\n";
  } else if (!options.yes) {
    out << "nothing was changed; `ckptctl repair " << options.path << " --yes` does it\n";
  }
}

Status Repair(const UpkeepOptions& options, std::ostream& out) {
  CKPT_ASSIGN_OR_RETURN(const auto store, OpenJob(options.path));
  CKPT_ASSIGN_OR_RETURN(const storage::RepairPlan plan, store->PlanRepair());
  if (!options.json) PrintPlan(options, plan, out);
  if (options.yes && !plan.actions.empty()) {
    CKPT_RETURN_IF_ERROR(store->Repair(plan));
    if (!options.json) out << "done\n";
  }
  if (options.json) Print(PlanJson(options, plan), out);
  return OkStatus();
}

CLI::App* AddVerb(CLI::App& app, const Globals& globals, Run* run, const char* name,
                  const char* help, const std::shared_ptr<UpkeepOptions>& options,
                  Status (*work)(const UpkeepOptions&, std::ostream&)) {
  CLI::App* verb = app.add_subcommand(name, help);
  verb->fallthrough();
  verb->add_option("PATH", options->path, "a job's directory in a store")->required();
  verb->callback([=, &globals] {
    *run = [=, &globals] {
      options->json = globals.json();
      const Status status = work(*options, std::cout);
      std::cout.flush();
      if (!status.ok()) Fail(status);
      return OfflineExitCode(status);
    };
  });
  return verb;
}

}  // namespace

void RegisterUpkeep(CLI::App& app, const Globals& globals, Run* run) {
  auto prune = std::make_shared<UpkeepOptions>();
  CLI::App* verb =
      AddVerb(app, globals, run, "prune",
              "REMOVE checkpoints that no rule keeps; --dry-run says which", prune, Prune);
  verb->add_option("--keep-last", prune->keep_last, "the newest ones that are whole, 1 at least")
      ->required()
      ->check(CLI::Range(1u, 1'000'000u));
  verb->add_option("--keep-every", prune->keep_every,
                   "and the first at or after each multiple of this");
  verb->add_flag("--dry-run", prune->dry_run, "change nothing");

  AddVerb(app, globals, run, "du", "what checkpoints take: stored, held, and shared with others",
          std::make_shared<UpkeepOptions>(), Usage);

  auto repair = std::make_shared<UpkeepOptions>();
  verb =
      AddVerb(app, globals, run, "repair",
              "say what interrupted runs have left; --yes finishes and sweeps it", repair, Repair);
  verb->add_flag("--yes", repair->yes, "do it");
}

}  // namespace ckpt::ckptctl
