// A coordinator for the agent's tests: a real gRPC server that notes what agents say and sends what
// the test wants. It decides nothing.
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ckpt/v1/agent.grpc.pb.h"
#include "libckpt/base/mutex.h"

namespace ckpt::agent {

class FakeCoordinator final : public v1::Agents::Service {
 public:
  // Listens at `target` ("unix:/path").
  FakeCoordinator(const std::string& target, std::string cluster_id, uint64_t term)
      : cluster_id_(std::move(cluster_id)), term_(term) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort(target, grpc::InsecureServerCredentials());
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~FakeCoordinator() override {
    {
      MutexLock lock(mutex_);
      for (auto& [node, link] : links_) link.context->TryCancel();
    }
    server_->Shutdown(std::chrono::system_clock::now());
  }

  grpc::Status Session(
      grpc::ServerContext* context,
      grpc::ServerReaderWriter<v1::CoordinatorMsg, v1::AgentMsg>* stream) override {
    v1::AgentMsg message;
    if (!stream->Read(&message) || !message.has_node()) return grpc::Status::CANCELLED;
    const std::string node = message.node().name();
    {
      MutexLock lock(mutex_);
      links_[node] = {context, stream};
      v1::CoordinatorMsg welcome;
      welcome.mutable_welcome()->set_heartbeat_ms(50);
      welcome.mutable_welcome()->set_data_token("data-token");
      Stamp(&welcome);
      stream->Write(welcome);
    }
    do {
      MutexLock lock(mutex_);
      heard_[node].push_back(message);
      changed_.NotifyAll();
    } while (stream->Read(&message));
    MutexLock lock(mutex_);
    if (links_.contains(node) && links_[node].context == context) links_.erase(node);
    return grpc::Status::OK;
  }

  // With this coordinator's cluster and term. False if the node is not connected.
  bool Send(const std::string& node, v1::CoordinatorMsg message) {
    Stamp(&message);
    return SendAsIs(node, message);
  }
  bool SendAsIs(const std::string& node, const v1::CoordinatorMsg& message) {
    MutexLock lock(mutex_);
    const auto it = links_.find(node);
    return it != links_.end() && it->second.stream->Write(message);
  }

  // The first message of `node`, from the `from`-th on, that `wanted` likes.
  using Wanted = std::function<bool(const v1::AgentMsg&)>;
  bool Await(const std::string& node, const Wanted& wanted, v1::AgentMsg* found = nullptr,
             Nanos time = std::chrono::seconds(60)) {
    const Deadline deadline("a message of the agent", time);
    size_t next = 0;
    MutexLock lock(mutex_);
    for (;;) {
      const std::vector<v1::AgentMsg>& heard = heard_[node];
      for (; next < heard.size(); ++next) {
        if (!wanted(heard[next])) continue;
        if (found != nullptr) *found = heard[next];
        return true;
      }
      if (!changed_.WaitUntil(mutex_, deadline) && next >= heard_[node].size()) return false;
    }
  }
  size_t Count(const std::string& node, const Wanted& wanted) {
    MutexLock lock(mutex_);
    size_t count = 0;
    for (const v1::AgentMsg& message : heard_[node]) count += wanted(message) ? 1 : 0;
    return count;
  }
  void Clear() {
    MutexLock lock(mutex_);
    heard_.clear();
  }

 private:
  struct Link {
    grpc::ServerContext* context = nullptr;
    grpc::ServerReaderWriter<v1::CoordinatorMsg, v1::AgentMsg>* stream = nullptr;
  };
  void Stamp(v1::CoordinatorMsg* message) const {
    message->set_cluster_id(cluster_id_);
    message->set_term(term_);
  }

  const std::string cluster_id_;
  const uint64_t term_;
  Mutex mutex_;
  CondVar changed_;
  std::map<std::string, Link> links_ CKPT_GUARDED_BY(mutex_);
  std::map<std::string, std::vector<v1::AgentMsg>> heard_ CKPT_GUARDED_BY(mutex_);
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace ckpt::agent
