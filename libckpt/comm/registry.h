// All communicators of a rank, run through the steps of a suspend or a resume together.
//
// I1  Quiesce, Up and Verify go in order of registration, Down in reverse: what is built on top
//     goes first.
// I2  One deadline bounds a whole step; the error names the communicator that failed or that the
//     time ran out on.
// I3  Down goes on after an error: nothing is left up because something else would not go down.
// I4  Each step is idempotent: what is down is not taken down again, nor what is up built anew.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "libckpt/comm/comm.h"

namespace ckpt::comm {

// Threads: one at a time (the loop's thread).
class Registry {
 public:
  Registry() = default;

  // Takes part from the next step on, as a communicator that is down. The caller keeps ownership
  // and unregisters it first. kAlreadyExists for a name in use, kResourceExhausted beyond
  // kCommunicatorsMax.
  Status Register(Communicator* communicator);
  // Does not take it down. kNotFound if it is not registered.
  Status Unregister(Communicator* communicator);
  size_t size() const { return entries_.size(); }
  bool all_up() const;
  bool all_down() const;

  Status QuiesceAll(const Deadline& deadline);
  Status DownAll(const Deadline& deadline);
  // Builds each that is down under "<fresh_id>/<name>", with keys of its own in `kv`. If one fails,
  // those that this call brought up are taken down again: the next try has a fresh id for all.
  Status UpAll(const std::string& fresh_id, KeyValue* kv, const Deadline& deadline);
  Status VerifyAll(const Deadline& deadline);

 private:
  struct Entry {
    Communicator* communicator = nullptr;
    bool up = false;
  };
  std::vector<Entry> entries_;
};

}  // namespace ckpt::comm
