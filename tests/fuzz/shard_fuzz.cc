// The header of a shard, and a tensor's key in it.
#include "libckpt/base/bytes.h"
#include "libckpt/format/shard.h"
#include "tests/fuzz/fuzz.h"

using namespace ckpt;
using namespace ckpt::format;

namespace {

void ReadHeader(std::string_view input) {
  ByteReader in(input);
  const auto stream_bytes = in.Get<uint64_t>();
  const std::string_view stream = in.rest();
  const auto header_bytes = ShardHeaderBytes(stream.substr(0, 8), stream_bytes);
  if (!header_bytes.ok()) return;
  FUZZ_CHECK(*header_bytes <= stream_bytes);
  if (*header_bytes > stream.size()) return;
  const auto header = ParseShardHeader(stream.substr(0, *header_bytes), stream_bytes);
  if (!header.ok()) return;
  uint64_t at = header->header_bytes;
  for (const HeaderEntry& entry : header->entries) {
    FUZZ_CHECK(entry.begin == at && entry.end >= entry.begin);
    at = entry.end;
  }
  FUZZ_CHECK(at == stream_bytes);
}

void ReadKey(std::string_view input) {
  const auto parsed = ParseShardKey(input);
  if (!parsed.ok()) return;
  ShardTensor tensor;
  tensor.name = parsed->name;
  if (parsed->sliced) {
    tensor.box = parsed->box;
    tensor.global_shape.assign(parsed->box.shape.size(), UINT64_MAX);
  }
  FUZZ_CHECK(ShardKey(tensor) == input);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view input = fuzz::Text(data, size);
  if (fuzz::Pick(&input, 2) == 0) {
    ReadHeader(input);
  } else {
    ReadKey(input);
  }
  return 0;
}
