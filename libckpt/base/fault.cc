#include "libckpt/base/fault.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "libckpt/base/mutex.h"

namespace ckpt {
namespace {

struct Armed {
  std::string point;
  Status status;
  uint64_t nth = 1;
  bool sticky = false;
  uint64_t passed = 0;
  bool fired = false;
};

Mutex g_mutex;
std::optional<Armed> g_armed CKPT_GUARDED_BY(g_mutex);

struct Hook {
  std::string point;
  std::function<void()> call;
  uint64_t passages_left = 1;
};
std::map<uint64_t, Hook> g_hooks CKPT_GUARDED_BY(g_mutex);
uint64_t g_next_hook CKPT_GUARDED_BY(g_mutex) = 1;

// The hooks that are due at this passage, taken out.
std::vector<std::function<void()>> TakeHooks(std::string_view point) CKPT_REQUIRES(g_mutex) {
  std::vector<std::function<void()>> due;
  for (auto it = g_hooks.begin(); it != g_hooks.end();) {
    Hook& hook = it->second;
    const bool counts = hook.point == point || hook.point == "*";
    if (!counts || --hook.passages_left > 0) {
      ++it;
      continue;
    }
    due.push_back(std::move(hook.call));
    it = g_hooks.erase(it);
  }
  return due;
}

// One entry of CKPT_FAULT_AT, for this process.
struct Outside {
  std::string point, action;
  uint64_t passages_left = 1;
};

std::optional<Outside> ParseOutside(std::string_view entry) {
  const size_t equals = entry.find('=');
  if (equals == std::string_view::npos) abort();  // a test that arms nothing
  Outside outside{std::string(entry.substr(0, equals)), std::string(entry.substr(equals + 1))};
  if (const size_t at = outside.point.find('@'); at != std::string::npos) {
    const char* rank = std::getenv("RANK");
    if (rank == nullptr || outside.point.substr(at + 1) != rank) return std::nullopt;
    outside.point.resize(at);
  }
  if (const size_t colon = outside.point.find(':'); colon != std::string::npos) {
    outside.passages_left = std::strtoull(outside.point.c_str() + colon + 1, nullptr, 10);
    outside.point.resize(colon);
  }
  return outside;
}

std::vector<Outside> ReadOutside() {
  std::vector<Outside> all;
  const char* text = std::getenv("CKPT_FAULT_AT");
  std::string_view left = text == nullptr ? "" : text;
  while (!left.empty()) {
    const size_t end = std::min(left.find(','), left.size());
    if (auto outside = ParseOutside(left.substr(0, end))) all.push_back(std::move(*outside));
    left.remove_prefix(std::min(end + 1, left.size()));
  }
  return all;
}

// What the environment wants to happen at this passage; empty: nothing.
std::string TakeOutside(std::string_view point) CKPT_REQUIRES(g_mutex) {
  static std::vector<Outside> all = ReadOutside();
  for (Outside& outside : all) {
    if (outside.point != point || outside.passages_left == 0) continue;
    if (outside.passages_left > 1) {
      --outside.passages_left;
      continue;
    }
    if (!outside.action.starts_with("wait:"))
      outside.passages_left = 0;  // a gate holds all that come
    return outside.action;
  }
  return "";
}

// Until the test makes the file; a test that never does fails by what it expects then.
void WaitForFile(const std::string& path) {
  constexpr auto kLongest = std::chrono::minutes(5);
  const auto end = std::chrono::steady_clock::now() + kLongest;
  while (::access(path.c_str(), F_OK) != 0 && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

Status ActOutside(std::string_view point, const std::string& action) {
  if (action.starts_with("wait:") && ::access(action.c_str() + 5, F_OK) == 0) return OkStatus();
  const std::string said = "fault point " + std::string(point) + ": " + action + "\n";
  fputs(said.c_str(), stderr);
  fflush(stderr);
  if (action == "kill") std::raise(SIGKILL);
  if (action == "stop") std::raise(SIGSTOP);
  if (action.starts_with("sleep")) {
    std::this_thread::sleep_for(std::chrono::milliseconds(std::atol(action.c_str() + 5)));
  }
  if (action.starts_with("wait:")) WaitForFile(action.substr(5));
  if (action != "fail") return OkStatus();
  return Unavailable("a test made this fail").Annotate(point);
}

}  // namespace

ArmedFault::ArmedFault(std::string_view point, Status status, uint64_t nth, bool sticky) {
  MutexLock lock(g_mutex);
  if (g_armed) abort();  // one at a time: a test that arms two does not know which fired
  g_armed = Armed{std::string(point), std::move(status), nth, sticky};
}

ArmedFault::~ArmedFault() {
  MutexLock lock(g_mutex);
  g_armed.reset();
}

bool ArmedFault::fired() const {
  MutexLock lock(g_mutex);
  return g_armed && g_armed->fired;
}

FaultHook::FaultHook(std::string_view point, std::function<void()> hook, uint64_t nth) {
  MutexLock lock(g_mutex);
  id_ = g_next_hook++;
  g_hooks[id_] = Hook{std::string(point), std::move(hook), nth};
}

FaultHook::~FaultHook() {
  MutexLock lock(g_mutex);
  g_hooks.erase(id_);
}

bool FaultHook::fired() const {
  MutexLock lock(g_mutex);
  return !g_hooks.contains(id_);
}

Status PassFaultPoint(std::string_view point) {
  std::vector<std::function<void()>> due;
  std::string action;
  {
    MutexLock lock(g_mutex);
    due = TakeHooks(point);
    action = TakeOutside(point);
  }
  for (const auto& call : due) call();
  if (!action.empty()) CKPT_RETURN_IF_ERROR(ActOutside(point, action));
  MutexLock lock(g_mutex);
  if (!g_armed || (g_armed->point != point && g_armed->point != "*")) return OkStatus();
  ++g_armed->passed;
  if (g_armed->passed < g_armed->nth || (g_armed->passed > g_armed->nth && !g_armed->sticky))
    return OkStatus();
  g_armed->fired = true;
  return Status(g_armed->status).Annotate(point);
}

}  // namespace ckpt
