#include "libckpt/format/test_data_test.h"

#include <algorithm>
#include <bit>

#include "libckpt/base/digest.h"

namespace ckpt::format {
namespace {

constexpr uint8_t kDTypeCount = 18;

TensorMeta Sliced(std::string name, DType dtype, std::vector<uint64_t> shape, Placement placement,
                  Box local) {
  TensorMeta tensor = WholeTensor(std::move(name), dtype, std::move(shape), placement);
  tensor.local = std::move(local);
  return tensor;
}

RankLayout RichLayout(uint32_t rank) {
  RankLayout layout;
  layout.rank = Rank(rank);
  for (uint8_t number = 1; number <= kDTypeCount; ++number) {
    const auto dtype = static_cast<DType>(number);
    layout.tensors.push_back(WholeTensor("dtype." + std::string(DTypeName(dtype)), dtype, {2, 3}));
  }
  for (const std::string& name : OddNames()) {
    layout.tensors.push_back(WholeTensor(name, DType::kU16, {3}));
  }
  layout.tensors.push_back(WholeTensor("scalar", DType::kF64, {}));
  layout.tensors.push_back(WholeTensor("scalar.complex", DType::kC128, {}));
  layout.tensors.push_back(WholeTensor("nothing", DType::kF32, {3, 0, 2}));
  layout.tensors.push_back(
      Sliced("sharded", DType::kF32, {4, 6}, Placement::kSharded, Box{{rank * 2, 0}, {2, 6}}));
  TensorMeta split = WholeTensor("replicated", DType::kBF16, {5, 300});
  split.frozen = true;
  layout.tensors.push_back(split);
  TensorMeta tied = split;
  tied.name = "tied";
  tied.frozen = false;
  tied.tied_to = "replicated";
  layout.tensors.push_back(tied);
  layout.tensors.push_back(WholeTensor("per.rank", DType::kI32, {rank + 1}, Placement::kPerRank));
  if (rank == 0) {
    layout.tensors.push_back(WholeTensor("owned", DType::kI64, {2}, Placement::kUnsharded));
  }
  return layout;
}

RankValues RichValues(uint32_t rank) {
  RankValues values;
  int number = 0;
  for (const auto& [value, json] : SpelledValues()) {
    values.values.push_back({"value." + std::to_string(number++), Scope::kShared, value});
  }
  values.values.push_back({"rank", Scope::kPerRank, Value{int64_t{rank}}});
  values.blobs.push_back(
      {"config", Scope::kShared, "application/toml", std::string("a = 1\n\0\xff", 8)});
  values.blobs.push_back({"rng", Scope::kPerRank, "application/octet-stream",
                          std::string(rank + 5, static_cast<char>('a' + rank))});
  return values;
}

ShardTensor Piece(const TensorMeta& tensor, Box box) {
  return {tensor.name, tensor.dtype, tensor.placement, tensor.global_shape, std::move(box)};
}

// Whether rank 0 (or 1) writes a whole replicated tensor: they take turns.
bool Writes(uint32_t rank, size_t number) { return number % 2 == rank; }

}  // namespace

std::vector<std::string> OddNames() {
  return {"a.b",
          "a/b",
          "0",
          "é",
          "",
          std::string(kTensorNameBytesMax, 'k'),
          "../x",
          "__metadata__",
          "x#1",
          "x%1",
          "%5F_metadata__",
          "\"\\\n\x01"};
}

TensorMeta WholeTensor(std::string name, DType dtype, std::vector<uint64_t> shape,
                       Placement placement) {
  TensorMeta tensor;
  tensor.name = std::move(name);
  tensor.dtype = dtype;
  tensor.placement = placement;
  tensor.local = Box{std::vector<uint64_t>(shape.size(), 0), shape};
  tensor.global_shape = std::move(shape);
  return tensor;
}

std::vector<std::pair<Value, std::string>> SpelledValues() {
  const auto text = [](const char* t) { return Value{std::string(t)}; };
  const auto number = [](int64_t n) { return Value{n}; };
  const auto bits = [](uint64_t b) { return Value{std::bit_cast<double>(b)}; };
  return {
      {Value{}, "null"},
      {Value{true}, "true"},
      {Value{false}, "false"},
      {number(0), "0"},
      {number(INT64_MIN), "-9223372036854775808"},
      {number(INT64_MAX), "9223372036854775807"},
      {Value{ValueBigInt{"9223372036854775808"}}, R"({"$i":"9223372036854775808"})"},
      {Value{ValueBigInt{"-123456789012345678901234567890"}},
       R"({"$i":"-123456789012345678901234567890"})"},
      {Value{0.0}, "0.0"},
      {Value{1.0}, "1.0"},
      {Value{0.1}, "0.1"},
      {Value{-1.5}, "-1.5"},
      {Value{1e15}, "1000000000000000.0"},
      {Value{1e16}, "1e+16"},
      {Value{1.5e300}, "1.5e+300"},
      {Value{0.0001}, "0.0001"},
      {Value{0.00001}, "1e-05"},
      {Value{5e-324}, "5e-324"},
      {Value{123456.789}, "123456.789"},
      {Value{-0.0}, R"({"$f":"8000000000000000"})"},
      {bits(0x7ff0000000000000), R"({"$f":"7ff0000000000000"})"},
      {bits(0xfff8000000000001), R"({"$f":"fff8000000000001"})"},
      {text(""), R"("")"},
      {text("é\"\\/\n\x01\x7f"), "\"é\\\"\\\\/\\n\\u0001\x7f\""},
      {text("\xff"), R"({"$s":"/w=="})"},
      {Value{ValueBytes{""}}, R"({"$b":""})"},
      {Value{ValueBytes{std::string("\0\xff", 2)}}, R"({"$b":"AP8="})"},
      {Value{ValueList{}}, "[]"},
      {Value{ValueTuple{}}, R"({"$t":[]})"},
      {Value{ValueDictBox{}}, "{}"},
      {Value{ValueList{number(1), Value{ValueTuple{{Value{}, Value{2.0}}}}}},
       R"([1,{"$t":[null,2.0]}])"},
      {Value{ValueDictBox{{{text("z"), number(1)}, {text("a"), Value{ValueList{}}}}}},
       R"({"z":1,"a":[]})"},
      {Value{ValueDictBox{{{number(1), text("a")}, {text("1"), Value{}}, {Value{}, number(3)}}}},
       R"({"$d":[[1,"a"],["1",null],[null,3]]})"},
      {Value{ValueDictBox{{{text("$b"), text("not a tag")}}}}, R"({"$d":[["$b","not a tag"]]})"},
  };
}

Manifest RichManifest() {
  Manifest manifest;
  for (size_t i = 0; i < manifest.job.bytes.size(); ++i) {
    manifest.job.bytes[i] = static_cast<uint8_t>(i * 17);
  }
  manifest.id = {Epoch(2), Step(-7), Attempt(3)};
  for (uint32_t rank = 0; rank < 2; ++rank) {
    manifest.layouts.push_back(RichLayout(rank));
    manifest.values.push_back(RichValues(rank));
  }
  return manifest;
}

std::vector<std::vector<ShardTensor>> RichShards() {
  std::vector<std::vector<ShardTensor>> shards(2);
  for (uint32_t rank = 0; rank < 2; ++rank) {
    size_t number = 0;
    for (const TensorMeta& tensor : RichLayout(rank).tensors) {
      ++number;
      if (!tensor.tied_to.empty()) continue;
      if (tensor.name == "replicated") {  // split within a row
        const auto halves = rank == 0 ? std::vector<Box>{{{0, 0}, {2, 300}}, {{2, 0}, {1, 150}}}
                                      : std::vector<Box>{{{2, 150}, {1, 150}}, {{3, 0}, {2, 300}}};
        for (const Box& box : halves) shards[rank].push_back(Piece(tensor, box));
      } else if (tensor.placement != Placement::kReplicated || Writes(rank, number)) {
        shards[rank].push_back(Piece(tensor, tensor.local));
      }
    }
    std::sort(shards[rank].begin(), shards[rank].end(), ShardOrderLess);
  }
  return shards;
}

std::string ShardStream(const ShardLayout& layout) {
  std::string stream = layout.header;
  for (const ShardTensor& tensor : layout.tensors) {
    uint64_t state = Hash64(AsBytes(ShardKey(tensor)), tensor.begin);
    for (uint64_t i = tensor.begin; i < tensor.end; ++i) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      const auto byte = static_cast<char>(state >> 56);
      stream += tensor.dtype == DType::kBool ? static_cast<char>(byte & 1) : byte;
    }
  }
  return stream;
}

ShardIndex IndexOf(const Manifest& manifest, Rank rank, const ShardLayout& layout,
                   const std::string& stream) {
  std::vector<Digest> digests;
  for (const ChunkRange& chunk : layout.chunks) {
    const uint64_t seed = ChunkSeed(manifest.uid(), rank.value(), digests.size());
    digests.push_back(
        DigestOf(AsBytes(stream).subspan(chunk.begin, chunk.end - chunk.begin), seed));
  }
  return MakeRawIndex(manifest.uid(), rank, layout, digests);
}

}  // namespace ckpt::format
