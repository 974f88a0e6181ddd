// Any message as JSON, by reflection. Not protobuf's own: that one writes 64-bit numbers as
// strings.
#include <google/protobuf/descriptor.h>

#include <nlohmann/json.hpp>

#include "coordinator/ckptctl/render.h"

namespace ckpt::ckptctl {
namespace {

using google::protobuf::EnumValueDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using Json = nlohmann::ordered_json;

Json Convert(const Message& message);

std::string Lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

// JOB_RUNNING is "running", NODE_JOB_STARTING "starting".
std::string Word(const EnumValueDescriptor* value) {
  std::string name = value->name();
  for (const char* prefix : {"NODE_JOB_", "JOB_STATE_", "JOB_", "OPERATION_", "STOP_"}) {
    if (name.starts_with(prefix)) return Lower(name.substr(std::string(prefix).size()));
  }
  return Lower(name);
}

std::string Hex(const std::string& bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const char c : bytes) {
    text += kDigits[static_cast<uint8_t>(c) >> 4];
    text += kDigits[static_cast<uint8_t>(c) & 15];
  }
  return text;
}

Json Text(const FieldDescriptor* field, const std::string& value) {
  return field->type() == FieldDescriptor::TYPE_BYTES ? Json(Hex(value)) : Json(value);
}

// The value of a field, or of element `i` of a repeated one (i < 0: a single field).
Json Value(const Message& m, const FieldDescriptor* f, int i) {
  const Reflection* r = m.GetReflection();
  const bool one = i < 0;
  switch (f->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return one ? r->GetInt32(m, f) : r->GetRepeatedInt32(m, f, i);
    case FieldDescriptor::CPPTYPE_INT64:
      return one ? r->GetInt64(m, f) : r->GetRepeatedInt64(m, f, i);
    case FieldDescriptor::CPPTYPE_UINT32:
      return one ? r->GetUInt32(m, f) : r->GetRepeatedUInt32(m, f, i);
    case FieldDescriptor::CPPTYPE_UINT64:
      return one ? r->GetUInt64(m, f) : r->GetRepeatedUInt64(m, f, i);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return one ? r->GetDouble(m, f) : r->GetRepeatedDouble(m, f, i);
    case FieldDescriptor::CPPTYPE_FLOAT:
      return one ? r->GetFloat(m, f) : r->GetRepeatedFloat(m, f, i);
    case FieldDescriptor::CPPTYPE_BOOL:
      return one ? r->GetBool(m, f) : r->GetRepeatedBool(m, f, i);
    case FieldDescriptor::CPPTYPE_ENUM:
      return Word(one ? r->GetEnum(m, f) : r->GetRepeatedEnum(m, f, i));
    case FieldDescriptor::CPPTYPE_STRING:
      return Text(f, one ? r->GetString(m, f) : r->GetRepeatedString(m, f, i));
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return Convert(one ? r->GetMessage(m, f) : r->GetRepeatedMessage(m, f, i));
  }
  return nullptr;
}

// Map entries come in no order of their own; nlohmann's plain object sorts them.
Json MapValue(const Message& m, const FieldDescriptor* f) {
  nlohmann::json map = nlohmann::json::object();
  const Reflection* r = m.GetReflection();
  for (int i = 0; i < r->FieldSize(m, f); ++i) {
    const Message& entry = r->GetRepeatedMessage(m, f, i);
    const auto* type = entry.GetDescriptor();
    const std::string key = entry.GetReflection()->GetString(entry, type->FindFieldByNumber(1));
    map[key] = Value(entry, type->FindFieldByNumber(2), -1).get<std::string>();
  }
  return Json(map);
}

Json Convert(const Message& message) {
  Json object = Json::object();
  const auto* type = message.GetDescriptor();
  for (int i = 0; i < type->field_count(); ++i) {
    const FieldDescriptor* field = type->field(i);
    if (field->is_map()) {
      object[field->name()] = MapValue(message, field);
    } else if (field->is_repeated()) {
      Json list = Json::array();
      const int size = message.GetReflection()->FieldSize(message, field);
      for (int k = 0; k < size; ++k) list.push_back(Value(message, field, k));
      object[field->name()] = std::move(list);
    } else {
      object[field->name()] = Value(message, field, -1);
    }
  }
  return object;
}

}  // namespace

std::string ToJson(const Message& message, int indent) {
  return Convert(message).dump(indent, ' ', false, Json::error_handler_t::replace);
}

}  // namespace ckpt::ckptctl
