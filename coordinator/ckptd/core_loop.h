// The one thread that owns the core: everything that happens to it happens here, in order.
//
// I1  Nothing that a step decided is seen by anyone before its records are committed.
// I2  A commit that fails ends the loop: memory would be ahead of the disk. From then on nothing is
//     answered from memory (CheckStored). A restart is always right: it starts from the records.
// I3  At most kQueueMax tasks wait; who comes later is told so.
#pragma once

#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>

#include "ckpt/v1/agent.pb.h"
#include "ckpt/v1/coordinator.pb.h"
#include "coordinator/core/core.h"
#include "coordinator/store/state_store.h"
#include "libckpt/base/mutex.h"
#include "libckpt/os/thread.h"

namespace ckpt::ckptd {

inline constexpr size_t kQueueMax = 4096;

// An agent's stream, as the loop sees it.
class AgentLink {
 public:
  virtual ~AgentLink() = default;
  // Never blocks; a link that cannot keep up closes itself.
  virtual void Send(v1::CoordinatorMsg message) = 0;
  virtual void Close(Status why) = 0;
};

class CoreLoop {
 public:
  struct Options {
    int64_t heartbeat_ms = 1000;
    std::function<void(Status)> on_fatal;  // called once, on the loop's thread
  };

  CoreLoop(Options options, std::unique_ptr<store::StateStore> store);
  ~CoreLoop();

  // Loads the records and starts the thread.
  Status Start();
  // Runs what is queued, then ends the thread and drops every link and waiter.
  void Stop();

  // Runs `task` on the loop's thread. kResourceExhausted when the queue is full, kUnavailable after
  // Stop. Threads: any.
  Status Post(std::function<void()> task);

  // --- on the loop's thread only

  // Steps the core and makes the outcome known. Without a reply for events that are no requests.
  Result<core::Reply> Apply(const core::Event& event);
  const core::Core& core() const { return core_; }
  // kUnavailable, maybe applied, once a commit has failed: core() is ahead of the disk then, and no
  // answer may be made of it (I2).
  Status CheckStored() const;

  // `link` speaks for the node from now on; an older link of the same agent is closed.
  // kAlreadyExists while another agent, which has not fallen silent, speaks for it.
  Status Attach(const core::NodeInfo& info, std::shared_ptr<AgentLink> link);
  // No effect if another link speaks for it.
  void Detach(const std::string& node, const AgentLink* link, const std::string& why);
  void Heard(const std::string& node, const AgentLink* link);
  // What the agent of `node` says of its machine: for people, kept in memory only.
  void TakeHealth(const std::string& node, const v1::NodeHealth& health);
  void AddHealth(const std::string& node, v1::Node* out) const;

  // Calls `done` when the operation has ended or `wait_ms` is over, whichever is first, with what
  // CheckStored says.
  void WhenEnded(uint64_t op_id, int64_t wait_ms, std::function<void(Status)> done);
  // Asks the agent of `node`; `done` gets its answer or why there is none.
  void ReadLog(const std::string& node, v1::ReadLog request,
               std::function<void(Result<v1::LogChunk>)> done);
  void LogArrived(const v1::LogChunk& chunk);
  // Calls `wake` after every step that made events, until it returns false.
  void Watch(std::function<bool()> wake);

 private:
  struct Waiter {
    uint64_t op_id;
    int64_t until_ns;
    std::function<void(Status)> done;
  };
  struct Link {
    std::shared_ptr<AgentLink> link;
    int64_t heard_ns;
    core::NodeInfo info;
  };
  struct Health {
    v1::NodeHealth said;
    int64_t at_ns;
    int64_t clock_offset_ns;
  };
  struct LogRequest {
    int64_t until_ns;
    std::function<void(Result<v1::LogChunk>)> done;
  };

  void Run();
  void RunTasks(std::deque<std::function<void()>> tasks);
  void OnTick();
  int64_t SilenceNs() const;  // of a link that counts as lost
  void DropSilentLinks();
  Status Commit(const std::vector<core::Write>& writes);
  void Publish(const core::Actions& actions);
  void ReleaseWaiters(bool all);
  void WakeWatchers();
  void SendTo(const std::string& node, v1::CoordinatorMsg message);
  void Fatal(Status status);

  const Options options_;
  std::unique_ptr<store::StateStore> store_;
  core::Core core_;
  os::Thread thread_;

  Mutex mutex_;
  CondVar changed_;
  std::deque<std::function<void()>> queue_ CKPT_GUARDED_BY(mutex_);
  bool stopping_ CKPT_GUARDED_BY(mutex_) = false;

  // The loop's own:
  std::map<std::string, Link> links_;
  std::map<std::string, Health> health_;
  std::list<Waiter> waiters_;
  std::list<std::function<bool()>> watchers_;
  std::map<uint64_t, LogRequest> logs_;
  uint64_t log_counter_ = 0;
  bool dead_ = false;
};

}  // namespace ckpt::ckptd
