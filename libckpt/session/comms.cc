#include "libckpt/session/comms.h"

#include <algorithm>

#include "libckpt/base/fault.h"
#include "libckpt/base/limits.h"

namespace ckpt::session {
namespace {

Status Named(Status status, const comm::Communicator& communicator, std::string_view doing) {
  return std::move(status).Annotate(std::string(doing) + " communicator '" + communicator.name() +
                                    "'");
}

void KeepFirst(Status* first, Status next) {
  if (first->ok()) *first = std::move(next);
}

}  // namespace

Status Communicators::Up(const Entry& entry, const std::string& scope, const Deadline& deadline) {
  const std::string id = scope + "/c" + std::to_string(entry.number);
  const std::unique_ptr<comm::KeyValue> keys = keys_(id);
  return Named(entry.communicator->Up(id, keys.get(), deadline), *entry.communicator,
               "bringing up");
}

Status Communicators::Register(std::shared_ptr<comm::Communicator> communicator,
                               const std::string& scope, const Deadline& deadline) {
  if (all_.size() >= kCommunicatorsMax)
    return ResourceExhausted("a rank registers at most " + std::to_string(kCommunicatorsMax) +
                             " communicators");
  const Entry entry{std::move(communicator), registered_++};
  Status status = Up(entry, scope, deadline);
  if (status.ok())
    status = Named(entry.communicator->Verify(deadline), *entry.communicator, "verifying");
  if (!status.ok()) {
    entry.communicator->Down(deadline).IgnoreError();  // the first error says it all
    return status;
  }
  all_.push_back(entry);
  return OkStatus();
}

Status Communicators::Unregister(const comm::Communicator* communicator, const Deadline& deadline) {
  const auto found = std::find_if(all_.begin(), all_.end(), [&](const Entry& entry) {
    return entry.communicator.get() == communicator;
  });
  if (found == all_.end()) return NotFound("this communicator is not registered");
  const std::shared_ptr<comm::Communicator> keep = found->communicator;
  all_.erase(found);
  return Named(keep->Down(deadline), *keep, "taking down");
}

Status Communicators::MayTakeDown() const {
  for (const Entry& entry : all_) CKPT_RETURN_IF_ERROR(entry.communicator->MayGoDown());
  return OkStatus();
}

Status Communicators::TakeDown(const Deadline& deadline) {
  Status first;
  for (const Entry& entry : all_)
    KeepFirst(&first,
              Named(entry.communicator->Quiesce(deadline), *entry.communicator, "quiescing"));
  for (auto entry = all_.rbegin(); entry != all_.rend(); ++entry)
    KeepFirst(&first,
              Named(entry->communicator->Down(deadline), *entry->communicator, "taking down"));
  down_ = true;
  return first;
}

Status Communicators::Rebuild(const std::string& scope, const Deadline& deadline) {
  CKPT_FAULT("session.comms.rebuild");
  for (const Entry& entry : all_) {
    // One that is still half up would answer under its old id.
    CKPT_RETURN_IF_ERROR(
        Named(entry.communicator->Down(deadline), *entry.communicator, "taking down"));
    CKPT_RETURN_IF_ERROR(Up(entry, scope, deadline));
  }
  for (const Entry& entry : all_)
    CKPT_RETURN_IF_ERROR(
        Named(entry.communicator->Verify(deadline), *entry.communicator, "verifying"));
  down_ = false;
  return OkStatus();
}

}  // namespace ckpt::session
