#include "integrations/gloo/ckpt_gloo.h"

#include <gloo/allreduce.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <vector>

namespace ckpt_gloo {
namespace {

std::chrono::milliseconds UntilDeadline(int64_t deadline_boottime_ns) {
  timespec now{};
  clock_gettime(CLOCK_BOOTTIME, &now);
  const int64_t now_ns = int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
  return std::chrono::milliseconds(
      std::max<int64_t>((deadline_boottime_ns - now_ns) / 1'000'000, 1));
}

void Check(ckpt_error_t* error) {
  if (error == nullptr) return;
  const std::string message = ckpt_error_message(error);
  ckpt_error_free(error);
  throw std::runtime_error(message);
}

// Gloo's rendezvous over the gang's key-value channel; keys carry the fresh id, so no older run can
// answer.
class KvStore : public ::gloo::rendezvous::Store {
 public:
  KvStore(ckpt_kv_t* kv, std::string prefix, int64_t deadline_ns)
      : kv_(kv), prefix_(std::move(prefix)), deadline_ns_(deadline_ns) {}

  void set(const std::string& key, const std::vector<char>& data) override {
    Check(ckpt_kv_set(kv_, (prefix_ + key).c_str(), data.data(), data.size()));
  }
  std::vector<char> get(const std::string& key) override {
    std::vector<char> value(16 * 1024);
    for (;;) {
      size_t size = value.size();
      const int64_t timeout_ns = UntilDeadline(deadline_ns_).count() * 1'000'000;
      Check(ckpt_kv_wait(kv_, (prefix_ + key).c_str(), value.data(), &size, timeout_ns));
      const bool whole = size <= value.size();
      value.resize(size);
      if (whole) return value;
    }
  }
  void wait(const std::vector<std::string>& keys) override {
    for (const std::string& key : keys) get(key);
  }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds&) override {
    wait(keys);
  }

 private:
  ckpt_kv_t* const kv_;
  const std::string prefix_;
  const int64_t deadline_ns_;
};

}  // namespace

Communicator::Communicator(int rank, int world_size, std::string name, std::string hostname)
    : rank_(rank),
      world_size_(world_size),
      name_(std::move(name)),
      hostname_(std::move(hostname)) {}

Communicator::~Communicator() {
  if (registered_ != nullptr) ckpt_error_free(ckpt_comm_unregister(registered_));
}

template <typename Fn>
int32_t Communicator::Guarded(Fn&& fn) {
  try {
    fn();
    return 0;
  } catch (const std::exception& error) {
    last_error_ = error.what();
    return 1;
  }
}

int32_t Communicator::Up(const char* fresh_id, ckpt_kv_t* kv, int64_t deadline_boottime_ns) {
  return Guarded([&] {
    fresh_id_ = fresh_id;
    std::shared_ptr<::gloo::transport::Device> device =
        ::gloo::transport::tcp::CreateDevice(::gloo::transport::tcp::attr(hostname_.c_str()));
    auto context = std::make_shared<::gloo::rendezvous::Context>(rank_, world_size_);
    context->setTimeout(UntilDeadline(deadline_boottime_ns));
    KvStore store(kv, name_ + "/" + fresh_id_ + "/", deadline_boottime_ns);
    context->connectFullMesh(store, device);
    context_ = context;
  });
}

// Every rank adds a number that depends on its rank and the fresh id; a wrong sum means that
// somebody else answered.
int32_t Communicator::Verify(int64_t deadline_boottime_ns) {
  return Guarded([&] {
    uint64_t id_hash = 1469598103934665603u;
    for (const char c : fresh_id_) id_hash = (id_hash ^ static_cast<uint8_t>(c)) * 1099511628211u;
    uint64_t sum = 0;
    for (int r = 0; r < world_size_; ++r) sum += id_hash * static_cast<uint64_t>(r + 1);
    uint64_t value = id_hash * static_cast<uint64_t>(rank_ + 1);
    ::gloo::AllreduceOptions options(context_);
    options.setOutput(&value, 1);
    options.setReduceFunction([](void* out, const void* a, const void* b, size_t n) {
      auto* to = static_cast<uint64_t*>(out);
      for (size_t i = 0; i < n; ++i) {
        to[i] = static_cast<const uint64_t*>(a)[i] + static_cast<const uint64_t*>(b)[i];
      }
    });
    options.setTimeout(UntilDeadline(deadline_boottime_ns));
    ::gloo::allreduce(options);
    if (value != sum)
      throw std::runtime_error("checksum collective of '" + name_ + "' gave a wrong sum");
    context_->setTimeout(std::chrono::hours(1));
  });
}

ckpt_comm_ops_t Communicator::Operations(Communicator* self) {
  ckpt_comm_ops_t ops{};
  ops.struct_size = sizeof ops;
  ops.ctx = self;
  ops.name = self->name_.c_str();
  // Collectives of Gloo block their caller: at a boundary of the loop's own thread none is in
  // flight.
  ops.quiesce = [](void*, int64_t) -> int32_t { return 0; };
  ops.down = [](void* ctx, int64_t) -> int32_t {
    auto* comm = static_cast<Communicator*>(ctx);
    return comm->Guarded([&] { comm->context_.reset(); });
  };
  ops.up = [](void* ctx, const char* fresh_id, ckpt_kv_t* kv, int64_t deadline_ns) -> int32_t {
    return static_cast<Communicator*>(ctx)->Up(fresh_id, kv, deadline_ns);
  };
  ops.verify = [](void* ctx, int64_t deadline_ns) -> int32_t {
    return static_cast<Communicator*>(ctx)->Verify(deadline_ns);
  };
  return ops;
}

ckpt_error_t* Communicator::Register(ckpt_session_t* session) {
  const ckpt_comm_ops_t ops = Operations(this);
  return ckpt_comm_register(session, &ops, &registered_);
}

}  // namespace ckpt_gloo
