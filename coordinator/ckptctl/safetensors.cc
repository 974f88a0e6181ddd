#include "coordinator/ckptctl/safetensors.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <unordered_set>

#include "libckpt/base/bytes.h"
#include "libckpt/base/limits.h"
#include "libckpt/format/shard.h"

namespace ckpt::ckptctl {
namespace {

using format::DType;

constexpr std::string_view kMetadata = "__metadata__";
constexpr std::string_view kOurs = "ckpt";  // in the metadata of our shards

std::string Quoted(std::string_view name) { return "'" + std::string(name.substr(0, 200)) + "'"; }

// What upstream knows. F4 has two elements in a byte.
Result<DType> DTypeOf(const std::string& name) {
  if (name == "F4") return DType::kF4x2;
  for (const char* same : {"BOOL", "U8", "I8", "U16", "I16", "U32", "I32", "U64", "I64", "F16",
                           "BF16", "F32", "F64", "F8_E4M3", "F8_E5M2", "C64"}) {
    if (name == same) return format::ParseDType(name);
  }
  return FailedPrecondition("dtype " + Quoted(name) +
                            ": checkpoints do not know it; convert that tensor first");
}

// Follows the parser through { "name": { field: "x" or [numbers] } } and refuses all else.
class HeaderSax : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit HeaderSax(SafetensorsHeader* header) : header_(header) {}
  const Status& status() const { return status_; }

  bool null() override { return Unexpected("null"); }
  bool boolean(bool) override { return Unexpected("a boolean"); }
  bool number_integer(number_integer_t) override { return Unexpected("a negative number"); }
  bool number_float(number_float_t, const string_t&) override {
    return Unexpected("a number that is not whole");
  }
  bool binary(binary_t&) override { return Unexpected("bytes"); }
  bool number_unsigned(number_unsigned_t number) override {
    if (numbers_ == nullptr) return Unexpected("a number");
    if (numbers_->size() > kTensorDimsMax) return Refuse("too many numbers in a list");
    numbers_->push_back(number);
    return true;
  }
  bool string(string_t& text) override {
    if (depth_ == 2 && in_metadata_) {
      header_->metadata.back().second = std::move(text);
      return true;
    }
    if (depth_ != 2 || field_ != "dtype") return Unexpected("a string");
    Result<DType> dtype = DTypeOf(text);
    if (!dtype.ok()) return Refuse(std::move(dtype).status());
    header_->tensors.back().dtype = *dtype;
    four_bits_ = text == "F4";
    return true;
  }
  bool start_object(size_t) override {
    if (depth_ == 2 || numbers_ != nullptr) return Unexpected("an object");
    ++depth_;
    fields_.clear();
    return true;
  }
  bool key(string_t& key) override {
    if (depth_ == 1) return StartEntry(std::move(key));
    if (!fields_.insert(key).second) return Refuse("has " + Quoted(key) + " twice");
    if (in_metadata_) header_->metadata.emplace_back(key, "");
    if (!in_metadata_ && key != "dtype" && key != "shape" && key != "data_offsets")
      return Refuse("has an unknown field " + Quoted(key));
    field_ = std::move(key);
    return true;
  }
  bool end_object() override {
    --depth_;
    return depth_ == 0 || in_metadata_ || EndTensor();
  }
  bool start_array(size_t) override {
    if (depth_ != 2 || in_metadata_ || numbers_ != nullptr || field_ == "dtype")
      return Unexpected("a list");
    numbers_ = field_ == "shape" ? &header_->tensors.back().shape : &offsets_;
    return true;
  }
  bool end_array() override {
    numbers_ = nullptr;
    return true;
  }
  bool parse_error(size_t at, const std::string&, const nlohmann::json::exception& error) override {
    const char* const said = std::strstr(error.what(), ": ");
    status_ = DataLoss("byte " + std::to_string(at) + " is no JSON" + (said ? said : ""));
    return false;
  }

 private:
  bool StartEntry(std::string name) {
    entry_ = name;
    in_metadata_ = name == kMetadata;
    offsets_.clear();
    four_bits_ = false;
    if (!names_.insert(name).second) return Refuse("comes twice");
    if (header_->tensors.size() == kTensorsPerRankMax) return Refuse("is one tensor too many");
    if (!in_metadata_) header_->tensors.push_back({std::move(name), DType::kU8, {}, 0, 0});
    return true;
  }

  bool EndTensor() {
    SafetensorsEntry& tensor = header_->tensors.back();
    for (const char* field : {"dtype", "shape", "data_offsets"}) {
      if (!fields_.contains(field)) return Refuse(std::string("lacks its ") + field);
    }
    if (offsets_.size() != 2) return Refuse("its data_offsets are not two numbers");
    if (tensor.shape.size() > kTensorDimsMax) return Refuse("has too many dimensions");
    if (four_bits_) {
      if (tensor.shape.empty() || tensor.shape.back() % 2 != 0)
        return Refuse("has an odd number of 4-bit elements in a row");
      tensor.shape.back() /= 2;
    }
    uint64_t bytes = format::ElementBytes(tensor.dtype);
    bool fits = true;
    for (const uint64_t dim : tensor.shape) fits = fits && !MulOverflows(bytes, dim, &bytes);
    // A dimension of 0 empties a tensor whose other dimensions overflow.
    if (std::count(tensor.shape.begin(), tensor.shape.end(), 0u) != 0) fits = true, bytes = 0;
    tensor.begin = offsets_[0];
    tensor.end = offsets_[1];
    if (!fits || tensor.end < tensor.begin || tensor.end - tensor.begin != bytes)
      return Refuse("the size of its data is not that of its shape");
    return true;
  }

  bool Unexpected(const char* what) {
    return Refuse(std::string(what) + " where none belongs" +
                  (field_.empty() ? "" : ", at " + Quoted(field_)));
  }
  bool Refuse(const std::string& why) { return Refuse(DataLoss(why)); }
  bool Refuse(Status status) {
    status_ = std::move(status).Annotate(entry_.empty() ? "header" : Quoted(entry_));
    return false;
  }

  SafetensorsHeader* const header_;
  Status status_;
  int depth_ = 0;
  std::string entry_, field_;
  bool in_metadata_ = false, four_bits_ = false;
  std::unordered_set<std::string> names_;
  std::set<std::string> fields_;
  std::vector<uint64_t>* numbers_ = nullptr;
  std::vector<uint64_t> offsets_;
};

// I1. Offsets become those of the file.
Status CheckCover(std::vector<SafetensorsEntry>* tensors, uint64_t data_begin, uint64_t data_end) {
  std::sort(tensors->begin(), tensors->end(),
            [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
              return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
            });
  const uint64_t data_bytes = data_end - data_begin;
  uint64_t at = 0;
  std::string before = "the header";
  for (SafetensorsEntry& tensor : *tensors) {
    if (tensor.begin < at)
      return DataLoss("the data of " + Quoted(tensor.name) + " overlap those of " + before);
    if (tensor.begin > at)
      return DataLoss("bytes between " + before + " and " + Quoted(tensor.name) +
                      " belong to no tensor");
    if (tensor.end > data_bytes) {
      return DataLoss("is cut short: " + Quoted(tensor.name) + " ends at byte " +
                      std::to_string(tensor.end) + " of data that have " +
                      std::to_string(data_bytes) + "; get the file again");
    }
    at = tensor.end;
    before = Quoted(tensor.name);
    tensor.begin += data_begin;
    tensor.end += data_begin;
  }
  if (at != data_bytes)
    return DataLoss(std::to_string(data_bytes - at) + " bytes after " + before +
                    " belong to no tensor");
  return OkStatus();
}

}  // namespace

Result<uint64_t> SafetensorsHeaderBytes(const std::string& file, std::string_view first8,
                                        uint64_t file_bytes) {
  ByteReader reader(first8);
  const auto length = reader.Get<uint64_t>();
  if (reader.failed() || file_bytes < 8)
    return DataLoss(file + ": is no safetensors file: it has " + std::to_string(file_bytes) +
                    " bytes");
  if (length > kShardHeaderBytesMax)
    return DataLoss(file + ": is no safetensors file: it begins with a length of " +
                    std::to_string(length) + " for its header");
  if (length > file_bytes - 8)
    return DataLoss(file + ": is cut short: its header has " + std::to_string(length) +
                    " bytes, the file " + std::to_string(file_bytes) + "; get the file again");
  return length + 8;
}

Result<SafetensorsHeader> ParseSafetensorsHeader(const std::string& file, std::string_view json,
                                                 uint64_t file_bytes) {
  SafetensorsHeader header;
  HeaderSax sax(&header);
  // Upstream wants the brace in the first place.
  if (!json.starts_with('{')) return DataLoss(file + ": its header does not begin with '{'");
  const bool parsed = nlohmann::json::sax_parse(json.begin(), json.end(), &sax);
  if (!parsed) return Status(sax.status()).Annotate(file + ": header");
  for (const auto& [key, value] : header.metadata) {
    if (key == kOurs)
      return FailedPrecondition(file +
                                " is a shard of a checkpoint, of one rank; `ckptctl cp` "
                                "copies checkpoints, `ckptctl export` puts their tensors together");
  }
  CKPT_RETURN_IF_ERROR(CheckCover(&header.tensors, 8 + json.size(), file_bytes).Annotate(file));
  return header;
}

Status ApplyTrueDTypes(const std::string& file, SafetensorsHeader* header) {
  const auto told = std::find_if(header->metadata.begin(), header->metadata.end(),
                                 [](const auto& entry) { return entry.first == kDTypesKey; });
  if (told == header->metadata.end()) return OkStatus();
  const auto dtypes = nlohmann::json::parse(told->second, nullptr, /*allow_exceptions=*/false);
  if (!dtypes.is_object()) return DataLoss(file + ": header: " + kDTypesKey + " is no JSON object");
  size_t applied = 0;
  for (SafetensorsEntry& tensor : header->tensors) {
    const auto it = dtypes.find(tensor.name);
    if (it == dtypes.end()) continue;
    const auto dtype =
        it->is_string() ? format::ParseDType(it->get<std::string>()) : InvalidArgument("no name");
    format::ShardTensor is{tensor.name, dtype.ok() ? *dtype : tensor.dtype};
    is.box.shape = tensor.shape;
    const bool last = dtype.ok() && format::ContainerShape(is).size() > tensor.shape.size();
    if (last && !is.box.shape.empty()) is.box.shape.pop_back();
    if (!dtype.ok() || format::ContainerDType(*dtype) != format::DTypeName(tensor.dtype) ||
        format::ContainerShape(is) != tensor.shape)
      return DataLoss(file + ": header: " + Quoted(tensor.name) + ": " + kDTypesKey +
                      " says another dtype than it can be");
    tensor.dtype = *dtype;
    tensor.shape = is.box.shape;
    ++applied;
  }
  if (applied != dtypes.size())
    return DataLoss(file + ": header: " + kDTypesKey + " names a tensor that is not there");
  header->metadata.erase(told);
  return OkStatus();
}

}  // namespace ckpt::ckptctl
