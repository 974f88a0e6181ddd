#include "coordinator/ckptctl/watch.h"

#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <iostream>

#include "coordinator/ckptctl/render.h"
#include "coordinator/ckptctl/terminal.h"
#include "libckpt/base/clock.h"
#include "libckpt/base/mutex.h"
#include "libckpt/os/terminal.h"
#include "libckpt/os/thread.h"

namespace ckpt::ckptctl {
namespace {

// Steps and bytes move without an event: on a terminal they are fetched at this pace as well.
constexpr auto kRedrawEvery = std::chrono::milliseconds(500);
constexpr auto kQuietMax = std::chrono::minutes(10);

// Listens to the timeline on a thread of its own.
class EventFeed {
 public:
  EventFeed(Client& client, const std::string& job, uint64_t since) {
    request_.set_follow(true);
    request_.set_since(since);
    request_.set_job(job);
    reader_ = client.stub().WatchEvents(&context_, request_);
    thread_ = os::Thread("ckpt-events", [this] { Read(); });
  }
  ~EventFeed() {
    context_.TryCancel();
    thread_.Join();
  }

  // Until something has happened or the stream has ended.
  void Wait(const Deadline& deadline) {
    MutexLock lock(mutex_);
    while (!news_ && !ended_ && changed_.WaitUntil(mutex_, deadline)) {
    }
    news_ = false;
  }
  bool ended() {
    MutexLock lock(mutex_);
    return ended_;
  }

 private:
  void Read() {
    v1::Event event;
    while (reader_->Read(&event)) {
      MutexLock lock(mutex_);
      news_ = true;
      changed_.NotifyAll();
    }
    reader_->Finish();
    MutexLock lock(mutex_);
    ended_ = true;
    changed_.NotifyAll();
  }

  v1::WatchEventsRequest request_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<v1::Event>> reader_;
  Mutex mutex_;
  CondVar changed_;
  bool news_ CKPT_GUARDED_BY(mutex_) = false;
  bool ended_ CKPT_GUARDED_BY(mutex_) = false;
  os::Thread thread_;
};

class Screen {
 public:
  explicit Screen(bool json)
      : json_(json),
        live_(!json && os::IsTerminal(STDOUT_FILENO)),
        block_(std::cout, STDOUT_FILENO) {}
  bool live() const { return live_; }

  void Show(const Shown& shown) {
    if (live_) {
      block_.Draw(shown.text + "\n" + ClockTime(WallNs()) +
                  " UTC; Ctrl-C ends this and nothing else\n");
      return;
    }
    if (shown.text == last_) return;
    last_ = shown.text;
    if (!json_) std::cout << "-- " << ClockTime(WallNs()) << "\n";
    std::cout << shown.text << std::flush;
  }
  void Keep() { block_.Keep(); }

 private:
  const bool json_;
  const bool live_;
  LiveBlock block_;
  std::string last_;
};

// What happens from now on; an older coordinator tells all that ever happened.
uint64_t Revision(Client& client) {
  v1::CoordinatorStatus status;
  const Status asked =
      client.Call(&v1::Coordinator::Stub::GetStatus, v1::GetStatusRequest(), &status);
  return asked.ok() ? status.revision() : 0;
}

// Until the view is over (true), or the connection is lost (false).
Result<bool> WatchConnected(Client& client, const std::string& job, const View& view, int indent,
                            Screen* screen) {
  EventFeed feed(client, job, Revision(client));
  while (!feed.ended()) {
    CKPT_ASSIGN_OR_RETURN(const Shown shown, view(client, indent));
    screen->Show(shown);
    if (!shown.over) {
      feed.Wait(screen->live() ? Deadline("redraw", kRedrawEvery)
                               : Deadline("next event", kQuietMax));
      continue;
    }
    CKPT_RETURN_IF_ERROR(shown.outcome);
    return true;
  }
  return false;
}

}  // namespace

int ShowOnce(const Globals& globals, const View& view) {
  return WithClient(globals, [&](Client& client) -> Status {
    CKPT_ASSIGN_OR_RETURN(const Shown shown, view(client, 2));
    std::cout << shown.text;
    return OkStatus();
  });
}

int Watch(const Globals& globals, const std::string& job, const View& view) {
  Screen screen(globals.json());
  return WithClient(globals, [&](Client& client) -> Status {
    while (true) {
      const Result<bool> over = WatchConnected(client, job, view, -1, &screen);
      const bool lost = over.ok() ? !*over : over.status().code() == Code::kUnavailable;
      if (!lost) screen.Keep();
      if (!lost) return over.ok() ? OkStatus() : over.status();
      CKPT_RETURN_IF_ERROR(client.Reconnect());
    }
  });
}

}  // namespace ckpt::ckptctl
