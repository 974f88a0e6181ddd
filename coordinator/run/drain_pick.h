// Which copy a drain makes durable, and who writes what. Pure.
//
// I1  The newest complete copy, or none: an older one is never written in its place.
// I2  Each rank's shard is written by exactly one node that holds it.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "coordinator/run/gang_link.h"

namespace ckpt::run {

struct DrainPick {
  enum class Kind {
    kNothing,     // no copy in RAM
    kIncomplete,  // not all ranks of it are there; `message` names them
    kDurable,     // the newest complete copy is durable already
    kDrain
  };
  Kind kind = Kind::kNothing;
  AttemptId id;
  uint32_t world = 0;
  std::map<uint32_t, std::vector<uint32_t>> writers;  // ranks by node; kDrain: all of the world
  std::string message;
};

// What every node of the gang holds, by its number.
DrainPick PickDrain(const std::map<uint32_t, std::vector<RamCopy>>& nodes);

}  // namespace ckpt::run
