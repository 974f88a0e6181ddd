#include "libckpt/comm/comm.h"

#include "libckpt/api/handles.h"
#include "libckpt/base/guard.h"

namespace ckpt::api {
namespace {

// A program's communicator, behind its C operations.
class ForeignCommunicator : public comm::Communicator {
 public:
  ForeignCommunicator(const ckpt_comm_ops_t& ops, std::string name)
      : ops_(ops), name_(std::move(name)) {}

  std::string name() const override { return name_; }
  Status Quiesce(const Deadline& deadline) override {
    return Call("quiesce", [&] { return ops_.quiesce(ops_.ctx, deadline.at_ns()); });
  }
  Status Down(const Deadline& deadline) override {
    return Call("down", [&] { return ops_.down(ops_.ctx, deadline.at_ns()); });
  }
  Status Up(const std::string& fresh_id, comm::KeyValue* keys, const Deadline& deadline) override {
    ckpt_kv_t handle{keys};
    return Call("up",
                [&] { return ops_.up(ops_.ctx, fresh_id.c_str(), &handle, deadline.at_ns()); });
  }
  Status Verify(const Deadline& deadline) override {
    return Call("verify", [&] { return ops_.verify(ops_.ctx, deadline.at_ns()); });
  }

 private:
  // What it throws is its error: the gang is told, like of any other.
  template <typename Operation>
  static Status Call(const std::string& name, const Operation& operation) {
    return NoThrow("its " + name, [&] {
      const int32_t failed = operation();
      return failed == 0 ? OkStatus()
                         : Aborted("its " + name + " returned " + std::to_string(failed));
    });
  }

  const ckpt_comm_ops_t ops_;
  const std::string name_;
};

}  // namespace
}  // namespace ckpt::api

using namespace ckpt;
using namespace ckpt::api;

extern "C" {

ckpt_error_t* ckpt_kv_set(ckpt_kv_t* kv, const char* key, const void* value, size_t size) {
  return Guarded([&]() -> Status {
    if (kv == nullptr) return NullArgument("ckpt_kv_set", "kv");
    if (key == nullptr) return NullArgument("ckpt_kv_set", "key");
    if (value == nullptr && size > 0) return NullArgument("ckpt_kv_set", "value");
    std::string copy;
    if (size > 0) copy.assign(static_cast<const char*>(value), size);
    return kv->keys->Set(key, copy);
  });
}

ckpt_error_t* ckpt_kv_wait(ckpt_kv_t* kv, const char* key, void* value, size_t* inout_size,
                           int64_t timeout_ns) {
  return Guarded([&]() -> Status {
    if (kv == nullptr) return NullArgument("ckpt_kv_wait", "kv");
    if (key == nullptr) return NullArgument("ckpt_kv_wait", "key");
    if (inout_size == nullptr) return NullArgument("ckpt_kv_wait", "inout_size");
    if (value == nullptr && *inout_size > 0) return NullArgument("ckpt_kv_wait", "value");
    CKPT_ASSIGN_OR_RETURN(const std::string found,
                          kv->keys->Wait(key, DeadlineOf("waiting for a key", timeout_ns)));
    const size_t fits = std::min(*inout_size, found.size());
    if (fits > 0) std::memcpy(value, found.data(), fits);
    *inout_size = found.size();
    return OkStatus();
  });
}

ckpt_error_t* ckpt_comm_register(ckpt_session_t* session, const ckpt_comm_ops_t* ops,
                                 ckpt_comm_t** out_comm) {
  return Guarded([&]() -> Status {
    if (session == nullptr) return NullArgument("ckpt_comm_register", "session");
    if (ops == nullptr) return NullArgument("ckpt_comm_register", "ops");
    if (out_comm == nullptr) return NullArgument("ckpt_comm_register", "out_comm");
    *out_comm = nullptr;
    ckpt_comm_ops_t known{};
    CKPT_RETURN_IF_ERROR(ReadStruct(ops, "ckpt_comm_ops_t", &known));
    if (known.quiesce == nullptr || known.down == nullptr || known.up == nullptr ||
        known.verify == nullptr)
      return InvalidArgument("ckpt_comm_ops_t: quiesce, down, up and verify must all be set");
    auto communicator = std::make_shared<ForeignCommunicator>(
        known, known.name == nullptr ? "unnamed" : known.name);
    CKPT_RETURN_IF_ERROR(session->session->RegisterCommunicator(communicator));
    *out_comm = new ckpt_comm_t{session->session, std::move(communicator)};
    return OkStatus();
  });
}

ckpt_error_t* ckpt_comm_unregister(ckpt_comm_t* comm) {
  return Guarded([&]() -> Status {
    if (comm == nullptr) return NullArgument("ckpt_comm_unregister", "comm");
    const Status status = comm->session->UnregisterCommunicator(comm->communicator.get());
    Drop(comm);
    return status;
  });
}

}  // extern "C"
