#include "coordinator/ckptd/event_watch.h"

#include "coordinator/ckptd/convert.h"
#include "coordinator/ckptd/status_convert.h"

namespace ckpt::ckptd {
namespace {

constexpr size_t kBatchMax = 256;  // events held for a caller that reads slowly

class EventWatch final : public grpc::ServerWriteReactor<v1::Event> {
 public:
  EventWatch(CoreLoop* loop, const v1::WatchEventsRequest& request)
      : loop_(loop), request_(request), cursor_(request.since()) {}

  void Begin(std::shared_ptr<EventWatch> self) {
    self_ = self;
    const Status posted =
        loop_->Post([this, self] { loop_->Watch([self] { return self->Refill(); }); });
    if (!posted.ok()) End(posted);
  }

  void OnWriteDone(bool ok) override {
    bool empty = false;
    {
      MutexLock lock(mutex_);
      writing_ = false;
      batch_.pop_front();
      empty = batch_.empty();
      if (ok && !empty) StartNext();
    }
    if (!ok) {
      End(Cancelled("the caller went away"));
    } else if (empty) {
      auto self = self_;
      const Status posted = loop_->Post([self] { self->Refill(); });
      if (!posted.ok()) End(posted);
    }
  }

  void OnCancel() override { End(Cancelled("the caller went away")); }
  void OnDone() override { auto self = std::move(self_); }

 private:
  void StartNext() CKPT_REQUIRES(mutex_) {
    writing_ = true;
    StartWrite(&batch_.front());
  }

  // On the loop's thread. False when this watch has ended.
  bool Refill() {
    if (const Status stored = loop_->CheckStored(); !stored.ok()) {
      End(stored);
      return false;
    }
    bool ended = false;
    {
      MutexLock lock(mutex_);
      if (ended_) return false;
      if (writing_ || !batch_.empty()) return true;
      Collect();
      if (!batch_.empty()) StartNext();
      ended = batch_.empty() && !request_.follow();
    }
    if (ended) End(OkStatus());
    return !ended;
  }

  void Collect() CKPT_REQUIRES(mutex_) {
    while (batch_.empty()) {
      const auto events = loop_->core().EventsSince(cursor_, kBatchMax);
      if (events.empty()) return;
      cursor_ = events.back().revision;
      for (const core::EventRecord& event : events) {
        if (!request_.job().empty() && event.job != request_.job()) continue;
        batch_.emplace_back();
        ToProto(event, &batch_.back());
      }
    }
  }

  void End(const Status& status) {
    MutexLock lock(mutex_);
    if (ended_) return;
    ended_ = true;
    Finish(ToGrpc(status));
  }

  CoreLoop* loop_;
  const v1::WatchEventsRequest request_;
  std::shared_ptr<EventWatch> self_;  // gRPC's reference
  uint64_t cursor_;                   // the loop's
  Mutex mutex_;
  std::deque<v1::Event> batch_ CKPT_GUARDED_BY(mutex_);
  bool writing_ CKPT_GUARDED_BY(mutex_) = false;
  bool ended_ CKPT_GUARDED_BY(mutex_) = false;
};

}  // namespace

grpc::ServerWriteReactor<v1::Event>* StartEventWatch(CoreLoop* loop,
                                                     const v1::WatchEventsRequest& request) {
  auto watch = std::make_shared<EventWatch>(loop, request);
  EventWatch* reactor = watch.get();
  reactor->Begin(std::move(watch));
  return reactor;
}

}  // namespace ckpt::ckptd
