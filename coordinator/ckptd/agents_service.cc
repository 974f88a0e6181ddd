#include "coordinator/ckptd/agents_service.h"

#include "coordinator/ckptd/convert.h"
#include "coordinator/ckptd/status_convert.h"
#include "libckpt/base/log.h"

namespace ckpt::ckptd {
namespace {

constexpr size_t kWritesMax = 4096;

// Lives until gRPC is done with it and the loop has let it go: each holds a reference.
class AgentStream final : public grpc::ServerBidiReactor<v1::AgentMsg, v1::CoordinatorMsg>,
                          public AgentLink,
                          public std::enable_shared_from_this<AgentStream> {
 public:
  AgentStream(CoreLoop* loop, grpc::CallbackServerContext* context)
      : loop_(loop), context_(context) {}

  void Begin(std::shared_ptr<AgentStream> self) {
    self_ = std::move(self);
    StartRead(&incoming_);
  }

  void Send(v1::CoordinatorMsg message) override {
    bool overflow = false;
    {
      MutexLock lock(mutex_);
      if (closing_) return;
      overflow = outgoing_.size() >= kWritesMax;
      if (!overflow) outgoing_.push_back(std::move(message));
      if (!overflow) StartNextWrite();
    }
    if (overflow) Close(ResourceExhausted("the agent does not read its commands"));
  }

  void Close(Status why) override {
    {
      MutexLock lock(mutex_);
      if (closing_) return;
      closing_ = true;
      final_ = ToGrpc(why);
      if (!writing_) {
        Finish(final_);
        finished_ = true;
        return;
      }
    }
    context_->TryCancel();  // a peer that does not read would hold the last write for ever
  }

  void OnReadDone(bool ok) override {
    auto self = self_;
    if (self == nullptr) return;
    Status posted;
    if (ok) {
      posted = loop_->Post([self] { self->Handle(); });
    } else {
      posted = loop_->Post([self] { self->Gone(); });
    }
    if (!posted.ok()) Close(posted);
  }

  void OnWriteDone(bool ok) override {
    MutexLock lock(mutex_);
    writing_ = false;
    outgoing_.pop_front();
    if (closing_) {
      if (!finished_) Finish(final_);
      finished_ = true;
    } else if (ok) {
      StartNextWrite();
    }
  }

  void OnCancel() override {}
  void OnDone() override {
    auto self = std::move(self_);
    loop_->Post([self] { self->Gone(); }).IgnoreError();
  }

 private:
  void StartNextWrite() CKPT_REQUIRES(mutex_) {
    if (writing_ || outgoing_.empty()) return;
    writing_ = true;
    StartWrite(&outgoing_.front());
  }

  // On the loop's thread.
  void Handle() {
    Status status = Dispatch();
    if (!status.ok()) {
      LogWarning("agent " + (node_.empty() ? std::string(context_->peer()) : node_) + ": " +
                 status.message());
      Close(status);
      return;
    }
    loop_->Heard(node_, this);
    bool open = false;
    {
      MutexLock lock(mutex_);
      open = !closing_;
    }
    if (open) StartRead(&incoming_);
  }

  Status Dispatch() {
    if (incoming_.kind_case() == v1::AgentMsg::kNode) {
      const core::NodeInfo info = FromProto(incoming_.node());
      if (!node_.empty() && node_ != info.name) {
        return InvalidArgument("a stream that spoke for " + node_ + " now says " + info.name);
      }
      node_ = info.name;
      return loop_->Attach(info, shared_from_this());
    }
    if (node_.empty()) return FailedPrecondition("the first message must be the node's");
    switch (incoming_.kind_case()) {
      case v1::AgentMsg::kJob:
        return loop_->Apply(core::JobReported{node_, FromProto(incoming_.job())}).status();
      case v1::AgentMsg::kFetch:
        return loop_->Apply(core::Fetched{node_, FromProto(incoming_.fetch())}).status();
      case v1::AgentMsg::kResult:
        return loop_->Apply(core::CommandAnswered{node_, FromProto(incoming_.result())}).status();
      case v1::AgentMsg::kHeartbeat:
        return loop_->Apply(core::StagingUsed{node_, incoming_.heartbeat().staging_used_bytes()})
            .status();
      case v1::AgentMsg::kHealth:
        loop_->TakeHealth(node_, incoming_.health());
        return OkStatus();
      case v1::AgentMsg::kLog:
        loop_->LogArrived(incoming_.log());
        return OkStatus();
      default:
        return OkStatus();  // a newer agent's message: it works without an answer
    }
  }

  void Gone() {
    Close(Cancelled("the agent closed its stream"));
    loop_->Detach(node_, this, "its connection ended");
  }

  CoreLoop* loop_;
  grpc::CallbackServerContext* context_;
  std::shared_ptr<AgentStream> self_;  // gRPC's reference
  std::string node_;                   // the loop's
  v1::AgentMsg incoming_;              // gRPC's and the loop's in turn
  Mutex mutex_;
  std::deque<v1::CoordinatorMsg> outgoing_ CKPT_GUARDED_BY(mutex_);
  bool writing_ CKPT_GUARDED_BY(mutex_) = false;
  bool closing_ CKPT_GUARDED_BY(mutex_) = false;
  bool finished_ CKPT_GUARDED_BY(mutex_) = false;
  grpc::Status final_ CKPT_GUARDED_BY(mutex_);
};

}  // namespace

grpc::ServerBidiReactor<v1::AgentMsg, v1::CoordinatorMsg>* AgentsService::Session(
    grpc::CallbackServerContext* context) {
  auto stream = std::make_shared<AgentStream>(loop_, context);
  AgentStream* reactor = stream.get();
  reactor->Begin(std::move(stream));
  return reactor;
}

}  // namespace ckpt::ckptd
