// submit: a job from a file, or from flags.
#include <CLI/CLI.hpp>
#include <iostream>

#include "coordinator/ckptctl/client.h"
#include "coordinator/ckptctl/job_file.h"
#include "coordinator/ckptctl/render.h"
#include "libckpt/base/clock.h"
#include "libckpt/base/ids.h"
#include "libckpt/base/limits.h"
#include "libckpt/os/file.h"

namespace ckpt::ckptctl {
namespace {

constexpr uint64_t kJobFileBytesMax = 1 << 20;

std::vector<std::string>& SubmitCommand() {
  static std::vector<std::string> words;
  return words;
}

// Flags of submit; one that is given overrides the file.
struct SubmitOptions {
  std::string file;
  std::string name, ranks, job_class, store, workdir, state_bytes, min_runtime;
  uint32_t save_every = 0, restarts_max = 0;
  int32_t priority = 0;
  double max_price = 0;
  bool not_preemptible = false;
  std::vector<std::string> env;
};

Status ApplyFlags(const CLI::App& verb, const SubmitOptions& o, v1::JobSpec* spec) {
  const auto given = [&](const char* flag) { return verb.count(flag) != 0; };
  if (given("--name")) {
    CKPT_RETURN_IF_ERROR(CheckName("job", o.name));
    spec->set_name(o.name);
  }
  if (given("--ranks")) {
    auto ranks = ParseWhole(o.ranks, 1, kRanksMax);
    if (!ranks.ok()) return std::move(ranks).status().Annotate("--ranks");
    spec->set_ranks(static_cast<uint32_t>(*ranks));
  }
  if (given("--priority")) spec->set_priority(o.priority);
  if (given("--class")) {
    CKPT_RETURN_IF_ERROR(CheckJobClass(o.job_class).Annotate("--class"));
    spec->set_job_class(o.job_class);
  }
  if (given("--store")) spec->set_store(o.store);
  if (given("--workdir")) spec->set_workdir(o.workdir);
  if (given("--save-every")) spec->set_save_every(o.save_every);
  if (given("--restarts-max")) spec->set_restarts_max(o.restarts_max);
  if (given("--max-price")) spec->set_max_price(o.max_price);
  if (o.not_preemptible) spec->set_not_preemptible(true);
  if (given("--state-bytes-per-rank")) {
    CKPT_ASSIGN_OR_RETURN(const uint64_t bytes, ParseBytes(o.state_bytes));
    spec->set_state_bytes_per_rank(bytes);
  }
  if (given("--min-runtime")) {
    CKPT_ASSIGN_OR_RETURN(const uint64_t ms, ParseMillis(o.min_runtime));
    spec->set_min_runtime_ms(ms);
  }
  for (const std::string& pair : o.env) {
    const size_t equals = pair.find('=');
    if (equals == std::string::npos)
      return InvalidArgument("--env " + pair + ": expected NAME=VALUE");
    (*spec->mutable_env())[pair.substr(0, equals)] = pair.substr(equals + 1);
  }
  if (!SubmitCommand().empty()) {
    spec->clear_command();
    for (const std::string& word : SubmitCommand()) spec->add_command(word);
  }
  return OkStatus();
}

Status MakeSpec(const CLI::App& verb, const SubmitOptions& options, v1::JobSpec* spec) {
  if (!options.file.empty()) {
    Result<std::string> text = os::ReadFile(os::PosixFileSystem(), options.file, kJobFileBytesMax);
    if (text.status().code() == Code::kResourceExhausted) {
      return InvalidArgument(options.file + ": a job file has " + FormatBytes(kJobFileBytesMax) +
                             " at most: this is something else");
    }
    if (!text.ok()) return std::move(text).status();
    CKPT_RETURN_IF_ERROR(ParseJobFile(options.file, *text, spec));
  }
  CKPT_RETURN_IF_ERROR(ApplyFlags(verb, options, spec));
  const std::string where = options.file.empty() ? "submit" : options.file;
  if (spec->name().empty()) {
    return InvalidArgument(where + ": the job has no name: `name:` in the file, or --name");
  }
  if (spec->ranks() == 0) {
    return InvalidArgument(where + ": the job has no ranks: `ranks:` in the file, or --ranks");
  }
  if (spec->command_size() == 0) {
    return InvalidArgument(where + ": the job has no command: `command:` in the file, or -- WORDS");
  }
  return OkStatus();
}

int Submit(const CLI::App& verb, const SubmitOptions& options, const Globals& globals) {
  v1::PutJobRequest request;
  request.set_op_id(NewOpId());
  const Status made = MakeSpec(verb, options, request.mutable_spec());
  if (!made.ok()) {
    Fail(made);
    return kExitUsage;
  }
  return WithClient(globals, [&](Client& client) -> Status {
    v1::Job job;
    CKPT_RETURN_IF_ERROR(client.Call(&v1::Coordinator::Stub::PutJob, request, &job));
    if (globals.json()) {
      std::cout << ToJson(job) << "\n";
    } else {
      std::cout << "submitted " << job.spec().name() << ": " << StateWord(job.state());
      if (job.placement().nodes_size() != 0) {
        std::cout << " on " << DescribePlacement(job.placement());
      }
      std::cout << (job.reason().empty() ? "" : ": " + job.reason()) << "\n";
    }
    return OkStatus();
  });
}

}  // namespace

void SetSubmitCommand(std::vector<std::string> words) { SubmitCommand() = std::move(words); }

void RegisterSubmit(CLI::App& app, const Globals& globals, Run* run) {
  auto options = std::make_shared<SubmitOptions>();
  SubmitOptions* o = options.get();
  CLI::App* verb =
      app.add_subcommand("submit", "submit a job: a YAML file, or flags and -- COMMAND");
  verb->fallthrough();
  verb->add_option("file", o->file, "job file (YAML); flags override it");
  verb->add_option("--name", o->name, "unique name");
  verb->add_option("--ranks", o->ranks, "processes, one slot each");
  verb->add_option("--priority", o->priority, "higher displaces lower");
  verb->add_option("--class", o->job_class, "realtime | evaluation | training | batch");
  verb->add_option("--store", o->store, "directory of its checkpoints");
  verb->add_option("--workdir", o->workdir, "where it starts");
  verb->add_option("--save-every", o->save_every,
                   "boundaries between saves; 0: the program decides");
  verb->add_option("--restarts-max", o->restarts_max, "restarts after crashes (default 3)");
  verb->add_option("--max-price", o->max_price, "GPU-seconds that making room for it may cost");
  verb->add_option("--state-bytes-per-rank", o->state_bytes, "like 64MiB: checked against budgets");
  verb->add_option("--min-runtime", o->min_runtime, "like 30s: not preempted before");
  verb->add_flag("--not-preemptible", o->not_preemptible, "never stopped for another");
  verb->add_option("--env", o->env, "NAME=VALUE, may be repeated")->take_all();
  verb->callback(
      [=, &globals] { *run = [=, &globals] { return Submit(*verb, *options, globals); }; });
}

}  // namespace ckpt::ckptctl
