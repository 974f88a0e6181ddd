// Enums in bytes, for messages and the leader's record alike: one byte, checked against the last
// value that exists.
#pragma once

#include <cstdint>

#include "libckpt/base/bytes.h"

namespace ckpt::gang {

template <typename Enum>
void PutEnum(ByteWriter* out, Enum value) {
  out->Put<uint8_t>(static_cast<uint8_t>(value));
}

// A number outside [0, last] is an error.
template <typename Enum>
Enum GetEnum(ByteReader* in, Enum last) {
  const uint8_t value = in->Get<uint8_t>();
  if (value > static_cast<uint8_t>(last)) in->Fail();
  return static_cast<Enum>(value);
}

// One byte, 0 or 1.
inline bool GetBit(ByteReader* in) {
  const uint8_t value = in->Get<uint8_t>();
  if (value > 1) in->Fail();
  return value == 1;
}

}  // namespace ckpt::gang
