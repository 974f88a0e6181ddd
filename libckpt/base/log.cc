#include "libckpt/base/log.h"

#include <cstdio>
#include <memory>

#include "libckpt/base/mutex.h"

namespace ckpt {
namespace {

void DefaultSink(LogLevel level, std::string_view message) {
  if (level < LogLevel::kWarning) return;
  fprintf(stderr, "ckpt %s: %.*s\n", level == LogLevel::kError ? "error" : "warning",
          static_cast<int>(message.size()), message.data());
}

struct Registry {
  Mutex mutex;
  std::shared_ptr<const LogSink> sink CKPT_GUARDED_BY(mutex) =
      std::make_shared<const LogSink>(DefaultSink);
};

Registry& GetRegistry() {
  static Registry* const registry = new Registry;  // never destroyed: threads may log at exit
  return *registry;
}

}  // namespace

void SetLogSink(LogSink sink) {
  auto shared = std::make_shared<const LogSink>(sink ? std::move(sink) : DefaultSink);
  Registry& registry = GetRegistry();
  MutexLock lock(registry.mutex);
  registry.sink = std::move(shared);
}

void Log(LogLevel level, std::string_view message) {
  Registry& registry = GetRegistry();
  std::shared_ptr<const LogSink> sink;
  {
    MutexLock lock(registry.mutex);
    sink = registry.sink;
  }
  (*sink)(level, message);
}

}  // namespace ckpt
