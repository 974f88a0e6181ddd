// Entries for fuzzers: any bytes, as they may come from a peer or from a damaged page.
#pragma once

#include <string_view>

namespace ckpt::gang {

// Both decode, and are true if that was strict: refused, or what was decoded encodes to exactly
// these bytes. False is a bug.
bool FuzzMessage(std::string_view bytes);
bool FuzzLeaderRecord(std::string_view bytes);

}  // namespace ckpt::gang
