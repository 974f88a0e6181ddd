#include "coordinator/run/kv_store.h"

#include <algorithm>

namespace ckpt::run {

Result<std::vector<KvStore::Waiter>> KvStore::Set(const std::string& scope, const std::string& key,
                                                  std::string value) {
  const Key name(scope, key);
  const auto it = values_.find(name);
  if (it != values_.end()) {
    if (it->second == value) return std::vector<Waiter>();
    return AlreadyExists("key '" + key + "' of scope '" + scope +
                         "' has another value already; a rebuild needs a scope of its own");
  }
  const uint64_t added = scope.size() + key.size() + value.size();
  if (added > kKvBytesMax - bytes_) {
    return ResourceExhausted("key '" + key + "' of " + std::to_string(value.size()) +
                             " bytes does not fit the gang's key-value channel of " +
                             std::to_string(kKvBytesMax) + " bytes");
  }
  bytes_ += added;
  values_[name] = std::move(value);
  std::vector<Waiter> waiters;
  if (const auto node = waiting_.extract(name); !node.empty()) waiters = std::move(node.mapped());
  return waiters;
}

std::optional<std::string> KvStore::Wait(const std::string& scope, const std::string& key,
                                         Waiter waiter) {
  const Key name(scope, key);
  const auto it = values_.find(name);
  if (it != values_.end()) return it->second;
  waiting_[name].push_back(waiter);
  return std::nullopt;
}

void KvStore::ForgetPeer(uint64_t peer) {
  for (auto& [name, waiters] : waiting_) {
    std::erase_if(waiters, [peer](const Waiter& waiter) { return waiter.first == peer; });
  }
}

void KvStore::Clear() {
  values_.clear();
  waiting_.clear();
  bytes_ = 0;
}

}  // namespace ckpt::run
