// How jobs, nodes, operations and events are stored: a version, then their fields in order.
#pragma once

#include <string>
#include <string_view>

#include "coordinator/core/types.h"
#include "libckpt/base/status.h"

namespace ckpt::core {

// What belongs to the cluster and not to one job.
struct Meta {
  std::string cluster_id;
  std::string data_token;
  uint64_t term = 0;
};

inline constexpr std::string_view kMetaKey = "meta";
std::string JobKey(std::string_view name);
std::string NodeKey(std::string_view name);
std::string OperationKey(uint64_t op_id);
std::string EventKey(uint64_t revision);

std::string EncodeMeta(const Meta& meta);
std::string EncodeJob(const Job& job);  // without what is "not stored", and without drain progress
std::string EncodeNode(const Node& node);
std::string EncodeOperation(const Operation& operation);
std::string EncodeEvent(const EventRecord& event);

// Errors: kDataLoss if cut short or too long; kFailedPrecondition if a newer version wrote it.
Result<Meta> DecodeMeta(std::string_view bytes);
Result<Job> DecodeJob(std::string_view bytes);
Result<Node> DecodeNode(std::string_view bytes);
Result<Operation> DecodeOperation(std::string_view bytes);
Result<EventRecord> DecodeEvent(std::string_view bytes);

}  // namespace ckpt::core
