#include "libckpt/os/fork.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>

namespace ckpt::os {
namespace {

constexpr int kPlacesMax = 64;
constexpr int kFree = 0;  // a place holds fd + 1

// Read in the child, where no lock may be taken.
std::atomic<int> g_places[kPlacesMax];

void CloseAllInChild() {
  for (std::atomic<int>& place : g_places) {
    if (const int held = place.exchange(kFree); held != kFree) ::close(held - 1);
  }
}

}  // namespace

ClosedInChildren::ClosedInChildren(int fd) {
  static const int registered = ::pthread_atfork(nullptr, nullptr, CloseAllInChild);
  (void)registered;  // out of memory: as if no place was free
  for (int i = 0; i < kPlacesMax && place_ < 0; ++i) {
    int expected = kFree;
    if (g_places[i].compare_exchange_strong(expected, fd + 1)) place_ = i;
  }
}

ClosedInChildren::~ClosedInChildren() {
  if (place_ >= 0) g_places[place_].store(kFree);
}

}  // namespace ckpt::os
