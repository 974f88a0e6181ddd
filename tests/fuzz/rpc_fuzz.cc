// What comes over gRPC: protobuf bytes become the core's and the gang's structures, and the core
// takes any of them without harm.
#include "ckpt/v1/gang.pb.h"
#include "coordinator/ckptd/convert.h"
#include "coordinator/core/core.h"
#include "coordinator/run/gang_codec.h"
#include "libckpt/base/bytes.h"
#include "tests/fuzz/fuzz.h"

using namespace ckpt;

namespace {

core::Options CoreOptions() {
  core::Options options;
  options.mint_token = [] { return std::string(32, 'a'); };
  return options;
}

// An agent's message as the events it becomes.
void Report(const v1::AgentMsg& message, core::Core* core, int64_t now_ns) {
  const core::Time now{now_ns, now_ns};
  if (message.has_node()) core->Step(now, core::NodeConnected{ckptd::FromProto(message.node())});
  if (message.has_job()) core->Step(now, core::JobReported{"n0", ckptd::FromProto(message.job())});
  if (message.has_fetch()) core->Step(now, core::Fetched{"n0", ckptd::FromProto(message.fetch())});
  if (message.has_result())
    core->Step(now, core::CommandAnswered{"n0", ckptd::FromProto(message.result())});
  core->Step(now, core::Tick{});
}

// u16 length and a message each: a job, then what agents say of it.
void Talk(std::string_view input) {
  core::Core core(CoreOptions());
  FUZZ_CHECK(core.Recover({1, 1}, {}, "c").ok());
  core::NodeInfo node;
  node.name = "n0";
  node.slots = 8;
  core.Step({1, 1}, core::NodeConnected{node});
  ByteReader in(input);
  int64_t now_ns = 1;
  while (!in.failed() && !in.rest().empty() && now_ns < 64) {
    const std::string_view part = in.GetRaw(std::min<size_t>(in.Get<uint16_t>(), in.rest().size()));
    v1::JobSpec spec;
    v1::AgentMsg message;
    if (++now_ns % 2 == 0 && spec.ParseFromArray(part.data(), static_cast<int>(part.size()))) {
      core.Step({now_ns, now_ns},
                core::PutJob{static_cast<uint64_t>(now_ns), ckptd::FromProto(spec)});
    } else if (message.ParseFromArray(part.data(), static_cast<int>(part.size()))) {
      Report(message, &core, now_ns);
    }
  }
  for (const auto& [name, job] : core.jobs()) {
    v1::Job view;
    ckptd::ToProto(core, job, &view);
  }
  for (const auto& [name, info] : core.nodes()) {
    FUZZ_CHECK(core.FreeSlots(name) <= info.info.slots);
    v1::Node view;
    ckptd::ToProto(core, info, &view);
  }
}

void Gang(std::string_view input) {
  v1::GangMsg message;
  if (!message.ParseFromArray(input.data(), static_cast<int>(input.size()))) return;
  const auto ours = run::FromProto(message);
  if (!ours.ok()) return;
  const auto again = run::FromProto(run::ToProto(*ours));
  FUZZ_CHECK(again.ok() && again->launch == ours->launch &&
             again->body.index() == ours->body.index());
}

void Spec(std::string_view input) {
  v1::JobSpec spec, again;
  if (!spec.ParseFromArray(input.data(), static_cast<int>(input.size()))) return;
  const core::JobSpec ours = ckptd::FromProto(spec);
  ckptd::ToProto(ours, &again);
  FUZZ_CHECK(again.name() == spec.name() && again.ranks() == spec.ranks() &&
             again.command_size() == spec.command_size());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view input = fuzz::Text(data, size);
  switch (fuzz::Pick(&input, 3)) {
    case 0:
      Gang(input);
      break;
    case 1:
      Spec(input);
      break;
    case 2:
      Talk(input);
      break;
  }
  return 0;
}
