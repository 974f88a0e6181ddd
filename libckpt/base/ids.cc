#include "libckpt/base/ids.h"

#include <charconv>
#include <random>

namespace ckpt {
namespace {

constexpr char kHexDigits[] = "0123456789abcdef";

int HexValue(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

// Takes `prefix` and a number off the front of `text`.
template <typename Int>
bool TakeNumber(std::string_view prefix, std::string_view* text, Int* out) {
  if (!text->starts_with(prefix)) return false;
  text->remove_prefix(prefix.size());
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), *out);
  if (error != std::errc()) return false;
  text->remove_prefix(static_cast<size_t>(end - text->data()));
  return true;
}

}  // namespace

std::string AttemptId::ToString() const {
  return "s" + std::to_string(step.value()) + ".e" + std::to_string(epoch.value()) + ".a" +
         std::to_string(attempt.value());
}

Result<AttemptId> AttemptId::Parse(std::string_view name) {
  std::string_view rest = name;
  int64_t step = 0;
  uint64_t epoch = 0;
  uint32_t attempt = 0;
  if (TakeNumber("s", &rest, &step) && TakeNumber(".e", &rest, &epoch) &&
      TakeNumber(".a", &rest, &attempt) && rest.empty()) {
    const AttemptId id{Epoch(epoch), Step(step), Attempt(attempt)};
    if (id.ToString() == name) return id;
  }
  return InvalidArgument("'" + std::string(name) +
                         "' is not a checkpoint name (s<step>.e<epoch>.a<attempt>)");
}

std::string JobId::ToString() const {
  std::string text;
  for (const uint8_t byte : bytes) {
    text += kHexDigits[byte >> 4];
    text += kHexDigits[byte & 15];
  }
  return text;
}

Result<JobId> JobId::Parse(std::string_view hex) {
  JobId id;
  bool good = hex.size() == 2 * id.bytes.size();
  for (size_t i = 0; good && i < id.bytes.size(); ++i) {
    const int high = HexValue(hex[2 * i]);
    const int low = HexValue(hex[2 * i + 1]);
    good = high >= 0 && low >= 0;
    id.bytes[i] = static_cast<uint8_t>(high * 16 + low);
  }
  if (!good) return InvalidArgument("'" + std::string(hex) + "' is not a job id (32 hex digits)");
  return id;
}

JobId JobId::Random() {
  std::random_device device;  // getrandom or rdrand: never a seeded generator
  JobId id;
  for (size_t i = 0; i < id.bytes.size(); i += 4) {
    const uint32_t word = device();
    for (size_t j = 0; j < 4; ++j) id.bytes[i + j] = static_cast<uint8_t>(word >> (8 * j));
  }
  return id;
}

Status CheckName(std::string_view kind, std::string_view name) {
  bool good = !name.empty() && name.size() <= 128 && name[0] != '.';
  for (const char c : name) {
    good = good && ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                    c == '.' || c == '_' || c == '-');
  }
  if (good) return OkStatus();
  return InvalidArgument(
      std::string(kind) + " '" + std::string(name) +
      "' is not a valid name: use 1 to 128 characters of [A-Za-z0-9._-], not starting with a dot");
}

}  // namespace ckpt
