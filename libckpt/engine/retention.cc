#include "libckpt/engine/retention.h"

#include "libckpt/base/fault.h"
#include "libckpt/base/log.h"
#include "libckpt/engine/stored_files.h"

namespace ckpt::engine {
namespace {

// Missing, of another size, or not what its digest says; anything else says nothing about it.
bool IsDamage(Code code) {
  return code == Code::kDataLoss || code == Code::kNotFound || code == Code::kInvalidArgument;
}

Status LookAt(storage::Store* store, const AttemptId& id) {
  CKPT_ASSIGN_OR_RETURN(const format::Manifest manifest, ReadVerifiedManifest(store, id));
  for (const format::ManifestFile& file : manifest.files) {
    CKPT_RETURN_IF_ERROR(OpenSized(store, id, file.name, file.bytes).status());
    CKPT_ASSIGN_OR_RETURN(const format::ShardIndex index, ReadVerifiedIndex(store, manifest, file));
    for (const format::Origin& origin : index.origins)
      CKPT_RETURN_IF_ERROR(OpenOrigin(store, origin).status());
  }
  return OkStatus();
}

}  // namespace

Result<bool> LooksWhole(storage::Store* store, const AttemptId& id) {
  const Status status = LookAt(store, id);
  if (status.ok()) return true;
  if (!IsDamage(status.code())) return status;
  LogWarning(store->Describe() + ": " + id.ToString() +
             " is damaged and counts for no rule of retention: " + status.message());
  return false;
}

void Retention::FoundDamaged(const AttemptId& id) {
  MutexLock lock(mutex_);
  damaged_.insert(id);
}

Result<bool> Retention::IsWhole(const AttemptId& id) {
  {
    MutexLock lock(mutex_);
    if (damaged_.contains(id)) return false;
    if (whole_.contains(id)) return true;
  }
  CKPT_ASSIGN_OR_RETURN(const bool whole, LooksWhole(store_, id));
  MutexLock lock(mutex_);
  (whole ? whole_ : damaged_).insert(id);
  return whole;
}

void Retention::AfterCommit(const AttemptId& id) {
  if (!rules_) return;
  {
    MutexLock lock(mutex_);
    whole_.insert(id);
    again_ = true;
    if (removing_) return;
    removing_ = true;
  }
  for (;;) {
    {
      MutexLock lock(mutex_);
      removing_ = again_;
      if (!again_) return;
      again_ = false;
    }
    RemoveOnce();
  }
}

void Retention::RemoveOnce() {
  const auto retain = [&]() -> Result<std::vector<AttemptId>> {
    CKPT_FAULT("engine.retention.begin");
    return store_->Retain(*rules_, [this](const AttemptId& one) { return IsWhole(one); });
  };
  const Result<std::vector<AttemptId>> removed = retain();
  if (!removed.ok()) {
    return LogWarning(store_->Describe() +
                      ": old checkpoints were not removed, the next save tries again: " +
                      removed.status().message());
  }
  std::string names;
  for (const AttemptId& one : *removed) names += (names.empty() ? "" : ", ") + one.ToString();
  if (!names.empty()) LogInfo(store_->Describe() + ": removed " + names);
  MutexLock lock(mutex_);
  for (const AttemptId& one : *removed) {
    whole_.erase(one);
    damaged_.erase(one);
  }
}

}  // namespace ckpt::engine
