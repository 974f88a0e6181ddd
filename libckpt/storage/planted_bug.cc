#include "libckpt/storage/planted_bug.h"

#if defined(CKPT_FAULTS)
#include <utility>

#include "libckpt/base/mutex.h"

namespace ckpt::storage {
namespace {

Mutex g_mutex;
std::string g_planted CKPT_GUARDED_BY(g_mutex);

}  // namespace

bool Planted(std::string_view bug) {
  MutexLock lock(g_mutex);
  return g_planted == bug;
}

PlantedBug::PlantedBug(std::string bug) {
  MutexLock lock(g_mutex);
  g_planted = std::move(bug);
}

PlantedBug::~PlantedBug() {
  MutexLock lock(g_mutex);
  g_planted.clear();
}

}  // namespace ckpt::storage
#endif
