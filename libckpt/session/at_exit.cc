#include "libckpt/session/at_exit.h"

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "libckpt/base/guard.h"
#include "libckpt/base/log.h"
#include "libckpt/base/mutex.h"
#include "libckpt/session/session.h"

namespace ckpt::session {
namespace {

struct Open {
  Mutex mutex;
  std::vector<std::weak_ptr<Session>> sessions CKPT_GUARDED_BY(mutex);
};

Open& GetOpen() {
  static Open* const open = new Open;  // outlives every destructor of the program
  return *open;
}

void OnExit() {
  std::vector<std::weak_ptr<Session>> sessions;
  {
    MutexLock lock(GetOpen().mutex);
    sessions.swap(GetOpen().sessions);
  }
  for (const std::weak_ptr<Session>& weak : sessions) {
    const std::shared_ptr<Session> session = weak.lock();
    if (session == nullptr || session->InForkedChild()) continue;
    const Status status = NoThrow("the end of the program", [&] {
      session->AtExit();
      return OkStatus();
    });
    if (!status.ok()) LogError(status.message());
  }
}

}  // namespace

void TellAtExit(const std::shared_ptr<Session>& session) {
  static const int registered = std::atexit(OnExit);
  (void)registered;  // without it a program has to close, as it should
  MutexLock lock(GetOpen().mutex);
  auto& sessions = GetOpen().sessions;
  sessions.erase(std::remove_if(sessions.begin(), sessions.end(),
                                [](const std::weak_ptr<Session>& s) { return s.expired(); }),
                 sessions.end());
  sessions.push_back(session);
}

}  // namespace ckpt::session
