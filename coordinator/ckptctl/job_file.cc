#include "coordinator/ckptctl/job_file.h"

#include <yaml-cpp/yaml.h>

#include <cmath>
#include <cstdlib>
#include <functional>
#include <map>

namespace ckpt::ckptctl {
namespace {

Result<double> ParseUnits(const std::string& text, const std::map<std::string, double>& units,
                          const char* what) {
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  std::string unit(end);
  unit.erase(0, unit.find_first_not_of(' ') == std::string::npos ? unit.size()
                                                                 : unit.find_first_not_of(' '));
  const auto it = units.find(unit);
  const double value = it == units.end() ? -1 : number * it->second;
  if (end == text.c_str() || it == units.end() || !(number >= 0) || value > 9e18) {
    return InvalidArgument("\"" + text + "\" is no " + what);
  }
  return value;
}

using Setter = std::function<Status(const YAML::Node&, v1::JobSpec*)>;

// yaml-cpp throws on a scalar of the wrong type; the caller turns that into an error with a line.
template <typename T, typename Set>
Setter Scalar(Set set) {
  return [set](const YAML::Node& node, v1::JobSpec* spec) {
    set(spec, node.as<T>());
    return OkStatus();
  };
}

Status SetCommand(const YAML::Node& node, v1::JobSpec* spec) {
  spec->clear_command();
  if (node.IsScalar()) {  // a line for the shell
    for (const std::string& word : {std::string("sh"), std::string("-c"), node.as<std::string>()}) {
      spec->add_command(word);
    }
    return OkStatus();
  }
  if (!node.IsSequence()) return InvalidArgument("expected a list of words, or one line");
  for (const YAML::Node& word : node) spec->add_command(word.as<std::string>());
  return OkStatus();
}

Status SetEnv(const YAML::Node& node, v1::JobSpec* spec) {
  if (!node.IsMap()) return InvalidArgument("expected NAME: value pairs");
  for (const auto& pair : node) {
    (*spec->mutable_env())[pair.first.as<std::string>()] = pair.second.as<std::string>();
  }
  return OkStatus();
}

const std::map<std::string, Setter>& Setters() {
  static const std::map<std::string, Setter> setters = {
      {"name", Scalar<std::string>([](auto* s, std::string v) { s->set_name(std::move(v)); })},
      {"ranks", Scalar<uint32_t>([](auto* s, uint32_t v) { s->set_ranks(v); })},
      {"priority", Scalar<int32_t>([](auto* s, int32_t v) { s->set_priority(v); })},
      {"class", Scalar<std::string>([](auto* s, std::string v) { s->set_job_class(v); })},
      {"preemptible", Scalar<bool>([](auto* s, bool v) { s->set_not_preemptible(!v); })},
      {"store", Scalar<std::string>([](auto* s, std::string v) { s->set_store(v); })},
      {"workdir", Scalar<std::string>([](auto* s, std::string v) { s->set_workdir(v); })},
      {"save_every", Scalar<uint32_t>([](auto* s, uint32_t v) { s->set_save_every(v); })},
      {"restarts_max", Scalar<uint32_t>([](auto* s, uint32_t v) { s->set_restarts_max(v); })},
      {"max_price", Scalar<double>([](auto* s, double v) { s->set_max_price(v); })},
      {"command", SetCommand},
      {"env", SetEnv},
      {"state_bytes_per_rank",
       [](const YAML::Node& node, v1::JobSpec* spec) -> Status {
         CKPT_ASSIGN_OR_RETURN(const uint64_t bytes, ParseBytes(node.as<std::string>()));
         spec->set_state_bytes_per_rank(bytes);
         return OkStatus();
       }},
      {"min_runtime",
       [](const YAML::Node& node, v1::JobSpec* spec) -> Status {
         CKPT_ASSIGN_OR_RETURN(const uint64_t ms, ParseMillis(node.as<std::string>()));
         spec->set_min_runtime_ms(ms);
         return OkStatus();
       }},
  };
  return setters;
}

std::string KnownKeys() {
  std::string keys;
  for (const auto& [key, set] : Setters()) keys += (keys.empty() ? "" : ", ") + key;
  return keys;
}

std::string At(const std::string& path, const YAML::Mark& mark) {
  return path + ":" + std::to_string(mark.line + 1) + ": ";
}

Status SetKey(const std::string& path, const YAML::Node& key, const YAML::Node& value,
              v1::JobSpec* spec) {
  const std::string name = key.as<std::string>();
  const auto it = Setters().find(name);
  if (it == Setters().end()) {
    return InvalidArgument(At(path, key.Mark()) + "unknown key \"" + name + "\"; known are " +
                           KnownKeys());
  }
  try {
    return it->second(value, spec).Annotate(At(path, value.Mark()) + name);
  } catch (const YAML::Exception&) {
    return InvalidArgument(At(path, value.Mark()) + name + ": \"" +
                           (value.IsScalar() ? value.Scalar() : "this") +
                           "\" is not a value for it");
  }
}

}  // namespace

Status ParseJobFile(const std::string& path, const std::string& text, v1::JobSpec* spec) {
  try {
    const YAML::Node root = YAML::Load(text);
    if (!root.IsMap()) return InvalidArgument(path + ": expected `key: value` lines");
    for (const auto& pair : root) {
      CKPT_RETURN_IF_ERROR(SetKey(path, pair.first, pair.second, spec));
    }
  } catch (const YAML::Exception& error) {
    return InvalidArgument(At(path, error.mark) + error.msg);
  }
  return OkStatus();
}

Result<uint64_t> ParseBytes(const std::string& text) {
  static const std::map<std::string, double> kUnits = {
      {"", 1},         {"B", 1},    {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30},
      {"TiB", 0x1p40}, {"KB", 1e3}, {"MB", 1e6},     {"GB", 1e9},     {"TB", 1e12}};
  CKPT_ASSIGN_OR_RETURN(const double bytes, ParseUnits(text, kUnits, "size, like 64MiB"));
  return static_cast<uint64_t>(bytes);
}

Result<uint64_t> ParseMillis(const std::string& text) {
  static const std::map<std::string, double> kUnits = {
      {"", 1e3}, {"ms", 1}, {"s", 1e3}, {"m", 60e3}, {"h", 3600e3}};
  CKPT_ASSIGN_OR_RETURN(const double ms, ParseUnits(text, kUnits, "duration, like 30s"));
  return static_cast<uint64_t>(ms);
}

}  // namespace ckpt::ckptctl
