// MANIFEST: what is read is written again byte for byte, unless it holds keys of a later release.
#include "libckpt/format/manifest.h"
#include "tests/fuzz/fuzz.h"

using ckpt::format::Manifest;

namespace {

void Read(std::string_view text) {
  const auto manifest = Manifest::Decode(text);
  if (!manifest.ok()) return;
  FUZZ_CHECK(manifest->layouts.size() == manifest->values.size());
  const auto again = manifest->Encode();
  FUZZ_CHECK(again.ok());
  const auto same = Manifest::Decode(*again);
  FUZZ_CHECK(same.ok() && *same == *manifest);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input = ckpt::fuzz::Text(data, size);
  Read(input);
  Read(ckpt::fuzz::Signed(input));
  return 0;
}
