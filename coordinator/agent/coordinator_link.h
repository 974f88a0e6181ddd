// The agent's stream to ckptd: it connects, and connects again with jitter, for ever. A session is
// one stream; what is sent into a session that has ended is dropped, because the next one begins
// with everything anew.
//
// I1  Handlers are called on the event loop, in order: opened, messages, closed.
// I2  At most kQueueMax messages wait for a slow coordinator; beyond that the session is ended.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "ckpt/v1/agent.pb.h"
#include "libckpt/base/clock.h"
#include "libckpt/os/event_loop.h"

namespace ckpt::agent {

class CoordinatorLink {
 public:
  static constexpr size_t kQueueMax = 10'000;

  struct Handlers {
    std::function<void(uint64_t session)> opened;
    std::function<void(uint64_t session, const v1::CoordinatorMsg&)> message;
    std::function<void(uint64_t session, const std::string& why)> closed;
  };
  struct Backoff {
    Nanos min = std::chrono::milliseconds(200);
    Nanos max = std::chrono::seconds(5);
  };

  // Starts at once. `loop` outlives it, and its handlers are not called after it is gone.
  CoordinatorLink(const std::string& target, Backoff backoff, os::EventLoop* loop,
                  Handlers handlers);
  ~CoordinatorLink();  // ends the stream and joins

  // Threads: any.
  void Send(uint64_t session, v1::AgentMsg message);
  // Ends this session; the link connects again.
  void Drop(uint64_t session);

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace ckpt::agent
