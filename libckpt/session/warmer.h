// Touches staging memory before it is needed, behind the loop, so that not even the first save pays
// for page faults: one thread, which takes only what the training leaves of the cores and ends when
// all is touched.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "libckpt/base/mutex.h"
#include "libckpt/engine/staging.h"
#include "libckpt/os/thread.h"

namespace ckpt::session {

class Warmer {
 public:
  Warmer();
  ~Warmer();  // what is not touched yet stays so
  Warmer(const Warmer&) = delete;
  Warmer& operator=(const Warmer&) = delete;

  // `owner` keeps `memory` mapped. What cannot be touched is logged: whoever writes there pays.
  // Threads: any.
  // `then` runs when it is touched, if somebody still holds it.
  void Warm(std::shared_ptr<const void> owner, MutableByteSpan memory,
            const std::vector<engine::RegionPart>& parts, std::function<void()> then = {});

 private:
  struct Memory {
    std::shared_ptr<const void> owner;
    std::vector<MutableByteSpan> parts;
    std::function<void()> then;
  };
  void Run();
  bool Next(Memory* memory);
  void Touch(const Memory& memory);

  const uint32_t fork_count_;
  std::atomic<bool> stop_{false};
  Mutex mutex_;
  std::deque<Memory> waiting_ CKPT_GUARDED_BY(mutex_);
  bool running_ CKPT_GUARDED_BY(mutex_) = false;
  std::unique_ptr<os::Thread> thread_ CKPT_GUARDED_BY(mutex_);
};

}  // namespace ckpt::session
