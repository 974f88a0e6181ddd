// Any number of ranks to any other, over random cuts of each tensor (rows, columns, blocks, uneven,
// empty), sharded to replicated and back: what is loaded is what a plain array of the whole tensor
// would give. The content of an element is a function of its place in the whole tensor, so the
// reference needs no memory.
#include "libckpt/testing/seed.h"
#include "tests/storage/small_job.h"

namespace ckpt::engine::testing {
namespace {

// Splits [0, size) in `parts`, some of them perhaps empty.
std::vector<std::pair<uint64_t, uint64_t>> Cut(uint64_t size, uint32_t parts, Rng* rng) {
  std::vector<uint64_t> edges = {0, size};
  for (uint32_t i = 1; i < parts; ++i) edges.push_back(rng->Below(size + 1));
  std::sort(edges.begin(), edges.end());
  std::vector<std::pair<uint64_t, uint64_t>> ranges;
  for (uint32_t i = 0; i < parts; ++i) ranges.emplace_back(edges[i], edges[i + 1] - edges[i]);
  return ranges;
}

// A box for each rank that together tile the tensor: cut along one dimension, or along two.
std::vector<format::Box> Boxes(const std::vector<uint64_t>& shape, uint32_t world, Rng* rng) {
  std::vector<format::Box> boxes(world, format::Box{std::vector<uint64_t>(shape.size()), shape});
  uint32_t rows = world;
  if (shape.size() > 1 && world % 2 == 0 && rng->Below(2) == 0) rows = world / 2;
  const size_t first = rng->Below(shape.size());
  const size_t second = (first + 1) % shape.size();
  const auto cut_rows = Cut(shape[first], rows, rng);
  const auto cut_columns = Cut(shape[second], world / rows, rng);
  for (uint32_t r = 0; r < world; ++r) {
    std::tie(boxes[r].offset[first], boxes[r].shape[first]) = cut_rows[r % rows];
    if (rows != world)
      std::tie(boxes[r].offset[second], boxes[r].shape[second]) = cut_columns[r / rows];
  }
  return boxes;
}

struct Tensor {
  std::string name;
  format::DType dtype;
  std::vector<uint64_t> shape;
};

std::vector<Tensor> RandomTensors(Rng* rng) {
  constexpr format::DType kDTypes[] = {format::DType::kF32, format::DType::kBF16,
                                       format::DType::kU8, format::DType::kC128,
                                       format::DType::kF8E4M3};
  std::vector<Tensor> tensors;
  for (int t = 0; t < 4; ++t) {
    Tensor tensor{"tensor." + std::to_string(t), kDTypes[rng->Below(5)], {}};
    const uint64_t dims = 1 + rng->Below(3);
    for (uint64_t d = 0; d < dims; ++d)
      tensor.shape.push_back(1 + rng->Below(dims == 1 ? 500 : 17));
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

// Each tensor sharded by cuts of this world's own, or replicated.
std::vector<TestRank> Lay(const std::vector<Tensor>& tensors, uint32_t world, Rng* rng) {
  std::vector<TestRank> ranks(world);
  for (const Tensor& tensor : tensors) {
    const bool replicated = rng->Below(4) == 0;
    const auto boxes = Boxes(tensor.shape, world, rng);
    for (uint32_t r = 0; r < world; ++r) {
      ranks[r].tensors.emplace_back(
          replicated ? Meta(tensor.name, tensor.dtype, format::Placement::kReplicated, tensor.shape)
                     : Shard(tensor.name, tensor.dtype, tensor.shape, boxes[r]),
          r);
    }
  }
  return ranks;
}

TEST(ReshardProperty, AnyCutsOfAnyWorldToAnyOther) {
  Rng rng = ckpt::testing::TestRng("cuts and worlds", 11);
  const int rounds = std::getenv("CKPT_SOAK") != nullptr ? 2000 : 60;
  for (int round = 0; round < rounds; ++round) {
    const std::vector<Tensor> tensors = RandomTensors(&rng);
    const auto from = static_cast<uint32_t>(1 + rng.Below(6));
    const auto to = static_cast<uint32_t>(1 + rng.Below(6));
    TestStore store;
    TestGang writer(Lay(tensors, from, &rng));
    writer.MakeRegions(store.job);
    writer.Fill(1);
    WriteOptions options;
    options.chunk_bytes = 16 * (1 + rng.Below(64));
    options.compression_level = static_cast<int>(rng.Below(2));
    ASSERT_CKPT_OK(writer.Save(store.store.get(), store.job, store.Id(1), false, options));
    TestGang reader(Lay(tensors, to, &rng));
    reader.Clear();
    auto opened = OpenCheckpoint(store.store.get(), store.Id(1));
    ASSERT_TRUE(opened.ok()) << opened.status().ToString();
    ASSERT_CKPT_OK(reader.LoadAll(opened.value().get()));
    ASSERT_EQ(reader.CountWrong(1), 0u) << "round " << round << ": " << from << " ranks to " << to;
  }
}

}  // namespace
}  // namespace ckpt::engine::testing
