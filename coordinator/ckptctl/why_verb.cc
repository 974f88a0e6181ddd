// why: looks up what explains a job's state.
#include <CLI/CLI.hpp>
#include <iostream>
#include <nlohmann/json.hpp>

#include "coordinator/ckptctl/client.h"
#include "coordinator/ckptctl/why.h"

namespace ckpt::ckptctl {
namespace {

using Stub = v1::Coordinator::Stub;

Status ReadEvents(Client& client, const std::string& job, std::vector<v1::Event>* out) {
  v1::WatchEventsRequest request;
  request.set_job(job);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
  const auto reader = client.stub().WatchEvents(&context, request);
  v1::Event event;
  while (reader->Read(&event)) out->push_back(event);
  return Client::FromGrpc(reader->Finish());
}

// A quote changes nothing.
Status AddPlan(Client& client, WhyInput* in) {
  const v1::JobState state = in->job.state();
  if (state != v1::JOB_PENDING && state != v1::JOB_PREEMPTED) return OkStatus();
  if (in->operation) return OkStatus();
  v1::QuoteRequest request;
  request.set_job(in->job.spec().name());
  v1::Plan plan;
  Status status = client.Call(&Stub::Quote, request, &plan);
  if (status.ok()) in->plan = std::move(plan);
  if (status.code() == Code::kUnavailable) return status;
  in->no_plan = status.message();
  return OkStatus();
}

Result<WhyInput> LookUp(Client& client, const std::string& name) {
  WhyInput in;
  v1::GetJobRequest request;
  request.set_name(name);
  CKPT_RETURN_IF_ERROR(client.Call(&Stub::GetJob, request, &in.job));
  CKPT_RETURN_IF_ERROR(client.Call(&Stub::ListJobs, v1::ListJobsRequest(), &in.jobs));
  CKPT_RETURN_IF_ERROR(client.Call(&Stub::ListNodes, v1::ListNodesRequest(), &in.nodes));
  CKPT_RETURN_IF_ERROR(ReadEvents(client, name, &in.events));
  if (in.job.op_id() != 0) {
    v1::GetOperationRequest ask;
    ask.set_op_id(in.job.op_id());
    v1::Operation operation;
    CKPT_RETURN_IF_ERROR(client.Call(&Stub::GetOperation, ask, &operation));
    if (operation.state() == v1::OPERATION_RUNNING) in.operation = std::move(operation);
  }
  CKPT_RETURN_IF_ERROR(AddPlan(client, &in));
  return in;
}

void PrintList(const char* title, const std::vector<std::string>& lines) {
  if (!lines.empty()) std::cout << title << "\n";
  for (const std::string& line : lines) std::cout << "  - " << line << "\n";
}

int ShowWhy(const std::string& name, const Globals& globals) {
  return WithClient(globals, [&](Client& client) -> Status {
    CKPT_ASSIGN_OR_RETURN(const WhyInput in, LookUp(client, name));
    const Why why = Explain(in);
    if (globals.json()) {
      const nlohmann::ordered_json json{{"job", name},
                                        {"summary", why.summary},
                                        {"facts", why.facts},
                                        {"commands", why.commands}};
      std::cout << json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) << "\n";
      return OkStatus();
    }
    std::cout << why.summary << "\n";
    PrintList("what is known:", why.facts);
    PrintList("what to type:", why.commands);
    return OkStatus();
  });
}

}  // namespace

void RegisterWhy(CLI::App& app, const Globals& globals, Run* run) {
  auto name = std::make_shared<std::string>();
  CLI::App* verb = app.add_subcommand(
      "why", "why a job waits, is stopped or was restarted; what would help; changes nothing");
  verb->fallthrough();
  verb->add_option("job", *name, "its name")->required();
  verb->callback([=, &globals] { *run = [=, &globals] { return ShowWhy(*name, globals); }; });
}

}  // namespace ckpt::ckptctl
