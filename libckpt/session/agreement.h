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

class Agreement {
 public:
  Agreement(Allgather allgather, Rank rank, uint32_t world)
      : allgather_(std::move(allgather)), rank_(rank), world_(world) {}

  // By rank; every rank brings as many bytes. kUnavailable if the collective fails.
  Result<std::vector<std::string>> Gather(std::string_view mine);
  // Of any length, in two rounds.
  Result<std::vector<std::string>> GatherAny(std::string_view mine);

 private:
  Allgather allgather_;
  const Rank rank_;
  const uint32_t world_;
};

}  // namespace ckpt::session
