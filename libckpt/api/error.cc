#include "libckpt/api/handles.h"

namespace ckpt::api {
namespace {

// For the one failure that cannot allocate its own error: made while there still is memory.
ckpt_error_t* const kOutOfMemory =
    new ckpt_error_t{ResourceExhausted("out of memory"), "RESOURCE_EXHAUSTED: out of memory"};

}  // namespace

ckpt_error_t* ToError(Status status) noexcept {
  if (status.ok()) return nullptr;
  try {
    std::string text = status.ToString();
    return new ckpt_error_t{std::move(status), std::move(text)};
  } catch (...) {
    return kOutOfMemory;
  }
}

bool IsShared(const ckpt_error_t* error) { return error == kOutOfMemory; }

Status NullArgument(const char* function, const char* argument) {
  return InvalidArgument(std::string(function) + ": " + argument + " is NULL");
}

Deadline DeadlineOf(std::string_view name, int64_t timeout_ns) {
  return timeout_ns < 0 ? Deadline::Infinite(name) : Deadline(name, Nanos(timeout_ns));
}

}  // namespace ckpt::api

extern "C" {

uint32_t ckpt_abi_version(void) { return CKPT_ABI_VERSION; }

int32_t ckpt_error_code(const ckpt_error_t* error) {
  return error == nullptr ? 0 : static_cast<int32_t>(error->status.code());
}

int32_t ckpt_error_outcome(const ckpt_error_t* error) {
  return error == nullptr ? 0 : static_cast<int32_t>(error->status.outcome());
}

const char* ckpt_error_message(const ckpt_error_t* error) {
  return error == nullptr ? "" : error->text.c_str();
}

void ckpt_error_free(ckpt_error_t* error) {
  if (!ckpt::api::IsShared(error)) delete error;
}

}  // extern "C"
