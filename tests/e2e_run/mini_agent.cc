#include "tests/e2e_run/mini_agent.h"

#include <gtest/gtest.h>

#include "libckpt/engine/staging.h"

namespace ckpt::e2e {

MiniAgent::MiniAgent(std::string socket) : socket_(std::move(socket)) {
  loop_ = os::EventLoop::Create().value();
  listener_ = os::ListenUnix(socket_).value();
  EXPECT_TRUE(loop_->AddFd(listener_.get(), EPOLLIN, [this](uint32_t) { Accept(); }).ok());
  thread_ = os::Thread("mini-agent", [this] { loop_->Run().IgnoreError(); });
}

MiniAgent::~MiniAgent() {
  loop_->Post([this] { loop_->Stop(); });
  thread_.Join();
}

size_t MiniAgent::held() const {
  MutexLock lock(mutex_);
  return held_.size();
}

void MiniAgent::Forget(uint32_t rank) {
  MutexLock lock(mutex_);
  std::erase_if(held_, [rank](const auto& entry) { return entry.first.first == rank; });
}

std::string MiniAgent::report() const {
  MutexLock lock(mutex_);
  return report_;
}

void MiniAgent::Command(const std::string& coordinator_msg) {
  loop_->Post([this, coordinator_msg] {
    for (const auto& [fd, channel] : channels_) {
      EXPECT_TRUE(channel->Queue({1, wire::Command{coordinator_msg}}).ok());
    }
  });
}

void MiniAgent::Accept() {
  Result<std::optional<os::UniqueFd>> accepted = os::TryAccept(listener_.get());
  if (!accepted.ok() || !accepted->has_value()) return;
  auto channel = std::make_shared<wire::AgentChannel>(std::move(**accepted));
  const int fd = channel->fd();
  channels_[fd] = channel;
  EXPECT_TRUE(loop_->AddFd(fd, EPOLLIN, [this, fd](uint32_t) { Read(fd); }).ok());
}

void MiniAgent::Read(int fd) {
  const std::shared_ptr<wire::AgentChannel> channel = channels_[fd];
  while (true) {
    Result<wire::Polled<wire::AgentFrame>> polled = channel->TryReceive();
    if (!polled.ok() || polled->closed) {
      loop_->RemoveFd(fd);
      channels_.erase(fd);
      return;
    }
    if (!polled->incoming) return;
    const auto* report = std::get_if<wire::Report>(&polled->incoming->frame.body);
    if (report != nullptr && polled->incoming->frame.request == 0) {
      MutexLock lock(mutex_);
      report_ = report->message;
    }
    const auto* attach = std::get_if<wire::Attach>(&polled->incoming->frame.body);
    if (attach == nullptr) continue;
    if (attach->fds.empty()) HandOver(channel.get());
    MutexLock lock(mutex_);
    for (size_t i = 0; i < attach->fds.size(); ++i) {
      const wire::AttachedFd& what = attach->fds[i];
      if (what.kind != wire::AttachedKind::kStaging) continue;
      Result<os::Memfd> memfd = os::Memfd::FromFd(std::move(polled->incoming->fds[i]), what.bytes);
      if (memfd.ok()) held_.insert_or_assign({what.rank, what.slot}, std::move(memfd).value());
    }
  }
}

void MiniAgent::HandOver(wire::AgentChannel* channel) {
  MutexLock lock(mutex_);
  wire::Adopt adopt{.job = "t", .fds = {}};
  std::vector<os::UniqueFd> fds;
  for (const auto& [key, memfd] : held_) {
    Result<os::Mapping> mapping = memfd.Map();
    if (!mapping.ok()) continue;
    Result<engine::StagingRegion> region = engine::StagingRegion::Open(mapping->bytes());
    if (!region.ok()) continue;
    adopt.fds.push_back({key.first, key.second, memfd.bytes(), region->info().id});
    fds.push_back(std::move(memfd.Dup().value()).TakeFd());
  }
  EXPECT_TRUE(channel->Queue({0, adopt}, std::move(fds)).ok());
}

}  // namespace ckpt::e2e
