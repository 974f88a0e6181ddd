// Canonical JSON, inside this layer only: a bounded parser that yields a flat tape instead of a
// tree, and the one spelling of everything.
//
// Why a tape: it is built without recursion, costs 16 bytes a node whatever the input nests, and a
// document is checked for its spelling by writing it again and comparing.
//
// I1  Parse accepts exactly the documents that Serialize writes.
// I2  Nesting is at most kJsonDepthMax, so that walks over a tape may recurse.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "libckpt/base/status.h"

namespace ckpt::format {

inline constexpr uint32_t kJsonDepthMax = 64;
inline constexpr uint32_t kJsonNodesMax = uint32_t{1} << 24;

// Writers of canonical spellings.
void AppendJsonString(std::string* out, std::string_view utf8);
void AppendJsonFloat(std::string* out, double value);  // finite, not -0.0: Python's repr
bool IsUtf8(std::string_view text);
std::string Base64Encode(std::string_view bytes);
// Canonical only: padded, nothing foreign, unused bits zero.
bool Base64Decode(std::string_view text, std::string* out);

enum class JsonKind : uint32_t {
  kNull,
  kFalse,
  kTrue,
  kInt,
  kUint,
  kFloat,
  kString,
  kArray,
  kObject
};

struct JsonNode {
  JsonKind kind = JsonKind::kNull;
  uint32_t next = 0;  // the node after this one and all within it
  union {
    int64_t i;   // kInt: negative
    uint64_t u;  // kUint; kString: offset << 32 | size in the text arena
    double d;
  };
};

class JsonDocument;

// A node of a document that outlives it. An object's children are key, value, key, value …
class JsonView {
 public:
  JsonView() = default;
  JsonView(const JsonDocument* document, uint32_t at) : document_(document), at_(at) {}
  JsonKind kind() const;
  bool Is(JsonKind kind) const { return document_ != nullptr && this->kind() == kind; }
  bool valid() const { return document_ != nullptr; }
  std::string_view text() const;  // kString
  uint64_t u() const;
  int64_t i() const;
  double d() const;
  bool AsInt64(int64_t* out) const;
  bool AsUint64(uint64_t* out) const;

  // for (JsonView c = v.First(); !v.IsEnd(c); c = c.Next())
  JsonView First() const { return JsonView(document_, at_ + 1); }
  JsonView Next() const;
  bool IsEnd(const JsonView& child) const { return child.at_ >= End(); }
  size_t CountChildren() const;
  std::string Spelled() const;  // canonical

 private:
  friend class JsonDocument;
  uint32_t End() const;
  const JsonDocument* document_ = nullptr;
  uint32_t at_ = 0;
};

class JsonDocument {
 public:
  // kDataLoss naming `what` unless `text` is one canonical document.
  static Result<JsonDocument> Parse(std::string_view what, std::string_view text);
  JsonView root() const { return JsonView(this, 0); }
  // With `blank_digest`, the outermost object's "digest" is written as "".
  std::string Serialize(bool blank_digest = false) const;

 private:
  friend class JsonView;
  friend class TapeBuilder;
  std::vector<JsonNode> nodes_;
  std::string text_;
};

// Reads an object whose keys must rise; remembers the first error, checked once at the end.
class JsonObject {
 public:
  JsonObject(std::string what, JsonView object);
  bool Has(std::string_view key) const { return Find(key).valid(); }
  std::string String(std::string_view key);
  uint64_t Uint(std::string_view key, uint64_t max = UINT64_MAX);
  int64_t Int(std::string_view key);
  bool Bool(std::string_view key);
  std::string Base64(std::string_view key);
  JsonView Array(std::string_view key);
  JsonView Object(std::string_view key);
  JsonView Any(std::string_view key);
  void Fail(std::string message);
  // Takes what a parser of a string said.
  template <typename T>
  T Take(Result<T> parsed) {
    if (parsed.ok()) return std::move(parsed).value();
    Fail(parsed.status().message());
    return T{};
  }
  bool failed() const { return !status_.ok(); }
  const Status& status() const { return status_; }

 private:
  JsonView Find(std::string_view key) const;
  JsonView Typed(std::string_view key, JsonKind kind, const char* name);
  std::string what_;
  JsonView object_;
  Status status_;
};

// Puts the digest into a document that holds `"digest":""` at the outermost level, with no object
// before it.
std::string SignDocument(std::string document);
// Parses, checks spelling, digest, kind and format version: what all our JSON files share.
Result<JsonDocument> OpenDocument(std::string_view kind, std::string_view text, uint64_t bytes_max);

}  // namespace ckpt::format
