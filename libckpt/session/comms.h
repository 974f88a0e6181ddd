// The communicators of this rank: up in order of registration, down in reverse, all on the loop's
// thread. Every build has a fresh id, the same on all ranks because all count alike.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "libckpt/base/clock.h"
#include "libckpt/base/status.h"
#include "libckpt/comm/comm.h"

namespace ckpt::session {

// The key-value channel under `scope`.
using KeyValueFactory = std::function<std::unique_ptr<comm::KeyValue>(const std::string& scope)>;

class Communicators {
 public:
  explicit Communicators(KeyValueFactory keys) : keys_(std::move(keys)) {}

  // Brings it up under `scope` and verifies it; it is kept only if both work.
  Status Register(std::shared_ptr<comm::Communicator> communicator, const std::string& scope,
                  const Deadline& deadline);
  // Takes it down and forgets it. kNotFound if it is not registered.
  Status Unregister(const comm::Communicator* communicator, const Deadline& deadline);

  // The first that could not go down in order now, and why. Touches none.
  Status MayTakeDown() const;
  // Quiesces all, then takes all down, also those that did not quiesce: the first error is returned
  // after everything was tried.
  Status TakeDown(const Deadline& deadline);
  // Builds all anew under `scope`, then verifies all.
  Status Rebuild(const std::string& scope, const Deadline& deadline);

  size_t size() const { return all_.size(); }
  bool down() const { return down_; }

 private:
  struct Entry {
    std::shared_ptr<comm::Communicator> communicator;
    uint64_t number;  // of its registration
  };
  Status Up(const Entry& entry, const std::string& scope, const Deadline& deadline);

  KeyValueFactory keys_;
  std::vector<Entry> all_;
  uint64_t registered_ = 0;
  bool down_ = false;
};

}  // namespace ckpt::session
