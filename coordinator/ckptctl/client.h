// The way to the coordinator.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "ckpt/v1/coordinator.grpc.pb.h"
#include "coordinator/ckptctl/verb.h"

namespace ckpt::ckptctl {

// --server, else CKPT_SERVER, else /run/ckpt/ckptd.sock, else $XDG_RUNTIME_DIR/ckpt/ckptd.sock.
std::string FindServer(const std::string& flag);

class Client {
 public:
  // Blocks: until connected, `limit` at most.
  // Errors: kUnavailable when no coordinator answers there; the message says what to type.
  static Result<Client> Connect(const std::string& server,
                                std::chrono::milliseconds limit = std::chrono::seconds(5));

  v1::Coordinator::Stub& stub() { return *stub_; }

  // Calls a unary method: Call(&Stub::GetJob, request, &response).
  template <typename Method, typename Request, typename Response>
  Status Call(Method method, const Request& request, Response* response,
              std::chrono::seconds limit = std::chrono::seconds(60)) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + limit);
    return FromGrpc((stub_.get()->*method)(&context, request, response));
  }

  // To a coordinator that was there a moment ago, for a minute at most.
  // Errors: kCancelled after a noted Ctrl-C; else as Connect, and lost() from then on.
  Status Reconnect();
  bool lost() const { return lost_; }

  // Waits until the operation has ended, or has granted what was asked for, also over a restart of
  // the coordinator. `seen` gets it several times a second. Errors: kCancelled once `seen` is
  // false.
  Status WaitFor(uint64_t op_id, v1::Operation* operation,
                 const std::function<bool(const v1::Operation&)>& seen);

  static Status FromGrpc(const grpc::Status& status);

 private:
  std::string server_;
  bool lost_ = false;
  std::unique_ptr<v1::Coordinator::Stub> stub_;
};

// A number for one request, so that it can be repeated.
uint64_t NewOpId();

// Connects and runs `body`; returns the exit code.
int WithClient(const Globals& globals, const std::function<Status(Client&)>& body);

}  // namespace ckpt::ckptctl
