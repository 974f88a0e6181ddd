#include <map>

#include "libckpt/api/handles.h"
#include "libckpt/base/mutex.h"
#include "libckpt/device/cuda/cuda_device.h"
#include "libckpt/device/host/host_device.h"
#include "libckpt/format/types.h"

namespace ckpt::api {
namespace {

// One of each for the process, never destroyed: a copy may be in flight at exit.
device::Device* Host() {
  static device::Device* const host = device::CreateHostDevice().release();
  return host;
}

}  // namespace

Result<device::CudaDevice*> Cuda(int ordinal) {
  static Mutex* const mutex = new Mutex;
  static auto* const devices = new std::map<int, std::unique_ptr<device::CudaDevice>>;
  MutexLock lock(*mutex);
  std::unique_ptr<device::CudaDevice>& device = (*devices)[ordinal];
  if (device == nullptr) {
    CKPT_ASSIGN_OR_RETURN(device, device::CudaDevice::Open(ordinal));
  }
  return device.get();
}

namespace {

// As numbered by ckpt_tensor_desc_t.
Result<device::Device*> DeviceOf(uint32_t number, const void* data) {
  if (number == 0) return Host();
  CKPT_ASSIGN_OR_RETURN(device::CudaDevice * cuda, Cuda(static_cast<int>(number) - 1));
  if (data != nullptr) CKPT_RETURN_IF_ERROR(cuda->CheckPointer(data));
  return static_cast<device::Device*>(cuda);
}

Result<std::vector<uint64_t>> Numbers(const uint64_t* from, uint32_t count, const char* what,
                                      const std::string& tensor) {
  if (from == nullptr && count > 0)
    return InvalidArgument("tensor '" + tensor + "': " + what + " is NULL");
  return std::vector<uint64_t>(from, from + count);
}

Result<engine::LiveTensor> ToTensor(const ckpt_tensor_desc_t& desc) {
  if (desc.name == nullptr) return InvalidArgument("a tensor without a name (name is NULL)");
  engine::LiveTensor tensor;
  format::TensorMeta& meta = tensor.meta;
  meta.name = desc.name;
  meta.dtype = static_cast<format::DType>(desc.dtype);
  if (desc.placement < CKPT_UNSHARDED || desc.placement > CKPT_PER_RANK)
    return InvalidArgument("tensor '" + meta.name + "': no placement has the number " +
                           std::to_string(desc.placement));
  meta.placement = static_cast<format::Placement>(desc.placement);
  if (desc.ndim > kTensorDimsMax)
    return InvalidArgument("tensor '" + meta.name + "' has " + std::to_string(desc.ndim) +
                           " dims; at most " + std::to_string(kTensorDimsMax) + " are possible");
  CKPT_ASSIGN_OR_RETURN(meta.global_shape,
                        Numbers(desc.global_shape, desc.ndim, "global_shape", meta.name));
  meta.local.shape = meta.global_shape;
  if (desc.local_shape != nullptr)
    meta.local.shape.assign(desc.local_shape, desc.local_shape + desc.ndim);
  meta.local.offset.assign(desc.ndim, 0);
  if (desc.local_offset != nullptr)
    meta.local.offset.assign(desc.local_offset, desc.local_offset + desc.ndim);
  meta.tied_to = OrEmpty(desc.tied_to);
  meta.frozen = desc.frozen != 0;
  tensor.data = desc.data;
  if (desc.strides != nullptr) tensor.strides.assign(desc.strides, desc.strides + desc.ndim);
  Result<device::Device*> device = DeviceOf(desc.device, desc.data);
  if (!device.ok()) return std::move(device).status().Annotate("tensor '" + meta.name + "'");
  tensor.device = *device;
  tensor.stream = desc.stream;
  return tensor;
}

Result<format::Scope> ToScope(ckpt_scope_t scope, const char* name) {
  if (scope == CKPT_SHARED_VALUE) return format::Scope::kShared;
  if (scope == CKPT_RANK_VALUE) return format::Scope::kPerRank;
  return InvalidArgument("'" + std::string(name) + "': no scope has the number " +
                         std::to_string(scope));
}

}  // namespace
}  // namespace ckpt::api

using namespace ckpt;
using namespace ckpt::api;

extern "C" {

ckpt_error_t* ckpt_state_create(ckpt_state_t** out_state) {
  return Guarded([&]() -> Status {
    if (out_state == nullptr) return NullArgument("ckpt_state_create", "out_state");
    *out_state = new ckpt_state_t{std::make_shared<session::State>()};
    return OkStatus();
  });
}

ckpt_error_t* ckpt_state_add_tensor(ckpt_state_t* state, const ckpt_tensor_desc_t* desc) {
  return Guarded([&]() -> Status {
    if (state == nullptr) return NullArgument("ckpt_state_add_tensor", "state");
    if (desc == nullptr) return NullArgument("ckpt_state_add_tensor", "desc");
    ckpt_tensor_desc_t known{};
    CKPT_RETURN_IF_ERROR(ReadStruct(desc, "ckpt_tensor_desc_t", &known));
    CKPT_ASSIGN_OR_RETURN(engine::LiveTensor tensor, ToTensor(known));
    return state->state->AddTensor(std::move(tensor));
  });
}

ckpt_error_t* ckpt_state_move_tensor(ckpt_state_t* state, const char* name, void* data) {
  return Guarded([&]() -> Status {
    if (state == nullptr) return NullArgument("ckpt_state_move_tensor", "state");
    if (name == nullptr) return NullArgument("ckpt_state_move_tensor", "name");
    return state->state->MoveTensor(name, data);
  });
}

ckpt_error_t* ckpt_state_add_value(ckpt_state_t* state, const char* name, ckpt_scope_t scope,
                                   const char* json) {
  return Guarded([&]() -> Status {
    if (state == nullptr) return NullArgument("ckpt_state_add_value", "state");
    if (name == nullptr) return NullArgument("ckpt_state_add_value", "name");
    if (json == nullptr) return NullArgument("ckpt_state_add_value", "json");
    CKPT_ASSIGN_OR_RETURN(const format::Scope known, ToScope(scope, name));
    return state->state->SetValue(name, known, json);
  });
}

ckpt_error_t* ckpt_state_add_blob(ckpt_state_t* state, const char* name, ckpt_scope_t scope,
                                  const char* media_type, const void* bytes, size_t size) {
  return Guarded([&]() -> Status {
    if (state == nullptr) return NullArgument("ckpt_state_add_blob", "state");
    if (name == nullptr) return NullArgument("ckpt_state_add_blob", "name");
    if (bytes == nullptr && size > 0) return NullArgument("ckpt_state_add_blob", "bytes");
    CKPT_ASSIGN_OR_RETURN(const format::Scope known, ToScope(scope, name));
    std::string copy;
    if (size > 0) copy.assign(static_cast<const char*>(bytes), size);
    return state->state->SetBlob(name, known, OrEmpty(media_type), std::move(copy));
  });
}

void ckpt_state_free(ckpt_state_t* state) { delete state; }

}  // extern "C"
