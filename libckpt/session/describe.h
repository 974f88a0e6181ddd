// What a session says about itself, as JSON, and what it finds in a store.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "libckpt/base/ids.h"
#include "libckpt/base/status.h"
#include "libckpt/format/types.h"
#include "libckpt/session/save.h"
#include "libckpt/storage/store.h"

namespace ckpt::session {

struct Description {
  std::string job, mode, store;
  JobId job_id;
  Rank rank;
  uint32_t world = 1;
  uint64_t epoch = 0;
  uint64_t boundary = 0;
  std::string capabilities_json;  // an array
  std::vector<std::shared_ptr<Save>> saves;
};
std::string ToJson(const Description& description);
std::string ToJson(const std::vector<storage::CheckpointInfo>& checkpoints);
// What a checkpoint holds: each tensor once, one of each rank's own once a rank.
std::string ToJson(const AttemptId& id, const std::vector<format::RankLayout>& layouts,
                   const format::RankValues& values);
// A JSON string, quotes included.
std::string Quoted(std::string_view text);

// "step:N": the newest visible checkpoint of step N. kInvalidArgument for anything else.
Result<AttemptId> FindStep(storage::Store* store, const std::string& selector);

}  // namespace ckpt::session
