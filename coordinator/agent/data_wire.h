// The data connection between agents: how a generation in one node's RAM gets to another's.
//
//   client: "CKPDATA2" str token                                  once
//   server: u32 code, str message                                  0: welcome
//   client: u32 kind, str job, u64 epoch, u32 attempt, u32 rank, u64 offset, u64 bytes   (request)
//   server: u32 code, str message, u64 region bytes, u64 chunk bytes, epoch u64, step i64, attempt
//           u32   (answer; for kRead followed by the chunks)
//   server, for each chunk of [offset, offset + bytes): the chunk, 16 bytes digest
//
// Messages (not chunks) have a u32 length in front. A chunk is kChunkBytes but for the region's
// last; its digest is XXH3-128 seeded with its offset, so that a chunk in the wrong place is a
// wrong chunk. docs/protocol.md is normative.
#pragma once

#include <cstdint>
#include <string>

#include "libckpt/base/bytes.h"
#include "libckpt/base/clock.h"
#include "libckpt/base/digest.h"
#include "libckpt/base/ids.h"
#include "libckpt/base/status.h"

namespace ckpt::agent {

inline constexpr std::string_view kDataMagic = "CKPDATA2";
inline constexpr uint64_t kDataChunkBytes = uint64_t{4} << 20;
inline constexpr uint32_t kDataMessageBytesMax = 16 * 1024;

enum class DataRequestKind : uint32_t { kStat = 1, kRead = 2 };

struct DataRequest {
  DataRequestKind kind = DataRequestKind::kStat;
  std::string job;
  uint64_t epoch = 0;
  uint32_t attempt = 0;
  uint32_t rank = 0;
  uint64_t offset = 0;  // kRead: a multiple of kDataChunkBytes
  uint64_t bytes = 0;   // kRead
};

struct DataAnswer {
  Status status;
  uint64_t region_bytes = 0;
  AttemptId id;
};

std::string EncodeHello(const std::string& token);
Result<std::string> DecodeHello(std::string_view bytes);  // the token
std::string EncodeStatus(const Status& status);
Status DecodeStatus(std::string_view bytes);  // what the peer said, or kDataLoss
std::string EncodeRequest(const DataRequest& request);
Result<DataRequest> DecodeRequest(std::string_view bytes);
std::string EncodeAnswer(const DataAnswer& answer);
Result<DataAnswer> DecodeAnswer(std::string_view bytes);

// A message with its length. Blocks: on the network. Errors: kUnavailable, kDataLoss.
Status SendMessage(int fd, std::string_view bytes, const Deadline& deadline);
Result<std::string> ReceiveMessage(int fd, const Deadline& deadline);

// Time that moving so many bytes may take before it is given up.
Nanos TransferTime(uint64_t bytes);

}  // namespace ckpt::agent
