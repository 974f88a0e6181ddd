// The agents' streams: one reactor each. A stream reads its next message only when the loop has
// taken the last one, so an agent can never have more than one in the queue.
#pragma once

#include "ckpt/v1/agent.grpc.pb.h"
#include "coordinator/ckptd/core_loop.h"

namespace ckpt::ckptd {

class AgentsService final : public v1::Agents::CallbackService {
 public:
  explicit AgentsService(CoreLoop* loop) : loop_(loop) {}
  grpc::ServerBidiReactor<v1::AgentMsg, v1::CoordinatorMsg>* Session(
      grpc::CallbackServerContext* context) override;

 private:
  CoreLoop* loop_;
};

}  // namespace ckpt::ckptd
