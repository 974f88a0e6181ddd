// One launch of the gang as its leader sees it: the pure Leader machine and its environment:
// layouts and plan, the key-value channel, notices until they can be acted on, and the store's part
// of saves (BeginAttempt, DRAINING, commit, abort).
//
// The leader's record is not kept: whoever leads a launch holds the ranks of node 0, and when it
// dies its launch is over; the durable part of barrier 3 is the DRAINING mark.
//
// I1  Store calls are made on worker threads; their answers come back to the loop as events.
// I2  A wish of the program for a save waits until every rank has its staging slots; the machine
// is told who has not.
// I3  A notice that cannot be acted on yet is kept; one that can never be is refused with the
// reason
//     before anything is stopped.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "coordinator/gang/leader.h"
#include "coordinator/run/gang_link.h"
#include "coordinator/run/kv_store.h"
#include "coordinator/run/services.h"
#include "libckpt/format/types.h"

namespace ckpt::run {

struct LaunchNode {
  uint32_t node = 0, first_rank = 0, rank_count = 0;
};

struct LeaderLaunchConfig {
  uint32_t launch = 0;
  uint64_t epoch = 0;
  JobId job_id;
  uint32_t world = 0;
  std::vector<LaunchNode> nodes;
  AttemptId resumed_from;  // zero epoch: from nothing
};

// How a launch ended, or may end.
enum class LaunchEnd { kNone, kSuspended, kFinished, kFailed, kKilled };

struct LaunchTimes {  // CLOCK_BOOTTIME, 0 not reached
  int64_t noticed_ns = 0, cut_ns = 0, staged_ns = 0, comms_down_ns = 0, released_ns = 0,
          durable_ns = 0;
};

class LeaderLaunch {
 public:
  struct Host {
    std::function<void(uint32_t node, GangBody)> to_node;
    std::function<void()> changed;
    std::function<void(const RestoredMsg&)> damaged;  // the copy it resumes from does not load
    // No rank has registered and a notice came: pass the signal on.
    std::function<void()> forward_signal;
    std::function<int64_t()> step;  // that the ranks of this node have come to
  };

  LeaderLaunch(Services* services, LeaderLaunchConfig config, Host host);
  ~LeaderLaunch();
  Status Start();

  void OnMessage(uint32_t node, const GangBody& body);
  void SetConnected(uint32_t node, bool connected);
  void AddNotice(const NoticeMsg& notice);
  void SaveNow(uint64_t operation, int64_t left_ns, const std::string& source);

  const LeaderLaunchConfig& config() const { return config_; }
  LaunchEnd end() const { return end_; }
  const std::string& end_reason() const { return end_reason_; }
  // No process of any rank is left, measured on every node.
  bool released() const { return released_.size() == config_.nodes.size(); }
  // ... or not to be learned any more: its ckpt-run is out of reach for too long.
  bool over() const;
  // ... and nothing is on its way to the store any more.
  bool settled() const;
  // Of the suspend or save that the launch ended with: in the store?
  bool durable() const { return durable_.contains(stop_attempt_); }
  std::string not_durable_reason() const;
  AttemptId stop_id() const;
  std::string newest_durable() const;  // of this launch; empty: none yet
  // The newest that is gang-complete, wherever it is.
  struct Copy {
    AttemptId id;
    bool durable = false;
    std::string failure;  // why it will not become durable; empty: it may
  };
  std::optional<Copy> NewestCopy() const;
  const LaunchTimes& times() const { return times_; }
  gang::Leader::View view() const { return leader_->view(); }
  bool notice_seen() const { return notice_seen_; }
  // Every rank said so itself, or ended well without ever having been asked to stop.
  bool all_finished() const { return finished_.size() == config_.world; }
  // The newest stop and the newest save that a coordinator has numbered (0: none), and why they
  // were refused.
  uint64_t agent_stop() const { return agent_stop_; }
  uint64_t agent_save() const { return agent_save_; }
  const std::string& refusal() const { return refusal_; }
  const std::string& save_refusal() const { return save_refusal_; }
  bool ready() const { return ready_; }
  std::optional<int64_t> StepOf(uint32_t attempt) const;
  // How the gang took the newest notice, if it is not simply obeyed; empty: it is.
  const std::string& notice_text() const { return notice_text_; }
  // Which ranks, or which call of the store, hold up a copy, and until when; empty: nothing does.
  std::string held_up() const { return held_up_.empty() ? "" : held_up_.rbegin()->second; }
  const std::map<uint32_t, std::string>& not_durable() const { return not_durable_; }
  uint64_t stage_bytes() const { return stage_bytes_; }

 private:
  struct NodeState {
    bool connected = true;
    int64_t lost_ns = 0;
    bool any_ready = false;
    uint32_t slots = 0;
    std::string error;
    uint64_t stage_bytes = 0;
  };

  // leader_launch.cc: the machine and its actions
  bool Gone(uint32_t node) const;  // out of reach for longer than it is given
  bool GivenUp(uint32_t node) const;
  void OnGivenUp();
  bool NoneAwaited() const;  // every node has measured, or is given up
  void Feed(gang::LeaderEvent event);
  void Act(const gang::LeaderAction& action);
  void ArmTimer();
  void OnMachine(uint32_t node, const MachineMsg& m);
  void Commit(const gang::CommitAttempt& action);
  void RemoveOld(const AttemptId& committed);
  void Mark(const gang::MarkDraining& action);
  void Abort(const gang::AbortAttempt& action);
  AttemptId IdOf(uint32_t attempt, int64_t step) const;
  // `work` on a worker thread, then `then(its result)` on the loop.
  template <typename Work, typename Then>
  void CallStore(Work work, Then then);
  void LookForNewerEpoch();
  void OnHighestEpoch(const Result<Epoch>& highest);

  // leader_ready.cc: layouts, plan, slots, notices
  void OnLayouts(uint32_t node, const LayoutsMsg& m);
  void OnPlanned(uint64_t number, const Status& status, std::vector<std::string> plans,
                 uint64_t hash);
  void WaitForLayouts();
  void OnReady(uint32_t node, const ReadyMsg& m);
  void OnRestored(const RestoredMsg& m);
  void OnKvSet(uint32_t node, const KvSetMsg& m);
  void OnKvWait(uint32_t node, const KvWaitMsg& m);
  void MeasureStaging();
  std::string WhyNotReady() const;  // empty: nothing is wrong, only not there yet
  std::string WhoIsMissing() const;
  void TellSlots();
  void ForwardLater();
  void KillNow(uint64_t operation, const std::string& why);
  const LaunchNode* NodeOf(uint32_t node) const;

  // leader_reports.cc: what people and reports are told
  void OnReport(const gang::Report& report);
  void OnAnswer(const gang::NoticeAnswer& answer);
  void OnLoss(const gang::LossBooked& loss);
  void SayPhase(const gang::Report& report);
  void NoteTrouble(const gang::Report& report);
  void NoteRefusal(const gang::Report& report, bool stop);
  uint64_t NumberOf(uint64_t operation);  // one of its own for a notice that has none
  void SetEnd(LaunchEnd end, std::string reason);

  Services* const services_;
  const LeaderLaunchConfig config_;
  const Host host_;
  std::unique_ptr<gang::Leader> leader_;
  std::deque<gang::LeaderEvent> events_;
  bool stepping_ = false;
  os::EventLoop::TimerId machine_timer_ = 0, forward_timer_ = 0, fence_timer_ = 0;
  os::EventLoop::TimerId missing_timer_ = 0;

  std::map<uint32_t, NodeState> nodes_;
  std::map<uint32_t, std::string> layout_bytes_;  // by rank
  using Layouts = std::shared_ptr<const std::vector<format::RankLayout>>;
  Layouts layouts_;                         // newest
  std::map<uint32_t, Layouts> layouts_of_;  // by attempt, until it is committed or dropped
  uint64_t plan_hash_ = 0;
  uint64_t plan_number_ = 0;
  std::string plan_error_;
  bool ready_ = false, said_missing_ = false;
  uint32_t slots_ = 0;
  uint64_t stage_bytes_ = 0;
  std::set<uint32_t> restored_, finished_;
  int64_t started_ns_ = 0;
  KvStore kv_;

  uint64_t next_operation_ = 1;
  uint64_t agent_stop_ = 0, agent_save_ = 0;
  bool notice_seen_ = false, forwarded_ = false, stage_seen_ = false;
  std::string refusal_, save_refusal_;
  std::string notice_text_;        // what was answered last
  std::set<uint64_t> answered_;    // to these operations
  std::set<std::string> sources_;  // of the notices that stand

  size_t store_calls_ = 0;             // under way
  bool looking_ = false;               // for a newer epoch
  std::map<uint32_t, int64_t> steps_;  // by attempt
  std::set<uint32_t> durable_;
  std::map<uint32_t, std::string> not_durable_, held_up_;  // by attempt
  uint32_t stop_attempt_ = 0;
  LaunchTimes times_;
  LaunchEnd end_ = LaunchEnd::kNone;
  std::string end_reason_;
  std::set<uint32_t> released_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

template <typename Work, typename Then>
void LeaderLaunch::CallStore(Work work, Then then) {
  ++store_calls_;
  const auto finish = [this, alive = alive_, then](auto result) {
    if (!*alive) return;
    --store_calls_;
    then(std::move(result));
    host_.changed();
  };
  const Status queued = services_->store_calls->TrySubmit([work, finish, loop = services_->loop] {
    loop->Post([finish, result = work()]() mutable { finish(std::move(result)); });
  });
  if (queued.ok()) return;
  using Answer = decltype(work());
  services_->loop->Post([finish, queued] { finish(Answer(queued)); });
}

}  // namespace ckpt::run
