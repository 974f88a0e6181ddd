// Frames between a rank and its ckpt-run: what is decoded encodes to the same bytes.
#include "libckpt/wire/frames.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input = ckpt::fuzz::Text(data, size);
  const auto frame = ckpt::wire::DecodeFrame(input);
  if (!frame.ok()) return 0;
  FUZZ_CHECK(!ckpt::wire::FrameName(frame->body).empty());
  const auto bytes = ckpt::wire::EncodeFrame(*frame);
  FUZZ_CHECK(bytes.ok() && *bytes == input);
  return 0;
}
