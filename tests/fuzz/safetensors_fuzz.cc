// Headers of safetensors files that somebody else wrote. An input is how many bytes of data the
// file has, then the header.
#include "coordinator/ckptctl/safetensors.h"
#include "libckpt/base/bytes.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ckpt;
  using namespace ckpt::ckptctl;
  const std::string_view input = fuzz::Text(data, size);
  if (input.size() < 8) return 0;
  ByteReader in(input);
  uint64_t file_bytes = 0;
  const std::string_view json = input.substr(8);
  if (AddOverflows(in.Get<uint64_t>(), 8 + json.size(), &file_bytes)) return 0;
  SafetensorsHeaderBytes("x", input.substr(0, 8), input.size()).status().IgnoreError();
  auto header = ParseSafetensorsHeader("x", json, file_bytes);
  if (!header.ok()) {
    FUZZ_CHECK(header.status().message().starts_with("x"));
    return 0;
  }
  ApplyTrueDTypes("x", &*header).IgnoreError();
  uint64_t at = 8 + json.size();
  for (const SafetensorsEntry& entry : header->tensors) {
    FUZZ_CHECK(entry.begin == at && entry.end >= entry.begin);
    uint64_t bytes = format::ElementBytes(entry.dtype);
    for (const uint64_t dim : entry.shape) bytes *= dim;
    FUZZ_CHECK(entry.end - entry.begin == bytes);
    at = entry.end;
  }
  FUZZ_CHECK(at == file_bytes);
  return 0;
}
