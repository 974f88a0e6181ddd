// Every bound of the project in one place: sizes that untrusted input is held to, and the depth of
// every queue and pool.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ckpt {

inline constexpr size_t kFrameBytesMax = 64 * 1024;  // one SEQPACKET datagram
inline constexpr size_t kFrameFdsMax = 16;           // descriptors that travel with a frame
inline constexpr uint32_t kRanksMax = 1 << 16;       // world size
inline constexpr uint32_t kTensorDimsMax = 32;       // as in numpy and PyTorch's practice
inline constexpr size_t kTensorNameBytesMax = 4096;  // UTF-8
inline constexpr uint32_t kTensorsPerRankMax = 1 << 20;
inline constexpr uint64_t kManifestBytesMax = uint64_t{64} << 20;
inline constexpr uint64_t kIndexBytesMax = uint64_t{1} << 30;
inline constexpr uint64_t kShardHeaderBytesMax = uint64_t{100}
                                                 << 20;  // upstream safetensors' own limit
inline constexpr uint32_t kValueDepthMax = 16;
inline constexpr uint64_t kValueBytesMax = uint64_t{16} << 20;  // all values and blobs of one rank
inline constexpr uint64_t kChunkBytesDefault = uint64_t{1} << 20;
inline constexpr uint64_t kPageBytes = 4096;
inline constexpr uint32_t kStagingSlotsMax = 2;      // generations a rank can hold at once
inline constexpr uint32_t kCommunicatorsMax = 1024;  // registered by one rank
inline constexpr uint32_t kDeviceQueueMax = 1
                                            << 16;  // operations waiting on one stream of a double
inline constexpr uint32_t kFileDepthMax = 16;       // transfers of one file under way in the kernel
inline constexpr uint64_t kWriteBlockBytes = uint64_t{1} << 20;     // of a shard, written at once
inline constexpr uint32_t kBlocksAheadMax = 16;                     // of one shard, being written
inline constexpr uint64_t kPinnedPieceBytes = uint64_t{256} << 20;  // registered in one call
inline constexpr uint32_t kMembersMax = 4096;                       // ckpt-runs of one gang

}  // namespace ckpt
