#include "coordinator/run/agent_link.h"

#include <algorithm>

#include "ckpt/v1/agent.pb.h"
#include "libckpt/base/limits.h"
#include "libckpt/base/log.h"
#include "libckpt/base/rng.h"

namespace ckpt::run {
namespace {

constexpr Nanos kConnectTimeout = std::chrono::seconds(1);
constexpr Nanos kAdoptTimeout = std::chrono::seconds(10);
constexpr Nanos kAliveEvery = std::chrono::seconds(2);
constexpr int64_t kRetryMinNs = 100'000'000;
constexpr int64_t kRetryMaxNs = 5'000'000'000;

// Ten years at most: what a person has written must not overflow.
int64_t NanosOf(int64_t deadline_ms) {
  constexpr int64_t kDeadlineMsMax = int64_t{10} * 365 * 86'400'000;
  return std::clamp<int64_t>(deadline_ms, 0, kDeadlineMsMax) * 1'000'000;
}

}  // namespace

AgentLink::AgentLink(Services* services, Handler handler)
    : services_(services), handler_(std::move(handler)) {}

AgentLink::~AgentLink() {
  services_->loop->CancelTimer(retry_timer_);
  services_->loop->CancelTimer(adopt_timer_);
  services_->loop->CancelTimer(alive_timer_);
  if (channel_.valid()) services_->loop->RemoveFd(channel_.fd());
}

void AgentLink::Start() {
  adopt_timer_ = services_->loop->AddTimer(kAdoptTimeout, [this] {
    if (adopted_) return;
    LogWarning("the agent at " + services_->options.agent_socket +
               " does not answer; starting without the copies that it may hold");
    AdoptionDone();
  });
  alive_timer_ = services_->loop->AddPeriodic(kAliveEvery, [this] {
    if (!report_.empty() && !channel_.has_queued()) Send({0, wire::Report{report_}});
  });
  Connect();
}

void AgentLink::Connect() {
  Result<wire::AgentChannel> channel = wire::AgentChannel::Connect(
      services_->options.agent_socket, Deadline("connecting to the agent", kConnectTimeout));
  if (!channel.ok()) return Retry();
  channel_ = std::move(channel).value();
  const Status added =
      services_->loop->AddFd(channel_.fd(), EPOLLIN, [this](uint32_t events) { OnEvents(events); });
  if (!added.ok()) return Drop(added);
  retry_ns_ = 0;
  adopting_.clear();
  Send({0, MakeAttach()});
  SendHeld(launch_fds_);
  SendHeld(slot_fds_);
  if (!report_.empty()) Send({0, wire::Report{report_}});
}

// With jitter: all ckpt-runs of a node lose their agent at once.
void AgentLink::Retry() {
  retry_ns_ = std::clamp<int64_t>(retry_ns_ * 2, kRetryMinNs, kRetryMaxNs);
  Rng rng(static_cast<uint64_t>(BoottimeNs()));
  const int64_t wait =
      retry_ns_ / 2 + static_cast<int64_t>(rng.Below(static_cast<uint64_t>(retry_ns_ / 2)));
  retry_timer_ = services_->loop->AddTimer(Nanos(wait), [this] { Connect(); });
}

void AgentLink::Drop(const Status& why) {
  if (!channel_.valid()) return;
  LogWarning("agent: " + why.ToString() + "; the gang goes on without it");
  services_->loop->RemoveFd(channel_.fd());
  channel_.Close();
  Retry();
}

void AgentLink::OnEvents(uint32_t events) {
  if (events & EPOLLOUT) {
    const Result<bool> flushed = channel_.Flush();
    if (!flushed.ok()) return Drop(flushed.status());
    if (*flushed) services_->loop->ModifyFd(channel_.fd(), EPOLLIN).IgnoreError();
  }
  if (!(events & (EPOLLIN | EPOLLHUP | EPOLLERR))) return;
  while (channel_.valid()) {
    Result<wire::Polled<wire::AgentFrame>> polled = channel_.TryReceive();
    if (!polled.ok()) return Drop(polled.status());
    if (polled->closed) return Drop(Unavailable("the agent is gone"));
    if (!polled->incoming) return;
    OnFrame(std::move(*polled->incoming));
  }
}

void AgentLink::OnFrame(wire::Incoming<wire::AgentFrame> incoming) {
  if (const auto* adopt = std::get_if<wire::Adopt>(&incoming.frame.body)) {
    OnAdopt(*adopt, std::move(incoming.fds));
  } else if (const auto* command = std::get_if<wire::Command>(&incoming.frame.body)) {
    OnCommand(incoming.frame.request, *command);
  } else {
    LogWarning("the agent sent " + std::string(wire::AgentFrameName(incoming.frame.body)) +
               ", which is ckpt-run's to send");
  }
}

void AgentLink::OnAdopt(const wire::Adopt& adopt, std::vector<os::UniqueFd> fds) {
  if (adopted_) return;  // a reconnect: what it has now came from us
  for (size_t i = 0; i < adopt.fds.size() && i < fds.size(); ++i) {
    const wire::AdoptedFd& what = adopt.fds[i];
    Result<SlotPtr> slot =
        StagingSlot::Adopt(std::move(fds[i]), what.bytes, what.slot, services_->options.job_id);
    if (!slot.ok()) {
      LogWarning("a copy of rank " + std::to_string(what.rank) +
                 " from the agent is unusable: " + slot.status().ToString());
    } else if ((*slot)->rank() != what.rank) {
      LogWarning("a copy from the agent names another rank than the memory does");
    } else {
      adopting_.push_back(std::move(slot).value());
    }
  }
  if (adopt.last) AdoptionDone();
}

void AgentLink::AdoptionDone() {
  if (adopted_) return;
  adopted_ = true;
  services_->loop->CancelTimer(adopt_timer_);
  handler_.adopted(std::move(adopting_));
}

void AgentLink::OnCommand(uint32_t request, const wire::Command& command) {
  v1::CoordinatorMsg msg;
  if (!msg.ParseFromString(command.message)) return LogWarning("a command that cannot be read");
  AgentStop stop;
  if (msg.has_stop()) {
    stop = {msg.stop().op_id(),
            msg.stop().epoch(),
            msg.stop().kind() == v1::STOP_KILL,
            false,
            NanosOf(msg.stop().deadline_ms()),
            msg.stop().source(),
            msg.stop().kind() == v1::STOP_WITHDRAW};
  } else if (msg.has_save()) {
    stop = {msg.save().op_id(), msg.save().epoch(), false, true, NanosOf(msg.save().deadline_ms()),
            "coordinator"};
  } else {
    return LogWarning("a command of a kind that ckpt-run does not carry out");
  }
  const std::string why = handler_.stop(stop);
  v1::AgentMsg answer;
  answer.mutable_result()->set_op_id(stop.operation);
  answer.mutable_result()->set_job(services_->options.job);
  answer.mutable_result()->set_epoch(identity_.epoch);
  answer.mutable_result()->set_accepted(why.empty());
  answer.mutable_result()->set_error(why);
  Send({request, wire::Report{answer.SerializeAsString()}});
}

wire::Attach AgentLink::MakeAttach() const {
  return wire::Attach{.job = services_->options.job,
                      .job_id = identity_.job_id,
                      .epoch = identity_.epoch,
                      .node_rank = services_->options.node_rank,
                      .pid = os::SelfPid(),
                      .token = identity_.token};
}

void AgentLink::SetLaunch(const AgentIdentity& identity,
                          std::vector<std::pair<wire::AttachedFd, os::UniqueFd>> fds) {
  identity_ = identity;
  launch_fds_.clear();
  slot_fds_.clear();
  for (auto& [what, fd] : fds) launch_fds_.push_back({what, std::move(fd)});
  SendHeld(launch_fds_);
}

void AgentLink::AddSlots(const std::vector<SlotPtr>& slots) {
  slot_fds_.clear();
  for (const SlotPtr& slot : slots) {
    Result<os::Memfd> memfd = slot->memfd().Dup();
    if (!memfd.ok()) return LogError("attaching staging memory: " + memfd.status().ToString());
    slot_fds_.push_back({{.kind = wire::AttachedKind::kStaging,
                          .rank = slot->rank(),
                          .slot = slot->slot(),
                          .bytes = slot->bytes()},
                         std::move(*memfd).TakeFd()});
  }
  SendHeld(slot_fds_);
}

void AgentLink::SendHeld(const std::vector<Held>& held) {
  for (size_t from = 0; from < held.size() && channel_.valid(); from += kFrameFdsMax) {
    wire::Attach attach = MakeAttach();
    std::vector<os::UniqueFd> fds;
    const size_t to = std::min(held.size(), from + kFrameFdsMax);
    for (size_t i = from; i < to; ++i) {
      Result<os::UniqueFd> copy = os::DupFd(held[i].fd.get());
      if (!copy.ok()) return LogError("attaching memory: " + copy.status().ToString());
      attach.fds.push_back(held[i].what);
      fds.push_back(std::move(copy).value());
    }
    attach.last = to == held.size();
    Send({0, std::move(attach)}, std::move(fds));
  }
}

void AgentLink::SetReport(std::string agent_msg) {
  if (agent_msg == report_) return;
  report_ = std::move(agent_msg);
  Send({0, wire::Report{report_}});
}

void AgentLink::Send(const wire::AgentFrame& frame, std::vector<os::UniqueFd> fds) {
  if (!channel_.valid()) return;
  const Status queued = channel_.Queue(frame, std::move(fds));
  if (!queued.ok()) return Drop(queued);
  if (channel_.has_queued()) {
    services_->loop->ModifyFd(channel_.fd(), EPOLLIN | EPOLLOUT).IgnoreError();
  }
}

}  // namespace ckpt::run
