// Flags of ckpt-run (one argument a line) and what an agent is told.
#include "coordinator/agent/options.h"
#include "coordinator/run/options.h"
#include "tests/fuzz/fuzz.h"

using namespace ckpt;

namespace {

void RunFlags(std::string_view input) {
  std::vector<std::string> words = {"ckpt-run"};
  while (!input.empty() && words.size() < 64) {
    const size_t end = std::min(input.find('\n'), input.size());
    words.emplace_back(input.substr(0, end));
    std::erase(words.back(), '\0');  // no argument holds one
    input.remove_prefix(std::min(end + 1, input.size()));
  }
  std::vector<const char*> argv;
  for (const std::string& word : words) argv.push_back(word.c_str());
  const auto parsed = run::ParseOptions(static_cast<int>(argv.size()), argv.data(),
                                        [](const char*) { return std::nullopt; });
  if (!parsed.ok()) {
    FUZZ_CHECK(!parsed.status().message().empty());
  } else if (parsed->help.empty()) {
    FUZZ_CHECK(!parsed->options.command.empty() && parsed->options.rank_count >= 1 &&
               parsed->options.node_rank < parsed->options.node_count);
    FUZZ_CHECK(parsed->options.grace.count() > 0 && parsed->options.join_timeout.count() > 0);
  }
}

void AgentSettings(std::string_view input) {
  const std::string text(input);
  agent::ParseBytes(text).status().IgnoreError();
  agent::GrpcTarget(text).status().IgnoreError();
  agent::AgentOptions options;
  options.name = options.coordinator = options.address = text;
  options.state_dir = "state";
  options.ckpt_run = "/bin/true";
  agent::CheckOptions(&options).IgnoreError();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view input = fuzz::Text(data, size);
  if (fuzz::Pick(&input, 2) == 0) {
    RunFlags(input);
  } else {
    AgentSettings(input);
  }
  return 0;
}
