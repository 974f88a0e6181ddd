// jobs, job, nodes, events: what there is and what happened.
#include <CLI/CLI.hpp>
#include <iostream>
#include <sstream>

#include "coordinator/ckptctl/client.h"
#include "coordinator/ckptctl/render.h"
#include "coordinator/ckptctl/watch.h"

namespace ckpt::ckptctl {
namespace {

using Stub = v1::Coordinator::Stub;

// `print` puts a message into words.
template <typename Message, typename Print>
std::string Text(const Globals& globals, const Message& message, int indent, Print print) {
  if (globals.json()) return ToJson(message, indent) + "\n";
  std::ostringstream out;
  print(out, message);
  return out.str();
}

View JobsView(const Globals& globals) {
  return [&globals](Client& client, int indent) -> Result<Shown> {
    v1::ListJobsResponse jobs;
    CKPT_RETURN_IF_ERROR(client.Call(&Stub::ListJobs, v1::ListJobsRequest(), &jobs));
    return Shown{Text(globals, jobs, indent, PrintJobs)};
  };
}

View NodesView(const Globals& globals) {
  return [&globals](Client& client, int indent) -> Result<Shown> {
    v1::ListNodesResponse nodes;
    CKPT_RETURN_IF_ERROR(client.Call(&Stub::ListNodes, v1::ListNodesRequest(), &nodes));
    return Shown{Text(globals, nodes, indent, PrintNodes)};
  };
}

View JobView(const Globals& globals, const std::string& name) {
  return [&globals, name](Client& client, int indent) -> Result<Shown> {
    v1::GetJobRequest request;
    request.set_name(name);
    v1::Job job;
    CKPT_RETURN_IF_ERROR(client.Call(&Stub::GetJob, request, &job));
    Shown shown{Text(globals, job, indent, PrintJob)};
    const v1::JobState state = job.state();
    shown.over = IsEnded(state);
    if (shown.over && state != v1::JOB_FINISHED) {
      shown.outcome = Aborted(name + " " + StateWord(state) + ": " + job.reason());
    }
    return shown;
  };
}

// JSON: one object with all events, or with --follow one object a line. `request` goes on behind
// what was read.
Status ReadEvents(Client& client, const Globals& globals, v1::WatchEventsRequest* request) {
  grpc::ClientContext context;
  const auto reader = client.stub().WatchEvents(&context, *request);
  const bool follow = request->follow();
  v1::Event event;
  std::string list;
  while (reader->Read(&event)) {
    request->set_since(event.revision());
    if (!globals.json()) {
      PrintEvent(std::cout, event);
    } else if (follow) {
      std::cout << ToJson(event, -1) << "\n";
    } else {
      list += (list.empty() ? "\n  " : ",\n  ") + ToJson(event, -1);
    }
    if (follow) std::cout.flush();
  }
  if (globals.json() && !follow) std::cout << "{\"events\": [" << list << "\n]}\n";
  return Client::FromGrpc(reader->Finish());
}

// What is followed goes on over a restart of the coordinator, from the newest that was seen.
int Events(const v1::WatchEventsRequest& request, const Globals& globals) {
  return WithClient(globals, [&](Client& client) -> Status {
    v1::WatchEventsRequest from = request;
    for (;;) {
      const Status status = ReadEvents(client, globals, &from);
      if (!from.follow() || status.code() != Code::kUnavailable) return status;
      CKPT_RETURN_IF_ERROR(client.Reconnect());
    }
  });
}

// A view that can be watched; `make` is called when the verb was chosen.
CLI::App* AddView(CLI::App& app, const Globals& globals, Run* run, const char* name,
                  const char* help, const std::shared_ptr<std::string>& job,
                  const std::function<View()>& make) {
  auto watch = std::make_shared<bool>(false);
  CLI::App* verb = app.add_subcommand(name, help);
  verb->fallthrough();
  verb->add_flag("-w,--watch", *watch,
                 "go on: in place on a terminal, else one block for each change");
  verb->callback([=, &globals] {
    *run = [=, &globals] {
      return *watch ? Watch(globals, *job, make()) : ShowOnce(globals, make());
    };
  });
  return verb;
}

void RegisterEvents(CLI::App& app, const Globals& globals, Run* run) {
  auto since = std::make_shared<uint64_t>(0);
  auto follow = std::make_shared<bool>(false);
  auto job = std::make_shared<std::string>();
  CLI::App* events = app.add_subcommand("events", "the timeline: what happened, in order");
  events->fallthrough();
  events->add_flag("-f,--follow", *follow, "go on with what happens from now on");
  events->add_option("--since", *since, "only those after this revision");
  events->add_option("--job", *job, "only those of this job");
  events->callback([=, &globals] {
    *run = [=, &globals] {
      v1::WatchEventsRequest request;
      request.set_since(*since);
      request.set_follow(*follow);
      request.set_job(*job);
      return Events(request, globals);
    };
  });
}

}  // namespace

void RegisterViewVerbs(CLI::App& app, const Globals& globals, Run* run) {
  const auto all = std::make_shared<std::string>();
  AddView(app, globals, run, "jobs", "list the jobs", all,
          [&globals] { return JobsView(globals); });
  const auto name = std::make_shared<std::string>();
  CLI::App* job = AddView(app, globals, run, "job",
                          "show a job: state, place, where its copies are; --watch ends with it",
                          name, [&globals, name] { return JobView(globals, *name); });
  job->add_option("job", *name, "its name")->required();
  AddView(app, globals, run, "nodes", "list the nodes, their slots and staging memory", all,
          [&globals] { return NodesView(globals); });
  RegisterEvents(app, globals, run);
}

}  // namespace ckpt::ckptctl
