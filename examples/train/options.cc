#include "examples/train/options.h"

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>

namespace train {
namespace {

bool ParseNumber(const char* text, double* number) {
  char* end = nullptr;
  *number = strtod(text, &end);
  return end != text && *end == '\0' && *number >= 0;
}

int FromEnvironment(const char* name, int fallback) {
  const char* text = getenv(name);
  double number = 0;
  return text != nullptr && ParseNumber(text, &number) ? static_cast<int>(number) : fallback;
}

}  // namespace

bool ParseOptions(int argc, char** argv, Options* options) {
  const std::map<std::string, std::function<void(double)>> numbers = {
      {"--steps", [&](double v) { options->steps = static_cast<int64_t>(v); }},
      {"--hidden", [&](double v) { options->hidden = static_cast<int>(v); }},
      {"--batch", [&](double v) { options->batch = static_cast<int>(v); }},
      {"--seed", [&](double v) { options->seed = static_cast<uint64_t>(v); }},
      {"--learning-rate", [&](double v) { options->learning_rate = static_cast<float>(v); }},
      {"--save-every", [&](double v) { options->save_every = static_cast<int64_t>(v); }},
      {"--pause-ms", [&](double v) { options->pause_ms = static_cast<int64_t>(v); }}};
  const std::map<std::string, std::string*> texts = {{"--text", &options->text},
                                                     {"--loss-file", &options->loss_file},
                                                     {"--digest-file", &options->digest_file},
                                                     {"--rendezvous", &options->rendezvous}};
  for (int i = 1; i < argc; i += 2) {
    const auto number = numbers.find(argv[i]);
    const auto text = texts.find(argv[i]);
    double value = 0;
    if (i + 1 < argc && text != texts.end()) {
      *text->second = argv[i + 1];
    } else if (i + 1 < argc && number != numbers.end() && ParseNumber(argv[i + 1], &value)) {
      number->second(value);
    } else {
      fprintf(stderr, "train: do not understand '%s%s%s'\n", argv[i], i + 1 < argc ? " " : "",
              i + 1 < argc ? argv[i + 1] : "");
      return false;
    }
  }
  options->rank = FromEnvironment("RANK", 0);
  options->world = FromEnvironment("WORLD_SIZE", 1);
  const char* host = getenv("TRAIN_HOST");
  options->host = host == nullptr ? "127.0.0.1" : host;
  if (options->text.empty() || options->hidden < 1 || options->batch < 1) {
    fprintf(stderr,
            "usage: train --text FILE [--steps N] [--hidden N] [--batch N] [--seed N] "
            "[--save-every N] [--pause-ms N] …\n");
    return false;
  }
  return true;
}

}  // namespace train
