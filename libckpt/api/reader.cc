#include "libckpt/session/reader.h"

#include "libckpt/api/handles.h"
#include "libckpt/session/describe.h"
#include "libckpt/storage/file/file_store.h"

using namespace ckpt;
using namespace ckpt::api;

namespace {

Status CheckReader(const ckpt_reader_t* reader, const char* function) {
  if (reader == nullptr) return NullArgument(function, "reader");
  if (reader->session != nullptr && reader->session->InForkedChild())
    return FailedPrecondition(std::string(function) +
                              ": a reader works in the process that opened it only");
  return OkStatus();
}

// A job's directory, or one checkpoint's.
Result<std::unique_ptr<storage::Store>> OpenForReading(const std::string& path) {
  CKPT_ASSIGN_OR_RETURN(const storage::DirectoryKind kind, storage::KindOfDirectory(path));
  if (kind == storage::DirectoryKind::kCheckpoint) return storage::OpenCheckpointDirectory(path);
  if (kind == storage::DirectoryKind::kJob)
    return std::unique_ptr<storage::Store>(storage::OpenFileStore(path));
  std::string jobs;
  for (const std::string& name : storage::JobsBeneath(path)) jobs += " " + name;
  return NotFound("no checkpoint and no job's directory: " + path +
                  (jobs.empty() ? "" : "; jobs beneath it:" + jobs));
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
    *out_reader = new ckpt_reader_t{session->session, nullptr, std::move(reader), ""};
    return OkStatus();
  });
}

ckpt_error_t* ckpt_reader_open_path(const char* path, const char* selector, uint32_t rank,
                                    ckpt_reader_t** out_reader) {
  return Guarded([&]() -> Status {
    if (path == nullptr) return NullArgument("ckpt_reader_open_path", "path");
    if (out_reader == nullptr) return NullArgument("ckpt_reader_open_path", "out_reader");
    *out_reader = nullptr;
    CKPT_ASSIGN_OR_RETURN(std::unique_ptr<storage::Store> store, OpenForReading(path));
    CKPT_ASSIGN_OR_RETURN(std::unique_ptr<engine::CheckpointReader> reader,
                          session::OpenSelected(store.get(), OrEmpty(selector), store->Describe()));
    *out_reader = new ckpt_reader_t{
        nullptr, std::move(store),
        std::make_unique<session::Reader>(std::move(reader), std::vector<os::Mapping>(), Rank(rank),
                                          0, session::LoadedCallback()),
        ""};
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

ckpt_error_t* ckpt_reader_load_part(ckpt_reader_t* reader, ckpt_state_t* state) {
  return Guarded([&]() -> Status {
    CKPT_RETURN_IF_ERROR(CheckReader(reader, "ckpt_reader_load_part"));
    if (state == nullptr) return NullArgument("ckpt_reader_load_part", "state");
    return reader->reader->LoadPart(*state->state);
  });
}

ckpt_error_t* ckpt_reader_contents(ckpt_reader_t* reader, const char** out_json) {
  return Guarded([&]() -> Status {
    CKPT_RETURN_IF_ERROR(CheckReader(reader, "ckpt_reader_contents"));
    if (out_json == nullptr) return NullArgument("ckpt_reader_contents", "out_json");
    CKPT_ASSIGN_OR_RETURN(reader->contents_json, reader->reader->Contents());
    *out_json = reader->contents_json.c_str();
    return OkStatus();
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
