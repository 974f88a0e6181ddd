// A Gloo communicator that libckpt can take down at a suspend and build again: registered through
// the C ABI, its rendezvous runs over the gang's key-value channel under a fresh id each time.
//
// I1  context() is null between Down and Up; a collective never runs on a context of an older
// epoch. I2  Down leaves no thread and no socket of Gloo behind.
#pragma once

#include <ckpt/ckpt.h>

#include <memory>
#include <string>

namespace gloo {
class Context;
}

namespace ckpt_gloo {

class Communicator {
 public:
  // `hostname` is the address that peers reach this process at.
  Communicator(int rank, int world_size, std::string name = "world",
               std::string hostname = "127.0.0.1");
  // Unregisters, if registered, and closes all connections.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  // Registers with the session and connects; every rank calls it, in the same order for several
  // communicators. Blocks: until all ranks have. Returns the library's error (the caller frees it);
  // null is success.
  ckpt_error_t* Register(ckpt_session_t* session);

  // Valid until the next step() that returns STOP; ask again after each step.
  const std::shared_ptr<::gloo::Context>& context() const { return context_; }
  // What went wrong in the last callback, in Gloo's words.
  const std::string& last_error() const { return last_error_; }

 private:
  int32_t Up(const char* fresh_id, ckpt_kv_t* kv, int64_t deadline_boottime_ns);
  int32_t Verify(int64_t deadline_boottime_ns);
  template <typename Fn>
  int32_t Guarded(Fn&& fn);
  static ckpt_comm_ops_t Operations(Communicator* self);

  const int rank_;
  const int world_size_;
  const std::string name_;
  const std::string hostname_;
  std::string fresh_id_;
  std::string last_error_;
  std::shared_ptr<::gloo::Context> context_;
  ckpt_comm_t* registered_ = nullptr;
};

}  // namespace ckpt_gloo
