// What a shard that is being written need not hold: chunks that have not changed since the newest
// checkpoint, which is the *base*. A chunk refers to the file that holds it, of the base or of one
// that the base refers to itself; so reading never follows more than one reference.
//
// References are an economy: whatever is in the way (another layout, a base that is damaged or
// about to be retired) makes the shard whole, never the save fail.
//
// I1  The attempt names its origins in the store before it uses one (Store::NameOrigins).
// I2  A checkpoint refers to at most kOriginsMax others: all its ranks agree on the base, whose
//     MANIFEST says which of its own origins holds least; that one is given up.
// I3  What an origin holds is written anew once less than half of that file is still in use.
#pragma once

#include <optional>
#include <vector>

#include "libckpt/format/index.h"
#include "libckpt/storage/store.h"

namespace ckpt::engine {

class BaseShard {
 public:
  // Nothing to refer to: nullopt, said in the log if it is not simply the first save.
  static std::optional<BaseShard> Find(storage::Store* store, const JobId& job, const AttemptId& id,
                                       Rank rank, const format::ShardLayout& layout);

  // The entry of chunk `chunk` if it is stored already with just these bytes; `origin` in it counts
  // in origins(). Threads: safe.
  std::optional<format::ChunkEntry> Match(uint64_t chunk, const std::vector<ByteSpan>& spans) const;
  // Candidates, by rising id.
  const std::vector<format::Origin>& origins() const { return origins_; }

 private:
  BaseShard() = default;
  static Result<std::optional<BaseShard>> TryFind(storage::Store* store, const JobId& job,
                                                  const AttemptId& id, Rank rank,
                                                  const format::ShardLayout& layout);
  void AddOrigins(storage::Store* store, const format::Origin& self,
                  const std::vector<AttemptId>& named);
  uint8_t NumberOf(const format::Origin& origin) const;  // 0: not among origins_

  format::ShardIndex index_;  // of the base
  std::vector<format::Origin> origins_;
  uint8_t self_ = 0;             // the base's number
  std::vector<uint8_t> number_;  // by the base's own origins
};

// The digest of bytes in several places.
Digest DigestOfSpans(const std::vector<ByteSpan>& spans, uint64_t seed);

}  // namespace ckpt::engine
