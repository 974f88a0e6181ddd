#include "coordinator/agent/coordinator_link.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <atomic>
#include <deque>

#include "ckpt/v1/agent.grpc.pb.h"
#include "libckpt/base/mutex.h"
#include "libckpt/base/rng.h"
#include "libckpt/os/process.h"
#include "libckpt/os/thread.h"

namespace ckpt::agent {
namespace {

constexpr auto kConnectTime = std::chrono::seconds(5);
constexpr int kMessageBytesMax = 64 << 20;

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& target) {
  grpc::ChannelArguments arguments;
  // A channel of our own, whose connection is retried when we say.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  arguments.SetMaxReceiveMessageSize(kMessageBytesMax);
  return grpc::CreateCustomChannel(target, grpc::InsecureChannelCredentials(), arguments);
}

}  // namespace

struct CoordinatorLink::Impl : public std::enable_shared_from_this<Impl> {
  using Stream = grpc::ClientReaderWriterInterface<v1::AgentMsg, v1::CoordinatorMsg>;

  Impl(const std::string& target, Backoff backoff, os::EventLoop* loop, Handlers handlers)
      : target_(target), backoff_(backoff), loop_(loop), handlers_(std::move(handlers)) {}

  // Posts to the loop; nothing is called once the link is gone.
  template <typename Call>
  void Tell(Call call) {
    loop_->Post([weak = weak_from_this(), call = std::move(call)] {
      const std::shared_ptr<Impl> self = weak.lock();
      if (self != nullptr && !self->gone_) call(self->handlers_);
    });
  }

  void Run() {
    const std::shared_ptr<grpc::Channel> channel = MakeChannel(target_);
    const std::unique_ptr<v1::Agents::Stub> stub = v1::Agents::NewStub(channel);
    Rng jitter(static_cast<uint64_t>(BoottimeNs()) ^ static_cast<uint64_t>(os::SelfPid()));
    Nanos wait = backoff_.min;
    std::string last_why;
    while (!Stopping()) {
      const auto until = std::chrono::system_clock::now() + kConnectTime;
      std::string why = "nobody answers at " + target_;
      if (channel->WaitForConnected(until) && !Stopping()) {
        const int64_t opened_ns = BoottimeNs();
        why = RunSession(stub.get());
        // One that lasted begins anew with short waits.
        if (BoottimeNs() - opened_ns > Nanos(std::chrono::seconds(10)).count()) wait = backoff_.min;
      }
      if (why != last_why) Tell([why](Handlers& h) { h.closed(0, why); });
      last_why = why;
      Pause(Nanos(wait.count() / 2 +
                  static_cast<int64_t>(jitter.Below(static_cast<uint64_t>(wait.count())))));
      wait = std::min(backoff_.max, wait * 8 / 5);
    }
  }

  std::string RunSession(v1::Agents::Stub* stub) {
    grpc::ClientContext context;
    const std::unique_ptr<Stream> stream(stub->Session(&context));
    const uint64_t session = Begin(&context);
    if (session == 0) return "stopping";
    os::Thread writer("ckpt-ctl-write", [&] { WriteLoop(stream.get(), &context); });
    Tell([session](Handlers& h) { h.opened(session); });
    v1::CoordinatorMsg message;
    while (stream->Read(&message)) {
      Tell([session, message](Handlers& h) { h.message(session, message); });
    }
    End();
    writer.Join();
    const grpc::Status status = stream->Finish();
    const std::string why =
        status.ok() ? "the coordinator ended the session" : status.error_message();
    Tell([session, why](Handlers& h) { h.closed(session, why); });
    return why;
  }

  void WriteLoop(Stream* stream, grpc::ClientContext* context) {
    v1::AgentMsg message;
    while (TakeMessage(&message)) {
      if (stream->Write(message)) continue;
      return context->TryCancel();  // wakes the reader
    }
    // No cancel here: it would hide what the coordinator said as it hung up.
  }

  uint64_t Begin(grpc::ClientContext* context) {
    MutexLock lock(mutex_);
    if (stopping_) return 0;
    queue_.clear();
    context_ = context;
    return session_ = ++last_session_;
  }
  void End() {
    MutexLock lock(mutex_);
    session_ = 0;
    context_ = nullptr;
    queue_.clear();
    changed_.NotifyAll();
  }
  bool TakeMessage(v1::AgentMsg* message) {
    MutexLock lock(mutex_);
    while (session_ != 0 && !stopping_ && queue_.empty()) changed_.Wait(mutex_);
    if (session_ == 0 || stopping_) return false;
    *message = std::move(queue_.front());
    queue_.pop_front();
    return true;
  }
  void Send(uint64_t session, v1::AgentMsg message) {
    MutexLock lock(mutex_);
    if (session == 0 || session != session_) return;
    if (queue_.size() >= kQueueMax) {
      if (context_ != nullptr) context_->TryCancel();
      return;
    }
    queue_.push_back(std::move(message));
    changed_.NotifyAll();
  }
  void Drop(uint64_t session) {
    MutexLock lock(mutex_);
    if (session == session_ && context_ != nullptr) context_->TryCancel();
  }
  void Stop() {
    gone_ = true;
    MutexLock lock(mutex_);
    stopping_ = true;
    if (context_ != nullptr) context_->TryCancel();
    changed_.NotifyAll();
  }
  bool Stopping() {
    MutexLock lock(mutex_);
    return stopping_;
  }
  void Pause(Nanos time) {
    const Deadline deadline("reconnect to the coordinator", time);
    MutexLock lock(mutex_);
    while (!stopping_ && changed_.WaitUntil(mutex_, deadline)) {
    }
  }

  const std::string target_;
  const Backoff backoff_;
  os::EventLoop* const loop_;
  Handlers handlers_;
  std::atomic<bool> gone_{false};

  Mutex mutex_;
  CondVar changed_;
  bool stopping_ CKPT_GUARDED_BY(mutex_) = false;
  uint64_t session_ CKPT_GUARDED_BY(mutex_) = 0;  // 0: none
  uint64_t last_session_ CKPT_GUARDED_BY(mutex_) = 0;
  grpc::ClientContext* context_ CKPT_GUARDED_BY(mutex_) = nullptr;
  std::deque<v1::AgentMsg> queue_ CKPT_GUARDED_BY(mutex_);
  os::Thread thread_;
};

CoordinatorLink::CoordinatorLink(const std::string& target, Backoff backoff, os::EventLoop* loop,
                                 Handlers handlers)
    : impl_(std::make_shared<Impl>(target, backoff, loop, std::move(handlers))) {
  impl_->thread_ = os::Thread("ckpt-ctl-read", [impl = impl_.get()] { impl->Run(); });
}

CoordinatorLink::~CoordinatorLink() {
  impl_->Stop();
  impl_->thread_.Join();
}

void CoordinatorLink::Send(uint64_t session, v1::AgentMsg message) {
  impl_->Send(session, std::move(message));
}
void CoordinatorLink::Drop(uint64_t session) { impl_->Drop(session); }

}  // namespace ckpt::agent
