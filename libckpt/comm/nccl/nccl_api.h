// The part of NCCL's interface that we call, as it is from 2.18 on: names, types and numbers are
// part of its ABI. Declared here so that a build needs neither NCCL nor the CUDA Toolkit, and one
// binary runs with and without; where NCCL's header is, nccl_api_test.cc compares each line with
// it.
#pragma once

#include <climits>
#include <cstddef>
#include <cstdint>

struct CUstream_st;
struct ncclComm;
struct ncclWindow_vidmem;

namespace ckpt::comm::nccl {

using Result32 = int;  // ncclResult_t
using CommPtr = ncclComm*;
using WindowPtr = ncclWindow_vidmem*;
using StreamPtr = CUstream_st*;

enum : Result32 {
  kSuccess = 0,
  kUnhandledCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
};

inline constexpr int kUint8 = 1;
inline constexpr int kInt64 = 4;
inline constexpr int kUint64 = 5;
inline constexpr int kFloat32 = 7;
inline constexpr int kFloat64 = 8;
inline constexpr int kSum = 0;
inline constexpr int kSplitNoColor = -1;
inline constexpr unsigned kMagic = 0xcafebeef;
inline constexpr int kVersionMin = 21800;  // ncclCommSplit, and ncclConfig_t as below
inline constexpr int kUndefined = INT_MIN;

struct UniqueId {
  char bytes[128];
};

// The beginning of ncclConfig_t, which every version shares; later ones only add at the end.
struct Config {
  size_t size = sizeof(Config);
  unsigned magic = kMagic;
  unsigned version = kVersionMin;
  int blocking = kUndefined;
  int cga_cluster_size = kUndefined;
  int min_ctas = kUndefined;
  int max_ctas = kUndefined;
  const char* net_name = nullptr;
  int split_share = kUndefined;
  int reserved = kUndefined;  // nothing in 2.18, later versions have a field here
};
inline constexpr size_t kConfigBlockingOffset = 16;
inline constexpr size_t kConfigBytesMin = 20;  // 2.14: up to `blocking`
inline constexpr size_t kConfigBytesMax = 4096;
inline constexpr size_t kConfigNetNameOffset = 32;
inline constexpr size_t kConfigCommNameOffset = 48;

// X(name as exported by libnccl, what it returns, parameters)
#define CKPT_NCCL_CALLS(X)                                                          \
  X(ncclGetVersion, Result32, (int*))                                               \
  X(ncclGetUniqueId, Result32, (UniqueId*))                                         \
  X(ncclCommInitRankConfig, Result32, (CommPtr*, int, UniqueId, int, Config*))      \
  X(ncclCommSplit, Result32, (CommPtr, int, int, CommPtr*, Config*))                \
  X(ncclCommFinalize, Result32, (CommPtr))                                          \
  X(ncclCommDestroy, Result32, (CommPtr))                                           \
  X(ncclCommAbort, Result32, (CommPtr))                                             \
  X(ncclCommGetAsyncError, Result32, (CommPtr, Result32*))                          \
  X(ncclCommCount, Result32, (CommPtr, int*))                                       \
  X(ncclCommUserRank, Result32, (CommPtr, int*))                                    \
  X(ncclAllGather, Result32, (const void*, void*, size_t, int, CommPtr, StreamPtr)) \
  X(ncclGetErrorString, const char*, (Result32))                                    \
  X(ncclGetLastError, const char*, (CommPtr))

// What a library may lack: null then. Buffers from 2.19 on, windows from 2.27 on.
#define CKPT_NCCL_LATER_CALLS(X)                                                 \
  X(ncclCommRegister, Result32, (CommPtr, void*, size_t, void**))                \
  X(ncclCommDeregister, Result32, (CommPtr, void*))                              \
  X(ncclCommWindowRegister, Result32, (CommPtr, void*, size_t, WindowPtr*, int)) \
  X(ncclCommWindowDeregister, Result32, (CommPtr, WindowPtr))

}  // namespace ckpt::comm::nccl
