#include "coordinator/gang/fuzz.h"

#include "coordinator/gang/leader_impl.h"

namespace ckpt::gang {

bool FuzzMessage(std::string_view bytes) {
  const Result<Msg> msg = Decode(bytes);
  return !msg.ok() || (Encode(*msg) == bytes && !ToString(*msg).empty());
}

bool FuzzLeaderRecord(std::string_view bytes) {
  const Result<LeaderRecord> record = LeaderRecord::Decode(bytes);
  return !record.ok() || (record->Encode() == bytes && Leader::ViewOfRecord(bytes).ok());
}

}  // namespace ckpt::gang
