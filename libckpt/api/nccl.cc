#include "libckpt/api/handles.h"
#include "libckpt/comm/nccl/nccl_comm.h"

using namespace ckpt;
using namespace ckpt::api;

namespace {

constexpr auto kCloseDrainMax = std::chrono::seconds(30);

Status Live(const ckpt_nccl_t* nccl, const char* function) {
  if (nccl == nullptr) return NullArgument(function, "nccl");
  if (nccl->session->InForkedChild())
    return FailedPrecondition(std::string(function) +
                              ": NCCL does not live in a forked child; open it there anew");
  return OkStatus();
}

}  // namespace

extern "C" {

ckpt_error_t* ckpt_nccl_create(ckpt_session_t* session, uint32_t device, const void* config,
                               ckpt_nccl_t** out_nccl) {
  return Guarded([&]() -> Status {
    if (session == nullptr) return NullArgument("ckpt_nccl_create", "session");
    if (out_nccl == nullptr) return NullArgument("ckpt_nccl_create", "out_nccl");
    *out_nccl = nullptr;
    if (device == 0)
      return InvalidArgument("ckpt_nccl_create: device 0 is the host; 1 + n is CUDA device n");
    CKPT_ASSIGN_OR_RETURN(device::CudaDevice * cuda, Cuda(static_cast<int>(device) - 1));
    const session::Session& of = *session->session;
    CKPT_ASSIGN_OR_RETURN(
        std::unique_ptr<comm::NcclCommunicators> group,
        comm::NcclCommunicators::Make(
            "world", of.rank().value(), of.world(),
            std::shared_ptr<device::CudaDevice>(cuda, [](device::CudaDevice*) {}), config));
    *out_nccl = new ckpt_nccl_t{session->session, std::move(group)};
    return OkStatus();
  });
}

ckpt_error_t* ckpt_nccl_add_split(ckpt_nccl_t* nccl, const ckpt_nccl_split_t* split,
                                  uint32_t* out_index) {
  return Guarded([&]() -> Status {
    CKPT_RETURN_IF_ERROR(Live(nccl, "ckpt_nccl_add_split"));
    if (split == nullptr) return NullArgument("ckpt_nccl_add_split", "split");
    if (out_index == nullptr) return NullArgument("ckpt_nccl_add_split", "out_index");
    ckpt_nccl_split_t known{};
    CKPT_RETURN_IF_ERROR(ReadStruct(split, "ckpt_nccl_split_t", &known));
    if (known.name == nullptr) return InvalidArgument("a split without a name (name is NULL)");
    CKPT_ASSIGN_OR_RETURN(*out_index, nccl->group->AddSplit(known.name, known.parent, known.color,
                                                            known.key, known.config));
    return OkStatus();
  });
}

ckpt_error_t* ckpt_nccl_add_stream(ckpt_nccl_t* nccl, void* stream) {
  return Guarded([&]() -> Status {
    CKPT_RETURN_IF_ERROR(Live(nccl, "ckpt_nccl_add_stream"));
    nccl->group->AddStream(stream);
    return OkStatus();
  });
}

ckpt_error_t* ckpt_nccl_add_buffer(ckpt_nccl_t* nccl, uint32_t index, void* memory, uint64_t bytes,
                                   int32_t window_flags) {
  return Guarded([&]() -> Status {
    CKPT_RETURN_IF_ERROR(Live(nccl, "ckpt_nccl_add_buffer"));
    return nccl->group->AddBuffer(index, memory, bytes, window_flags >= 0, window_flags);
  });
}

ckpt_error_t* ckpt_nccl_graph(ckpt_nccl_t* nccl, uint32_t index, const char* graph, uint32_t held) {
  return Guarded([&]() -> Status {
    CKPT_RETURN_IF_ERROR(Live(nccl, "ckpt_nccl_graph"));
    if (graph == nullptr) return NullArgument("ckpt_nccl_graph", "graph");
    return nccl->group->Graph(index, graph, held != 0);
  });
}

ckpt_error_t* ckpt_nccl_connect(ckpt_nccl_t* nccl) {
  return Guarded([&]() -> Status {
    CKPT_RETURN_IF_ERROR(Live(nccl, "ckpt_nccl_connect"));
    if (nccl->connected) return FailedPrecondition("ckpt_nccl_connect: it is connected already");
    CKPT_RETURN_IF_ERROR(nccl->session->RegisterCommunicator(nccl->group));
    nccl->connected = true;
    return OkStatus();
  });
}

ckpt_error_t* ckpt_nccl_handle(ckpt_nccl_t* nccl, uint32_t index, void** out_comm) {
  return Guarded([&]() -> Status {
    CKPT_RETURN_IF_ERROR(Live(nccl, "ckpt_nccl_handle"));
    if (out_comm == nullptr) return NullArgument("ckpt_nccl_handle", "out_comm");
    *out_comm = nccl->group->handle(index);
    return OkStatus();
  });
}

ckpt_error_t* ckpt_nccl_window(ckpt_nccl_t* nccl, const void* memory, void** out_window) {
  return Guarded([&]() -> Status {
    CKPT_RETURN_IF_ERROR(Live(nccl, "ckpt_nccl_window"));
    if (out_window == nullptr) return NullArgument("ckpt_nccl_window", "out_window");
    *out_window = nccl->group->window(memory);
    return OkStatus();
  });
}

ckpt_error_t* ckpt_nccl_report(ckpt_nccl_t* nccl, const char** out_json) {
  return Guarded([&]() -> Status {
    CKPT_RETURN_IF_ERROR(Live(nccl, "ckpt_nccl_report"));
    if (out_json == nullptr) return NullArgument("ckpt_nccl_report", "out_json");
    nccl->report_json = comm::nccl::ToJson(nccl->group->Report());
    *out_json = nccl->report_json.c_str();
    return OkStatus();
  });
}

ckpt_error_t* ckpt_nccl_close(ckpt_nccl_t* nccl) {
  return Guarded([&]() -> Status {
    CKPT_RETURN_IF_ERROR(Live(nccl, "ckpt_nccl_close"));
    Status status;
    if (nccl->connected) {
      // Peers may still wait for what this rank has enqueued.
      status = nccl->group->Quiesce(Deadline("closing NCCL communicators", kCloseDrainMax));
      const Status down = nccl->session->UnregisterCommunicator(nccl->group.get());
      if (status.ok()) status = down;
    }
    Drop(nccl);
    return status;
  });
}

}  // extern "C"
