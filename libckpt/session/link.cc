#include "libckpt/session/link.h"

#include <algorithm>

#include "libckpt/base/log.h"

namespace ckpt::session {
namespace {

constexpr Nanos kSendMax = std::chrono::seconds(10);
constexpr Nanos kHelloAgainMax = std::chrono::seconds(5);

Status Refusal(const wire::Failed& failed) {
  return Status(static_cast<Code>(failed.code), failed.message,
                failed.maybe_applied ? Outcome::kMaybeApplied : Outcome::kNotApplied);
}

}  // namespace

Link::Link(Config config, Handlers handlers)
    : config_(std::move(config)), handlers_(std::move(handlers)) {}

Link::~Link() { Stop(); }

std::shared_ptr<wire::Channel> Link::channel() const {
  MutexLock lock(mutex_);
  return channel_;
}

Result<Link::Hello> Link::Connect(const Deadline& deadline) {
  CKPT_ASSIGN_OR_RETURN(wire::Channel connected, wire::Channel::Connect(config_.socket, deadline));
  auto channel = std::make_shared<wire::Channel>(std::move(connected));
  CKPT_RETURN_IF_ERROR(channel->Send(wire::Frame{0, config_.hello}, deadline));
  CKPT_ASSIGN_OR_RETURN(Incoming answer, channel->Receive(deadline));
  if (const auto* failed = std::get_if<wire::Failed>(&answer.frame.body)) return Refusal(*failed);
  const auto* welcome = std::get_if<wire::Welcome>(&answer.frame.body);
  if (welcome == nullptr || answer.fds.size() != 1)
    return DataLoss("ckpt-run answered HELLO with " +
                    std::string(wire::FrameName(answer.frame.body)) + " instead of WELCOME");
  Hello hello;
  hello.welcome = *welcome;
  CKPT_ASSIGN_OR_RETURN(hello.page, os::Memfd::FromFd(std::move(answer.fds[0]), kPageBytes));
  pending_ = std::move(channel);
  return hello;
}

void Link::Publish() {
  MutexLock lock(mutex_);
  channel_ = std::move(pending_);
  not_in_children_.emplace(channel_->fd());
  up_.store(true);
}

Status Link::StartThread() {
  Publish();
  CKPT_ASSIGN_OR_RETURN(loop_, os::EventLoop::Create());
  CKPT_RETURN_IF_ERROR(loop_->AddFd(channel()->fd(), EPOLLIN, [this](uint32_t) { OnReadable(); }));
  loop_->AddPeriodic(config_.sample_every, [this] { handlers_.on_sample(); });
  if (config_.bell != nullptr) {
    CKPT_RETURN_IF_ERROR(loop_->AddFd(config_.bell->fd(), EPOLLIN, [this](uint32_t) {
      if (const int signal = config_.bell->Take(); signal != 0) handlers_.on_signal(signal);
    }));
  }
  thread_ = os::Thread("ckpt-watch", [this] {
    if (const Status status = loop_->Run(); !status.ok())
      LogError("the thread that watches ckpt-run ended: " + status.message());
  });
  return OkStatus();
}

void Link::Stop() {
  if (loop_ != nullptr) loop_->Stop();
  thread_.Join();
  loop_.reset();
  MutexLock lock(mutex_);
  not_in_children_.reset();
  channel_.reset();
  up_.store(false);
}

Status Link::Send(const wire::Frame& frame, const std::vector<int>& fds) {
  const std::shared_ptr<wire::Channel> to = channel();
  if (to == nullptr)
    return Unavailable("ckpt-run at " + config_.socket + " is not in reach; training goes on");
  MutexLock lock(send_mutex_);
  return to->Send(frame, fds, Deadline("sending to ckpt-run", kSendMax));
}

Status Link::Post(wire::Body body, const std::vector<int>& fds) {
  return Send(wire::Frame{0, std::move(body)}, fds);
}

Status Link::Request(wire::Body body, const std::vector<int>& fds) {
  return Send(wire::Frame{NextRequest(), std::move(body)}, fds);
}

uint32_t Link::NextRequest() {
  MutexLock lock(mutex_);
  if (++last_request_ == 0) ++last_request_;
  return last_request_;
}

Result<Link::Incoming> Link::Call(wire::Body body, const Deadline& deadline) {
  CKPT_ASSIGN_OR_RETURN(std::vector<Incoming> answers,
                        CallMany(
                            std::move(body), [](const wire::Frame&) { return true; }, deadline));
  return std::move(answers.front());
}

Result<std::vector<Link::Incoming>> Link::CallMany(
    wire::Body body, const std::function<bool(const wire::Frame&)>& last,
    const Deadline& deadline) {
  const std::string name(wire::FrameName(body));
  const uint32_t id = NextRequest();
  {
    MutexLock lock(mutex_);
    requests_[id];
  }
  Status status = Send(wire::Frame{id, std::move(body)}, {});
  std::vector<Incoming> answers;
  MutexLock lock(mutex_);
  while (status.ok()) {
    Pending& request = requests_[id];
    if (!request.answers.empty()) {
      answers.push_back(std::move(request.answers.front()));
      request.answers.pop_front();
      const wire::Frame& frame = answers.back().frame;
      if (const auto* failed = std::get_if<wire::Failed>(&frame.body)) {
        status = Refusal(*failed);
      } else if (last(frame)) {
        break;
      }
    } else if (request.lost) {
      status = Unavailable("ckpt-run went away before it answered " + name).MaybeApplied();
    } else if (!answered_.WaitUntil(mutex_, deadline) && request.answers.empty()) {
      status = deadline.Exceeded().Annotate("waiting for the answer to " + name);
    }
  }
  requests_.erase(id);
  if (!status.ok()) return status;
  return answers;
}

void Link::OnReadable() {
  const std::shared_ptr<wire::Channel> from = channel();
  for (;;) {
    Result<wire::Polled<wire::Frame>> polled = from->TryReceive();
    if (!polled.ok()) return Lose(polled.status().message());
    if (polled->incoming) {
      Dispatch(std::move(*polled->incoming));
    } else if (polled->closed) {
      return Lose("it closed the connection");
    } else {
      return;
    }
  }
}

void Link::Dispatch(Incoming incoming) {
  if (incoming.frame.request != 0 &&
      !std::holds_alternative<wire::SaveState>(incoming.frame.body)) {
    MutexLock lock(mutex_);
    const auto waiting = requests_.find(incoming.frame.request);
    if (waiting != requests_.end()) {
      waiting->second.answers.push_back(std::move(incoming));
      answered_.NotifyAll();
      return;
    }
  }
  handlers_.on_frame(std::move(incoming));
}

void Link::Lose(const std::string& why) {
  loop_->RemoveFd(channel()->fd());
  up_.store(false);
  {
    MutexLock lock(mutex_);
    not_in_children_.reset();
    channel_.reset();
    for (auto& [id, request] : requests_) request.lost = true;
    answered_.NotifyAll();
  }
  LogWarning("lost ckpt-run at " + config_.socket + " (" + why +
             "); training goes on, saves are refused until it is back");
  handlers_.on_lost();
  ScheduleReconnect();
}

// Full jitter: the ranks of a node do not come back in one burst.
void Link::ScheduleReconnect() {
  const uint32_t doublings = std::min<uint32_t>(failures_, 16);
  const Nanos ceiling = std::min<Nanos>(config_.retry_max, config_.retry_min * (1u << doublings));
  thread_local Rng rng(static_cast<uint64_t>(BoottimeNs()));
  const Nanos after =
      config_.retry_min / 2 +
      Nanos(static_cast<int64_t>(rng.Below(static_cast<uint64_t>(ceiling.count()))));
  ++failures_;
  loop_->AddTimer(after, [this] { Reconnect(); });
}

void Link::Reconnect() {
  Result<Hello> hello = Connect(Deadline("HELLO to a ckpt-run that came back", kHelloAgainMax));
  if (!hello.ok()) return ScheduleReconnect();
  Status status = handlers_.on_back(hello->welcome, std::move(hello->page));
  if (status.ok())
    status = loop_->AddFd(pending_->fd(), EPOLLIN, [this](uint32_t) { OnReadable(); });
  if (status.ok()) {
    Publish();
    failures_ = 0;
    LogWarning("ckpt-run at " + config_.socket + " is back");
    handlers_.on_up();
    return;
  }
  pending_.reset();
  LogError("ckpt-run at " + config_.socket + " is not this rank's: " + status.message());
}

}  // namespace ckpt::session
