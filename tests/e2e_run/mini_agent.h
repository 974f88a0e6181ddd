// The agent's part of holding memory, and nothing else of it: a real socket, real frames, real
// descriptors. It keeps what a ckpt-run attaches and hands it to the next one.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "libckpt/base/mutex.h"
#include "libckpt/os/event_loop.h"
#include "libckpt/os/memfd.h"
#include "libckpt/os/thread.h"
#include "libckpt/wire/channel.h"

namespace ckpt::e2e {

class MiniAgent {
 public:
  explicit MiniAgent(std::string socket);
  ~MiniAgent();

  const std::string& socket() const { return socket_; }
  // How many staging regions are held. Threads: any.
  size_t held() const;
  // Forgets those of one rank.
  void Forget(uint32_t rank);
  // To all ckpt-runs that are connected; a serialized ckpt.v1.CoordinatorMsg. Threads: any.
  void Command(const std::string& coordinator_msg);
  // The newest report of a ckpt-run, a serialized ckpt.v1.AgentMsg.
  std::string report() const;

 private:
  using SlotKey = std::pair<uint32_t, uint32_t>;  // rank, slot
  void Accept();
  void Read(int fd);
  void HandOver(wire::AgentChannel* channel);

  const std::string socket_;
  std::unique_ptr<os::EventLoop> loop_;
  os::UniqueFd listener_;
  std::map<int, std::shared_ptr<wire::AgentChannel>> channels_;  // the loop's
  mutable Mutex mutex_;
  std::map<SlotKey, os::Memfd> held_ CKPT_GUARDED_BY(mutex_);
  std::string report_ CKPT_GUARDED_BY(mutex_);
  os::Thread thread_;
};

}  // namespace ckpt::e2e
