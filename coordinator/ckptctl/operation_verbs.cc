// quote, apply, suspend, resume, checkpoint, migrate, cancel, withdraw, operation.
#include <CLI/CLI.hpp>
#include <charconv>
#include <iostream>

#include "coordinator/ckptctl/client.h"
#include "coordinator/ckptctl/job_file.h"
#include "coordinator/ckptctl/render.h"
#include "coordinator/ckptctl/wait.h"

namespace ckpt::ckptctl {
namespace {

// What the operation verbs take; each uses a part of it.
struct Options {
  std::string target;  // job, or plan
  std::string from, to, deadline;
  std::vector<std::string> nodes;
  bool from_store = false;
  uint64_t epoch = 0;
  WaitOptions wait;
};

Result<int64_t> DeadlineMs(const Options& options) {
  if (options.deadline.empty()) return int64_t{0};
  CKPT_ASSIGN_OR_RETURN(const uint64_t ms, ParseMillis(options.deadline));
  return static_cast<int64_t>(ms);
}

template <typename Request, typename Method>
int Operate(const Globals& globals, const Options& options, Method method, Request request) {
  auto deadline_ms = DeadlineMs(options);
  if (!deadline_ms.ok()) {
    Fail(deadline_ms.status());
    return kExitUsage;
  }
  request.set_op_id(NewOpId());
  if constexpr (requires { request.set_deadline_ms(0); }) request.set_deadline_ms(*deadline_ms);
  return WithClient(globals, [&](Client& client) -> Status {
    v1::Operation operation;
    CKPT_RETURN_IF_ERROR(client.Call(method, request, &operation));
    return FinishOperation(client, globals, options.wait, std::move(operation));
  });
}

int Quote(const Globals& globals, const Options& options) {
  auto deadline_ms = DeadlineMs(options);
  if (!deadline_ms.ok()) {
    Fail(deadline_ms.status());
    return kExitUsage;
  }
  return WithClient(globals, [&](Client& client) -> Status {
    v1::QuoteRequest request;
    request.set_job(options.target);
    request.set_deadline_ms(*deadline_ms);
    v1::Plan plan;
    CKPT_RETURN_IF_ERROR(client.Call(&v1::Coordinator::Stub::Quote, request, &plan));
    if (globals.json()) {
      std::cout << ToJson(plan) << "\n";
    } else {
      PrintPlan(std::cout, plan);
    }
    return OkStatus();
  });
}

// One that was begun earlier, by its number.
template <typename Request, typename Method, typename Then>
int ByNumber(const Globals& globals, const Options& options, Method method, Request request,
             Then then) {
  uint64_t op_id = 0;
  const char* end = options.target.data() + options.target.size();
  if (std::from_chars(options.target.data(), end, op_id) != std::from_chars_result{end, {}}) {
    Fail(InvalidArgument("\"" + options.target + "\" is no number of an operation; the commands " +
                         "that begin one print it, `ckptctl job NAME` the one in progress"));
    return kExitUsage;
  }
  return WithClient(globals, [&](Client& client) -> Status {
    request.set_op_id(op_id);
    v1::Operation operation;
    CKPT_RETURN_IF_ERROR(client.Call(method, request, &operation));
    return then(client, std::move(operation));
  });
}

int Show(const Globals& globals, const Options& options) {
  return ByNumber(globals, options, &v1::Coordinator::Stub::GetOperation, v1::GetOperationRequest(),
                  [&](Client& client, v1::Operation operation) {
                    return FinishOperation(client, globals, options.wait, std::move(operation));
                  });
}

// What it names has failed then: that is what was asked for.
int Withdraw(const Globals& globals, const Options& options) {
  return ByNumber(globals, options, &v1::Coordinator::Stub::Withdraw, v1::WithdrawRequest(),
                  [&](Client&, const v1::Operation& operation) -> Status {
                    if (globals.json()) {
                      std::cout << ToJson(operation) << std::endl;
                    } else {
                      PrintOperation(std::cout, operation);
                    }
                    return OkStatus();
                  });
}

using Action = std::function<int(const Globals&, const Options&)>;

// A verb with one positional argument.
CLI::App* AddVerb(CLI::App& app, const Globals& globals, Run* run, const char* name,
                  const char* help, const char* target, std::shared_ptr<Options> options,
                  Action action) {
  CLI::App* verb = app.add_subcommand(name, help);
  verb->fallthrough();
  verb->add_option(target, options->target, std::string("which ") + target)->required();
  verb->callback([=, &globals] { *run = [=, &globals] { return action(globals, *options); }; });
  return verb;
}

void AddWait(CLI::App* verb, Options* options, bool deadline) {
  verb->add_flag("--wait", options->wait.wait, "until it has ended; exit 1 if it failed");
  if (!deadline) return;
  verb->add_option("--deadline", options->deadline,
                   "like 30s (default: by the bytes to be staged)");
}

template <typename Method>
Action StopAction(Method method) {
  return [method](const Globals& globals, const Options& options) {
    v1::StopRequest request;
    request.set_job(options.target);
    request.set_epoch(options.epoch);
    return Operate(globals, options, method, std::move(request));
  };
}

void RegisterStops(CLI::App& app, const Globals& globals, Run* run) {
  using Stub = v1::Coordinator::Stub;
  using StopMethod =
      grpc::Status (Stub::*)(grpc::ClientContext*, const v1::StopRequest&, v1::Operation*);
  const struct {
    const char* name;
    const char* help;
    StopMethod method;
  } kStops[] = {
      {"suspend", "stop a job at one step and free its slots; it stays until resumed",
       &Stub::Suspend},
      {"checkpoint", "ask a running job for a durable checkpoint", &Stub::Checkpoint},
      {"cancel", "KILL a job for good; its durable checkpoints stay in the store", &Stub::Cancel},
  };
  for (const auto& stop : kStops) {
    auto options = std::make_shared<Options>();
    CLI::App* verb =
        AddVerb(app, globals, run, stop.name, stop.help, "job", options, StopAction(stop.method));
    AddWait(verb, options.get(), true);
    verb->add_option("--epoch", options->epoch, "refuse if it has been launched since");
    if (std::string_view(stop.name) != "suspend") continue;
    verb->add_flag("--durable", options->wait.durable,
                   "wait also until its copy is in the store, not only in RAM");
  }
}

}  // namespace

void RegisterOperationVerbs(CLI::App& app, const Globals& globals, Run* run) {
  using Stub = v1::Coordinator::Stub;
  auto quote = std::make_shared<Options>();
  AddVerb(app, globals, run, "quote", "what it would cost to make room for a job; changes nothing",
          "job", quote, Quote)
      ->add_option("--deadline", quote->deadline,
                   "that the victims are to be given, like 30s (default: by their bytes)");

  auto apply = std::make_shared<Options>();
  AddWait(AddVerb(app, globals, run, "apply", "carry out a plan that quote made: STOPS its victims",
                  "plan", apply,
                  [](const Globals& g, const Options& o) {
                    v1::ApplyRequest request;
                    request.set_plan_id(o.target);
                    return Operate(g, o, &Stub::Apply, std::move(request));
                  }),
          apply.get(), true);

  RegisterStops(app, globals, run);

  auto resume = std::make_shared<Options>();
  CLI::App* verb = AddVerb(app, globals, run, "resume", "let a suspended or failed job go on",
                           "job", resume, [](const Globals& g, const Options& o) {
                             v1::ResumeRequest request;
                             request.set_job(o.target);
                             for (const auto& node : o.nodes) request.add_nodes(node);
                             request.set_from_store(o.from_store);
                             return Operate(g, o, &Stub::Resume, std::move(request));
                           });
  AddWait(verb, resume.get(), false);
  verb->add_option("--nodes", resume->nodes, "there and now, or not at all")->delimiter(',');
  verb->add_flag("--from-store", resume->from_store,
                 "go on WITHOUT the newest copy if it is not found: from the store, or anew");

  auto migrate = std::make_shared<Options>();
  verb = AddVerb(app, globals, run, "migrate", "move the ranks of one node, memory to memory",
                 "job", migrate, [](const Globals& g, const Options& o) {
                   v1::MigrateRequest request;
                   request.set_job(o.target);
                   request.set_from_node(o.from);
                   request.set_to_node(o.to);
                   return Operate(g, o, &Stub::Migrate, std::move(request));
                 });
  verb->add_option("--from", migrate->from, "node to leave")->required();
  verb->add_option("--to", migrate->to, "node to go to")->required();
  AddWait(verb, migrate.get(), true);

  AddVerb(app, globals, run, "withdraw", "take back an operation that has released nothing yet",
          "operation", std::make_shared<Options>(), Withdraw);

  auto shown = std::make_shared<Options>();
  verb = AddVerb(app, globals, run, "operation", "show an operation that was begun earlier",
                 "operation", shown, Show);
  AddWait(verb, shown.get(), false);
}

}  // namespace ckpt::ckptctl
