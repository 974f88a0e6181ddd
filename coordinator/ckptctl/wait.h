// Waiting for an operation where a person can see it move, and leave without breaking it.
#pragma once

#include <map>
#include <string>
#include <utility>

#include "coordinator/ckptctl/client.h"
#include "libckpt/base/progress.h"

namespace ckpt::ckptctl {

struct WaitOptions {
  bool wait = false;
  bool durable = false;  // of a suspend: also until the copy is in the store
};

// Prints the operation, waits for its end if asked to, and fails if it failed.
// Errors: kCancelled after Ctrl-C: what goes on, how to look at it and how to take it back.
Status FinishOperation(Client& client, const Globals& globals, const WaitOptions& options,
                       v1::Operation operation);

// The bytes that an operation moves, with their rates.
class OperationProgress {
 public:
  // "staged 64.0 MiB; written 12.0 of 64.0 MiB (18 %), 80.0 MiB/s, 1 s left"; empty if nothing is
  // known. A job is named if there are several.
  std::string Describe(const v1::Operation& operation, int64_t now_ns);

 private:
  std::map<std::pair<std::string, std::string>, RateMeter> meters_;  // by job and what
};

// What a person who waits no longer should know.
std::string LeavingMessage(const v1::Operation& operation);

}  // namespace ckpt::ckptctl
