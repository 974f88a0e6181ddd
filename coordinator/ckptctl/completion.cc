#include "coordinator/ckptctl/completion.h"

#include <CLI/CLI.hpp>
#include <iostream>
#include <map>
#include <ostream>

#include "coordinator/ckptctl/client.h"
#include "coordinator/ckptctl/render.h"

namespace ckpt::ckptctl {
namespace {

using Stub = v1::Coordinator::Stub;

constexpr auto kAnswerMax = std::chrono::seconds(1);

constexpr const char kBash[] =
    R"(# Completion of ckptctl for bash: source <(ckptctl completion bash)
_ckptctl() {
  local line word
  COMPREPLY=()
  while IFS= read -r line; do
    word="${line%%$'\t'*}"
    if [[ $word == :files ]]; then
      compopt -o default 2>/dev/null
    elif [[ $word == "${COMP_WORDS[COMP_CWORD]}"* ]]; then
      COMPREPLY+=("$word")
    fi
  done < <("$1" __complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
complete -F _ckptctl ckptctl
)";

constexpr const char kZsh[] = R"(#compdef ckptctl
# Completion of ckptctl for zsh: source <(ckptctl completion zsh), after compinit; or as the file _ckptctl in $fpath.
_ckptctl() {
  local line files
  local -a found
  while IFS= read -r line; do
    if [[ $line == :files* ]]; then
      files=1
    else
      found+=("${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}")
    fi
  done < <("$words[1]" __complete "${(@)words[2,CURRENT]}" 2>/dev/null)
  (( $#found )) && _describe ckptctl found
  [[ -n $files ]] && _files
}
if [[ $funcstack[1] == _ckptctl ]]; then _ckptctl "$@"; else compdef _ckptctl ckptctl; fi
)";

enum class Kind { kNothing, kFiles, kJobs, kNodes, kWords };

// What a value is, by the name of its flag or positional.
Kind KindOf(const std::string& name) {
  static const std::map<std::string, Kind> kinds = {
      {"job", Kind::kJobs},        {"--job", Kind::kJobs},    {"--from", Kind::kNodes},
      {"--to", Kind::kNodes},      {"--nodes", Kind::kNodes}, {"--store", Kind::kFiles},
      {"--workdir", Kind::kFiles}, {"file", Kind::kFiles},    {"PATH", Kind::kFiles},
      {"OTHER", Kind::kFiles},     {"TO", Kind::kFiles},      {"--output", Kind::kWords},
      {"--class", Kind::kWords},   {"shell", Kind::kWords}};
  const auto it = kinds.find(name);
  return it == kinds.end() ? Kind::kNothing : it->second;
}

std::vector<std::string> WordsOf(const std::string& name) {
  if (name == "--output") return {"table", "json"};
  if (name == "--class") return {"realtime", "evaluation", "training", "batch"};
  return {"bash", "zsh"};
}

std::string OneLine(const std::string& text) { return text.substr(0, text.find('\n')); }

void PrintJobNames(const Globals& globals, std::ostream& out) {
  auto client = Client::Connect(globals.server, kAnswerMax);
  v1::ListJobsResponse jobs;
  if (!client.ok()) return;
  client->Call(&Stub::ListJobs, v1::ListJobsRequest(), &jobs, kAnswerMax).IgnoreError();
  for (const v1::Job& job : jobs.jobs()) {
    out << job.spec().name() << "\t" << StateWord(job.state()) << "\n";
  }
}

void PrintNodeNames(const Globals& globals, std::ostream& out) {
  auto client = Client::Connect(globals.server, kAnswerMax);
  v1::ListNodesResponse nodes;
  if (!client.ok()) return;
  client->Call(&Stub::ListNodes, v1::ListNodesRequest(), &nodes, kAnswerMax).IgnoreError();
  for (const v1::Node& node : nodes.nodes()) {
    out << node.info().name() << "\t" << node.slots_free() << " of " << node.info().slots()
        << " slots free\n";
  }
}

void PrintValues(const std::string& name, const Globals& globals, std::ostream& out) {
  switch (KindOf(name)) {
    case Kind::kNothing:
      return;
    case Kind::kFiles:
      out << ":files\n";
      return;
    case Kind::kJobs:
      return PrintJobNames(globals, out);
    case Kind::kNodes:
      return PrintNodeNames(globals, out);
    case Kind::kWords:
      for (const std::string& word : WordsOf(name)) out << word << "\t\n";
  }
}

void PrintFlags(const CLI::App& app, std::ostream& out) {
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      out << "--" << name << "\t" << OneLine(option->get_description()) << "\n";
    }
  }
}

void PrintVerbs(const CLI::App& app, std::ostream& out) {
  for (const CLI::App* verb : app.get_subcommands([](const CLI::App*) { return true; })) {
    out << verb->get_name() << "\t" << OneLine(verb->get_description()) << "\n";
  }
}

// The flag that `word` is, in the verb or in the program; null if it is none.
const CLI::Option* FindFlag(const CLI::App& app, const CLI::App* verb, const std::string& word) {
  if (word.size() < 2 || word[0] != '-') return nullptr;
  const CLI::Option* option = verb == nullptr ? nullptr : verb->get_option_no_throw(word);
  return option != nullptr ? option : app.get_option_no_throw(word);
}

bool TakesValue(const CLI::Option* option) {
  return option != nullptr && option->get_items_expected_max() > 0;
}

std::string LongName(const CLI::Option* option) {
  return option->get_lnames().empty() ? option->get_name() : "--" + option->get_lnames().front();
}

const CLI::Option* Positional(const CLI::App& verb, size_t index) {
  for (const CLI::Option* option : verb.get_options()) {
    const bool several = option->get_items_expected_max() >= CLI::detail::expected_max_vector_size;
    if (option->get_positional() && (several || index-- == 0)) return option;
  }
  return nullptr;
}

const CLI::App* FindVerb(const CLI::App& app, const std::string& word) {
  for (const CLI::App* verb : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (verb->get_name() == word) return verb;
  }
  return nullptr;
}

}  // namespace

int Complete(const CLI::App& app, const Globals& globals, const std::vector<std::string>& words,
             std::ostream& out) {
  Globals asked = globals;
  const CLI::App* verb = nullptr;
  const CLI::Option* open = nullptr;  // a flag that waits for its value
  size_t positionals = 0;
  for (size_t i = 0; i + 1 < words.size(); ++i) {
    if (words[i] == "--") return kExitDone;  // the job's own command line
    if (open != nullptr) {
      if (LongName(open) == "--server") asked.server = words[i];
      open = nullptr;
      continue;
    }
    const CLI::Option* flag = FindFlag(app, verb, words[i]);
    if (TakesValue(flag)) open = flag;
    if (words[i].starts_with("-")) continue;
    if (verb == nullptr) {
      verb = FindVerb(app, words[i]);
      if (verb == nullptr) return kExitDone;
    } else {
      ++positionals;
    }
  }
  const std::string typed = words.empty() ? "" : words.back();
  if (open != nullptr) {
    PrintValues(LongName(open), asked, out);
  } else if (typed.starts_with("-")) {
    if (verb != nullptr) PrintFlags(*verb, out);
    PrintFlags(app, out);
  } else if (verb == nullptr) {
    PrintVerbs(app, out);
  } else if (const CLI::Option* option = Positional(*verb, positionals)) {
    PrintValues(option->get_name(true), asked, out);
  }
  return kExitDone;
}

void RegisterCompletion(CLI::App& app, const Globals&, Run* run) {
  auto shell = std::make_shared<std::string>();
  CLI::App* verb = app.add_subcommand("completion", "print the completion script for a shell");
  verb->fallthrough();
  verb->add_option("shell", *shell, "bash | zsh")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh"}));
  verb->callback([=] {
    *run = [=] {
      std::cout << (*shell == "bash" ? kBash : kZsh);
      return kExitDone;
    };
  });
}

}  // namespace ckpt::ckptctl
