// The value tree: its canonical JSON (docs/format/v1.md, "Value tree"), checks, and the encoding of
// one rank's values and blobs.
#include "libckpt/format/values.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <unordered_set>

#include "libckpt/base/bytes.h"
#include "libckpt/format/value_json.h"

namespace ckpt::format {
namespace {

bool IsContainer(const Value& value) {
  return std::holds_alternative<ValueList>(value.v) ||
         std::holds_alternative<ValueTuple>(value.v) ||
         std::holds_alternative<ValueDictBox>(value.v);
}

bool CanonicalBigInt(std::string_view text) {
  std::string_view digits = text;
  if (digits.starts_with('-')) digits.remove_prefix(1);
  if (digits.empty() || digits.size() > kBigIntDigitsMax || digits[0] == '0') return false;
  if (!std::all_of(digits.begin(), digits.end(), [](char c) { return c >= '0' && c <= '9'; })) {
    return false;
  }
  int64_t fits = 0;
  return std::from_chars(text.data(), text.data() + text.size(), fits).ec != std::errc();
}

// --- reading ---
//
// Before what walks a dict: clang 14 must see a Value destroyed before it looks into a pair of
// them.

Result<Value> ReadAt(const JsonView& node, uint32_t depth);

Result<std::vector<Value>> ReadItems(const JsonView& list, uint32_t depth) {
  std::vector<Value> items;
  for (JsonView child = list.First(); !list.IsEnd(child); child = child.Next()) {
    CKPT_ASSIGN_OR_RETURN(Value item, ReadAt(child, depth + 1));
    items.push_back(std::move(item));
  }
  return items;
}

Result<Value> ReadPlainDict(const JsonView& object, uint32_t depth) {
  ValueDictBox dict;
  for (JsonView key = object.First(); !object.IsEnd(key); key = key.Next().Next()) {
    CKPT_ASSIGN_OR_RETURN(Value value, ReadAt(key.Next(), depth + 1));
    dict.items.push_back({Value{std::string(key.text())}, std::move(value)});
  }
  return Value{std::move(dict)};
}

Result<Value> ReadTaggedDict(const JsonView& pairs, uint32_t depth) {
  ValueDictBox dict;
  std::unordered_set<std::string> seen;
  for (JsonView pair = pairs.First(); !pairs.IsEnd(pair); pair = pair.Next()) {
    if (!pair.Is(JsonKind::kArray) || pair.CountChildren() != 2) {
      return InvalidArgument("an item of a tagged dict is no pair");
    }
    CKPT_ASSIGN_OR_RETURN(Value key, ReadAt(pair.First(), depth + 1));
    if (IsContainer(key)) return InvalidArgument("a dict has a container as a key");
    if (!seen.insert(key.ToJson()).second) return InvalidArgument("a dict has a key twice");
    CKPT_ASSIGN_OR_RETURN(Value value, ReadAt(pair.First().Next(), depth + 1));
    dict.items.push_back({std::move(key), std::move(value)});
  }
  return Value{std::move(dict)};
}

Result<Value> ReadFloatBits(std::string_view hex) {
  uint64_t bits = 0;
  const auto end = std::from_chars(hex.data(), hex.data() + hex.size(), bits, 16);
  if (hex.size() != 16 || end.ec != std::errc() || end.ptr != hex.data() + hex.size()) {
    return InvalidArgument("$f needs 16 hex digits");
  }
  return Value{std::bit_cast<double>(bits)};
}

Result<Value> ReadTaggedText(std::string_view tag, std::string_view text) {
  if (tag == "$f") return ReadFloatBits(text);
  if (tag == "$i") {
    if (!CanonicalBigInt(text)) return InvalidArgument("$i is no big integer");
    return Value{ValueBigInt{std::string(text)}};
  }
  std::string bytes;
  if (tag != "$b" && tag != "$s") {
    return InvalidArgument("unknown tag '" + std::string(tag.substr(0, 50)) + "'");
  }
  if (!Base64Decode(text, &bytes)) return InvalidArgument("no canonical base64");
  if (tag == "$b") return Value{ValueBytes{std::move(bytes)}};
  return Value{std::move(bytes)};
}

Result<Value> ReadObject(const JsonView& object, uint32_t depth) {
  const bool empty = object.IsEnd(object.First());
  if (empty || !object.First().text().starts_with('$')) return ReadPlainDict(object, depth);
  const std::string_view tag = object.First().text();
  const JsonView content = object.First().Next();
  if (!object.IsEnd(content.Next())) return InvalidArgument("a tag is not alone in its object");
  if (content.Is(JsonKind::kString)) return ReadTaggedText(tag, content.text());
  if (content.Is(JsonKind::kArray) && tag == "$d") return ReadTaggedDict(content, depth);
  if (content.Is(JsonKind::kArray) && tag == "$t") {
    CKPT_ASSIGN_OR_RETURN(std::vector<Value> items, ReadItems(content, depth));
    return Value{ValueTuple{std::move(items)}};
  }
  return InvalidArgument("unknown tag '" + std::string(tag.substr(0, 50)) + "'");
}

Result<Value> ReadContainer(const JsonView& node, uint32_t depth) {
  CKPT_ASSIGN_OR_RETURN(
      Value value, node.Is(JsonKind::kObject) ? ReadObject(node, depth) : [&]() -> Result<Value> {
        CKPT_ASSIGN_OR_RETURN(ValueList items, ReadItems(node, depth));
        return Value{std::move(items)};
      }());
  if (IsContainer(value) && depth >= kValueDepthMax) {
    return InvalidArgument("nested deeper than " + std::to_string(kValueDepthMax));
  }
  return value;
}

// Recursion is bounded: the parser refuses nesting beyond kJsonDepthMax.
Result<Value> ReadAt(const JsonView& node, uint32_t depth) {
  switch (node.kind()) {
    case JsonKind::kNull:
      return Value{};
    case JsonKind::kFalse:
      return Value{false};
    case JsonKind::kTrue:
      return Value{true};
    case JsonKind::kInt:
      return Value{node.i()};
    case JsonKind::kUint:
      if (node.u() > INT64_MAX) return InvalidArgument("an integer beyond int64 without its tag");
      return Value{node.i()};
    case JsonKind::kFloat:
      return Value{node.d()};
    case JsonKind::kString:
      return Value{std::string(node.text())};
    case JsonKind::kArray:
    case JsonKind::kObject:
      return ReadContainer(node, depth);
  }
  return Internal("a JSON node of no kind");
}

// --- writing ---

bool PlainFloat(double value) {
  return std::isfinite(value) && !(value == 0 && std::signbit(value));
}

void AppendTagged(std::string* out, std::string_view tag, std::string_view text) {
  *out += "{\"";
  *out += tag;
  *out += "\":";
  AppendJsonString(out, text);
  *out += '}';
}

void AppendFloat(std::string* out, double value) {
  if (PlainFloat(value)) return AppendJsonFloat(out, value);
  constexpr char kHex[] = "0123456789abcdef";
  const uint64_t bits = std::bit_cast<uint64_t>(value);
  std::string hex;
  for (int shift = 60; shift >= 0; shift -= 4) hex += kHex[bits >> shift & 15];
  AppendTagged(out, "$f", hex);
}

// Whether a dict can be a plain JSON object.
bool PlainDict(const ValueDict& items) {
  return std::all_of(items.begin(), items.end(), [](const auto& item) {
    const auto* key = std::get_if<std::string>(&item.first.v);
    return key != nullptr && !key->starts_with('$') && IsUtf8(*key);
  });
}

struct JsonWriter {
  std::string* out;

  void operator()(std::monostate) const { *out += "null"; }
  void operator()(bool value) const { *out += value ? "true" : "false"; }
  void operator()(int64_t value) const { *out += std::to_string(value); }
  void operator()(double value) const { AppendFloat(out, value); }
  void operator()(const std::string& value) const {
    if (IsUtf8(value)) return AppendJsonString(out, value);
    AppendTagged(out, "$s", Base64Encode(value));
  }
  void operator()(const ValueBytes& value) const {
    AppendTagged(out, "$b", Base64Encode(value.bytes));
  }
  void operator()(const ValueBigInt& value) const { AppendTagged(out, "$i", value.decimal); }
  void operator()(const ValueList& items) const {
    *out += '[';
    for (size_t i = 0; i < items.size(); ++i) {
      if (i != 0) *out += ',';
      Write(items[i]);
    }
    *out += ']';
  }
  void operator()(const ValueTuple& tuple) const {
    *out += "{\"$t\":";
    (*this)(tuple.items);
    *out += '}';
  }
  void operator()(const ValueDictBox& dict) const {
    const bool plain = PlainDict(dict.items);
    *out += plain ? "{" : "{\"$d\":[";
    for (size_t i = 0; i < dict.items.size(); ++i) {
      if (i != 0) *out += ',';
      if (!plain) *out += '[';
      Write(dict.items[i].first);
      *out += plain ? ':' : ',';
      Write(dict.items[i].second);
      if (!plain) *out += ']';
    }
    *out += plain ? "}" : "]}";
  }
  void Write(const Value& value) const { std::visit(*this, value.v); }
};

// --- checks ---

Status CheckAt(const Value& value, uint32_t depth);

Status CheckDict(const ValueDict& items, uint32_t depth) {
  std::unordered_set<std::string> seen;
  for (const auto& [key, value] : items) {
    if (IsContainer(key)) {
      return InvalidArgument("a dict has a container as a key: keys must be scalars");
    }
    CKPT_RETURN_IF_ERROR(CheckAt(key, depth));
    const std::string spelled = key.ToJson();
    if (!seen.insert(spelled).second) {
      return InvalidArgument("a dict has the key " + spelled.substr(0, 200) + " twice");
    }
    CKPT_RETURN_IF_ERROR(CheckAt(value, depth));
  }
  return OkStatus();
}

Status CheckItems(const std::vector<Value>& items, uint32_t depth) {
  for (const Value& item : items) CKPT_RETURN_IF_ERROR(CheckAt(item, depth));
  return OkStatus();
}

// `depth` containers are around `value`. Recursion ends at kValueDepthMax.
Status CheckAt(const Value& value, uint32_t depth) {
  if (const auto* big = std::get_if<ValueBigInt>(&value.v)) {
    if (CanonicalBigInt(big->decimal)) return OkStatus();
    return InvalidArgument("'" + big->decimal.substr(0, 50) +
                           "' is no canonical decimal beyond int64 of at most " +
                           std::to_string(kBigIntDigitsMax) + " digits");
  }
  if (!IsContainer(value)) return OkStatus();
  if (depth >= kValueDepthMax) {
    return InvalidArgument("nested deeper than " + std::to_string(kValueDepthMax));
  }
  if (const auto* list = std::get_if<ValueList>(&value.v)) return CheckItems(*list, depth + 1);
  if (const auto* tuple = std::get_if<ValueTuple>(&value.v)) {
    return CheckItems(tuple->items, depth + 1);
  }
  return CheckDict(std::get<ValueDictBox>(value.v).items, depth + 1);
}

std::string Named(const char* what, std::string_view name) {
  return std::string(what) + " '" + std::string(name.substr(0, 200)) + "'";
}

Status CheckItemName(const char* what, const std::string& name,
                     std::unordered_set<std::string>* seen) {
  if (name.size() > kTensorNameBytesMax || !IsUtf8(name)) {
    return InvalidArgument(Named(what, name) + ": its name is not UTF-8 of at most " +
                           std::to_string(kTensorNameBytesMax) + " bytes");
  }
  if (!seen->insert(name).second) return InvalidArgument(Named(what, name) + " is given twice");
  return OkStatus();
}

bool GoodScope(Scope scope) { return scope == Scope::kShared || scope == Scope::kPerRank; }

}  // namespace

bool ValueTuple::operator==(const ValueTuple& other) const { return items == other.items; }
bool ValueDictBox::operator==(const ValueDictBox& other) const { return items == other.items; }

bool Value::operator==(const Value& other) const {
  const auto* mine = std::get_if<double>(&v);
  const auto* theirs = std::get_if<double>(&other.v);
  if (mine != nullptr && theirs != nullptr) {
    return std::bit_cast<uint64_t>(*mine) == std::bit_cast<uint64_t>(*theirs);
  }
  return v == other.v;
}

std::string Value::ToJson() const {
  std::string out;
  JsonWriter{&out}.Write(*this);
  return out;
}

Result<Value> ValueFromView(const JsonView& node) { return ReadAt(node, 0); }

Result<Value> Value::FromJson(std::string_view json) {
  auto document = JsonDocument::Parse("the value", json);
  if (!document.ok()) return InvalidArgument(document.status().message());
  CKPT_ASSIGN_OR_RETURN(Value value, ValueFromView(document->root()));
  if (const std::string spelled = value.ToJson(); spelled != json) {
    return InvalidArgument("the value is not in its canonical spelling, which is " +
                           spelled.substr(0, 200));
  }
  return value;
}

Status CheckValue(const Value& value) { return CheckAt(value, 0); }

uint64_t ItemBytes(const NamedValue& value) {
  return value.name.size() + value.value.ToJson().size();
}
uint64_t ItemBytes(const NamedBlob& blob) {
  return blob.name.size() + blob.media_type.size() + blob.bytes.size();
}

Status CheckRankValues(const RankValues& values) {
  uint64_t bytes = 0;
  std::unordered_set<std::string> value_names, blob_names;
  for (const NamedValue& value : values.values) {
    CKPT_RETURN_IF_ERROR(CheckItemName("value", value.name, &value_names));
    if (!GoodScope(value.scope)) return InvalidArgument(Named("value", value.name) + ": no scope");
    CKPT_RETURN_IF_ERROR(CheckValue(value.value).Annotate(Named("value", value.name)));
    bytes += ItemBytes(value);
  }
  for (const NamedBlob& blob : values.blobs) {
    CKPT_RETURN_IF_ERROR(CheckItemName("blob", blob.name, &blob_names));
    if (!GoodScope(blob.scope)) return InvalidArgument(Named("blob", blob.name) + ": no scope");
    if (blob.media_type.size() > kTensorNameBytesMax || !IsUtf8(blob.media_type)) {
      return InvalidArgument(Named("blob", blob.name) + ": bad media type");
    }
    bytes += ItemBytes(blob);
  }
  if (bytes <= kValueBytesMax) return OkStatus();
  return ResourceExhausted("values and blobs take " + std::to_string(bytes) + " bytes, more than " +
                           std::to_string(kValueBytesMax) + ": put large data into tensors");
}

std::string RankValues::Encode() const {
  ByteWriter writer;
  writer.Put<uint32_t>(static_cast<uint32_t>(values.size()));
  for (const NamedValue& value : values) {
    writer.PutString(value.name).Put<uint8_t>(static_cast<uint8_t>(value.scope));
    writer.PutString(value.value.ToJson());
  }
  writer.Put<uint32_t>(static_cast<uint32_t>(blobs.size()));
  for (const NamedBlob& blob : blobs) {
    writer.PutString(blob.name).Put<uint8_t>(static_cast<uint8_t>(blob.scope));
    writer.PutString(blob.media_type).PutString(blob.bytes);
  }
  return std::move(writer).Take();
}

Result<RankValues> RankValues::Decode(std::string_view bytes) {
  ByteReader reader(bytes);
  RankValues decoded;
  const uint32_t value_count = reader.GetCount(4 + 1 + 4);
  for (uint32_t i = 0; i < value_count && !reader.failed(); ++i) {
    NamedValue& value = decoded.values.emplace_back();
    value.name = reader.GetString(kTensorNameBytesMax);
    value.scope = static_cast<Scope>(reader.Get<uint8_t>());
    const std::string_view json = reader.GetString(kValueBytesMax);
    if (reader.failed()) break;
    CKPT_ASSIGN_OR_RETURN(value.value, Value::FromJson(json));
  }
  const uint32_t blob_count = reader.GetCount(4 + 1 + 4 + 4);
  for (uint32_t i = 0; i < blob_count && !reader.failed(); ++i) {
    NamedBlob& blob = decoded.blobs.emplace_back();
    blob.name = reader.GetString(kTensorNameBytesMax);
    blob.scope = static_cast<Scope>(reader.Get<uint8_t>());
    blob.media_type = reader.GetString(kTensorNameBytesMax);
    blob.bytes = reader.GetString(kValueBytesMax);
  }
  CKPT_RETURN_IF_ERROR(reader.Finish("the values of a rank"));
  CKPT_RETURN_IF_ERROR(CheckRankValues(decoded));
  return decoded;
}

}  // namespace ckpt::format
