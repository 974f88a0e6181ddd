#include "libckpt/session/session.h"

#include "libckpt/api/handles.h"
#include "libckpt/base/clock.h"
#include "libckpt/base/log.h"

using namespace ckpt;
using namespace ckpt::api;

namespace {

Result<wire::RankPhase> ToPhase(ckpt_phase_t phase) {
  switch (phase) {
    case CKPT_PHASE_TRAIN:
      return wire::RankPhase::kRunning;
    case CKPT_PHASE_SETUP:
      return wire::RankPhase::kSetup;
    case CKPT_PHASE_COMPILE:
      return wire::RankPhase::kCompile;
    case CKPT_PHASE_EVALUATION:
      return wire::RankPhase::kEvaluation;
  }
  return InvalidArgument("no phase has the number " + std::to_string(phase));
}

bool TakeLog(const ckpt_session_options_t& options) {
  if (options.log == nullptr) return false;
  SetLogSink([log = options.log, ctx = options.log_ctx](LogLevel level, std::string_view message) {
    log(ctx, static_cast<int32_t>(level), std::string(message).c_str());
  });
  return true;
}

// Nobody has to look at what step() returns for this to be heard; a loop that saves more often than
// its store can write does not fill a log with it.
void LogNotSaved(ckpt_session_t* session, int64_t user_step, const Status& why) {
  constexpr int64_t kPauseNs = 60'000'000'000;
  const int64_t now = BoottimeNs();
  const bool same = why.code() == session->not_saved_code;
  if (same && now - session->not_saved_ns < kPauseNs) {
    ++session->not_saved_more;
    return;
  }
  std::string more;
  if (session->not_saved_more != 0) {
    more = " (and " + std::to_string(session->not_saved_more) + " saves before it)";
  }
  session->not_saved_code = why.code();
  session->not_saved_ns = now;
  session->not_saved_more = 0;
  LogWarning("step " + std::to_string(user_step) + more +
             ": not saved, training goes on: " + why.ToString());
}

Status Open(const ckpt_session_options_t* options, ckpt_session_t** out_session) {
  ckpt_session_options_t known{};
  known.struct_size = sizeof known;
  known.rank = CKPT_UNSET_RANK;
  if (options != nullptr)
    CKPT_RETURN_IF_ERROR(ReadStruct(options, "ckpt_session_options_t", &known));
  CKPT_ASSIGN_OR_RETURN(session::Options resolved, ResolveOptions(known));
  auto handle = std::make_unique<ckpt_session_t>();
  handle->own_log = TakeLog(known);
  Result<std::shared_ptr<session::Session>> opened =
      session::Session::Open(std::move(resolved), RealParts());
  if (!opened.ok()) {
    if (handle->own_log) SetLogSink(nullptr);
    return std::move(opened).status();
  }
  handle->session = std::move(*opened);
  *out_session = handle.release();
  return OkStatus();
}

}  // namespace

extern "C" {

ckpt_error_t* ckpt_session_open(const ckpt_session_options_t* options,
                                ckpt_session_t** out_session) {
  return Guarded([&]() -> Status {
    if (out_session == nullptr) return NullArgument("ckpt_session_open", "out_session");
    *out_session = nullptr;
    return Open(options, out_session);
  });
}

ckpt_error_t* ckpt_session_close(ckpt_session_t* session, int64_t timeout_ns) {
  return Guarded([&]() -> Status {
    if (session == nullptr) return NullArgument("ckpt_session_close", "session");
    const Status status = session->session->Close(DeadlineOf("closing the session", timeout_ns));
    if (session->own_log && !session->session->InForkedChild()) SetLogSink(nullptr);
    Drop(session);
    return status;
  });
}

ckpt_error_t* ckpt_session_track(ckpt_session_t* session, ckpt_state_t* state,
                                 int32_t (*before_stage)(void* ctx, ckpt_state_t* state),
                                 void* ctx) {
  return Guarded([&]() -> Status {
    if (session == nullptr) return NullArgument("ckpt_session_track", "session");
    if (state == nullptr) return NullArgument("ckpt_session_track", "state");
    session::BeforeStage callback;
    if (before_stage != nullptr)
      callback = [before_stage, ctx, state](session::State*) { return before_stage(ctx, state); };
    return session->session->Track(state->state, std::move(callback));
  });
}

ckpt_error_t* ckpt_session_step(ckpt_session_t* session, int64_t user_step,
                                ckpt_request_t* out_request) {
  if (session == nullptr || out_request == nullptr) [[unlikely]]
    return Guarded([&] {
      return NullArgument("ckpt_session_step", session == nullptr ? "session" : "out_request");
    });
  return Guarded([&]() -> Status {
    session::StepResult result;
    Status status = session->session->AtBoundary(user_step, &result);
    out_request->kind = static_cast<ckpt_request_kind_t>(result.kind);
    out_request->boundary = result.boundary;
    out_request->deadline_boottime_ns = result.deadline_boottime_ns;
    if (!status.ok()) [[unlikely]]
      LogNotSaved(session, user_step, status);
    return status;
  });
}

ckpt_error_t* ckpt_session_phase(ckpt_session_t* session, ckpt_phase_t phase, int64_t expected_ns) {
  return Guarded([&]() -> Status {
    if (session == nullptr) return NullArgument("ckpt_session_phase", "session");
    if (expected_ns < 0) return InvalidArgument("ckpt_session_phase: expected_ns is negative");
    CKPT_ASSIGN_OR_RETURN(const wire::RankPhase known, ToPhase(phase));
    return session->session->SetPhase(known, Nanos(expected_ns));
  });
}

ckpt_error_t* ckpt_session_finish(ckpt_session_t* session) {
  return Guarded([&]() -> Status {
    if (session == nullptr) return NullArgument("ckpt_session_finish", "session");
    return session->session->Finish();
  });
}

ckpt_error_t* ckpt_session_describe(ckpt_session_t* session, const char** out_json) {
  return Guarded([&]() -> Status {
    if (session == nullptr) return NullArgument("ckpt_session_describe", "session");
    if (out_json == nullptr) return NullArgument("ckpt_session_describe", "out_json");
    CKPT_ASSIGN_OR_RETURN(session->describe_json, session->session->Describe());
    *out_json = session->describe_json.c_str();
    return OkStatus();
  });
}

}  // extern "C"
