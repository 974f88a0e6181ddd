#include "libckpt/session/agreement.h"

#include <algorithm>
#include <cassert>

#include "libckpt/base/guard.h"

namespace ckpt::session {
namespace {

// A rank may be busy with a long step before it comes.
constexpr Nanos kGatherMax = std::chrono::minutes(30);
// What one rank brings at most: its layout, or its shard's report with all values.
constexpr uint64_t kGatherBytesMax = uint64_t{256} << 20;

std::string NameOf(char meeting) {
  switch (static_cast<Meeting>(meeting)) {
    case Meeting::kStep:
      return "step";
    case Meeting::kSave:
      return "save";
    case Meeting::kWait:
      return "wait";
    case Meeting::kClose:
      return "close";
    case Meeting::kStop:
      return "the stop";
    case Meeting::kOpen:
      return "open";
    case Meeting::kTrack:
      return "track";
    case Meeting::kReports:
    case Meeting::kFailure:
      return "the end of a save";
  }
  return "another version's call";
}

// "ranks 0 to 2 at step, rank 3 at save": neighbours at one point together.
std::string WhoIsWhere(const std::vector<std::string>& words) {
  std::string text;
  for (size_t first = 0; first < words.size();) {
    size_t last = first;
    while (last + 1 < words.size() && words[last + 1][0] == words[first][0]) ++last;
    text += (text.empty() ? "" : ", ") + std::string(first == last ? "rank " : "ranks ") +
            std::to_string(first) + (first == last ? "" : " to " + std::to_string(last)) + " at " +
            NameOf(words[first][0]);
    first = last + 1;
  }
  return text;
}

}  // namespace

Result<std::vector<std::string>> Agreement::Call(std::string_view mine) {
  std::string all(mine.size() * world_, '\0');
  const Deadline deadline("the ranks' agreement", kGatherMax);
  bool ok = false;
  CKPT_RETURN_IF_ERROR(
      NoThrow("the ranks' collective, at rank " + std::to_string(rank_.value()), [&] {
        ok = allgather_(mine.data(), mine.size(), all.data(), deadline.at_ns());
        return OkStatus();
      }));
  if (!ok)
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
  if (std::any_of(all.begin(), all.end(), [&](const auto& word) { return word[0] != here; }))
    return FailedPrecondition("the ranks are not at the same point: " + WhoIsWhere(all));
  for (std::string& word : all) word.erase(0, 1);
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
