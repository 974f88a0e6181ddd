#include "coordinator/ckptctl/job_file.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <charconv>
#include <cstdlib>
#include <functional>
#include <limits>
#include <map>
#include <set>
#include <sstream>
#include <vector>

#include "libckpt/base/clock.h"
#include "libckpt/base/ids.h"
#include "libckpt/base/limits.h"
#include "libckpt/format/json.h"

namespace ckpt::ckptctl {
namespace {

constexpr size_t kWordsBytesMax = size_t{1} << 20;
constexpr size_t kQuotedMax = 60;

// For messages.
std::string Shortened(const std::string& text) {
  return text.size() <= kQuotedMax ? text : text.substr(0, kQuotedMax) + "...";
}

Result<double> ParseUnits(const std::string& text, const std::map<std::string, double>& units,
                          const char* what) {
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  std::string unit(end);
  unit.erase(0, unit.find_first_not_of(' ') == std::string::npos ? unit.size()
                                                                 : unit.find_first_not_of(' '));
  const auto it = units.find(unit);
  const double value = it == units.end() ? -1 : number * it->second;
  if (end == text.c_str() || it == units.end() || !(number >= 0) || !(value <= 9e18)) {
    return InvalidArgument("\"" + Shortened(text) + "\" is no " + what);
  }
  return value;
}

using Setter = std::function<Status(const YAML::Node&, v1::JobSpec*)>;

Result<std::string> Text(const YAML::Node& node) {
  if (!node.IsScalar())
    return InvalidArgument(node.IsNull() ? "has no value" : "expected one value");
  const std::string& text = node.Scalar();
  if (text.find('\0') != std::string::npos) return InvalidArgument("holds a NUL byte");
  return text;
}

template <typename Set>
Setter Word(Set set, Status (*check)(const std::string&) = nullptr) {
  return [set, check](const YAML::Node& node, v1::JobSpec* spec) -> Status {
    CKPT_ASSIGN_OR_RETURN(std::string text, Text(node));
    if (check != nullptr) CKPT_RETURN_IF_ERROR(check(text));
    set(spec, std::move(text));
    return OkStatus();
  };
}

template <typename Set>
Setter Whole(int64_t min, int64_t max, Set set) {
  return [=](const YAML::Node& node, v1::JobSpec* spec) -> Status {
    CKPT_ASSIGN_OR_RETURN(const std::string text, Text(node));
    CKPT_ASSIGN_OR_RETURN(const int64_t value, ParseWhole(text, min, max));
    set(spec, value);
    return OkStatus();
  };
}

Status CheckJobName(const std::string& name) { return CheckName("job", name); }

// Words and variables together: an alias may stand for a long text many times over.
Status CheckSize(size_t bytes) {
  if (bytes <= kWordsBytesMax) return OkStatus();
  return InvalidArgument("takes more than " + FormatBytes(kWordsBytesMax) +
                         ": put it into a file that the command reads");
}

Status SetCommand(const YAML::Node& node, v1::JobSpec* spec) {
  spec->clear_command();
  if (!node.IsSequence()) {  // a line for the shell
    CKPT_ASSIGN_OR_RETURN(std::string line, Text(node));
    for (const std::string& word : {std::string("sh"), std::string("-c"), line}) {
      spec->add_command(word);
    }
    return CheckSize(line.size());
  }
  size_t bytes = 0;
  for (const YAML::Node& node_of_word : node) {
    Result<std::string> word = Text(node_of_word);
    if (!word.ok()) {
      return std::move(word).status().Annotate("word " + std::to_string(spec->command_size() + 1));
    }
    bytes += word->size() + 1;
    CKPT_RETURN_IF_ERROR(CheckSize(bytes));
    spec->add_command(std::move(*word));
  }
  if (spec->command_size() == 0) return InvalidArgument("has no words");
  return OkStatus();
}

Status SetEnv(const YAML::Node& node, v1::JobSpec* spec) {
  if (!node.IsMap()) return InvalidArgument("expected NAME: value pairs");
  size_t bytes = 0;
  for (const auto& pair : node) {
    CKPT_ASSIGN_OR_RETURN(const std::string name, Text(pair.first));
    Result<std::string> value = Text(pair.second);
    if (name.empty() || name.find('=') != std::string::npos) {
      return InvalidArgument("\"" + name + "\" is no name of a variable");
    }
    if (!value.ok()) return std::move(value).status().Annotate(name);
    bytes += name.size() + value->size() + 2;
    CKPT_RETURN_IF_ERROR(CheckSize(bytes));
    (*spec->mutable_env())[name] = std::move(*value);
  }
  return OkStatus();
}

Status SetPreemptible(const YAML::Node& node, v1::JobSpec* spec) {
  CKPT_ASSIGN_OR_RETURN(const std::string text, Text(node));
  bool value = false;
  if (!YAML::convert<bool>::decode(node, value)) {
    return InvalidArgument("\"" + text + "\" is neither true nor false");
  }
  spec->set_not_preemptible(!value);
  return OkStatus();
}

Status SetMaxPrice(const YAML::Node& node, v1::JobSpec* spec) {
  CKPT_ASSIGN_OR_RETURN(const std::string text, Text(node));
  CKPT_ASSIGN_OR_RETURN(const double price, ParseUnits(text, {{"", 1}}, "number of GPU-seconds"));
  spec->set_max_price(price);
  return OkStatus();
}

Status SetStateBytes(const YAML::Node& node, v1::JobSpec* spec) {
  CKPT_ASSIGN_OR_RETURN(const std::string text, Text(node));
  CKPT_ASSIGN_OR_RETURN(const uint64_t bytes, ParseBytes(text));
  spec->set_state_bytes_per_rank(bytes);
  return OkStatus();
}

Status SetMinRuntime(const YAML::Node& node, v1::JobSpec* spec) {
  CKPT_ASSIGN_OR_RETURN(const std::string text, Text(node));
  CKPT_ASSIGN_OR_RETURN(const uint64_t ms, ParseMillis(text));
  spec->set_min_runtime_ms(ms);
  return OkStatus();
}

const std::map<std::string, Setter>& Setters() {
  using Spec = v1::JobSpec;
  constexpr int64_t kUint32Max = std::numeric_limits<uint32_t>::max();
  const auto u32 = [](int64_t value) { return static_cast<uint32_t>(value); };
  static const std::map<std::string, Setter> setters = {
      {"name", Word([](Spec* s, std::string v) { s->set_name(std::move(v)); }, CheckJobName)},
      {"ranks", Whole(1, kRanksMax, [=](Spec* s, int64_t v) { s->set_ranks(u32(v)); })},
      {"priority", Whole(INT32_MIN, INT32_MAX,
                         [](Spec* s, int64_t v) { s->set_priority(static_cast<int32_t>(v)); })},
      {"class",
       Word([](Spec* s, std::string v) { s->set_job_class(std::move(v)); }, CheckJobClass)},
      {"preemptible", SetPreemptible},
      {"store", Word([](Spec* s, std::string v) { s->set_store(std::move(v)); })},
      {"workdir", Word([](Spec* s, std::string v) { s->set_workdir(std::move(v)); })},
      {"save_every", Whole(0, kUint32Max, [=](Spec* s, int64_t v) { s->set_save_every(u32(v)); })},
      {"restarts_max",
       Whole(0, kUint32Max, [=](Spec* s, int64_t v) { s->set_restarts_max(u32(v)); })},
      {"max_price", SetMaxPrice},
      {"command", SetCommand},
      {"env", SetEnv},
      {"state_bytes_per_rank", SetStateBytes},
      {"min_runtime", SetMinRuntime},
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
              std::set<std::string>* seen, v1::JobSpec* spec) {
  Result<std::string> name = Text(key);
  if (!name.ok()) return std::move(name).status().Annotate(At(path, key.Mark()) + "a key");
  const auto it = Setters().find(*name);
  if (it == Setters().end()) {
    return InvalidArgument(At(path, key.Mark()) + "unknown key \"" + Shortened(*name) +
                           "\"; known are " + KnownKeys());
  }
  if (!seen->insert(*name).second) {
    return InvalidArgument(At(path, key.Mark()) + *name + " is given a second time");
  }
  return it->second(value, spec).Annotate(At(path, key.Mark()) + *name);
}

// What is no text at all gives no useful message from a YAML parser.
Status CheckText(const std::string& path, const std::string& text) {
  size_t line = 1;
  for (const char c : text) {
    line += c == '\n' ? 1 : 0;
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 || c == '\n' || c == '\t' || c == '\r') continue;
    return InvalidArgument(path + ":" + std::to_string(line) + ": a byte of value " +
                           std::to_string(byte) + ": this is no text, and so no job file");
  }
  // Messages to ckptd hold UTF-8 only.
  if (!format::IsUtf8(text)) {
    return InvalidArgument(path + ": not UTF-8, and so no job file; save it as UTF-8");
  }
  return OkStatus();
}

// Keeps where the latest document begins.
class DocumentMark : public YAML::EventHandler {
 public:
  void OnDocumentStart(const YAML::Mark& mark) override { mark_ = mark; }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t,
                const std::string&) override {}
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                  YAML::EmitterStyle::value) override {}
  void OnMapEnd() override {}
  const YAML::Mark& mark() const { return mark_; }

 private:
  YAML::Mark mark_;
};

// 0, 1, or 2 for more, and where the last of these begins. (YAML::LoadAll() never ends where the
// parser finds another document without moving on: at a lone `,`.)
int CountDocuments(const std::string& text, DocumentMark* last) {
  std::istringstream stream(text);
  YAML::Parser parser(stream);
  int count = 0;
  while (count < 2 && parser.HandleNextDocument(*last)) ++count;
  return count;
}

}  // namespace

Status ParseJobFile(const std::string& path, const std::string& text, v1::JobSpec* spec) {
  CKPT_RETURN_IF_ERROR(CheckText(path, text));
  try {
    DocumentMark last;
    const int documents = CountDocuments(text, &last);
    if (documents == 0) return InvalidArgument(path + ":1: the file is empty");
    const YAML::Node root = YAML::Load(text);
    if (!root.IsMap()) {
      return InvalidArgument(At(path, root.Mark()) + "expected `key: value` lines");
    }
    if (documents > 1) {
      return InvalidArgument(At(path, last.mark()) + "a second document begins: one job a file");
    }
    std::set<std::string> seen;
    for (const auto& pair : root) {
      CKPT_RETURN_IF_ERROR(SetKey(path, pair.first, pair.second, &seen, spec));
    }
  } catch (const YAML::Exception& error) {
    return InvalidArgument(At(path, error.mark) + error.msg);
  }
  return OkStatus();
}

Result<int64_t> ParseWhole(const std::string& text, int64_t min, int64_t max) {
  int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, value);
  const bool number =
      parsed.ptr == end && !text.empty() && parsed.ec != std::errc::invalid_argument;
  if (!number) return InvalidArgument("\"" + Shortened(text) + "\" is no whole number");
  if (parsed.ec == std::errc::result_out_of_range || value < min || value > max) {
    return InvalidArgument(Shortened(text) + " is out of range: " + std::to_string(min) + " to " +
                           std::to_string(max));
  }
  return value;
}

Status CheckJobClass(const std::string& name) {
  for (const char* known : {"realtime", "evaluation", "training", "batch"}) {
    if (name == known) return OkStatus();
  }
  return InvalidArgument("\"" + Shortened(name) +
                         "\" is no class; known are realtime, evaluation, training, batch");
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
