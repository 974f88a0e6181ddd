#include "libckpt/format/types.h"

#include <algorithm>

#include "libckpt/base/digest.h"
#include "libckpt/format/json.h"

namespace ckpt::format {
namespace {

struct DTypeInfo {
  std::string_view name;
  uint32_t bytes;
};
// By number; 0 is no dtype.
constexpr DTypeInfo kDTypes[] = {
    {"", 0},        {"BOOL", 1},    {"U8", 1},  {"I8", 1},    {"U16", 2},  {"I16", 2}, {"U32", 4},
    {"I32", 4},     {"U64", 8},     {"I64", 8}, {"F16", 2},   {"BF16", 2}, {"F32", 4}, {"F64", 8},
    {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"C64", 8}, {"C128", 16}, {"F4X2", 1},
};

const DTypeInfo& InfoOf(DType dtype) {
  const auto number = static_cast<size_t>(dtype);
  return kDTypes[number < std::size(kDTypes) ? number : 0];
}

constexpr uint64_t kTensorBytesMax = uint64_t{INT64_MAX};

// Names in messages: long ones are cut.
std::string Quoted(std::string_view name) {
  if (name.size() <= 200) return "'" + std::string(name) + "'";
  return "'" + std::string(name.substr(0, 200)) + "…' (" + std::to_string(name.size()) + " bytes)";
}

Status BadTensor(const TensorMeta& tensor, const std::string& why) {
  return InvalidArgument("tensor " + Quoted(tensor.name) + ": " + why);
}

// The product without the dimensions that are 0, so that it bounds every partial product.
bool ShapeFits(const std::vector<uint64_t>& shape, uint64_t element_bytes) {
  uint64_t bytes = element_bytes;
  for (const uint64_t dim : shape) {
    if (dim != 0 && MulOverflows(bytes, dim, &bytes)) return false;
    if (bytes > kTensorBytesMax || dim > kTensorBytesMax) return false;
  }
  return true;
}

Status CheckNameOf(const TensorMeta& tensor, std::string_view name, const char* what) {
  if (name.size() > kTensorNameBytesMax) {
    return BadTensor(tensor, std::string(what) + " is longer than " +
                                 std::to_string(kTensorNameBytesMax) + " bytes");
  }
  if (!IsUtf8(name)) return BadTensor(tensor, std::string(what) + " is not UTF-8");
  return OkStatus();
}

void PutDims(ByteWriter* writer, const std::vector<uint64_t>& dims) {
  writer->PutArray<uint64_t>(std::span<const uint64_t>(dims));
}

void PutTensor(ByteWriter* writer, const TensorMeta& tensor) {
  writer->PutString(tensor.name)
      .Put<uint8_t>(static_cast<uint8_t>(tensor.dtype))
      .Put<uint8_t>(static_cast<uint8_t>(tensor.placement));
  PutDims(writer, tensor.global_shape);
  PutDims(writer, tensor.local.offset);
  PutDims(writer, tensor.local.shape);
  writer->PutString(tensor.tied_to).PutBool(tensor.frozen);
}

TensorMeta GetTensor(ByteReader* reader) {
  TensorMeta tensor;
  tensor.name = reader->GetString(kTensorNameBytesMax);
  tensor.dtype = static_cast<DType>(reader->Get<uint8_t>());
  tensor.placement = static_cast<Placement>(reader->Get<uint8_t>());
  tensor.global_shape = reader->GetArray<uint64_t>(kTensorDimsMax);
  tensor.local.offset = reader->GetArray<uint64_t>(kTensorDimsMax);
  tensor.local.shape = reader->GetArray<uint64_t>(kTensorDimsMax);
  tensor.tied_to = reader->GetString(kTensorNameBytesMax);
  const auto frozen = reader->Get<uint8_t>();
  if (frozen > 1) reader->Fail();
  tensor.frozen = frozen == 1;
  return tensor;
}

// Name, dtype, placement, three shapes, tied_to, frozen: at the least.
constexpr size_t kTensorBytesMin = 4 + 1 + 1 + 3 * 4 + 4 + 1;

}  // namespace

uint32_t ElementBytes(DType dtype) { return InfoOf(dtype).bytes; }
std::string_view DTypeName(DType dtype) { return InfoOf(dtype).name; }

Result<DType> ParseDType(std::string_view name) {
  for (size_t i = 1; i < std::size(kDTypes); ++i) {
    if (kDTypes[i].name == name) return static_cast<DType>(i);
  }
  return InvalidArgument("'" + std::string(name.substr(0, 32)) + "' is no dtype");
}

uint64_t Box::ElementCount() const {
  uint64_t count = 1;
  for (const uint64_t dim : shape) count *= dim;
  return count;
}

bool Box::Contains(const Box& inner) const {
  if (inner.shape.size() != shape.size()) return false;
  for (size_t d = 0; d < shape.size(); ++d) {
    const uint64_t end = offset[d] + shape[d];
    if (inner.offset[d] < offset[d] || inner.offset[d] + inner.shape[d] > end) return false;
  }
  return true;
}

Box Box::Intersect(const Box& other) const {
  Box common;
  for (size_t d = 0; d < std::min(shape.size(), other.shape.size()); ++d) {
    const uint64_t begin = std::max(offset[d], other.offset[d]);
    const uint64_t end = std::min(offset[d] + shape[d], other.offset[d] + other.shape[d]);
    common.offset.push_back(begin);
    common.shape.push_back(end > begin ? end - begin : 0);
  }
  return common;
}

Status CheckTensor(const TensorMeta& tensor) {
  CKPT_RETURN_IF_ERROR(CheckNameOf(tensor, tensor.name, "its name"));
  CKPT_RETURN_IF_ERROR(CheckNameOf(tensor, tensor.tied_to, "the name it is tied to"));
  if (ElementBytes(tensor.dtype) == 0) {
    return BadTensor(tensor,
                     "dtype " + std::to_string(static_cast<int>(tensor.dtype)) + " is unknown");
  }
  if (tensor.placement > Placement::kPerRank) return BadTensor(tensor, "unknown placement");
  const size_t dims = tensor.global_shape.size();
  if (dims > kTensorDimsMax) {
    return BadTensor(
        tensor, std::to_string(dims) + " dimensions, more than " + std::to_string(kTensorDimsMax));
  }
  if (!ShapeFits(tensor.global_shape, ElementBytes(tensor.dtype))) {
    return BadTensor(tensor, "its size overflows");
  }
  CKPT_RETURN_IF_ERROR(CheckLocalBox(tensor));
  if (!tensor.tied_to.empty() && tensor.tied_to == tensor.name) {
    return BadTensor(tensor, "it is tied to itself");
  }
  return OkStatus();
}

Status CheckLocalBox(const TensorMeta& tensor) {
  const size_t dims = tensor.global_shape.size();
  if (tensor.local.offset.size() != dims || tensor.local.shape.size() != dims) {
    return BadTensor(tensor, "its local part has another number of dimensions than its shape");
  }
  for (size_t d = 0; d < dims; ++d) {
    uint64_t end = 0;
    if (AddOverflows(tensor.local.offset[d], tensor.local.shape[d], &end) ||
        end > tensor.global_shape[d]) {
      return BadTensor(tensor, "its local part leaves its shape in dimension " + std::to_string(d));
    }
  }
  return OkStatus();
}

std::string RankLayout::Encode() const {
  ByteWriter writer;
  size_t bytes = 8;
  for (const TensorMeta& tensor : tensors)
    bytes += kTensorBytesMin + tensor.name.size() + tensor.tied_to.size() +
             3 * sizeof(uint64_t) * tensor.global_shape.size();
  writer.Reserve(bytes);
  writer.Put<uint32_t>(rank.value()).Put<uint32_t>(static_cast<uint32_t>(tensors.size()));
  for (const TensorMeta& tensor : tensors) PutTensor(&writer, tensor);
  return std::move(writer).Take();
}

Result<RankLayout> RankLayout::Decode(std::string_view bytes) {
  ByteReader reader(bytes);
  RankLayout layout;
  layout.rank = Rank(reader.Get<uint32_t>());
  const uint32_t count = reader.GetCount(kTensorBytesMin);
  if (layout.rank.value() >= kRanksMax || count > kTensorsPerRankMax) reader.Fail();
  for (uint32_t i = 0; i < count && !reader.failed(); ++i) {
    layout.tensors.push_back(GetTensor(&reader));
    if (reader.failed()) break;
    CKPT_RETURN_IF_ERROR(CheckTensor(layout.tensors.back()).Annotate("layout of a rank"));
  }
  CKPT_RETURN_IF_ERROR(reader.Finish("the layout of a rank"));
  return layout;
}

uint64_t RankLayout::Hash() const { return Hash64(AsBytes(Encode())); }

}  // namespace ckpt::format
