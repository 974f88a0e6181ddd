#include "libckpt/session/agreement.h"

#include <algorithm>
#include <cassert>

namespace ckpt::session {
namespace {

// A rank may be busy with a long step before it comes.
constexpr Nanos kGatherMax = std::chrono::minutes(30);
// What one rank brings at most: its layout, or its shard's report with all values.
constexpr uint64_t kGatherBytesMax = uint64_t{256} << 20;

}  // namespace

Result<std::vector<std::string>> Agreement::Call(std::string_view mine) {
  std::string all(mine.size() * world_, '\0');
  const Deadline deadline("the ranks' agreement", kGatherMax);
  if (!allgather_(mine.data(), mine.size(), all.data(), deadline.at_ns()))
    return Unavailable("the collective of rank " + std::to_string(rank_.value()) +
                       " failed; the ranks cannot agree on saves any more");
  std::vector<std::string> by_rank;
  for (uint32_t rank = 0; rank < world_; ++rank)
    by_rank.push_back(all.substr(rank * mine.size(), mine.size()));
  return by_rank;
}

Result<std::vector<std::string>> Agreement::Gather(Meeting meeting, std::string_view mine) {
  assert(mine.size() == kWordBytes);
  const char here = static_cast<char>(meeting);
  CKPT_ASSIGN_OR_RETURN(std::vector<std::string> all, Call(here + std::string(mine)));
  for (std::string& word : all) {
    if (word[0] != here)
      return FailedPrecondition("the ranks are not at the same point (step, save, wait or close)");
    word.erase(0, 1);
  }
  return all;
}

Result<std::vector<std::string>> Agreement::GatherAny(Meeting meeting, std::string_view mine) {
  CKPT_ASSIGN_OR_RETURN(const std::vector<std::string> sizes,
                        Gather(meeting, ByteWriter().Put<uint64_t>(mine.size()).str()));
  std::vector<uint64_t> bytes;
  for (const std::string& size : sizes) bytes.push_back(ByteReader(size).Get<uint64_t>());
  const uint64_t longest = *std::max_element(bytes.begin(), bytes.end());
  if (longest > kGatherBytesMax)
    return ResourceExhausted("a rank brings " + FormatBytes(longest) +
                             " to an agreement; at most " + FormatBytes(kGatherBytesMax) +
                             " are possible");
  if (longest == 0) return std::vector<std::string>(world_);
  std::string padded(mine);
  padded.resize(longest);
  CKPT_ASSIGN_OR_RETURN(std::vector<std::string> all, Call(padded));
  for (size_t rank = 0; rank < all.size(); ++rank) all[rank].resize(bytes[rank]);
  return all;
}

}  // namespace ckpt::session
