#include "libckpt/session/save.h"

#include "libckpt/api/handles.h"

using namespace ckpt;
using namespace ckpt::api;

extern "C" {

ckpt_error_t* ckpt_save_begin(ckpt_session_t* session, const ckpt_save_options_t* options,
                              ckpt_save_t** out_save) {
  return Guarded([&]() -> Status {
    if (session == nullptr) return NullArgument("ckpt_save_begin", "session");
    if (options == nullptr) return NullArgument("ckpt_save_begin", "options");
    if (out_save == nullptr) return NullArgument("ckpt_save_begin", "out_save");
    *out_save = nullptr;
    ckpt_save_options_t known{};
    CKPT_RETURN_IF_ERROR(ReadStruct(options, "ckpt_save_options_t", &known));
    session::SaveRequest request;
    request.step = known.step;
    request.overlap = known.overlap != 0;
    request.slot_timeout = DeadlineOf("a free staging slot", known.timeout_ns).Left();
    if (known.changed != nullptr) {
      request.changed = [changed = known.changed, ctx = known.ctx] { return changed(ctx) != 0; };
    }
    CKPT_ASSIGN_OR_RETURN(std::shared_ptr<session::Save> save,
                          session->session->BeginSave(request));
    *out_save = new ckpt_save_t{session->session, std::move(save)};
    return OkStatus();
  });
}

ckpt_error_t* ckpt_save_fence(ckpt_session_t* session) {
  return Guarded([&]() -> Status {
    if (session == nullptr) return NullArgument("ckpt_save_fence", "session");
    return session->session->Fence();
  });
}

ckpt_error_t* ckpt_save_wait(ckpt_save_t* save, ckpt_level_t level, int64_t timeout_ns) {
  return Guarded([&]() -> Status {
    if (save == nullptr) return NullArgument("ckpt_save_wait", "save");
    if (level < CKPT_LEVEL_NONE || level > CKPT_LEVEL_SHARED)
      return InvalidArgument("ckpt_save_wait: no level has the number " + std::to_string(level));
    return save->session->WaitSave(save->save.get(), static_cast<session::Level>(level),
                                   DeadlineOf("waiting for a save", timeout_ns));
  });
}

ckpt_error_t* ckpt_save_progress(ckpt_save_t* save, ckpt_level_t* out_level,
                                 uint64_t* out_bytes_done, uint64_t* out_bytes_total) {
  return Guarded([&]() -> Status {
    if (save == nullptr) return NullArgument("ckpt_save_progress", "save");
    if (save->session->InForkedChild())
      return FailedPrecondition("a save's handle works in the process that began it only");
    const session::Save::Progress progress = save->save->progress();
    if (out_level != nullptr) *out_level = static_cast<ckpt_level_t>(progress.level);
    if (out_bytes_done != nullptr) *out_bytes_done = progress.bytes_done;
    if (out_bytes_total != nullptr) *out_bytes_total = progress.bytes_total;
    return save->save->error();
  });
}

ckpt_error_t* ckpt_save_cancel(ckpt_save_t* save) {
  return Guarded([&]() -> Status {
    if (save == nullptr) return NullArgument("ckpt_save_cancel", "save");
    if (save->session->InForkedChild())
      return FailedPrecondition("a save's handle works in the process that began it only");
    return save->session->CancelSave(save->save.get());
  });
}

void ckpt_save_free(ckpt_save_t* save) { Drop(save); }

}  // extern "C"
