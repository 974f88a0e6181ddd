#include "libckpt/session/warmer.h"

#include <algorithm>

#include "libckpt/base/guard.h"
#include "libckpt/base/log.h"
#include "libckpt/os/memfd.h"
#include "libckpt/session/session.h"

namespace ckpt::session {
namespace {

// Meanwhile the kernel lets nobody in the process map or unmap memory: a fraction of a millisecond.
constexpr uint64_t kPieceBytes = uint64_t{256} << 10;

}  // namespace

Warmer::Warmer() : fork_count_(internal::g_fork_count.load()) {}

Warmer::~Warmer() {
  if (internal::g_fork_count.load() != fork_count_) {  // the thread is not here to be joined
    thread_.release();
    return;
  }
  stop_ = true;
  std::unique_ptr<os::Thread> thread;
  {
    MutexLock lock(mutex_);
    thread = std::move(thread_);
  }
}  // joined

void Warmer::Warm(std::shared_ptr<const void> owner, MutableByteSpan memory,
                  const std::vector<engine::RegionPart>& parts, std::function<void()> then) {
  Memory fresh{std::move(owner), {}, std::move(then)};
  for (const engine::RegionPart& part : parts) {
    fresh.parts.push_back(memory.subspan(part.offset, part.bytes));
  }
  MutexLock lock(mutex_);
  waiting_.push_back(std::move(fresh));
  if (running_) return;
  thread_.reset();  // an older one has nothing left to do
  std::unique_ptr<os::Thread> thread;
  const Status started = NoThrow("touching staging memory", [this, &thread] {
    thread = std::make_unique<os::Thread>("ckpt-warm", [this] { Run(); });
    return OkStatus();
  });
  thread_ = std::move(thread);
  running_ = started.ok();
  if (!started.ok()) waiting_.clear();
}

bool Warmer::Next(Memory* memory) {
  *memory = Memory();  // what it held goes outside of the lock
  MutexLock lock(mutex_);
  running_ = !stop_ && !waiting_.empty();
  if (!running_) return false;
  *memory = std::move(waiting_.front());
  waiting_.pop_front();
  return true;
}

void Warmer::Touch(const Memory& memory) {
  for (MutableByteSpan left : memory.parts) {
    // Nobody else holds it: another slot has taken its place.
    while (!left.empty() && !stop_ && memory.owner.use_count() > 1) {
      const uint64_t bytes = std::min<uint64_t>(kPieceBytes, left.size());
      if (const Status status = os::Populate(left.first(bytes)); !status.ok()) {
        return LogWarning("staging memory is not touched beforehand: " + status.message());
      }
      left = left.subspan(bytes);
    }
  }
}

void Warmer::Run() {
  os::LowerOwnPriority(os::Priority::kIdle);
  for (Memory memory; Next(&memory);) {
    Touch(memory);
    if (memory.then && !stop_ && memory.owner.use_count() > 1) {
      const Status done = NoThrow("after touching staging memory", [&] {
        memory.then();
        return OkStatus();
      });
      if (!done.ok()) LogWarning(done.message());
    }
  }
}

}  // namespace ckpt::session
