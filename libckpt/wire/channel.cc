#include "libckpt/wire/channel.h"

namespace ckpt::wire {
namespace {

std::vector<int> Numbers(const std::vector<os::UniqueFd>& fds) {
  std::vector<int> numbers;
  for (const os::UniqueFd& fd : fds) numbers.push_back(fd.get());
  return numbers;
}

}  // namespace

// I3: what is queued goes first.
Status DatagramChannel::Send(const std::string& bytes, std::span<const int> fds,
                             const Deadline& deadline) {
  while (!queue_.empty()) {
    const os::Datagram& first = queue_.front();
    CKPT_RETURN_IF_ERROR(os::Send(fd(), AsBytes(first.bytes), Numbers(first.fds), deadline));
    queue_.pop_front();
  }
  return os::Send(fd(), AsBytes(bytes), fds, deadline);
}

Status DatagramChannel::Queue(std::string bytes, std::vector<os::UniqueFd> fds) {
  if (queue_.size() >= kChannelQueueMax) {
    return ResourceExhausted(std::to_string(queue_.size()) +
                             " frames wait for a peer that does not read");
  }
  queue_.push_back(os::Datagram{std::move(bytes), std::move(fds)});
  return Flush().status();
}

Result<bool> DatagramChannel::Flush() {
  while (!queue_.empty()) {
    const os::Datagram& first = queue_.front();
    CKPT_ASSIGN_OR_RETURN(const bool sent,
                          os::TrySend(fd(), AsBytes(first.bytes), Numbers(first.fds)));
    if (!sent) return false;
    queue_.pop_front();
  }
  return true;
}

}  // namespace ckpt::wire
