// Job files: YAML of a person's hand, sizes and durations.
#include "coordinator/ckptctl/job_file.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(ckpt::fuzz::Text(data, size));
  ckpt::v1::JobSpec spec;
  const ckpt::Status status = ckpt::ckptctl::ParseJobFile("job.yaml", text, &spec);
  if (!status.ok()) FUZZ_CHECK(status.message().starts_with("job.yaml"));
  ckpt::ckptctl::ParseBytes(text).status().IgnoreError();
  ckpt::ckptctl::ParseMillis(text).status().IgnoreError();
  return 0;
}
