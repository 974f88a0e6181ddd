// Two tensors of one dtype and shape, element by element.
#pragma once

#include <cstdint>

#include "libckpt/base/bytes.h"
#include "libckpt/format/types.h"

namespace ckpt::ckptctl {

struct Difference {
  uint64_t count = 0;  // elements whose bits differ
  uint64_t first = 0;  // the first of them, row-major
  double max_abs = 0;  // infinite where a NaN stands against another value
  double max_rel = 0;  // of the larger of the two
};

// Complex numbers count as one element, packed 4-bit floats by the byte. Pre: equal sizes.
Difference Compare(format::DType dtype, ByteSpan a, ByteSpan b);

}  // namespace ckpt::ckptctl
