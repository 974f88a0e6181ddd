// nodes, events.
#include <CLI/CLI.hpp>
#include <iostream>

#include "coordinator/ckptctl/client.h"
#include "coordinator/ckptctl/render.h"

namespace ckpt::ckptctl {
namespace {

int Nodes(const Globals& globals) {
  return WithClient(globals, [&](Client& client) -> Status {
    v1::ListNodesResponse nodes;
    CKPT_RETURN_IF_ERROR(
        client.Call(&v1::Coordinator::Stub::ListNodes, v1::ListNodesRequest(), &nodes));
    if (globals.json()) {
      std::cout << ToJson(nodes) << "\n";
    } else {
      PrintNodes(std::cout, nodes);
    }
    return OkStatus();
  });
}

// JSON: one object with all events, or with --follow one object a line.
int Events(const v1::WatchEventsRequest& request, const Globals& globals) {
  return WithClient(globals, [&](Client& client) -> Status {
    grpc::ClientContext context;
    const auto reader = client.stub().WatchEvents(&context, request);
    v1::Event event;
    std::string list;
    while (reader->Read(&event)) {
      if (!globals.json()) {
        PrintEvent(std::cout, event);
      } else if (request.follow()) {
        std::cout << ToJson(event, -1) << "\n";
      } else {
        list += (list.empty() ? "\n  " : ",\n  ") + ToJson(event, -1);
      }
      if (request.follow()) std::cout.flush();
    }
    if (globals.json() && !request.follow()) std::cout << "{\"events\": [" << list << "\n]}\n";
    return Client::FromGrpc(reader->Finish());
  });
}

}  // namespace

void RegisterViewVerbs(CLI::App& app, const Globals& globals, Run* run) {
  CLI::App* nodes = app.add_subcommand("nodes", "list the nodes, their slots and staging memory");
  nodes->fallthrough();
  nodes->callback([=, &globals] { *run = [&globals] { return Nodes(globals); }; });

  auto since = std::make_shared<uint64_t>(0);
  auto follow = std::make_shared<bool>(false);
  auto job = std::make_shared<std::string>();
  CLI::App* events = app.add_subcommand("events", "the timeline: what happened, in order");
  events->fallthrough();
  events->add_flag("--follow", *follow, "go on with what happens from now on");
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

}  // namespace ckpt::ckptctl
