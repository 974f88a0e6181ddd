#include "libckpt/format/shard.h"

#include <algorithm>
#include <charconv>
#include <tuple>

#include "libckpt/base/bytes.h"
#include "libckpt/format/json.h"

namespace ckpt::format {
namespace {

constexpr std::string_view kMetadataKey = "__metadata__";
constexpr std::string_view kEscapedMetadata = "%5F_metadata__";
constexpr uint64_t kHeaderJsonMax = 100'000'000;  // upstream's limit on the JSON
static_assert(kHeaderJsonMax + 8 <= kShardHeaderBytesMax);

struct Container {
  std::string_view dtype;
  uint32_t bytes;  // of one element of the container
  uint32_t last;   // a last dimension to add; 0 for none
};

Container ContainerOf(DType dtype) {
  switch (dtype) {
    case DType::kC64:
      return {"F32", 4, 2};
    case DType::kC128:
      return {"F64", 8, 2};
    case DType::kF4x2:
      return {"U8", 1, 0};
    default:
      return {DTypeName(dtype), ElementBytes(dtype), 0};
  }
}

// Bytes of an element by safetensors' name; 0 for a name this project never writes.
uint32_t ContainerBytes(std::string_view name) {
  const auto dtype = ParseDType(name);
  if (!dtype.ok()) return 0;
  const Container container = ContainerOf(*dtype);
  return container.dtype == name ? container.bytes : 0;
}

std::string EscapeName(std::string_view name) {
  if (name == kMetadataKey) return std::string(kEscapedMetadata);
  std::string out;
  for (const char c : name) {
    if (c == '%') {
      out += "%25";
    } else if (c == '#') {
      out += "%23";
    } else {
      out += c;
    }
  }
  return out;
}

// False for what EscapeName never makes.
bool UnescapeName(std::string_view text, std::string* out) {
  out->clear();
  if (text == kEscapedMetadata) {
    *out = kMetadataKey;
    return true;
  }
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      *out += text[i];
      continue;
    }
    const std::string_view code = text.substr(i, 3);
    if (code != "%25" && code != "%23") return false;
    *out += code == "%25" ? '%' : '#';
    i += 2;
  }
  return *out != kMetadataKey;
}

// Takes a canonical number off the front of `text`.
bool TakeNumber(std::string_view* text, uint64_t* out) {
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), *out);
  const auto size = static_cast<size_t>(end - text->data());
  if (error != std::errc() || (size > 1 && (*text)[0] == '0')) return false;
  text->remove_prefix(size);
  return true;
}

bool TakeChar(std::string_view* text, char c) {
  if (!text->starts_with(c)) return false;
  text->remove_prefix(1);
  return true;
}

bool ParseBox(std::string_view text, Box* box) {
  do {
    uint64_t begin = 0, end = 0;
    if (!TakeNumber(&text, &begin) || !TakeChar(&text, ':') || !TakeNumber(&text, &end)) {
      return false;
    }
    if (end < begin || box->offset.size() == kTensorDimsMax) return false;
    box->offset.push_back(begin);
    box->shape.push_back(end - begin);
  } while (TakeChar(&text, ','));
  return text.empty();
}

void AppendNumbers(std::string* out, const std::vector<uint64_t>& numbers) {
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (i != 0) *out += ',';
    *out += std::to_string(numbers[i]);
  }
}

void AppendEntry(std::string* out, const ShardTensor& tensor, uint64_t header_bytes) {
  *out += ',';
  AppendJsonString(out, ShardKey(tensor));
  *out += ":{\"dtype\":\"";
  *out += ContainerDType(tensor.dtype);
  *out += "\",\"shape\":[";
  AppendNumbers(out, ContainerShape(tensor));
  *out += "],\"data_offsets\":[";
  AppendNumbers(out, {tensor.begin - header_bytes, tensor.end - header_bytes});
  *out += "]}";
}

constexpr std::string_view kMetadata = R"("__metadata__":{"ckpt":"1","format":"pt"})";

Result<std::string> BuildHeader(const std::vector<ShardTensor>& tensors) {
  std::string json = "{" + std::string(kMetadata);
  for (const ShardTensor& tensor : tensors) {
    AppendEntry(&json, tensor, 0);
    if (json.size() > kHeaderJsonMax) break;
  }
  json += '}';
  const uint64_t size = AlignUp(8 + json.size() + json.size() / 8 + 512, kShardAlignment);
  if (size - 8 > kHeaderJsonMax) {
    return ResourceExhausted("a shard's header of " + std::to_string(tensors.size()) +
                             " tensors outgrows the 100,000,000 bytes that safetensors allows: "
                             "use more ranks or fewer, larger tensors");
  }
  ByteWriter header;
  header.Put<uint64_t>(size - 8).PutRaw(json);
  std::string bytes = std::move(header).Take();
  bytes.resize(size, ' ');
  return bytes;
}

Status CheckShardTensor(const ShardTensor& tensor) {
  TensorMeta meta;
  meta.name = tensor.name;
  meta.dtype = tensor.dtype;
  meta.placement = tensor.placement;
  meta.global_shape = tensor.global_shape;
  meta.local = tensor.box;
  return CheckTensor(meta);
}

// Puts tensors one after the other from `begin` on.
Status Place(std::vector<ShardTensor>* tensors, uint64_t begin) {
  for (ShardTensor& tensor : *tensors) {
    tensor.begin = begin;
    if (AddOverflows(begin, tensor.Bytes(), &begin) || begin > INT64_MAX) {
      return InvalidArgument("the tensors of a shard overflow at '" + tensor.name + "'");
    }
    tensor.end = begin;
  }
  return OkStatus();
}

}  // namespace

bool ShardTensor::Whole() const {
  return box.shape == global_shape &&
         std::all_of(box.offset.begin(), box.offset.end(), [](uint64_t o) { return o == 0; });
}

bool ShardOrderLess(const ShardTensor& a, const ShardTensor& b) {
  const uint32_t a_bytes = ElementBytes(a.dtype), b_bytes = ElementBytes(b.dtype);
  return std::tie(b_bytes, a.name, a.box.offset, a.box.shape) <
         std::tie(a_bytes, b.name, b.box.offset, b.box.shape);
}

std::string_view ContainerDType(DType dtype) { return ContainerOf(dtype).dtype; }

std::vector<uint64_t> ContainerShape(const ShardTensor& tensor) {
  std::vector<uint64_t> shape = tensor.box.shape;
  if (const uint32_t last = ContainerOf(tensor.dtype).last; last != 0) shape.push_back(last);
  return shape;
}

std::string ShardKey(const ShardTensor& tensor) {
  std::string key = EscapeName(tensor.name);
  if (tensor.Whole()) return key;
  key += '#';
  for (size_t d = 0; d < tensor.box.shape.size(); ++d) {
    if (d != 0) key += ',';
    key += std::to_string(tensor.box.offset[d]) + ':' +
           std::to_string(tensor.box.offset[d] + tensor.box.shape[d]);
  }
  return key;
}

Result<ParsedShardKey> ParseShardKey(std::string_view key) {
  ParsedShardKey parsed;
  const size_t hash = key.find('#');
  parsed.sliced = hash != std::string_view::npos;
  if (!UnescapeName(key.substr(0, hash), &parsed.name) ||
      (parsed.sliced && !ParseBox(key.substr(hash + 1), &parsed.box))) {
    return InvalidArgument("'" + std::string(key.substr(0, 200)) + "' is no key of a shard");
  }
  return parsed;
}

std::vector<ChunkRange> ComputeChunks(const std::vector<ShardTensor>& tensors,
                                      uint64_t header_bytes, uint64_t chunk_bytes) {
  std::vector<ChunkRange> chunks = {{0, header_bytes}};
  uint64_t run_begin = header_bytes;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].begin == tensors[i].end) continue;
    size_t next = i + 1;
    while (next < tensors.size() && tensors[next].begin == tensors[next].end) ++next;
    const bool run_ends = next == tensors.size() ||
                          ElementBytes(tensors[next].dtype) != ElementBytes(tensors[i].dtype);
    if (!run_ends) continue;
    for (uint64_t at = run_begin; at < tensors[i].end; at += chunk_bytes) {
      chunks.push_back({at, std::min(at + chunk_bytes, tensors[i].end)});
    }
    run_begin = tensors[i].end;
  }
  return chunks;
}

ChunkSpan ChunkOf(const std::vector<ChunkRange>& chunks, uint64_t begin, uint64_t end) {
  const auto first = std::partition_point(chunks.begin(), chunks.end(),
                                          [&](const ChunkRange& c) { return c.end <= begin; });
  const auto last =
      std::partition_point(first, chunks.end(), [&](const ChunkRange& c) { return c.begin < end; });
  if (begin >= end || first == last) return {};
  return {static_cast<uint64_t>(first - chunks.begin()),
          static_cast<uint64_t>(last - chunks.begin())};
}

Result<ShardLayout> LayOutShard(std::vector<ShardTensor> tensors, uint64_t chunk_bytes) {
  if (chunk_bytes == 0 || chunk_bytes % kChunkBytesGranule != 0 || chunk_bytes > kChunkBytesMax) {
    return InvalidArgument("a chunk size of " + std::to_string(chunk_bytes) +
                           " is no multiple of 16 up to " + std::to_string(kChunkBytesMax));
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    CKPT_RETURN_IF_ERROR(CheckShardTensor(tensors[i]));
    if (i != 0 && !ShardOrderLess(tensors[i - 1], tensors[i])) {
      return InvalidArgument("tensor '" + tensors[i].name +
                             "' is out of order or twice in its shard");
    }
  }
  ShardLayout layout;
  layout.chunk_bytes = chunk_bytes;
  CKPT_RETURN_IF_ERROR(Place(&tensors, 0));
  CKPT_ASSIGN_OR_RETURN(layout.header, BuildHeader(tensors));
  CKPT_RETURN_IF_ERROR(Place(&tensors, layout.header.size()));
  layout.stream_bytes = tensors.empty() ? layout.header.size() : tensors.back().end;
  layout.chunks = ComputeChunks(tensors, layout.header.size(), chunk_bytes);
  layout.tensors = std::move(tensors);
  return layout;
}

Result<uint64_t> ShardHeaderBytes(std::string_view first8, uint64_t file_bytes) {
  ByteReader reader(first8);
  const auto length = reader.Get<uint64_t>();
  if (reader.failed() || file_bytes < 8 || length > file_bytes - 8) {
    return DataLoss("a shard's header is longer than its file of " + std::to_string(file_bytes) +
                    " bytes");
  }
  if (length < 2 || length > kHeaderJsonMax || (length + 8) % kShardAlignment != 0) {
    return DataLoss("a shard's header has an impossible length, " + std::to_string(length));
  }
  return length + 8;
}

namespace {

// Clears `good` unless `list` is a list of at most `count_max` whole numbers.
std::vector<uint64_t> ReadNumbers(JsonView list, size_t count_max, bool* good) {
  std::vector<uint64_t> numbers;
  if (!list.Is(JsonKind::kArray)) *good = false;
  if (!*good) return numbers;
  for (JsonView at = list.First(); *good && !list.IsEnd(at); at = at.Next()) {
    uint64_t number = 0;
    *good = at.AsUint64(&number) && numbers.size() < count_max;
    numbers.push_back(number);
  }
  return numbers;
}

Status BadHeader(std::string_view key, const char* why) {
  return DataLoss("a shard's header is damaged at '" + std::string(key.substr(0, 200)) +
                  "': " + why);
}

Result<HeaderEntry> ReadEntry(std::string_view key, JsonView object, uint64_t header_bytes) {
  HeaderEntry entry;
  entry.key = key;
  constexpr std::string_view kKeys[] = {"dtype", "shape", "data_offsets"};
  JsonView fields[3];
  size_t count = 0;
  if (!object.Is(JsonKind::kObject)) return BadHeader(key, "no object");
  for (JsonView at = object.First(); !object.IsEnd(at); at = at.Next().Next(), ++count) {
    if (count >= 3 || at.text() != kKeys[count]) return BadHeader(key, "unknown or missing field");
    fields[count] = at.Next();
  }
  if (count != 3 || !fields[0].Is(JsonKind::kString)) return BadHeader(key, "missing field");
  entry.dtype = fields[0].text();
  bool good = true;
  entry.shape = ReadNumbers(fields[1], kTensorDimsMax + 1, &good);
  const auto offsets = ReadNumbers(fields[2], 2, &good);
  if (!good || offsets.size() != 2) return BadHeader(key, "bad shape or offsets");
  uint64_t bytes = ContainerBytes(entry.dtype);
  if (bytes == 0) return BadHeader(key, "unknown dtype");
  for (const uint64_t dim : entry.shape) good = good && !MulOverflows(bytes, dim, &bytes);
  good = good && offsets[0] <= offsets[1] && offsets[1] - offsets[0] == bytes &&
         !AddOverflows(offsets[0], header_bytes, &entry.begin) &&
         !AddOverflows(offsets[1], header_bytes, &entry.end);
  if (!good) return BadHeader(key, "its size is not that of its shape");
  return entry;
}

}  // namespace

Result<ShardHeader> ParseShardHeader(std::string_view header, uint64_t stream_bytes) {
  ShardHeader parsed;
  CKPT_ASSIGN_OR_RETURN(
      parsed.header_bytes,
      ShardHeaderBytes(header.substr(0, std::min<size_t>(8, header.size())), stream_bytes));
  if (header.size() != parsed.header_bytes) return DataLoss("a shard's header is cut short");
  std::string_view json = header.substr(8);
  json.remove_suffix(json.size() - 1 - std::min(json.find_last_not_of(' '), json.size() - 1));
  CKPT_ASSIGN_OR_RETURN(const JsonDocument document, JsonDocument::Parse("a shard's header", json));
  const JsonView root = document.root();
  if (!root.Is(JsonKind::kObject)) return DataLoss("a shard's header is no object");
  uint64_t at = parsed.header_bytes;
  for (JsonView key = root.First(); !root.IsEnd(key); key = key.Next().Next()) {
    if (key.text() == kMetadataKey) continue;
    CKPT_ASSIGN_OR_RETURN(HeaderEntry entry,
                          ReadEntry(key.text(), key.Next(), parsed.header_bytes));
    if (entry.begin != at) return BadHeader(key.text(), "its data do not follow the one before");
    at = entry.end;
    parsed.entries.push_back(std::move(entry));
  }
  if (at != stream_bytes) return DataLoss("a shard's header does not cover its data");
  return parsed;
}

Status CheckHeader(const ShardHeader& header, const std::vector<ShardTensor>& tensors) {
  if (header.entries.size() != tensors.size()) {
    return DataLoss("a shard's header lists " + std::to_string(header.entries.size()) +
                    " tensors, its index " + std::to_string(tensors.size()));
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    const ShardTensor& tensor = tensors[i];
    const HeaderEntry said{ShardKey(tensor), std::string(ContainerDType(tensor.dtype)),
                           ContainerShape(tensor), tensor.begin, tensor.end};
    if (!(said == header.entries[i])) {
      return DataLoss("a shard's header and its index differ at tensor '" + tensor.name + "'");
    }
  }
  return OkStatus();
}

}  // namespace ckpt::format
