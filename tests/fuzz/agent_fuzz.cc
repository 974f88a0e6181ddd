// Frames between ckpt-run and agent, and the messages of the data connection between agents.
#include "coordinator/agent/data_wire.h"
#include "libckpt/base/limits.h"
#include "libckpt/wire/agent_frames.h"
#include "tests/fuzz/fuzz.h"

using namespace ckpt;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view input = fuzz::Text(data, size);
  switch (fuzz::Pick(&input, 5)) {
    case 0:
      if (const auto frame = wire::DecodeAgentFrame(input); frame.ok()) {
        FUZZ_CHECK(wire::AgentFrameFdCount(frame->body) <= kFrameFdsMax);
        const auto bytes = wire::EncodeAgentFrame(*frame);
        FUZZ_CHECK(bytes.ok() && *bytes == input);
      }
      break;
    case 1:
      if (const auto token = agent::DecodeHello(input); token.ok())
        FUZZ_CHECK(agent::EncodeHello(*token) == input);
      break;
    case 2:
      agent::DecodeStatus(input).IgnoreError();
      break;
    case 3:
      if (const auto request = agent::DecodeRequest(input); request.ok())
        FUZZ_CHECK(agent::EncodeRequest(*request) == input);
      break;
    case 4:
      agent::DecodeAnswer(input).status().IgnoreError();
      break;
  }
  return 0;
}
