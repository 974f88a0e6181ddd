// One launch of the job on this node: the rank processes, their pages, socket and staging memory,
// and the pure Member machine whose environment all of this is.
//
// Everything here runs on the event loop; what blocks (laying out memory, writing shards) is on
// worker threads that hand their results to the loop.
//
// I1  The machine is fed one event at a time; an event that comes up while its actions are carried
//     out waits its turn.
// I2  A rank's last words are heard before its end.
// I3  After `released` no process of this launch is left; slots and writers may live on.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "coordinator/gang/member.h"
#include "coordinator/run/gang_link.h"
#include "coordinator/run/rank_pages.h"
#include "coordinator/run/rank_processes.h"
#include "coordinator/run/rank_server.h"
#include "coordinator/run/services.h"
#include "coordinator/run/shard_writers.h"

namespace ckpt::run {

struct NodeLaunchConfig {
  uint32_t launch = 0;
  uint64_t epoch = 0;
  JobId job_id;
  uint32_t world = 0, first_rank = 0;
  StartMsg start;
  std::vector<SlotPtr> older;  // copies of earlier launches: what READ_MAP hands out
};

// What a launch looks like from outside, for reports and messages.
struct NodeStatus {
  bool all_registered = false, all_restored = false, all_finished = false, failed = false;
  bool released = false;
  bool running = false;  // all ranks registered, or they are programs that do not
  std::string phase;
  std::string rank_phase;     // that the program of a rank says it is in; empty: all train
  std::string failure;        // of the first rank that ended badly
  int64_t step = 0;           // lowest of the ranks
  int64_t step_time_ns = 0;   // longest
  int64_t first_step_ns = 0;  // boottime at which all ranks had passed a boundary
  int64_t released_ns = 0;
  int64_t stall_ns = 0;      // longest capture of the newest stop
  uint64_t stage_bytes = 0;  // what a suspend stages here
  // Of the capture in progress, as the ranks' pages say; total 0: none is.
  uint64_t staging_done = 0, staging_total = 0;
  // Of a restore in progress, the same.
  uint64_t restoring_done = 0, restoring_total = 0;
  std::vector<wire::Capability> methods;
};

class NodeLaunch {
 public:
  struct Host {
    std::function<void(GangBody)> to_leader;
    std::function<void()> changed;   // a report would say something new
    std::function<void()> released;  // once
    // A generation of this node became durable, or its writing failed.
    std::function<void(const AttemptId&, Status)> written;
    std::function<void(const std::vector<SlotPtr>&)> slots_made;
  };

  NodeLaunch(Services* services, NodeLaunchConfig config, Host host);
  ~NodeLaunch();

  // Makes pages and socket, starts the ranks. After an error `released` is still said.
  Status Start();
  // Somebody asked for a stop: a rank that ends with 0 from now on has not finished by that.
  void SetNoticed() { noticed_ = true; }
  void OnLeader(const GangBody& body);
  void SetConnected(bool connected);
  // Layouts and slots, to a leader that may have missed them.
  void SayAgain();
  void Kill(const std::string& why);
  void Signal(int signal) { processes_.Signal(signal); }
  // Memory was given up elsewhere: a launch that had too little tries again.
  void RetryStaging();
  // All ranks have restored: the copies of earlier launches are not handed out any more.
  void ForgetOlder() { config_.older.clear(); }

  const NodeLaunchConfig& config() const { return config_; }
  NodeStatus status() const;
  bool released() const { return released_; }
  bool any_registered() const { return ever_registered_; }
  bool draining() const { return !writing_.empty(); }
  std::vector<SlotPtr> slots() const;
  std::vector<RamCopy> copies() const { return Inventory(slots()); }
  WriteProgress progress(uint32_t attempt) const { return writers_.progress(attempt); }
  // Of all that is being written.
  WriteProgress drain() const;
  const RankPages* pages() const { return pages_.get(); }
  std::vector<std::pair<uint32_t, const os::Pidfd*>> processes() const {
    return processes_.living();
  }
  const std::string& token() const { return token_; }

 private:
  struct RankState {
    bool registered = false, finished = false, exited = false;
    os::Pidfd watched;  // of a launcher's rank, until it has ended
    std::optional<format::RankLayout> layout;
    std::string layout_bytes;
    std::vector<wire::Capability> methods;
    std::optional<RestoredMsg> restored;
    uint32_t layout_request = 0;
    uint32_t save_request = 0, save_boundary = 0, save_sequence = 0;  // an open STAGING_GET
    uint64_t rebuild = 0;
    uint32_t signals_seen = 0;
    std::pair<uint32_t, int64_t> phase{0, 0};  // that was told to the leader, and its end
    std::string phase_name;
    int64_t stall_ns = 0;
  };
  struct KvQuestion {
    uint32_t rank = 0, request = 0;
    os::EventLoop::TimerId timer = 0;
  };

  // node_launch.cc: life cycle, the machine
  RankState& Of(uint32_t rank) { return ranks_[rank - config_.first_rank]; }
  uint32_t RankAt(size_t index) const { return config_.first_rank + static_cast<uint32_t>(index); }
  Status StartRanks();
  Result<std::vector<RankCommand>> MakeCommands();
  void OnExited(uint32_t rank, const os::ExitStatus& status);
  void OnAllGone();
  void Feed(gang::MemberEvent event);
  void Act(const gang::MemberAction& action);
  void ArmTimer();
  void SamplePages();
  void Hurry(bool hurry);
  void SamplePhase(uint32_t rank);
  void AddStaging(NodeStatus* status) const;
  void AddRestoring(NodeStatus* status) const;

  // node_launcher.cc: ranks that the command starts itself
  Status WatchRank(uint32_t rank);
  void OnWatchedEnd(uint32_t rank);
  void OnLauncherExited(const os::ExitStatus& status);
  os::ExitStatus EndOf(uint32_t rank, const os::ExitStatus& otherwise);
  void Unwatch(uint32_t rank);

  // node_frames.cc: what ranks say, what they are told
  void OnHello(uint32_t rank, uint32_t request, const wire::Hello& hello);
  void OnFrame(uint32_t rank, wire::Frame frame, std::vector<os::UniqueFd> fds);
  void On(uint32_t rank, uint32_t request, const wire::Layout& m, std::vector<os::UniqueFd> fds);
  void On(uint32_t rank, uint32_t request, const wire::StagingGet& m);
  void On(uint32_t rank, const wire::Sealed& m);
  void On(uint32_t rank, const wire::StageFailed& m);
  void On(uint32_t rank, const wire::CommsDown& m);
  void On(uint32_t rank, const wire::CommsUp& m);
  void On(uint32_t rank, const wire::Notice& m);
  void On(uint32_t rank, uint32_t request, const wire::KvWait& m);
  void On(uint32_t rank, uint32_t request, const wire::SaveQuery& m);
  void On(uint32_t rank, const wire::Restored& m);
  void SendReadMaps(uint32_t rank, uint32_t request);
  void SendDescription(uint32_t rank, uint32_t request);
  void Reply(uint32_t rank, uint32_t request, wire::Body body, std::vector<os::UniqueFd> fds = {});
  void Fail(uint32_t rank, uint32_t request, const Status& why);
  void OnKvValue(const KvValueMsg& m);
  void NoticeSignal(const std::string& source);

  // node_staging.cc: plan, slots, generations
  void SendLayouts();
  void OnPlan(const PlanMsg& m);
  void MakeSlots();
  void OnSlots(uint64_t plan_number, SlotSet set, const Status& status);
  void ShareSlots();
  Status SendSlots(uint32_t rank);
  void SetStagingError(const Status& why);
  StagingSlot* SlotOf(uint32_t rank, uint32_t slot);
  StagingSlot* SlotHolding(uint32_t rank, uint32_t slot, uint32_t generation);
  bool Holds(StagingSlot& slot, uint32_t index, uint32_t generation) const;
  void RetireSlots();
  void DropRetired();
  SlotSet GenerationSlots(uint32_t slot, uint32_t generation);
  void Act(const gang::WriteShards& action);
  void Act(const gang::MarkGeneration& action);
  void Act(const gang::GrantSave& action);
  void TellSaveState(uint32_t attempt, const wire::SaveState& state);
  void OnWritten(uint32_t attempt, Status status, std::string payload);

  Services* const services_;
  NodeLaunchConfig config_;
  const Host host_;
  const std::string token_;
  std::unique_ptr<RankPages> pages_;
  std::unique_ptr<RankServer> server_;
  RankProcesses processes_;
  const std::shared_ptr<engine::DrainPace> pace_ = std::make_shared<engine::DrainPace>();
  std::optional<engine::InAHurry> hurry_;  // while the ranks stop, and when they are gone
  ShardWriters writers_;
  std::unique_ptr<gang::Member> member_;
  std::deque<gang::MemberEvent> events_;
  bool stepping_ = false;
  os::EventLoop::TimerId machine_timer_ = 0, sample_timer_ = 0, drain_timer_ = 0;
  os::EventLoop::TimerId layout_timer_ = 0, share_timer_ = 0;
  int64_t first_layout_ns_ = 0;  // when the first rank, not the last one, had called track

  std::vector<RankState> ranks_;
  bool ever_registered_ = false, noticed_ = false, released_ = false;
  int64_t started_ns_ = 0, first_step_ns_ = 0, released_ns_ = 0;
  std::string failure_;
  std::string stuck_;  // why the launch is not released, though its ranks have ended

  uint64_t plan_number_ = 0;  // newest plan; results for older ones are dropped
  uint64_t plan_hash_ = 0;
  std::vector<plan::RankPlan> plans_;
  std::vector<format::RankLayout> plan_layouts_;  // those that the plans are of
  std::vector<SlotSet> slots_;                    // by slot index; empty until they are made
  std::vector<SlotSet> retired_;  // of older layouts, for as long as their generation is needed
  bool making_slots_ = false, make_again_ = false;
  Status staging_error_;
  std::map<uint32_t, AttemptId> writing_;      // by attempt
  std::map<uint32_t, wire::SaveState> saves_;  // newest state by attempt
  std::map<uint64_t, KvQuestion> kv_questions_;
  uint64_t next_kv_ = 1;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace ckpt::run
