// The value tree, one rank's values and blobs, one rank's layout, a rank's plan.
#include "libckpt/format/types.h"
#include "libckpt/format/values.h"
#include "libckpt/plan/plan.h"
#include "tests/fuzz/fuzz.h"

using namespace ckpt;
using namespace ckpt::format;

namespace {

void ReadValue(std::string_view input) {
  const auto value = Value::FromJson(input);
  if (!value.ok()) return;
  FUZZ_CHECK(value->ToJson() == input);
  FUZZ_CHECK(CheckValue(*value).ok());
}

void ReadValues(std::string_view input) {
  const auto values = RankValues::Decode(input);
  if (!values.ok()) return;
  const auto again = RankValues::Decode(values->Encode());
  FUZZ_CHECK(again.ok() && *again == *values);
}

RankLayout SampleLayout() {
  RankLayout layout;
  layout.rank = Rank(0);
  for (const char* name : {"a", "b"}) {
    TensorMeta tensor;
    tensor.name = name;
    tensor.dtype = DType::kF32;
    tensor.placement = Placement::kReplicated;
    tensor.global_shape = {8, 16};
    tensor.local = Box{{0, 0}, {8, 16}};
    layout.tensors.push_back(tensor);
  }
  return layout;
}

void ReadPlan(std::string_view input) {
  const RankLayout layout = SampleLayout();
  const auto plan = ckpt::plan::RankPlan::Decode(input, layout);
  if (!plan.ok()) return;
  FUZZ_CHECK(plan->Encode() == input);
  FUZZ_CHECK(plan->WriteBytes(layout) <= plan->StageBytes(layout));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view input = fuzz::Text(data, size);
  switch (fuzz::Pick(&input, 4)) {
    case 0:
      ReadValue(input);
      break;
    case 1:
      ReadValues(input);
      break;
    case 2:
      if (const auto layout = RankLayout::Decode(input); layout.ok()) {
        FUZZ_CHECK(layout->Encode() == input);
        for (const TensorMeta& tensor : layout->tensors) FUZZ_CHECK(CheckTensor(tensor).ok());
      }
      break;
    case 3:
      ReadPlan(input);
      break;
  }
  return 0;
}
