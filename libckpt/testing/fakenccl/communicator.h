// A communicator of the double: where its ranks meet, what is under way on it, and the thread that
// builds it or brings it to its end.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "libckpt/base/mutex.h"
#include "libckpt/comm/nccl/nccl_api.h"
#include "libckpt/os/thread.h"
#include "libckpt/testing/fakenccl/meeting.h"
#include "libckpt/testing/planned_failures.h"

// NOLINTNEXTLINE: the name of the interface
struct ncclComm {
  std::unique_ptr<ckpt::fakenccl::Meeting> meeting;
  std::string id;
  int world = 1, rank = 0, device = 0;
  bool blocking = true;
  std::atomic<int> state{ckpt::comm::nccl::kInProgress};  // of the last non-blocking call
  std::atomic<int> failed{0};                             // asynchronous error; it sticks
  std::atomic<bool> aborted{false}, finalized{false};
  std::atomic<bool> building{false};  // by the job of its parent
  std::atomic<int> enqueued{0}, graphs{0};
  std::atomic<uint64_t> splits{0};
  std::map<void*, uint64_t> registered;
  ckpt::os::Thread job;
};

namespace ckpt::fakenccl {

using comm::nccl::CommPtr;
using comm::nccl::Config;
using comm::nccl::Result32;
using comm::nccl::StreamPtr;
using comm::nccl::UniqueId;

// Planned failures, and what lives.
class World {
 public:
  static World& Get();  // never destroyed

  // 0, or what this passage of the call is planned to answer; does not return if that is -1.
  Result32 Pass(const std::string& call);
  testing::PlannedFailures& failures() { return failures_; }

  // False if this rank has used the id before.
  bool UseId(const std::string& id, int rank);
  void Add(CommPtr comm);
  bool Lives(CommPtr comm);
  void Remove(CommPtr comm);
  uint64_t living();
  uint64_t registered_bytes();
  Mutex& registrations() { return mutex_; }
  bool ending() const { return ending_.load(); }  // the process does

 private:
  World();
  testing::PlannedFailures failures_{"CKPT_FAKENCCL_FAIL"};
  Mutex mutex_;
  std::vector<CommPtr> living_ CKPT_GUARDED_BY(mutex_);
  std::set<std::pair<std::string, int>> used_ CKPT_GUARDED_BY(mutex_);
  std::atomic<bool> ending_{false};
};

// Sets what ncclGetLastError says on this thread.
Result32 Say(Result32 result, const std::string& why);
const char* LastSaid();

// Each answers at once (kInProgress) and goes on in the communicator's thread, or blocks if the
// communicator does.
Result32 Begin(CommPtr* out, const std::string& id, int world, int rank, int device, bool blocking);
Result32 Split(CommPtr parent, int color, int key, CommPtr* out, const Config* config);
Result32 Finalize(CommPtr comm);
// Blocks: until nothing of it is left.
Result32 Destroy(CommPtr comm);
Result32 Abort(CommPtr comm);

struct Collective {
  enum Kind { kAllGather = 1, kAllReduce = 2 };
  int kind = kAllGather;
  const void* send = nullptr;
  void* receive = nullptr;
  uint64_t bytes = 0;  // of one rank
  int type = 0;
};
Result32 Enqueue(CommPtr comm, StreamPtr stream, const Collective& collective);

}  // namespace ckpt::fakenccl
