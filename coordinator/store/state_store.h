// Where the coordinator's records live: keys and bytes, changed by whole transactions.
//
// One conformance suite (store_conformance_test.cc) is run by every implementation.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "coordinator/core/events.h"
#include "libckpt/base/status.h"

namespace ckpt::store {

class StateStore {
 public:
  virtual ~StateStore() = default;

  // Applies all of `writes`, or none.
  //
  // Threads:  one caller.
  // Blocks:   on disk.
  // Errors:   kUnavailable or kResourceExhausted (not applied); kDataLoss, maybe applied, after
  //           which every later call fails too: what a failed sync has kept is not known.
  // Durable:  on return, in order of the calls.
  virtual Status Commit(const std::vector<core::Write>& writes) = 0;

  // Every record, by key.
  virtual Result<std::vector<core::Record>> LoadAll() = 0;
};

// A database file in `directory` (made if it is missing).
//
// Errors: kUnavailable if another process holds it; kFailedPrecondition if its schema is newer than
//         this program; kDataLoss if it is damaged; else what the file system says.
Result<std::unique_ptr<StateStore>> OpenSqlite(const std::string& directory);

}  // namespace ckpt::store
