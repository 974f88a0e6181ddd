#include "libckpt/testing/fakenccl/communicator.h"

#include <dlfcn.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <tuple>

namespace ckpt::fakenccl {

using namespace comm::nccl;  // the numbers of the interface

namespace {

constexpr int kIllegalAddress = 700;  // CUresult
thread_local std::string t_said;

bool SilentAbort() { return std::getenv("CKPT_FAKENCCL_SILENT_ABORT") != nullptr; }

// The double of the driver, whichever way it was loaded.
template <typename Function>
Function* Driver(const char* name) {
  static void* const library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  return library == nullptr ? nullptr : reinterpret_cast<Function*>(::dlsym(library, name));
}

void Nap() { ::poll(nullptr, 0, 1); }

// Who waits for peers gives up when this rank is aborted, a peer was, or the process ends.
Meeting::GiveUp GivesUp(CommPtr comm) {
  return [comm] {
    if (comm->aborted.load() || comm->failed.load() != 0 || World::Get().ending()) return true;
    if (SilentAbort() || comm->meeting->aborted_by() < 0) return false;
    int none = 0;
    comm->failed.compare_exchange_strong(none, kRemoteError);
    return true;
  };
}

Result32 Ended(CommPtr comm) {
  const int failed = comm->failed.load();
  return failed != 0 ? failed : kSystemError;
}

// Runs `work` as the communicator's job; its result, or what is planned instead, is told to `done`
// and is the communicator's state.
Result32 Start(
    CommPtr comm, const char* call, bool blocking, std::function<Result32()> work,
    std::function<void(Result32)> done = [](Result32) {}) {
  comm->job.Join();
  comm->state.store(kInProgress);
  const auto run = [comm, call = std::string(call), work = std::move(work),
                    done = std::move(done)] {
    const Result32 planned = World::Get().Pass(call + ".async");
    const Result32 result = planned != 0 ? planned : work();
    done(result);
    comm->state.store(result);
  };
  if (blocking) {
    run();
    return comm->state.load();
  }
  comm->job = os::Thread("fakenccl", run);
  return kInProgress;
}

struct Place {
  int32_t pid, device;
};

Result32 Meet(CommPtr comm) {
  const Meeting::GiveUp give_up = GivesUp(comm);
  if (!comm->meeting->Attach(give_up)) return Ended(comm);
  const Place mine{static_cast<int32_t>(::getpid()), comm->device};
  std::vector<std::vector<std::byte>> places;
  if (!comm->meeting->Exchange(kControlLane, About{}, &mine, sizeof mine, &places, give_up))
    return Ended(comm);
  for (int r = 0; r < comm->world; ++r) {
    if (r == comm->rank) continue;
    if (std::memcmp(places[static_cast<size_t>(r)].data(), &mine, sizeof mine) == 0) {
      std::fprintf(stderr, "fakenccl: duplicate GPU: ranks %d and %d are both on device %d\n", r,
                   comm->rank, mine.device);
      return kInvalidUsage;
    }
  }
  return kSuccess;
}

void Free(CommPtr comm) {
  comm->job.Join();
  World::Get().Remove(comm);
  for (const auto& [handle, bytes] : comm->registered) delete static_cast<char*>(handle);
  delete comm;
}

template <typename T>
void Sum(std::byte* to, const std::vector<std::vector<std::byte>>& parts) {
  const size_t count = parts[0].size() / sizeof(T);
  for (size_t i = 0; i < count; ++i) {
    T sum{};
    for (const auto& part : parts) {
      T value{};
      std::memcpy(&value, part.data() + i * sizeof(T), sizeof(T));
      sum = static_cast<T>(sum + value);
    }
    std::memcpy(to + i * sizeof(T), &sum, sizeof(T));
  }
}

struct Launch {
  CommPtr comm;
  Collective what;
};

// The kernel: on the stream's thread, piece by piece.
Result32 Run(const Launch& launch) {
  const auto& [comm, what] = launch;
  auto* const alias = Driver<void*(const void*, uint64_t)>("fakecuda_alias");
  const uint64_t world = static_cast<uint64_t>(comm->world);
  const bool gather = what.kind == Collective::kAllGather;
  auto* const from = static_cast<const std::byte*>(alias(what.send, what.bytes));
  auto* const to =
      static_cast<std::byte*>(alias(what.receive, gather ? what.bytes * world : what.bytes));
  if (from == nullptr || to == nullptr) return kIllegalAddress;
  const About about{what.kind, what.type, what.bytes};
  std::vector<std::vector<std::byte>> parts;
  for (uint64_t at = 0; at < what.bytes; at += kSlotBytes) {
    const uint64_t size = std::min(kSlotBytes, what.bytes - at);
    if (!comm->meeting->Exchange(kStreamLane, about, from + at, size, &parts, GivesUp(comm)))
      return 0;
    if (gather) {
      for (uint64_t r = 0; r < world; ++r)
        std::memcpy(to + r * what.bytes + at, parts[r].data(), size);
    } else if (what.type == kFloat64) {
      Sum<double>(to + at, parts);
    } else if (what.type == kFloat32) {
      Sum<float>(to + at, parts);
    } else {
      Sum<uint64_t>(to + at, parts);
    }
  }
  return 0;
}

}  // namespace

Result32 Say(Result32 result, const std::string& why) {
  t_said = why;
  return result;
}
const char* LastSaid() { return t_said.c_str(); }

Result32 Begin(CommPtr* out, const std::string& id, int world, int rank, int device,
               bool blocking) {
  if (!World::Get().UseId(id, rank)) return Say(kSystemError, "the id was used before");
  auto comm = std::make_unique<ncclComm>();
  comm->meeting.reset(Meeting::Open(id, world, rank));
  if (comm->meeting == nullptr) return Say(kSystemError, "the id is of another communicator");
  comm->id = id;
  comm->world = world;
  comm->rank = rank;
  comm->device = device;
  comm->blocking = blocking;
  const CommPtr raw = *out = comm.release();
  World::Get().Add(raw);
  return Start(raw, "ncclCommInitRankConfig", blocking, [raw] { return Meet(raw); });
}

namespace {

struct Choice {
  int32_t color, key, rank;
};

// The ranks of my color, by key: how many there are, and my place.
std::pair<int, int> PlaceOf(const Choice& mine, const std::vector<std::vector<std::byte>>& parts) {
  std::pair<int, int> size_and_rank{0, 0};
  for (const auto& part : parts) {
    Choice other{};
    std::memcpy(&other, part.data(), sizeof other);
    if (other.color != mine.color) continue;
    ++size_and_rank.first;
    if (std::pair(other.key, other.rank) < std::pair(mine.key, mine.rank)) ++size_and_rank.second;
  }
  return size_and_rank;
}

Result32 MeetChild(CommPtr parent, CommPtr child, const Choice& mine, uint64_t number,
                   const std::vector<std::vector<std::byte>>& choices) {
  std::tie(child->world, child->rank) = PlaceOf(mine, choices);
  child->id = parent->id + "-" + std::to_string(number) + "." + std::to_string(mine.color);
  child->meeting.reset(Meeting::Open(child->id, child->world, child->rank));
  return child->meeting == nullptr ? kSystemError : Meet(child);
}

}  // namespace

Result32 Split(CommPtr parent, int color, int key, CommPtr* out, const Config* config) {
  const bool blocking = config != nullptr && config->blocking != kUndefined ? config->blocking != 0
                                                                            : parent->blocking;
  *out = nullptr;
  CommPtr child = nullptr;
  if (color >= 0) {
    child = *out = new ncclComm;
    child->device = parent->device;
    child->blocking = blocking;
    child->building.store(true);
    World::Get().Add(child);
  }
  const About about{3, 0, parent->splits.fetch_add(1)};
  const auto work = [=] {
    const Choice mine{color, key, parent->rank};
    std::vector<std::vector<std::byte>> parts;
    const Meeting::GiveUp parents = GivesUp(parent);
    const bool met = parent->meeting->Exchange(
        kControlLane, about, &mine, sizeof mine, &parts,
        [&] { return parents() || (child != nullptr && child->aborted.load()); });
    if (child == nullptr) return met ? kSuccess : Ended(parent);
    return met ? MeetChild(parent, child, mine, about.bytes, parts) : Ended(parent);
  };
  return Start(parent, "ncclCommSplit", blocking, work, [child](Result32 result) {
    if (child == nullptr) return;
    child->state.store(result);
    child->building.store(false);
  });
}

Result32 Finalize(CommPtr comm) {
  if (comm->meeting == nullptr || comm->finalized.exchange(true))
    return Say(kInvalidUsage, "finalized twice");
  return Start(comm, "ncclCommFinalize", comm->blocking, [comm]() -> Result32 {
    const Meeting::GiveUp give_up = GivesUp(comm);
    while (comm->enqueued.load() > 0 || comm->graphs.load() > 0) {
      if (give_up()) return Ended(comm);
      Nap();
    }
    std::vector<std::vector<std::byte>> parts;
    return comm->meeting->Exchange(kControlLane, About{4, 0, 0}, nullptr, 0, &parts, give_up)
               ? kSuccess
               : Ended(comm);
  });
}

Result32 Destroy(CommPtr comm) {
  comm->job.Join();
  if (!comm->finalized.load()) {
    comm->blocking = true;
    Finalize(comm);
  }
  while (comm->graphs.load() > 0) Nap();
  Free(comm);
  return kSuccess;
}

Result32 Abort(CommPtr comm) {
  comm->aborted.store(true);
  // A finalized one has no peers that wait for it.
  const bool ended = comm->finalized.load() && comm->state.load() == kSuccess;
  comm->job.Join();
  while (comm->building.load()) Nap();
  if (comm->meeting != nullptr && !ended) comm->meeting->MarkAborted();
  while (comm->enqueued.load() > 0 || comm->graphs.load() > 0) Nap();
  Free(comm);
  return kSuccess;
}

Result32 Enqueue(CommPtr comm, StreamPtr stream, const Collective& collective) {
  if (comm->finalized.load()) return Say(kInvalidUsage, "the communicator is finalized");
  if (comm->state.load() != kSuccess) return Say(kInvalidUsage, "the communicator is not ready");
  auto* const launch = Driver<int(void*, int (*)(void*), void*)>("fakecuda_launch");
  if (launch == nullptr) return Say(kUnhandledCudaError, "the driver is not the double");
  auto* const argument = new Launch{comm, collective};
  comm->enqueued.fetch_add(1);
  const int launched = launch(
      stream,
      [](void* raw) {
        const std::unique_ptr<Launch> own(static_cast<Launch*>(raw));
        const Result32 result = Run(*own);
        own->comm->enqueued.fetch_sub(1);
        return result;
      },
      argument);
  if (launched == 0) return kSuccess;
  comm->enqueued.fetch_sub(1);
  delete argument;
  return Say(kUnhandledCudaError, "the driver answers " + std::to_string(launched));
}

// ---- the world

World& World::Get() {
  static World* const world = new World;
  return *world;
}

World::World() {
  // The driver's double first: at the end of the process it waits for its streams, after this.
  if (auto* const alias = Driver<void*(const void*, uint64_t)>("fakecuda_alias")) alias(nullptr, 1);
  std::atexit([] { Get().ending_.store(true); });
}

Result32 World::Pass(const std::string& call) {
  const Result32 planned = failures_.Pass(call);
  while (planned < 0) Nap();
  if (planned != 0) Say(planned, "planned by the test");
  return planned;
}

bool World::UseId(const std::string& id, int rank) {
  MutexLock lock(mutex_);
  return used_.emplace(id, rank).second;
}
void World::Add(CommPtr comm) {
  MutexLock lock(mutex_);
  living_.push_back(comm);
}
bool World::Lives(CommPtr comm) {
  MutexLock lock(mutex_);
  return std::find(living_.begin(), living_.end(), comm) != living_.end();
}
void World::Remove(CommPtr comm) {
  MutexLock lock(mutex_);
  std::erase(living_, comm);
}
uint64_t World::living() {
  MutexLock lock(mutex_);
  return living_.size();
}
uint64_t World::registered_bytes() {
  MutexLock lock(mutex_);
  uint64_t sum = 0;
  for (const CommPtr comm : living_) {
    for (const auto& [handle, bytes] : comm->registered) sum += bytes;
  }
  return sum;
}

}  // namespace ckpt::fakenccl
