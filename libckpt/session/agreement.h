// Agreement between the ranks of a standalone job by the caller's own collective, on the caller's
// thread only, at the same points on every rank.
//
// The tempting alternative, a collective when one's own shard is written, meets the training's
// collectives in another order on another rank and waits for ever (S11): here every rank calls at
// every boundary, and its state is the payload.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "libckpt/base/clock.h"
#include "libckpt/base/ids.h"
#include "libckpt/base/status.h"
#include "libckpt/session/session.h"

namespace ckpt::session {

// Where all ranks must be for an agreement to make sense.
enum class Meeting : uint8_t {
  kStep = 1,
  kSave = 2,
  kWait = 3,
  kClose = 4,
  kStop = 5,
  kOpen = 6,
  kTrack = 7,
  kReports = 8,
  kFailure = 9,
};

// I1  The first word of every agreement is as long as that of any other and begins with its
// meeting: ranks at different ones all notice, before any of them calls the collective again.
class Agreement {
 public:
  static constexpr size_t kWordBytes = 8;

  Agreement(Allgather allgather, Rank rank, uint32_t world)
      : allgather_(std::move(allgather)), rank_(rank), world_(world) {}

  // By rank, kWordBytes of each. kUnavailable if the collective fails; kFailedPrecondition, on all
  // ranks, if they are at different meetings.
  Result<std::vector<std::string>> Gather(Meeting meeting, std::string_view mine);
  // Of any length, in two rounds.
  Result<std::vector<std::string>> GatherAny(Meeting meeting, std::string_view mine);

 private:
  Result<std::vector<std::string>> Call(std::string_view mine);

  Allgather allgather_;
  const Rank rank_;
  const uint32_t world_;
};

}  // namespace ckpt::session
