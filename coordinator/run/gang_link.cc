#include "coordinator/run/gang_link.h"

#include <grpcpp/grpcpp.h>

#include <deque>
#include <map>

#include "ckpt/v1/gang.grpc.pb.h"
#include "coordinator/run/gang_codec.h"
#include "libckpt/base/mutex.h"

namespace ckpt::run {
namespace {

constexpr int kMessageBytesMax = 512 << 20;  // the layouts of a node's ranks are the largest
constexpr char kTokenKey[] = "ckpt-gang-token-bin";  // -bin: any bytes
constexpr int kHandshakeMs = 10'000;                 // whoever connects and says nothing
constexpr int kMetadataBytesMax = 8 << 10;

// What waits to be written on one stream: at most one write is under way. Whoever is told to write
// does so outside the lock.
class WriteQueue {
 public:
  // True if the caller is to start a write of current().
  bool Push(v1::GangMsg message) {
    MutexLock lock(mutex_);
    if (ended_ || closing_) return false;
    queue_.push_back(std::move(message));
    return StartLocked();
  }
  // After a write: true if there is another one.
  bool Next(bool ok) {
    MutexLock lock(mutex_);
    writing_ = false;
    if (!ok) ended_ = true;
    return StartLocked();
  }
  void End() {
    MutexLock lock(mutex_);
    ended_ = true;
  }
  void CloseAfterWrites() {
    MutexLock lock(mutex_);
    closing_ = true;
  }
  // True exactly once: when the stream shall end and no write is under way.
  bool TakeFinish() {
    MutexLock lock(mutex_);
    const bool due = ended_ || (closing_ && queue_.empty());
    if (!due || writing_ || finished_) return false;
    finished_ = true;
    return true;
  }
  const v1::GangMsg& current() const { return current_; }

 private:
  bool StartLocked() CKPT_REQUIRES(mutex_) {
    if (writing_ || ended_ || finished_ || queue_.empty()) return false;
    current_ = std::move(queue_.front());
    queue_.pop_front();
    writing_ = true;
    return true;
  }

  Mutex mutex_;
  std::deque<v1::GangMsg> queue_ CKPT_GUARDED_BY(mutex_);
  v1::GangMsg current_;  // touched by the one who writes
  bool writing_ CKPT_GUARDED_BY(mutex_) = false;
  bool ended_ CKPT_GUARDED_BY(mutex_) = false;
  bool closing_ CKPT_GUARDED_BY(mutex_) = false;
  bool finished_ CKPT_GUARDED_BY(mutex_) = false;
};

// Where events go: the loop, for as long as the owner lives (`alive` is the loop's own).
template <typename Handler>
struct Sink {
  os::EventLoop* loop;
  Handler handler;
  bool alive = true;

  static void Post(const std::shared_ptr<Sink>& sink, std::function<void(const Handler&)> event) {
    sink->loop->Post([sink, event = std::move(event)] {
      if (sink->alive) event(sink->handler);
    });
  }
};
using ServerSink = Sink<GangServer::Handler>;
using ClientSink = Sink<GangClient::Handler>;

class ServerImpl;

class ServerStream : public grpc::ServerBidiReactor<v1::GangMsg, v1::GangMsg> {
 public:
  ServerStream(ServerImpl* server, GangServer::PeerId id);
  void Send(v1::GangMsg message) {
    if (writes_.Push(std::move(message))) StartWrite(&writes_.current());
  }
  void Close() {
    writes_.CloseAfterWrites();
    MaybeFinish();
  }

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override {
    if (writes_.Next(ok)) {
      StartWrite(&writes_.current());
    } else {
      MaybeFinish();
    }
  }
  void OnCancel() override {
    writes_.End();
    MaybeFinish();
  }
  void OnDone() override;

 private:
  void MaybeFinish() {
    if (writes_.TakeFinish()) Finish(grpc::Status::OK);
  }

  ServerImpl* const server_;
  const GangServer::PeerId id_;
  v1::GangMsg incoming_;
  WriteQueue writes_;
};

// Ends a stream before anything of it is read.
class Stranger : public grpc::ServerBidiReactor<v1::GangMsg, v1::GangMsg> {
 public:
  Stranger() {
    Finish(grpc::Status(grpc::StatusCode::UNAUTHENTICATED, "the gang's token is another"));
  }
  void OnDone() override { delete this; }
};

class ServerImpl : public GangServer, public v1::Gang::CallbackService {
 public:
  ServerImpl(os::EventLoop* loop, std::string token, Handler handler)
      : token_(std::move(token)),
        sink_(std::make_shared<ServerSink>(ServerSink{loop, std::move(handler)})) {}

  ~ServerImpl() override {
    sink_->alive = false;
    if (server_) {
      server_->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(1));
      server_->Wait();
    }
  }

  Status Start(const os::HostPort& address) {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort(address.ToString(), grpc::InsecureServerCredentials(), &port);
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 10'000);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 20'000);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5'000);
    builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeMs);
    builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMetadataBytesMax);
    builder.SetMaxReceiveMessageSize(kMessageBytesMax);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    if (!server_ || port == 0) {
      return AlreadyExists("the gang cannot be served at " + address.ToString() +
                           ": the port is in use or the address is not this machine's; choose "
                           "another with --rendezvous");
    }
    address_ = os::HostPort{address.host, static_cast<uint16_t>(port)}.ToString();
    return OkStatus();
  }

  std::string address() const override { return address_; }

  void Send(PeerId peer, const GangMessage& message) override {
    MutexLock lock(mutex_);
    const auto it = streams_.find(peer);
    if (it != streams_.end()) it->second->Send(ToProto(message));
  }
  void Close(PeerId peer) override {
    MutexLock lock(mutex_);
    const auto it = streams_.find(peer);
    if (it != streams_.end()) it->second->Close();
  }

  grpc::ServerBidiReactor<v1::GangMsg, v1::GangMsg>* Join(
      grpc::CallbackServerContext* context) override {
    const auto shown = context->client_metadata().find(kTokenKey);
    const bool known = shown != context->client_metadata().end() &&
                       std::string_view(shown->second.data(), shown->second.size()) == token_;
    if (!known) return new Stranger();  // deletes itself in OnDone
    MutexLock lock(mutex_);
    const PeerId id = next_id_++;
    auto* stream = new ServerStream(this, id);  // deletes itself in OnDone
    streams_[id] = stream;
    return stream;
  }

  void Received(PeerId id, Result<GangMessage> message) {
    if (!message.ok()) return Close(id);
    ServerSink::Post(sink_, [id, m = *message](const Handler& h) { h.message(id, m); });
  }
  void Ended(PeerId id) {
    {
      MutexLock lock(mutex_);
      streams_.erase(id);
    }
    ServerSink::Post(sink_, [id](const Handler& h) { h.closed(id); });
  }

 private:
  const std::string token_;
  const std::shared_ptr<ServerSink> sink_;
  std::string address_;
  // Held while a stream is told to write, so that it cannot end meanwhile; gRPC only queues there.
  Mutex mutex_;
  std::map<PeerId, ServerStream*> streams_ CKPT_GUARDED_BY(mutex_);
  PeerId next_id_ CKPT_GUARDED_BY(mutex_) = 1;
  std::unique_ptr<grpc::Server> server_;
};

ServerStream::ServerStream(ServerImpl* server, GangServer::PeerId id) : server_(server), id_(id) {
  StartRead(&incoming_);
}

void ServerStream::OnReadDone(bool ok) {
  if (!ok) {
    writes_.End();
    return MaybeFinish();
  }
  server_->Received(id_, FromProto(incoming_));
  StartRead(&incoming_);
}

void ServerStream::OnDone() {
  server_->Ended(id_);
  delete this;
}

class ClientImpl : public GangClient, public grpc::ClientBidiReactor<v1::GangMsg, v1::GangMsg> {
 public:
  ClientImpl(os::EventLoop* loop, const std::string& address, const std::string& token,
             Handler handler)
      : sink_(std::make_shared<ClientSink>(ClientSink{loop, std::move(handler)})) {
    grpc::ChannelArguments args;
    args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
    args.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 100);
    args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
    args.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 10'000);
    args.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 20'000);
    args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    args.SetMaxReceiveMessageSize(kMessageBytesMax);
    stub_ = v1::Gang::NewStub(
        grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), args));
    context_.set_wait_for_ready(true);
    context_.AddMetadata(kTokenKey, token);
  }

  void Start() {
    stub_->async()->Join(&context_, this);
    AddHold();  // for writes from the loop; removed when the stream ends
    StartRead(&incoming_);
    StartCall();
  }

  ~ClientImpl() override {
    sink_->alive = false;
    context_.TryCancel();
    MutexLock lock(mutex_);
    while (!done_) changed_.Wait(mutex_);  // a cancelled call ends at once
  }

  void Send(const GangMessage& message) override {
    if (writes_.Push(ToProto(message))) StartWrite(&writes_.current());
  }

  void OnReadDone(bool ok) override {
    if (!ok) return EndWrites();
    Result<GangMessage> message = FromProto(incoming_);
    if (!message.ok()) {
      context_.TryCancel();
    } else {
      ClientSink::Post(sink_, [m = *message](const Handler& h) { h.message(m); });
    }
    StartRead(&incoming_);
  }
  void OnWriteDone(bool ok) override {
    if (writes_.Next(ok)) return StartWrite(&writes_.current());
    MaybeRemoveHold();
  }
  void OnDone(const grpc::Status& status) override {
    std::string why = status.ok() ? "the leader closed the gang's stream"
                                  : "the gang's stream broke: " + status.error_message();
    const bool stranger = status.error_code() == grpc::StatusCode::UNAUTHENTICATED;
    if (stranger) {
      why = status.error_message() +
            " on the leading node; CKPT_GANG_TOKEN must be the same on all nodes, or unset on all "
            "(then it is .gang-token in the store that they share)";
    }
    ClientSink::Post(sink_, [why, stranger](const Handler& h) {
      h.closed(stranger ? PermissionDenied(why) : Unavailable(why));
    });
    MutexLock lock(mutex_);
    done_ = true;
    changed_.NotifyAll();
  }

 private:
  void EndWrites() {
    writes_.End();
    MaybeRemoveHold();
  }
  void MaybeRemoveHold() {
    if (writes_.TakeFinish()) RemoveHold();
  }

  const std::shared_ptr<ClientSink> sink_;
  std::unique_ptr<v1::Gang::Stub> stub_;
  grpc::ClientContext context_;
  v1::GangMsg incoming_;
  WriteQueue writes_;
  Mutex mutex_;
  CondVar changed_;
  bool done_ CKPT_GUARDED_BY(mutex_) = false;
};

}  // namespace

Result<std::unique_ptr<GangServer>> GangServer::Listen(os::EventLoop* loop,
                                                       const os::HostPort& address,
                                                       const std::string& token, Handler handler) {
  if (!os::IsLoopbackHost(address.host)) {
    return InvalidArgument("the gang is served on loopback only without TLS; " + address.host +
                           " is not loopback");
  }
  auto server = std::make_unique<ServerImpl>(loop, token, std::move(handler));
  CKPT_RETURN_IF_ERROR(server->Start(address));
  return std::unique_ptr<GangServer>(std::move(server));
}

Result<std::unique_ptr<GangClient>> GangClient::Connect(os::EventLoop* loop,
                                                        const std::string& address,
                                                        const std::string& token, Handler handler) {
  CKPT_ASSIGN_OR_RETURN(const os::HostPort parsed, os::ParseHostPort(address));
  if (!os::IsLoopbackHost(parsed.host)) {
    return InvalidArgument("without TLS a gang is joined on loopback only; " + parsed.host +
                           " is not loopback");
  }
  auto client = std::make_unique<ClientImpl>(loop, parsed.ToString(), token, std::move(handler));
  client->Start();
  return std::unique_ptr<GangClient>(std::move(client));
}

}  // namespace ckpt::run
