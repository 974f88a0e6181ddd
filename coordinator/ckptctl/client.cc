#include "coordinator/ckptctl/client.h"

#include <grpcpp/grpcpp.h>
#include <poll.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <random>

#include "coordinator/ckptctl/terminal.h"
#include "libckpt/base/clock.h"

namespace ckpt::ckptctl {
namespace {

constexpr auto kLookMax = std::chrono::seconds(5);      // a coordinator that is stopped
constexpr auto kRestartMax = std::chrono::seconds(60);  // a coordinator that is away during a wait
constexpr int64_t kPollMs = 200;

std::string Env(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// True once connected; false as soon as the address is known not to answer.
bool Connected(grpc::Channel& channel, std::chrono::nanoseconds limit) {
  const auto until = std::chrono::system_clock::now() + limit;
  while (true) {
    const grpc_connectivity_state state = channel.GetState(true);
    if (state == GRPC_CHANNEL_READY) return true;
    if (state == GRPC_CHANNEL_TRANSIENT_FAILURE || state == GRPC_CHANNEL_SHUTDOWN) return false;
    if (!channel.WaitForStateChange(state, until)) return false;
  }
}

}  // namespace

std::string FindServer(const std::string& flag) {
  if (!flag.empty()) return flag;
  const std::string env = Env("CKPT_SERVER");
  if (!env.empty()) return env;
  const std::string system = "/run/ckpt/ckptd.sock";
  const std::string run = Env("XDG_RUNTIME_DIR");
  if (::access(system.c_str(), F_OK) == 0 || run.empty()) return "unix:" + system;
  return "unix:" + run + "/ckpt/ckptd.sock";
}

Result<Client> Client::Connect(const std::string& server, std::chrono::milliseconds limit) {
  const auto channel = grpc::CreateChannel(server, grpc::InsecureChannelCredentials());
  if (!Connected(*channel, limit)) {
    return Unavailable("no coordinator answers at " + server + ": start `ckptd --listen " + server +
                       "`, or name another with --server or CKPT_SERVER");
  }
  Client client;
  client.server_ = server;
  client.stub_ = v1::Coordinator::NewStub(channel);
  return client;
}

Status Client::FromGrpc(const grpc::Status& status) {
  if (status.ok()) return OkStatus();
  // That of a coordinator which ends while it is asked. Ours is Ctrl-C.
  if (status.error_code() == grpc::StatusCode::CANCELLED && !InterruptNote::Noted()) {
    return Unavailable("the coordinator ended while it was asked; ask again");
  }
  return {static_cast<Code>(status.error_code()), status.error_message()};
}

Status Client::Reconnect() {
  const Deadline deadline("restart of the coordinator", kRestartMax);
  while (true) {
    auto client = Connect(server_);
    if (client.ok()) {
      *this = std::move(client).value();
      return OkStatus();
    }
    if (InterruptNote::Noted()) return Cancelled("interrupted");
    if (deadline.Expired()) {
      lost_ = true;
      return std::move(client).status();
    }
    ::poll(nullptr, 0, static_cast<int>(kPollMs));
  }
}

Status Client::WaitFor(uint64_t op_id, v1::Operation* operation,
                       const std::function<bool(const v1::Operation&)>& seen) {
  while (true) {
    v1::GetOperationRequest request;
    request.set_op_id(op_id);
    request.set_wait_ms(kPollMs);
    v1::Operation now;
    const Status status = Call(&v1::Coordinator::Stub::GetOperation, request, &now, kLookMax);
    if (status.code() == Code::kUnavailable || status.code() == Code::kDeadlineExceeded) {
      CKPT_RETURN_IF_ERROR(Reconnect());
      continue;
    }
    CKPT_RETURN_IF_ERROR(status);
    *operation = std::move(now);
    const bool go_on = seen(*operation);
    const bool granted = operation->kind() == "preempt" && operation->phase() == "GRANTED";
    if (granted || operation->state() != v1::OPERATION_RUNNING) return OkStatus();
    if (!go_on) return Cancelled("interrupted");
  }
}

uint64_t NewOpId() {
  std::random_device device;
  return (uint64_t{1} << 63) | (uint64_t{device()} << 31) | (device() >> 1);
}

int Fail(const Status& status) {
  std::fprintf(stderr, "ckptctl: %s\n", status.message().c_str());
  return kExitRefused;
}

int WithClient(const Globals& globals, const std::function<Status(Client&)>& body) {
  auto client = Client::Connect(globals.server);
  if (!client.ok()) {
    Fail(client.status());
    return kExitNoCoordinator;
  }
  const Status status = body(*client);
  if (status.ok()) return kExitDone;
  Fail(status);
  if (client->lost()) return kExitNoCoordinator;
  return status.code() == Code::kCancelled ? kExitInterrupted : kExitRefused;
}

}  // namespace ckpt::ckptctl
