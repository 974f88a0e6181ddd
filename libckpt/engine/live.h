// A LiveTensor as a place that bytes are copied from or to: its view, its device, and how a block
// of elements becomes copies of that device.
#pragma once

#include <string>
#include <vector>

#include "libckpt/engine/engine.h"
#include "libckpt/engine/strided.h"

namespace ckpt::engine {

// kInvalidArgument naming the tensor if it has elements but no memory, or strides of another
// number than dims.
Status CheckLive(const LiveTensor& tensor);

View ViewOf(const LiveTensor& tensor);

// Whether the CPU may touch the tensor's memory.
bool OnHost(const LiveTensor& tensor);

// The distinct (device, stream) pairs of tensors, devices together.
struct StreamUse {
  device::Device* device = nullptr;
  device::StreamHandle stream = nullptr;
  bool operator==(const StreamUse&) const = default;
};
std::vector<StreamUse> StreamsOf(const std::vector<LiveTensor>& tensors, bool on_host);

// Returns when everything enqueued on `use.stream` so far has happened.
Status AwaitStream(const StreamUse& use, const Deadline& deadline);
// The same for those who cannot go on otherwise: a call that fails is made again until the
// deadline, unless the device does nothing any more. What is left then is logged.
void DrainStream(const StreamUse& use, const Deadline& deadline);

// Calls `fn(device offset, host offset, shape)`, all in bytes, for the copies that move `block`;
// view a is the device's if `device_is_a`. Rows that overlap or run backwards go one by one: copy
// engines take only pitches of at least a row.
template <typename Fn>
Status ForEachDeviceCopy(const Block& block, uint32_t element_bytes, bool device_is_a, Fn&& fn) {
  const auto scale = static_cast<int64_t>(element_bytes);
  int64_t device_at = (device_is_a ? block.a_offset : block.b_offset) * scale;
  int64_t host_at = (device_is_a ? block.b_offset : block.a_offset) * scale;
  const int64_t device_pitch = (device_is_a ? block.a_pitch : block.b_pitch) * scale;
  const int64_t host_pitch = (device_is_a ? block.b_pitch : block.a_pitch) * scale;
  const auto copy = [&](uint64_t row_bytes, uint64_t rows, int64_t from, int64_t to,
                        int64_t from_pitch, int64_t to_pitch) -> Status {
    const auto width = static_cast<int64_t>(row_bytes);
    if (rows == 1 || (from_pitch >= width && to_pitch >= width)) {
      return fn(from, to, device::CopyShape{row_bytes, rows, from_pitch, to_pitch});
    }
    for (uint64_t row = 0; row < rows; ++row) {
      CKPT_RETURN_IF_ERROR(fn(from, to, device::CopyShape{row_bytes, 1, width, width}));
      from += from_pitch;
      to += to_pitch;
    }
    return OkStatus();
  };
  if (block.a_stride == 1 && block.b_stride == 1) {
    return copy(block.count * element_bytes, block.rows, device_at, host_at, device_pitch,
                host_pitch);
  }
  for (uint64_t row = 0; row < block.rows; ++row) {
    CKPT_RETURN_IF_ERROR(copy(element_bytes, block.count, device_at, host_at,
                              (device_is_a ? block.a_stride : block.b_stride) * scale,
                              (device_is_a ? block.b_stride : block.a_stride) * scale));
    device_at += device_pitch;
    host_at += host_pitch;
  }
  return OkStatus();
}

}  // namespace ckpt::engine
