// What the agent says of its machine to people (ckptctl doctor): looked at now and then on a thread
// of its own, because a store that hangs must not stop the agent.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "ckpt/v1/agent.pb.h"
#include "libckpt/os/event_loop.h"
#include "libckpt/os/thread.h"

namespace ckpt::agent {

struct HealthOptions {
  std::string state_dir, store_root;
  uint64_t staging_budget_bytes = 0;
  uint64_t staging_used_bytes = 0;
};

class HealthCheck {
 public:
  using Said = std::function<void(const v1::NodeHealth&)>;

  // `said` is called on the loop, not after this is gone.
  HealthCheck(os::EventLoop* loop, Said said) : loop_(loop), said_(std::move(said)) {}
  ~HealthCheck();  // joins: waits for a look in progress

  // Looks and tells; no effect while a look is in progress.
  void Look(const HealthOptions& options);

 private:
  os::EventLoop* const loop_;
  const Said said_;
  os::Thread thread_;
  bool looking_ = false;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace ckpt::agent
