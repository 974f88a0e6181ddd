// One list of fields for both directions: a frame's Fields() names each field once, with its bound;
// FieldWriter and FieldReader walk it. What would not be accepted is not sent either.
#pragma once

#include <cstdint>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include "libckpt/base/bytes.h"
#include "libckpt/base/ids.h"
#include "libckpt/base/limits.h"
#include "libckpt/base/status.h"

namespace ckpt::wire {

class FieldWriter {
 public:
  template <typename Int>
  void Number(Int& value, uint64_t max = UINT64_MAX) {
    if constexpr (std::is_enum_v<Int>) {
      auto number = static_cast<std::underlying_type_t<Int>>(value);
      Number(number, max);
    } else {
      Check(static_cast<uint64_t>(value) <= max || max == UINT64_MAX);
      out_.Put<Int>(value);
    }
  }
  void Bool(bool& value) { out_.PutBool(value); }
  void String(std::string& text, size_t size_max) {
    Check(text.size() <= size_max);
    out_.PutString(text);
  }
  void Id(JobId& id) {
    out_.PutRaw(std::string_view(reinterpret_cast<const char*>(id.bytes.data()), id.bytes.size()));
  }
  template <typename T, typename Each>
  void List(std::vector<T>& list, size_t count_max, size_t /*each_min*/, Each each) {
    Check(list.size() <= count_max);
    out_.Put<uint32_t>(static_cast<uint32_t>(list.size()));
    for (T& item : list) each(item);
  }
  void Check(bool good) { bad_ |= !good; }
  bool bad() const { return bad_; }
  ByteWriter& out() { return out_; }

 private:
  ByteWriter out_;
  bool bad_ = false;
};

class FieldReader {
 public:
  explicit FieldReader(std::string_view bytes) : in_(bytes) {}
  template <typename Int>
  void Number(Int& value, uint64_t max = UINT64_MAX) {
    if constexpr (std::is_enum_v<Int>) {
      std::underlying_type_t<Int> number{};
      Number(number, max);
      value = static_cast<Int>(number);
    } else {
      value = in_.Get<Int>();
      Check(static_cast<uint64_t>(value) <= max || max == UINT64_MAX);
    }
  }
  void Bool(bool& value) {
    const auto byte = in_.Get<uint8_t>();
    Check(byte <= 1);
    value = byte == 1;
  }
  void String(std::string& text, size_t size_max) { text = in_.GetString(size_max); }
  void Id(JobId& id) {
    const std::string_view raw = in_.GetRaw(id.bytes.size());
    for (size_t i = 0; i < raw.size(); ++i) id.bytes[i] = static_cast<uint8_t>(raw[i]);
  }
  template <typename T, typename Each>
  void List(std::vector<T>& list, size_t count_max, size_t each_min, Each each) {
    const uint32_t count = in_.GetCount(each_min);
    Check(count <= count_max);
    if (in_.failed()) return;
    list.resize(count);
    for (T& item : list) each(item);
  }
  void Check(bool good) {
    if (!good) in_.Fail();
  }
  ByteReader& in() { return in_; }

 private:
  ByteReader in_;
};

template <typename Visitor>
void AttemptField(Visitor& v, AttemptId& id) {
  uint64_t epoch = id.epoch.value();
  int64_t step = id.step.value();
  uint32_t attempt = id.attempt.value();
  v.Number(epoch);
  v.Number(step);
  v.Number(attempt);
  id = AttemptId{Epoch(epoch), Step(step), Attempt(attempt)};
}

// A frame type's number on the wire is `first` plus its place in the variant.
template <typename Body>
Result<std::string> EncodeBody(uint16_t first, uint16_t version, uint32_t request, const Body& body,
                               std::string_view name) {
  FieldWriter writer;
  writer.out().Put<uint16_t>(static_cast<uint16_t>(first + body.index()));
  writer.out().Put<uint16_t>(version).Put<uint32_t>(request);
  Body copy = body;  // Fields() takes what it can also fill
  std::visit([&](auto& fields) { Fields(writer, fields); }, copy);
  if (writer.bad() || writer.out().size() > kFrameBytesMax) {
    return InvalidArgument("frame " + std::string(name) + ": a field is out of its range, or " +
                           std::to_string(writer.out().size()) + " bytes are more than " +
                           std::to_string(kFrameBytesMax));
  }
  return std::move(writer.out()).Take();
}

template <typename Body, size_t kIndex = 0>
bool SelectBody(size_t index, Body* body) {
  if constexpr (kIndex < std::variant_size_v<Body>) {
    if (index != kIndex) return SelectBody<Body, kIndex + 1>(index, body);
    body->template emplace<kIndex>();
    return true;
  } else {
    return false;
  }
}

template <typename Body>
Status DecodeBody(std::string_view datagram, uint16_t first, uint16_t version, uint32_t* request,
                  Body* body) {
  if (datagram.size() > kFrameBytesMax) return DataLoss("a frame is too long");
  FieldReader reader(datagram);
  const auto type = reader.in().Get<uint16_t>();
  const auto version_seen = reader.in().Get<uint16_t>();
  *request = reader.in().Get<uint32_t>();
  if (reader.in().failed()) return DataLoss("a frame is shorter than its header");
  if (type < first || !SelectBody(static_cast<size_t>(type - first), body)) {
    return DataLoss("a frame of unknown type " + std::to_string(type));
  }
  if (version_seen != version) {
    return FailedPrecondition(
        "a frame of version " + std::to_string(version_seen) + ", this end speaks version " +
        std::to_string(version) +
        ": libckpt in the program and ckpt-run (or ckpt-run and agent) are of releases that do not "
        "fit; install the newer release on this node, or start the job with a library of the same "
        "release");
  }
  std::visit([&](auto& fields) { Fields(reader, fields); }, *body);
  return reader.in().Finish("frame of type " + std::to_string(type));
}

}  // namespace ckpt::wire
