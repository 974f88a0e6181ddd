// The calls: what each checks before the communicator does it.
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "libckpt/base/ids.h"
#include "libckpt/testing/fakenccl/communicator.h"
#include "libckpt/testing/fakenccl/fakenccl.h"

// NOLINTBEGIN: names and types are those of the interface
#define FAKE extern "C" __attribute__((visibility("default")))

using namespace ckpt::fakenccl;
using namespace ckpt::comm::nccl;

namespace {

Result32 Known(CommPtr comm) {
  return World::Get().Lives(comm) ? kSuccess
                                  : Say(kInvalidArgument, "no communicator, or one that is gone");
}

int CurrentOrdinal() {
  void* const library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  void* const found = library == nullptr ? nullptr : ::dlsym(library, "fakecuda_current_ordinal");
  return found == nullptr ? -1 : reinterpret_cast<int (*)()>(found)();
}

// A ready communicator, for what needs one.
Result32 Ready(CommPtr comm) {
  if (const Result32 known = Known(comm); known != kSuccess) return known;
  return comm->state.load() == kSuccess ? kSuccess : Say(kInvalidUsage, "it is not ready");
}

uint64_t BytesOf(int type) {
  switch (type) {
    case kUint8:
      return 1;
    case kFloat32:
      return 4;
    case kInt64:
    case kUint64:
    case kFloat64:
      return 8;
    default:
      return 0;  // nothing of ours sends it
  }
}

Result32 Register(CommPtr comm, void* memory, size_t bytes, void** out) {
  if (const Result32 ready = Ready(comm); ready != kSuccess) return ready;
  if (memory == nullptr || bytes == 0) return Say(kInvalidArgument, "no memory");
  ckpt::MutexLock lock(World::Get().registrations());
  *out = new char;
  comm->registered[*out] = bytes;
  return kSuccess;
}

Result32 Deregister(CommPtr comm, void* handle) {
  if (const Result32 known = Known(comm); known != kSuccess) return known;
  ckpt::MutexLock lock(World::Get().registrations());
  if (comm->registered.erase(handle) == 0) return Say(kInvalidArgument, "no such registration");
  delete static_cast<char*>(handle);
  return kSuccess;
}

}  // namespace

#define ENTER() \
  if (const Result32 planned = World::Get().Pass(__func__); planned != 0) return planned
#define ENTER_COMM(comm) \
  ENTER();               \
  if (const Result32 known = Known(comm); known != kSuccess) return known

// ---- controls
FAKE void fakenccl_fail(const char* call, uint64_t nth, int result, int sticky) {
  World::Get().failures().Plan(call, nth, result, sticky != 0);
}
FAKE uint64_t fakenccl_passages(const char* call) { return World::Get().failures().Passages(call); }
FAKE void fakenccl_async_error(ncclComm* comm, int result) { comm->failed.store(result); }
FAKE void fakenccl_hold(ncclComm* comm, int change) { comm->graphs.fetch_add(change); }
FAKE uint64_t fakenccl_registered_bytes() { return World::Get().registered_bytes(); }
FAKE uint64_t fakenccl_living() { return World::Get().living(); }

// ---- the library
FAKE Result32 ncclGetVersion(int* out) {
  ENTER();
  const char* text = std::getenv("CKPT_FAKENCCL_VERSION");
  *out = text == nullptr ? 23203 : std::atoi(text);
  return kSuccess;
}
FAKE const char* ncclGetErrorString(Result32 result) {
  static const char* const kWords[] = {"no error",
                                       "unhandled cuda error",
                                       "unhandled system error",
                                       "internal error",
                                       "invalid argument",
                                       "invalid usage",
                                       "remote process exited or there was a network error",
                                       "NCCL operation in progress"};
  return result >= 0 && result <= kInProgress ? kWords[result] : "unknown result code";
}
FAKE const char* ncclGetLastError(CommPtr) { return LastSaid(); }
FAKE Result32 ncclGetUniqueId(UniqueId* out) {
  ENTER();
  std::memset(out->bytes, 0, sizeof out->bytes);
  std::strncpy(out->bytes, ckpt::JobId::Random().ToString().c_str(), sizeof out->bytes - 1);
  return kSuccess;
}

// ---- communicators
FAKE Result32 ncclCommInitRankConfig(CommPtr* out, int world, UniqueId id, int rank,
                                     Config* config) {
  ENTER();
  if (out == nullptr || world < 1 || rank < 0 || rank >= world)
    return Say(kInvalidArgument, "rank " + std::to_string(rank) + " of " + std::to_string(world));
  if (config != nullptr && config->magic != kMagic)
    return Say(kInvalidArgument, "the configuration was not initialised");
  const int device = CurrentOrdinal();
  if (device < 0) return Say(kUnhandledCudaError, "no context is current");
  const bool blocking = config == nullptr || config->blocking != 0;
  return Begin(out, std::string(id.bytes), world, rank, device, blocking);
}
FAKE Result32 ncclCommInitRank(CommPtr* out, int world, UniqueId id, int rank) {
  return ncclCommInitRankConfig(out, world, id, rank, nullptr);
}
FAKE Result32 ncclCommSplit(CommPtr parent, int color, int key, CommPtr* out, Config* config) {
  ENTER();
  if (const Result32 ready = Ready(parent); ready != kSuccess) return ready;
  return Split(parent, color, key, out, config);
}
FAKE Result32 ncclCommFinalize(CommPtr comm) {
  ENTER_COMM(comm);
  return Finalize(comm);
}
FAKE Result32 ncclCommDestroy(CommPtr comm) {
  ENTER_COMM(comm);
  return Destroy(comm);
}
FAKE Result32 ncclCommAbort(CommPtr comm) {
  ENTER_COMM(comm);
  return Abort(comm);
}
FAKE Result32 ncclCommGetAsyncError(CommPtr comm, Result32* out) {
  ENTER_COMM(comm);
  const int failed = comm->failed.load();
  *out = failed != 0 ? failed : comm->state.load();
  return kSuccess;
}
FAKE Result32 ncclCommCount(CommPtr comm, int* out) {
  ENTER();
  if (const Result32 ready = Ready(comm); ready != kSuccess) return ready;
  *out = comm->world;
  return kSuccess;
}
FAKE Result32 ncclCommUserRank(CommPtr comm, int* out) {
  ENTER();
  if (const Result32 ready = Ready(comm); ready != kSuccess) return ready;
  *out = comm->rank;
  return kSuccess;
}

// ---- memory
FAKE Result32 ncclCommRegister(CommPtr comm, void* memory, size_t bytes, void** out) {
  ENTER();
  return Register(comm, memory, bytes, out);
}
FAKE Result32 ncclCommDeregister(CommPtr comm, void* handle) {
  ENTER();
  return Deregister(comm, handle);
}
FAKE Result32 ncclCommWindowRegister(CommPtr comm, void* memory, size_t bytes, WindowPtr* out,
                                     int) {
  ENTER();
  return Register(comm, memory, bytes, reinterpret_cast<void**>(out));
}
FAKE Result32 ncclCommWindowDeregister(CommPtr comm, WindowPtr window) {
  ENTER();
  return Deregister(comm, window);
}

// ---- collectives
FAKE Result32 ncclAllGather(const void* send, void* receive, size_t count, int type, CommPtr comm,
                            StreamPtr stream) {
  ENTER_COMM(comm);
  const uint64_t bytes = count * BytesOf(type);
  if (BytesOf(type) == 0) return Say(kInvalidArgument, "a type that the double does not know");
  return Enqueue(comm, stream, {Collective::kAllGather, send, receive, bytes, type});
}
FAKE Result32 ncclAllReduce(const void* send, void* receive, size_t count, int type, int operation,
                            CommPtr comm, StreamPtr stream) {
  ENTER_COMM(comm);
  const uint64_t bytes = count * BytesOf(type);
  if (BytesOf(type) < 4 || operation != kSum)
    return Say(kInvalidArgument, "the double sums floats, doubles and 64-bit integers only");
  return Enqueue(comm, stream, {Collective::kAllReduce, send, receive, bytes, type});
}
// NOLINTEND
