#include "libckpt/comm/registry.h"

#include <algorithm>
#include <chrono>

#include "libckpt/base/fault.h"
#include "libckpt/base/limits.h"
#include "libckpt/base/log.h"

namespace ckpt::comm {
namespace {

// A rebuild that failed is taken down again, also when its time is over.
constexpr auto kUndoTime = std::chrono::seconds(10);

std::string Named(const Communicator& communicator) {
  return "communicator '" + communicator.name() + "'";
}

// One communicator's keys within the gang's channel.
class PrefixedKeyValue : public KeyValue {
 public:
  PrefixedKeyValue(KeyValue* base, std::string prefix) : base_(base), prefix_(std::move(prefix)) {}
  Status Set(const std::string& key, const std::string& value) override {
    return base_->Set(prefix_ + key, value);
  }
  Result<std::string> Wait(const std::string& key, const Deadline& deadline) override {
    return base_->Wait(prefix_ + key, deadline);
  }

 private:
  KeyValue* base_;
  const std::string prefix_;
};

// The step's own error, or the deadline's if it came back late or had no time left.
Status Bounded(const Communicator& communicator, std::string_view step, const Deadline& deadline,
               const std::function<Status()>& run) {
  const std::string what = std::string(step) + " " + Named(communicator);
  if (deadline.Expired()) return deadline.Exceeded().Annotate(what);
  return run().Annotate(what);
}

}  // namespace

Status Registry::Register(Communicator* communicator) {
  if (entries_.size() >= kCommunicatorsMax) {
    return ResourceExhausted("more than " + std::to_string(kCommunicatorsMax) + " communicators");
  }
  for (const Entry& entry : entries_) {
    if (entry.communicator->name() == communicator->name()) {
      return AlreadyExists(Named(*communicator) + " is registered already; give each its own name");
    }
  }
  entries_.push_back(Entry{communicator, false});
  return OkStatus();
}

Status Registry::Unregister(Communicator* communicator) {
  const auto it = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) {
    return entry.communicator == communicator;
  });
  if (it == entries_.end()) return NotFound("communicator: not registered");
  entries_.erase(it);
  return OkStatus();
}

bool Registry::all_up() const {
  return std::all_of(entries_.begin(), entries_.end(), [](const Entry& e) { return e.up; });
}
bool Registry::all_down() const {
  return std::none_of(entries_.begin(), entries_.end(), [](const Entry& e) { return e.up; });
}

Status Registry::QuiesceAll(const Deadline& deadline) {
  CKPT_FAULT("comm.quiesce");
  for (const Entry& entry : entries_) {
    if (!entry.up) continue;
    CKPT_RETURN_IF_ERROR(Bounded(*entry.communicator, "quiescing", deadline,
                                 [&] { return entry.communicator->Quiesce(deadline); }));
  }
  return OkStatus();
}

Status Registry::DownAll(const Deadline& deadline) {
  CKPT_FAULT("comm.down");
  Status first_error;
  for (auto entry = entries_.rbegin(); entry != entries_.rend(); ++entry) {
    if (!entry->up) continue;
    // Called even with no time left: it then aborts at once, which is better than staying up.
    Status status = entry->communicator->Down(deadline);
    if (status.ok()) {
      entry->up = false;
      continue;
    }
    status.Annotate("taking down " + Named(*entry->communicator));
    if (first_error.ok()) {
      first_error = std::move(status);
    } else {
      LogError(status.ToString());
    }
  }
  return first_error;
}

Status Registry::UpAll(const std::string& fresh_id, KeyValue* kv, const Deadline& deadline) {
  CKPT_FAULT("comm.up");
  std::vector<Entry*> brought_up;
  for (Entry& entry : entries_) {
    if (entry.up) continue;
    const std::string name = entry.communicator->name();
    PrefixedKeyValue own(kv, name + "/");
    Status status = Bounded(*entry.communicator, "bringing up", deadline, [&] {
      return entry.communicator->Up(fresh_id + "/" + name, &own, deadline);
    });
    brought_up.push_back(&entry);
    if (status.ok()) {
      entry.up = true;
      continue;
    }
    // The one that failed may be half up, so it goes down with the others.
    const Deadline undo("taking down a failed rebuild", kUndoTime);
    for (auto it = brought_up.rbegin(); it != brought_up.rend(); ++it) {
      const Status down = (*it)->communicator->Down(undo);
      if (!down.ok()) LogError(down.ToString());
      (*it)->up = false;
    }
    return status;
  }
  return OkStatus();
}

Status Registry::VerifyAll(const Deadline& deadline) {
  CKPT_FAULT("comm.verify");
  for (const Entry& entry : entries_) {
    if (!entry.up) return FailedPrecondition(Named(*entry.communicator) + " is down");
    CKPT_RETURN_IF_ERROR(Bounded(*entry.communicator, "verifying", deadline,
                                 [&] { return entry.communicator->Verify(deadline); }));
  }
  return OkStatus();
}

}  // namespace ckpt::comm
