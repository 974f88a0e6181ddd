#include "libckpt/base/fault.h"

#include <cstdlib>
#include <map>
#include <optional>
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
  {
    MutexLock lock(g_mutex);
    due = TakeHooks(point);
  }
  for (const auto& call : due) call();
  MutexLock lock(g_mutex);
  if (!g_armed || (g_armed->point != point && g_armed->point != "*")) return OkStatus();
  ++g_armed->passed;
  if (g_armed->passed < g_armed->nth || (g_armed->passed > g_armed->nth && !g_armed->sticky))
    return OkStatus();
  g_armed->fired = true;
  return Status(g_armed->status).Annotate(point);
}

}  // namespace ckpt
