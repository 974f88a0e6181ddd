// The small files that decide what is visible, their names, and what ckptd has stored.
#include "coordinator/core/records.h"
#include "libckpt/format/names.h"
#include "libckpt/format/records.h"
#include "tests/fuzz/fuzz.h"

using namespace ckpt;
using namespace ckpt::format;

namespace {

template <typename File>
void ReadFile(std::string_view text) {
  const auto file = File::Decode(text);
  if (!file.ok()) return;
  const auto again = File::Decode(file->Encode());
  FUZZ_CHECK(again.ok() && *again == *file);
}

void ReadFiles(std::string_view text) {
  ReadFile<JobFile>(text);
  ReadFile<ClaimFile>(text);
  ReadFile<EpochFile>(text);
  ReadFile<CommitFile>(text);
  ReadFile<DrainingFile>(text);
}

void ReadNames(std::string_view name) {
  if (const auto epoch = ParseEpochFileName(name); epoch.ok())
    FUZZ_CHECK(EpochFileName(*epoch) == name);
  if (const auto epoch = ParseClaimFileName(name); epoch.ok())
    FUZZ_CHECK(ClaimFileName(*epoch) == name);
  if (const auto id = AttemptId::Parse(name); id.ok()) FUZZ_CHECK(id->ToString() == name);
}

void ReadStored(std::string_view bytes) {
  if (const auto job = core::DecodeJob(bytes); job.ok())
    FUZZ_CHECK(core::DecodeJob(core::EncodeJob(*job)).ok());
  if (const auto node = core::DecodeNode(bytes); node.ok())
    FUZZ_CHECK(core::DecodeNode(core::EncodeNode(*node)).ok());
  if (const auto operation = core::DecodeOperation(bytes); operation.ok())
    FUZZ_CHECK(core::DecodeOperation(core::EncodeOperation(*operation)).ok());
  core::DecodeEvent(bytes).status().IgnoreError();
  core::DecodeMeta(bytes).status().IgnoreError();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view input = fuzz::Text(data, size);
  switch (fuzz::Pick(&input, 3)) {
    case 0:
      ReadFiles(input);
      ReadFiles(fuzz::Signed(input));
      break;
    case 1:
      ReadNames(input);
      break;
    case 2:
      ReadStored(input);
      break;
  }
  return 0;
}
