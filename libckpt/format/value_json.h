// A value within a larger JSON document, inside this layer only.
#pragma once

#include <cstdint>

#include "libckpt/format/json.h"
#include "libckpt/format/types.h"

namespace ckpt::format {

// kInvalidArgument for what is no value. Its spelling is the caller's to check (compare ToJson).
Result<Value> ValueFromView(const JsonView& node);

// What an item counts against kValueBytesMax.
uint64_t ItemBytes(const NamedValue& value);
uint64_t ItemBytes(const NamedBlob& blob);

}  // namespace ckpt::format
