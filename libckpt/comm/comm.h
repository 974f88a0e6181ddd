// Communicators are re-created, not saved: quiesce, take down under a deadline, rebuild with a
// fresh id that travels over the gang's key-value channel, verify with a checksum collective. The
// registry runs these over all communicators of a rank, in order of registration (down in reverse).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "libckpt/base/clock.h"
#include "libckpt/base/status.h"

namespace ckpt::comm {

// The gang's key-value channel, scoped so that no rebuild can read an older one's pairs.
class KeyValue {
 public:
  virtual ~KeyValue() = default;
  virtual Status Set(const std::string& key, const std::string& value) = 0;
  // Blocks until some rank has set `key`.
  virtual Result<std::string> Wait(const std::string& key, const Deadline& deadline) = 0;
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual std::string name() const = 0;
  // What would keep it from going down in order now, by name; touches nothing, waits for nothing.
  virtual Status MayGoDown() const { return OkStatus(); }
  // No operation is in flight when this returns OK.
  virtual Status Quiesce(const Deadline& deadline) = 0;
  // Takes it down; afterwards no thread, socket or device memory of it is left. Idempotent. Must
  // end by the deadline: what cannot finish is aborted.
  virtual Status Down(const Deadline& deadline) = 0;
  // Builds it anew under `fresh_id`, the same on all ranks and never used before.
  virtual Status Up(const std::string& fresh_id, KeyValue* kv, const Deadline& deadline) = 0;
  // A checksum collective: every rank learns whether all ranks see each other.
  virtual Status Verify(const Deadline& deadline) = 0;
};

}  // namespace ckpt::comm
