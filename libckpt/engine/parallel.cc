#include "libckpt/engine/parallel.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <thread>
#include <utility>
#include <vector>

#include "libckpt/base/guard.h"
#include "libckpt/base/limits.h"
#include "libckpt/base/mutex.h"

namespace ckpt::engine {
namespace {

struct Shared {
  uint64_t count;
  const std::function<Status(uint64_t, uint32_t)>& body;
  std::atomic<uint64_t> next{0};
  Mutex mutex;
  Status first_error CKPT_GUARDED_BY(mutex);
};

struct Worker {
  Shared* shared = nullptr;
  uint32_t index = 0;
  pthread_t thread{};
};

void Work(Shared* shared, uint32_t thread) {
  for (uint64_t i; (i = shared->next.fetch_add(1)) < shared->count;) {
    Status status = NoThrow("copying", [&] { return shared->body(i, thread); });
    if (status.ok()) continue;
    shared->next.store(shared->count);
    MutexLock lock(shared->mutex);
    if (shared->first_error.ok()) shared->first_error = std::move(status);
  }
}

void* RunWorker(void* argument) {
  const auto* worker = static_cast<Worker*>(argument);
  pthread_setname_np(pthread_self(), "ckpt-copy");
  Work(worker->shared, worker->index);
  return nullptr;
}

// Threads are the program's guests: they inherit a mask with every signal blocked.
void StartWorkers(std::vector<Worker>* workers) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  for (size_t i = 0; i < workers->size(); ++i) {
    Worker& worker = (*workers)[i];
    if (pthread_create(&worker.thread, nullptr, RunWorker, &worker) != 0) {
      workers->resize(i);
      break;
    }
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace

uint32_t CopyThreads(uint32_t wanted) {
  const uint32_t cores = std::max(1u, std::thread::hardware_concurrency());
  return std::min(wanted == 0 ? std::min(kCopyThreadsDefault, cores) : wanted, kCopyThreadsMax);
}

Status ParallelFor(uint64_t count, uint32_t threads,
                   const std::function<Status(uint64_t, uint32_t)>& body) {
  const uint64_t used = std::min<uint64_t>(CopyThreads(threads), std::max<uint64_t>(count, 1));
  Shared shared{count, body};
  std::vector<Worker> workers(used - 1);
  for (uint32_t i = 0; i < workers.size(); ++i) workers[i] = Worker{&shared, i + 1};
  StartWorkers(&workers);
  Work(&shared, 0);
  for (const Worker& worker : workers) pthread_join(worker.thread, nullptr);
  MutexLock lock(shared.mutex);
  return shared.first_error;
}

uint32_t ReadsAhead(uint32_t depth, uint32_t threads) {
  if (depth <= 1) return 0;
  return std::max(1u, std::min(depth, kFileDepthMax) / CopyThreads(threads)) - 1;
}

Status ParallelAhead(uint64_t count, uint32_t threads, uint32_t ahead,
                     const std::function<void(uint64_t, uint32_t)>& begin,
                     const std::function<Status(uint64_t, uint32_t)>& body) {
  if (ahead == 0) return ParallelFor(count, threads, body);
  std::atomic<uint64_t> next{0};
  const auto work = [&](uint64_t, uint32_t thread) -> Status {
    std::deque<std::pair<uint64_t, uint32_t>> begun;
    uint32_t turn = 0;
    for (;;) {
      while (begun.size() <= ahead) {
        const uint64_t index = next.fetch_add(1);
        if (index >= count) break;
        const uint32_t slot = thread * (ahead + 1) + turn++ % (ahead + 1);
        begin(index, slot);
        begun.emplace_back(index, slot);
      }
      if (begun.empty()) return OkStatus();
      Status status =
          NoThrow("copying", [&] { return body(begun.front().first, begun.front().second); });
      if (!status.ok()) {
        next.store(count);
        return status;
      }
      begun.pop_front();
    }
  };
  return ParallelFor(CopyThreads(threads), threads, work);
}

}  // namespace ckpt::engine
