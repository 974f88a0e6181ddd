#include "libckpt/format/json.h"

#include <charconv>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "libckpt/base/digest.h"
#include "libckpt/format/names.h"

namespace ckpt::format {

// Appends SAX events to a tape. A callback that returns false stops the parser.
class TapeBuilder : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit TapeBuilder(JsonDocument* document) : document_(document) {}

  bool null() override { return Add(JsonKind::kNull); }
  bool boolean(bool value) override { return Add(value ? JsonKind::kTrue : JsonKind::kFalse); }
  bool number_integer(number_integer_t value) override {
    return Add(JsonKind::kInt, static_cast<uint64_t>(value));
  }
  bool number_unsigned(number_unsigned_t value) override { return Add(JsonKind::kUint, value); }
  bool number_float(number_float_t value, const string_t&) override {
    uint64_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    if (!std::isfinite(value)) return Refuse("a number out of range");
    return Add(JsonKind::kFloat, bits);
  }
  bool string(string_t& value) override { return AddText(value); }
  bool binary(binary_t&) override { return Refuse("binary"); }
  bool start_object(std::size_t) override {
    keys_.emplace_back();
    return Open(JsonKind::kObject);
  }
  bool key(string_t& value) override {
    if (!keys_.back().insert(value).second) return Refuse("the key '" + value + "' twice");
    return AddText(value);
  }
  bool end_object() override {
    keys_.pop_back();
    return Close();
  }
  bool start_array(std::size_t) override { return Open(JsonKind::kArray); }
  bool end_array() override { return Close(); }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    return Refuse("no JSON at byte " + std::to_string(position));
  }
  const std::string& why() const { return why_; }

 private:
  bool Refuse(std::string why) {
    if (why_.empty()) why_ = std::move(why);
    return false;
  }
  bool Add(JsonKind kind, uint64_t bits = 0) {
    std::vector<JsonNode>& nodes = document_->nodes_;
    if (nodes.size() >= kJsonNodesMax) return Refuse("too many parts");
    JsonNode node;
    node.kind = kind;
    node.next = static_cast<uint32_t>(nodes.size() + 1);
    node.u = bits;
    nodes.push_back(node);
    return true;
  }
  bool AddText(const std::string& text) {
    const uint64_t offset = document_->text_.size();
    document_->text_ += text;
    return Add(JsonKind::kString, offset << 32 | text.size());
  }
  bool Open(JsonKind kind) {
    if (open_.size() >= kJsonDepthMax) return Refuse("too deep nesting");
    open_.push_back(static_cast<uint32_t>(document_->nodes_.size()));
    return Add(kind);
  }
  bool Close() {
    document_->nodes_[open_.back()].next = static_cast<uint32_t>(document_->nodes_.size());
    open_.pop_back();
    return true;
  }

  JsonDocument* document_;
  std::vector<uint32_t> open_;
  std::vector<std::unordered_set<std::string>> keys_;
  std::string why_;
};

namespace {

// Length of the UTF-8 sequence at the front of `text`, 0 if there is none.
size_t Utf8Length(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return 1;
  const size_t size = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() < size) return 0;
  for (size_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  const uint8_t second = byte(1);
  const bool overlong = (lead == 0xE0 && second < 0xA0) || (lead == 0xF0 && second < 0x90);
  const bool outside = (lead == 0xED && second > 0x9F) || (lead == 0xF4 && second > 0x8F);
  return overlong || outside ? 0 : size;
}

constexpr char kBase64[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

int Base64Value(char c) {
  const char* at = c == '\0' ? nullptr : std::strchr(kBase64, c);
  return at == nullptr ? -1 : static_cast<int>(at - kBase64);
}

}  // namespace

bool IsUtf8(std::string_view text) {
  while (!text.empty()) {
    const size_t size = Utf8Length(text);
    if (size == 0) return false;
    text.remove_prefix(size);
  }
  return true;
}

void AppendJsonString(std::string* out, std::string_view utf8) {
  constexpr char kHex[] = "0123456789abcdef";
  constexpr std::string_view kShort = "\b\f\n\r\t\"\\";
  constexpr std::string_view kLetters = "bfnrt\"\\";
  *out += '"';
  for (const char c : utf8) {
    const size_t at = kShort.find(c);
    if (at != std::string_view::npos) {
      *out += '\\';
      *out += kLetters[at];
    } else if (static_cast<uint8_t>(c) < 0x20) {
      *out += "\\u00";
      *out += kHex[c >> 4];
      *out += kHex[c & 15];
    } else {
      *out += c;
    }
  }
  *out += '"';
}

void AppendJsonFloat(std::string* out, double value) {
  char buffer[40];
  const auto end =
      std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific).ptr;
  std::string_view text(buffer, static_cast<size_t>(end - buffer));
  if (text[0] == '-') {
    *out += '-';
    text.remove_prefix(1);
  }
  const size_t e = text.find('e');
  std::string digits(text.substr(0, e));
  if (digits.size() > 1) digits.erase(1, 1);  // the point
  const int exponent = std::atoi(std::string(text.substr(e + 1)).c_str());
  const int count = static_cast<int>(digits.size());
  if (exponent < -4 || exponent >= 16) {
    *out += digits[0];
    if (count > 1) *out += '.' + digits.substr(1);
    const std::string power = std::to_string(std::abs(exponent));
    *out += exponent < 0 ? "e-" : "e+";
    *out += power.size() < 2 ? "0" + power : power;
  } else if (exponent < 0) {
    *out += "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  } else if (count <= exponent + 1) {
    *out += digits + std::string(static_cast<size_t>(exponent + 1 - count), '0') + ".0";
  } else {
    const size_t point = static_cast<size_t>(exponent) + 1;
    *out += digits.substr(0, point) + '.' + digits.substr(point);
  }
}

std::string Base64Encode(std::string_view bytes) {
  std::string out;
  out.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t group = 0;
    const size_t size = std::min<size_t>(3, bytes.size() - i);
    for (size_t j = 0; j < 3; ++j) {
      group = group << 8 | (j < size ? static_cast<uint8_t>(bytes[i + j]) : 0);
    }
    for (size_t j = 0; j < 4; ++j) {
      out += j <= size ? kBase64[group >> (18 - 6 * j) & 63] : '=';
    }
  }
  return out;
}

bool Base64Decode(std::string_view text, std::string* out) {
  out->clear();
  if (text.size() % 4 != 0) return false;
  size_t padding = 0;
  while (padding < 2 && padding < text.size() && text[text.size() - 1 - padding] == '=') ++padding;
  out->reserve(text.size() / 4 * 3);
  uint32_t group = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool pad = i >= text.size() - padding;
    const int value = pad ? 0 : Base64Value(text[i]);
    if (value < 0) return false;
    group = group << 6 | static_cast<uint32_t>(value);
    if (i % 4 != 3) continue;
    for (const int shift : {16, 8, 0}) *out += static_cast<char>(group >> shift);
    group = 0;
  }
  for (size_t i = 0; i < padding; ++i) {
    if (out->back() != '\0') return false;  // bits that no byte uses
    out->pop_back();
  }
  return true;
}

JsonKind JsonView::kind() const { return document_->nodes_[at_].kind; }
uint64_t JsonView::u() const { return document_->nodes_[at_].u; }
int64_t JsonView::i() const { return document_->nodes_[at_].i; }
double JsonView::d() const { return document_->nodes_[at_].d; }
uint32_t JsonView::End() const { return document_->nodes_[at_].next; }
JsonView JsonView::Next() const { return JsonView(document_, End()); }

std::string_view JsonView::text() const {
  return std::string_view(document_->text_).substr(u() >> 32, static_cast<uint32_t>(u()));
}

bool JsonView::AsInt64(int64_t* out) const {
  if (!Is(JsonKind::kInt) && !(Is(JsonKind::kUint) && u() <= INT64_MAX)) return false;
  *out = i();
  return true;
}

bool JsonView::AsUint64(uint64_t* out) const {
  if (!Is(JsonKind::kUint)) return false;
  *out = u();
  return true;
}

size_t JsonView::CountChildren() const {
  size_t count = 0;
  for (JsonView child = First(); !IsEnd(child); child = child.Next()) ++count;
  return count;
}

Result<JsonDocument> JsonDocument::Parse(std::string_view what, std::string_view text) {
  JsonDocument document;
  // Every node takes a byte of the input or more, and text_ is never longer than the input.
  if (text.size() > UINT32_MAX) return DataLoss(std::string(what) + " is too large");
  TapeBuilder builder(&document);
  if (!nlohmann::json::sax_parse(text.begin(), text.end(), &builder)) {
    return DataLoss(std::string(what) + " is damaged: " + builder.why());
  }
  if (document.Serialize() != text) {
    return DataLoss(std::string(what) + " is damaged: not in canonical spelling");
  }
  return document;
}

namespace {

void AppendScalar(std::string* out, const JsonView& node) {
  switch (node.kind()) {
    case JsonKind::kNull:
      *out += "null";
      break;
    case JsonKind::kFalse:
      *out += "false";
      break;
    case JsonKind::kTrue:
      *out += "true";
      break;
    case JsonKind::kInt:
      *out += std::to_string(node.i());
      break;
    case JsonKind::kUint:
      *out += std::to_string(node.u());
      break;
    case JsonKind::kFloat:
      AppendJsonFloat(out, node.d());
      break;
    case JsonKind::kString:
      AppendJsonString(out, node.text());
      break;
    case JsonKind::kArray:
    case JsonKind::kObject:
      break;
  }
}

void AppendNode(std::string* out, const JsonView& node, bool blank_digest) {
  const bool object = node.Is(JsonKind::kObject);
  if (!object && !node.Is(JsonKind::kArray)) return AppendScalar(out, node);
  *out += object ? '{' : '[';
  bool first = true;
  for (JsonView child = node.First(); !node.IsEnd(child); child = child.Next()) {
    if (!first) *out += ',';
    first = false;
    bool blank = false;
    if (object) {
      blank = blank_digest && child.text() == "digest";
      AppendJsonString(out, child.text());
      *out += ':';
      child = child.Next();
    }
    if (blank) {
      *out += "\"\"";
    } else {
      AppendNode(out, child, false);
    }
  }
  *out += object ? '}' : ']';
}

}  // namespace

std::string JsonDocument::Serialize(bool blank_digest) const {
  std::string out;
  AppendNode(&out, root(), blank_digest);
  return out;
}

std::string JsonView::Spelled() const {
  std::string out;
  AppendNode(&out, *this, false);
  return out;
}

JsonObject::JsonObject(std::string what, JsonView object) : what_(std::move(what)) {
  if (!object.Is(JsonKind::kObject)) {
    Fail("is no object");
    return;
  }
  object_ = object;
  std::string_view last;
  bool first = true;
  for (JsonView key = object.First(); !object.IsEnd(key); key = key.Next().Next()) {
    if (!first && key.text() <= last) Fail("has its keys out of order");
    last = key.text();
    first = false;
  }
}

JsonView JsonObject::Find(std::string_view key) const {
  if (!object_.valid()) return JsonView();
  for (JsonView at = object_.First(); !object_.IsEnd(at); at = at.Next().Next()) {
    if (at.text() == key) return at.Next();
  }
  return JsonView();
}

void JsonObject::Fail(std::string message) {
  if (status_.ok()) status_ = DataLoss(what_ + " is damaged: " + std::move(message));
}

JsonView JsonObject::Any(std::string_view key) {
  const JsonView found = Find(key);
  if (!found.valid()) Fail("lacks '" + std::string(key) + "'");
  return found;
}

JsonView JsonObject::Typed(std::string_view key, JsonKind kind, const char* name) {
  const JsonView found = Any(key);
  if (!found.valid() || found.Is(kind)) return found;
  Fail("'" + std::string(key) + "' is no " + name);
  return JsonView();
}

std::string JsonObject::String(std::string_view key) {
  const JsonView found = Typed(key, JsonKind::kString, "string");
  return found.valid() ? std::string(found.text()) : std::string();
}

uint64_t JsonObject::Uint(std::string_view key, uint64_t max) {
  const JsonView found = Typed(key, JsonKind::kUint, "whole number");
  if (found.valid() && found.u() > max) Fail("'" + std::string(key) + "' is out of range");
  return found.valid() && found.u() <= max ? found.u() : 0;
}

int64_t JsonObject::Int(std::string_view key) {
  int64_t value = 0;
  const JsonView found = Any(key);
  if (found.valid() && !found.AsInt64(&value)) Fail("'" + std::string(key) + "' is no integer");
  return value;
}

bool JsonObject::Bool(std::string_view key) {
  const JsonView found = Any(key);
  const bool good = found.Is(JsonKind::kTrue) || found.Is(JsonKind::kFalse);
  if (found.valid() && !good) Fail("'" + std::string(key) + "' is no boolean");
  return found.Is(JsonKind::kTrue);
}

std::string JsonObject::Base64(std::string_view key) {
  std::string bytes;
  if (!Base64Decode(String(key), &bytes)) Fail("'" + std::string(key) + "' is no base64");
  return bytes;
}

JsonView JsonObject::Array(std::string_view key) { return Typed(key, JsonKind::kArray, "list"); }
JsonView JsonObject::Object(std::string_view key) {
  return Typed(key, JsonKind::kObject, "object");
}

std::string SignDocument(std::string document) {
  constexpr std::string_view kEmpty = "\"digest\":\"\"";
  // Cannot be part of a string: its quotes would be escaped there.
  const size_t at = document.find(kEmpty) + kEmpty.size() - 1;
  document.insert(at, DigestOf(AsBytes(document)).ToString());
  return document;
}

Result<JsonDocument> OpenDocument(std::string_view kind, std::string_view text,
                                  uint64_t bytes_max) {
  if (text.size() > bytes_max) {
    return DataLoss(std::string(kind) + " has " + std::to_string(text.size()) +
                    " bytes, more than " + std::to_string(bytes_max));
  }
  CKPT_ASSIGN_OR_RETURN(JsonDocument document, JsonDocument::Parse(kind, text));
  JsonObject object(std::string(kind), document.root());
  const Digest claimed = object.Take(Digest::Parse(object.String("digest")));
  if (!object.failed() && DigestOf(AsBytes(document.Serialize(true))) != claimed) {
    object.Fail("its bytes do not have its digest");
  }
  if (object.String("kind") != kind) object.Fail("it is another kind of file");
  const uint64_t version = object.Uint("format");
  CKPT_RETURN_IF_ERROR(object.status());
  if (version == kFormatVersion) return document;
  if (version == 0) return DataLoss(std::string(kind) + " is damaged: format 0");
  return FailedPrecondition(std::string(kind) + " is of format " + std::to_string(version) +
                            ", this release (" + std::string(kWriterVersion) + ") reads format " +
                            std::to_string(kFormatVersion) + ": use a newer release");
}

}  // namespace ckpt::format
