// The gang's key-value channel, held by the leader: what ranks need to find each other when they
// build communicators. Values are set once and kept until the next launch; waiting is a question
// that is answered when the key is set. Pure.
//
// I1  A key's value never changes within a launch: a second set with other bytes is refused.
// I2  At most kKvBytesMax of keys and values are held.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "libckpt/base/status.h"

namespace ckpt::run {

inline constexpr uint64_t kKvBytesMax = uint64_t{64} << 20;

class KvStore {
 public:
  using Waiter = std::pair<uint64_t, uint64_t>;  // (peer, its request)

  // Those to be told, in the order they asked. Errors: kAlreadyExists (I1), kResourceExhausted
  // (I2).
  Result<std::vector<Waiter>> Set(const std::string& scope, const std::string& key,
                                  std::string value);
  // The value, or nothing: `waiter` comes out of the Set that provides it.
  std::optional<std::string> Wait(const std::string& scope, const std::string& key, Waiter waiter);
  // The peer is gone, nobody listens.
  void ForgetPeer(uint64_t peer);
  // A new launch begins.
  void Clear();

 private:
  using Key = std::pair<std::string, std::string>;
  std::map<Key, std::string> values_;
  std::map<Key, std::vector<Waiter>> waiting_;
  uint64_t bytes_ = 0;
};

}  // namespace ckpt::run
