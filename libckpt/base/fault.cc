#include "libckpt/base/fault.h"

#include <cstdlib>
#include <optional>

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

Status PassFaultPoint(std::string_view point) {
  MutexLock lock(g_mutex);
  if (!g_armed || (g_armed->point != point && g_armed->point != "*")) return OkStatus();
  ++g_armed->passed;
  if (g_armed->passed < g_armed->nth || (g_armed->passed > g_armed->nth && !g_armed->sticky))
    return OkStatus();
  g_armed->fired = true;
  return Status(g_armed->status).Annotate(point);
}

}  // namespace ckpt
