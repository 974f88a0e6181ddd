#include "libckpt/session/reader.h"

#include "libckpt/api/handles.h"
#include "libckpt/session/describe.h"

using namespace ckpt;
using namespace ckpt::api;

namespace {

Status CheckReader(const ckpt_reader_t* reader, const char* function) {
  if (reader == nullptr) return NullArgument(function, "reader");
  if (reader->session->InForkedChild())
    return FailedPrecondition(std::string(function) +
                              ": a reader works in the process that opened it only");
  return OkStatus();
}

}  // namespace

extern "C" {

ckpt_error_t* ckpt_reader_open(ckpt_session_t* session, const char* selector,
                               ckpt_reader_t** out_reader) {
  return Guarded([&]() -> Status {
    if (session == nullptr) return NullArgument("ckpt_reader_open", "session");
    if (out_reader == nullptr) return NullArgument("ckpt_reader_open", "out_reader");
    *out_reader = nullptr;
    CKPT_ASSIGN_OR_RETURN(std::unique_ptr<session::Reader> reader,
                          session->session->OpenReader(OrEmpty(selector)));
    *out_reader = new ckpt_reader_t{session->session, std::move(reader)};
    return OkStatus();
  });
}

ckpt_error_t* ckpt_reader_list(ckpt_session_t* session, const char** out_json) {
  return Guarded([&]() -> Status {
    if (session == nullptr) return NullArgument("ckpt_reader_list", "session");
    if (out_json == nullptr) return NullArgument("ckpt_reader_list", "out_json");
    CKPT_ASSIGN_OR_RETURN(const std::vector<storage::CheckpointInfo> all,
                          session->session->ListCheckpoints());
    session->list_json = session::ToJson(all);
    *out_json = session->list_json.c_str();
    return OkStatus();
  });
}

ckpt_error_t* ckpt_reader_step(ckpt_reader_t* reader, int64_t* out_step) {
  return Guarded([&]() -> Status {
    CKPT_RETURN_IF_ERROR(CheckReader(reader, "ckpt_reader_step"));
    if (out_step == nullptr) return NullArgument("ckpt_reader_step", "out_step");
    *out_step = reader->reader->id().step.value();
    return OkStatus();
  });
}

ckpt_error_t* ckpt_reader_load(ckpt_reader_t* reader, ckpt_state_t* state) {
  return Guarded([&]() -> Status {
    CKPT_RETURN_IF_ERROR(CheckReader(reader, "ckpt_reader_load"));
    if (state == nullptr) return NullArgument("ckpt_reader_load", "state");
    return reader->reader->Load(state->state.get());
  });
}

ckpt_error_t* ckpt_reader_value(ckpt_reader_t* reader, const char* name, const char** out_json) {
  return Guarded([&]() -> Status {
    CKPT_RETURN_IF_ERROR(CheckReader(reader, "ckpt_reader_value"));
    if (name == nullptr) return NullArgument("ckpt_reader_value", "name");
    if (out_json == nullptr) return NullArgument("ckpt_reader_value", "out_json");
    CKPT_ASSIGN_OR_RETURN(const std::string* json, reader->reader->ValueJson(name));
    *out_json = json->c_str();
    return OkStatus();
  });
}

ckpt_error_t* ckpt_reader_blob(ckpt_reader_t* reader, const char* name, const void** out_bytes,
                               size_t* out_size) {
  return Guarded([&]() -> Status {
    CKPT_RETURN_IF_ERROR(CheckReader(reader, "ckpt_reader_blob"));
    if (name == nullptr) return NullArgument("ckpt_reader_blob", "name");
    if (out_bytes == nullptr) return NullArgument("ckpt_reader_blob", "out_bytes");
    if (out_size == nullptr) return NullArgument("ckpt_reader_blob", "out_size");
    CKPT_ASSIGN_OR_RETURN(const std::string* bytes, reader->reader->Blob(name));
    *out_bytes = bytes->data();
    *out_size = bytes->size();
    return OkStatus();
  });
}

void ckpt_reader_close(ckpt_reader_t* reader) { Drop(reader); }

}  // extern "C"
