// Checks of the value tree at save time: what the encoders of types.h take for granted. A program's
// value is checked once, when it is handed over, so that a save never fails on it later.
#pragma once

#include <string>

#include "libckpt/base/status.h"
#include "libckpt/format/types.h"

namespace ckpt::format {

inline constexpr size_t kBigIntDigitsMax = 4096;

// kInvalidArgument naming what is wrong: nested deeper than kValueDepthMax, a big integer that is
// not canonical decimal or fits int64, a dict key that is no scalar, two equal keys.
Status CheckValue(const Value& value);
// The same for all values of a rank, and: names (UTF-8, at most 4 KiB, no two equal among values or
// among blobs), media types, total size within kValueBytesMax. Names the offender.
Status CheckRankValues(const RankValues& values);

}  // namespace ckpt::format
