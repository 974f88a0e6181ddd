// What the opaque handles of ckpt.h are, and how every function of the C ABI begins and ends: the
// one place that catches exceptions, and that turns a Status into an error the caller frees.
#pragma once

#include <ckpt/ckpt.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <string>

#include "libckpt/base/bytes.h"
#include "libckpt/base/status.h"
#include "libckpt/session/session.h"

namespace ckpt::comm {
class NcclCommunicators;
}
namespace ckpt::device {
class CudaDevice;
}

struct ckpt_error_t {
  ckpt::Status status;
  std::string text;
};
struct ckpt_state_t {
  std::shared_ptr<ckpt::session::State> state;
};
struct ckpt_session_t {
  std::shared_ptr<ckpt::session::Session> session;
  std::string describe_json, list_json;
  bool own_log = false;
  // What step() has said last about saves that were not made, and how often it has not said it.
  ckpt::Code not_saved_code = ckpt::Code::kOk;
  int64_t not_saved_ns = 0;
  uint64_t not_saved_more = 0;
};
struct ckpt_save_t {
  std::shared_ptr<ckpt::session::Session> session;
  std::shared_ptr<ckpt::session::Save> save;
};
struct ckpt_reader_t {
  std::shared_ptr<ckpt::session::Session> session;  // null: opened by its path
  std::unique_ptr<ckpt::storage::Store> store;      // of a reader without a session
  std::unique_ptr<ckpt::session::Reader> reader;    // before its store is closed
  std::string contents_json;
};
struct ckpt_comm_t {
  std::shared_ptr<ckpt::session::Session> session;
  std::shared_ptr<ckpt::comm::Communicator> communicator;
};
struct ckpt_nccl_t {
  std::shared_ptr<ckpt::session::Session> session;
  std::shared_ptr<ckpt::comm::NcclCommunicators> group;
  bool connected = false;
  std::string report_json;
};
struct ckpt_kv_t {
  ckpt::comm::KeyValue* keys = nullptr;
};

namespace ckpt::api {

// Null for OK. Never throws; out of memory is an error of its own that needs none.
ckpt_error_t* ToError(Status status) noexcept;
// Whether this error belongs to the library for good.
bool IsShared(const ckpt_error_t* error);

// Runs `body` (→ Status); nothing thrown in it gets out.
template <typename Body>
ckpt_error_t* Guarded(Body&& body) noexcept {
  try {
    Status status = body();
    return status.ok() ? nullptr : ToError(std::move(status));
  } catch (const std::bad_alloc&) {
    return ToError(ResourceExhausted("out of memory"));
  } catch (const std::exception& error) {
    return ToError(Internal(std::string("unexpected: ") + error.what()));
  } catch (...) {
    return ToError(Internal("unexpected exception of an unknown type"));
  }
}

Status NullArgument(const char* function, const char* argument);

// A struct of the C ABI as this library knows it, from one that the caller was compiled with: what
// an older header did not have keeps `defaults`; what a newer one has beyond this must be zero.
template <typename Struct>
Status ReadStruct(const Struct* from, const char* name, Struct* defaults) {
  size_t size = 0;
  std::memcpy(&size, from, sizeof size);
  if (size < sizeof size || size > 64 * 1024)
    return InvalidArgument(std::string(name) + ": struct_size is " + std::to_string(size) +
                           "; set it to sizeof(" + name + ")");
  const auto* bytes = reinterpret_cast<const unsigned char*>(from);
  for (size_t i = sizeof(Struct); i < size; ++i) {
    if (bytes[i] != 0)
      return Unimplemented(std::string(name) +
                           " has a field set that this version of libckpt does not know; the "
                           "program was built with a newer ckpt.h");
  }
  std::memcpy(static_cast<void*>(defaults), from, std::min(size, sizeof(Struct)));
  return OkStatus();
}

// Nanoseconds from now; negative: no limit.
Deadline DeadlineOf(std::string_view name, int64_t timeout_ns);

inline std::string OrEmpty(const char* text) { return text == nullptr ? "" : text; }

// Drops a handle; in a forked child it is left alone, since what it owns belongs to the parent.
template <typename Handle>
void Drop(Handle* handle) noexcept {
  if (handle == nullptr) return;
  if (handle->session != nullptr && handle->session->InForkedChild()) return;
  delete handle;
}

// The process's one of that ordinal; never destroyed.
Result<device::CudaDevice*> Cuda(int ordinal);

// Options and environment together.
Result<session::Options> ResolveOptions(const ckpt_session_options_t& raw);
// The parts of a real process: the directory store, the machine's files.
session::Parts RealParts();

}  // namespace ckpt::api
