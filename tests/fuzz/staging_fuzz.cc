// A staging region that another process has laid out: every offset is checked before it is used.
#include <sys/mman.h>

#include <cstring>

#include "libckpt/base/bytes.h"
#include "libckpt/base/limits.h"
#include "libckpt/engine/staging.h"
#include "tests/fuzz/fuzz.h"

using namespace ckpt;

namespace {

// The input is a list of patches (u32 offset, u16 size, bytes) over a good region, so that what is
// far into the memory can be reached with few bytes.
struct Region {
  MutableByteSpan memory;
  std::string good;

  Region() {
    format::RankLayout layout;
    layout.rank = Rank(1);
    for (const char* name : {"weight", "bias"}) {
      format::TensorMeta tensor;
      tensor.name = name;
      tensor.dtype = format::DType::kF32;
      tensor.global_shape = {4, 6};
      tensor.local = format::Box{{0, 0}, {4, 6}};
      layout.tensors.push_back(tensor);
    }
    plan::RankPlan plan;
    plan.pieces = {{1, {{0, 0}, {4, 6}}, true}, {0, {{0, 0}, {4, 6}}, true}};
    plan.write_count = 2;
    const uint64_t bytes = AlignUp(engine::StagingRegion::BytesNeeded(layout, plan), kPageBytes);
    void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    FUZZ_CHECK(mapped != MAP_FAILED);
    memory = MutableByteSpan(static_cast<std::byte*>(mapped), bytes);
    auto region = engine::StagingRegion::Format(memory, {JobId{}, Rank(1), 2, 5}, layout, plan);
    FUZZ_CHECK(region.ok());
    region->Begin({1, AttemptId{Epoch(1), Step(0), Attempt(1)}, 1, true});
    FUZZ_CHECK(region->SetValues({}).ok() && region->Seal(Step(7)).ok());
    good.assign(AsText(memory.first(64 * 1024)));
  }
};

void Use(engine::StagingRegion* region) {
  for (uint32_t piece = 0; piece < region->plan().pieces.size(); ++piece) {
    const ByteSpan data = std::as_const(*region).piece_data(piece);
    if (!data.empty()) FUZZ_CHECK(data.front() == data.front() && data.back() == data.back());
  }
  region->Values().status().IgnoreError();
  const uint64_t chunks = region->chunk_count();
  for (const uint64_t chunk : {uint64_t{0}, chunks / 2, chunks - 1}) {
    if (chunk < chunks && region->chunk_digest(chunk))
      region->set_chunk_digest(chunk, *region->chunk_digest(chunk));
  }
  FUZZ_CHECK(region->staged_count() <= region->plan().pieces.size());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Region region;
  std::memcpy(region.memory.data(), region.good.data(), region.good.size());
  ByteReader in(fuzz::Text(data, size));
  size_t visible = region.memory.size();
  while (!in.failed() && !in.rest().empty()) {
    const auto at = in.Get<uint32_t>();
    const std::string_view bytes =
        in.GetRaw(std::min<size_t>(in.Get<uint16_t>(), in.rest().size()));
    if (at == UINT32_MAX && !bytes.empty()) {  // the memory is shorter than it says
      visible = kPageBytes * (static_cast<uint8_t>(bytes[0]) + size_t{1});
    } else if (at < region.good.size() && !bytes.empty()) {
      std::memcpy(region.memory.data() + at, bytes.data(),
                  std::min(bytes.size(), region.good.size() - at));
    }
  }
  auto opened =
      engine::StagingRegion::Open(region.memory.first(std::min(visible, region.memory.size())));
  if (opened.ok()) Use(&*opened);
  return 0;
}
