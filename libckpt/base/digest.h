// Digests: XXH3 over bytes. They find accidents, not forgery.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "libckpt/base/bytes.h"
#include "libckpt/base/ids.h"

namespace ckpt {

// XXH3-128 in the canonical (big-endian) byte order of the algorithm's specification.
struct Digest {
  std::array<uint8_t, 16> bytes{};
  bool operator==(const Digest&) const = default;
  bool IsZero() const { return bytes == std::array<uint8_t, 16>{}; }
  std::string ToString() const;  // 32 hex digits
  static Result<Digest> Parse(std::string_view hex);
};

Digest DigestOf(ByteSpan data, uint64_t seed = 0);
uint64_t Hash64(ByteSpan data, uint64_t seed = 0);

// The seed of a chunk's digest: XXH3-64 over the 16 id bytes of its checkpoint ‖ shard u32 LE ‖
// chunk u64 LE. A chunk that looks good in the wrong place has the wrong seed.
uint64_t ChunkSeed(const std::array<uint8_t, 16>& checkpoint_uid, uint32_t shard, uint64_t chunk);

// A digest taken piece by piece; the same value as DigestOf over the concatenation.
class DigestStream {
 public:
  explicit DigestStream(uint64_t seed = 0);
  ~DigestStream();
  DigestStream(DigestStream&&) noexcept;
  DigestStream& operator=(DigestStream&&) noexcept;
  void Update(ByteSpan data);
  Digest Finish() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ckpt
