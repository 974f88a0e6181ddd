#include "coordinator/run/node_launch.h"

#include <signal.h>

#include <algorithm>

#include "libckpt/base/fault.h"
#include "libckpt/base/log.h"
#include "libckpt/os/file.h"

namespace ckpt::run {
namespace {

// Programs that have not registered by then are taken for such that never do.
constexpr int64_t kRegisterNs = 3'000'000'000;
constexpr int64_t kPhaseNsMax = int64_t{86'400} * 1'000'000'000;  // a day
constexpr Nanos kSampleEvery = std::chrono::milliseconds(100);

std::string MakeToken() { return JobId::Random().ToString(); }

}  // namespace

NodeLaunch::NodeLaunch(Services* services, NodeLaunchConfig config, Host host)
    : services_(services),
      config_(std::move(config)),
      host_(std::move(host)),
      token_(MakeToken()),
      processes_(services->loop, {.exited =
                                      [this](uint32_t rank, const os::ExitStatus& status) {
                                        if (services_->options.launcher)
                                          return OnLauncherExited(status);
                                        OnExited(rank, status);
                                      },
                                  .all_gone = [this] { OnAllGone(); },
                                  .stuck =
                                      [this](const std::string& why) {
                                        stuck_ = why;
                                        host_.changed();
                                      }}),
      writers_(
          services->loop, services->write, services->store, services->options.store, pace_,
          [this](uint32_t attempt, Status status, std::string payload) {
            OnWritten(attempt, std::move(status), std::move(payload));
          },
          // There will be no newer copy than this one.
          [this] { return released_ || (member_ && member_->last_copy()); }),
      ranks_(services->options.rank_count) {
  writers_.UseSettings(services->options.write);
}

NodeLaunch::~NodeLaunch() {
  *alive_ = false;
  for (size_t i = 0; i < ranks_.size(); ++i) Unwatch(RankAt(i));
  services_->loop->CancelTimer(machine_timer_);
  services_->loop->CancelTimer(sample_timer_);
  services_->loop->CancelTimer(drain_timer_);
  services_->loop->CancelTimer(layout_timer_);
  services_->loop->CancelTimer(share_timer_);
  for (const auto& [id, question] : kv_questions_) services_->loop->CancelTimer(question.timer);
}

Status NodeLaunch::Start() {
  const Status status = StartRanks();
  if (!status.ok() && !processes_.started()) {
    if (failure_.empty()) failure_ = status.message();
    // By itself: the machine's timer is set anew by whatever the leader says to this.
    services_->loop->Post([this, alive = alive_] {
      if (*alive) OnAllGone();
    });
  }
  return status;
}

Status NodeLaunch::StartRanks() {
  const uint32_t count = services_->options.rank_count;
  CKPT_ASSIGN_OR_RETURN(pages_,
                        RankPages::Create(config_.epoch, config_.first_rank, count, config_.world));
  member_ =
      std::make_unique<gang::Member>(gang::MemberConfig{.id = services_->options.node_rank,
                                                        .first_rank = Rank(config_.first_rank),
                                                        .rank_count = count,
                                                        .epoch = Epoch(config_.epoch)},
                                     pages_.get());
  Feed(gang::LeaderBack{});  // else nothing of what fails from here on is said
  CKPT_ASSIGN_OR_RETURN(
      server_,
      RankServer::Listen(
          services_->loop,
          {.socket_path = services_->dir + "/run" + std::to_string(config_.launch) + ".sock",
           .job = services_->options.job,
           .token = token_,
           .first_rank = config_.first_rank,
           .rank_count = count,
           .world = config_.world},
          {.hello = [this](uint32_t rank, uint32_t request,
                           const wire::Hello& hello) { OnHello(rank, request, hello); },
           .frame =
               [this](uint32_t rank, wire::Frame frame, std::vector<os::UniqueFd> fds) {
                 OnFrame(rank, std::move(frame), std::move(fds));
               },
           .closed = [](uint32_t) {}}));
  sample_timer_ = services_->loop->AddPeriodic(kSampleEvery, [this] { SamplePages(); });
  started_ns_ = BoottimeNs();
  CKPT_FAULT("run.node.start");
  CKPT_ASSIGN_OR_RETURN(const std::vector<RankCommand> commands, MakeCommands());
  return processes_.Start(commands);
}

Result<std::vector<RankCommand>> NodeLaunch::MakeCommands() {
  const Options& options = services_->options;
  const std::string token_file = services_->dir + "/token" + std::to_string(config_.launch);
  os::FileSystem& fs = os::PosixFileSystem();
  CKPT_RETURN_IF_ERROR(os::WriteNewFile(fs, token_file, token_));
  std::string log_dir;
  if (!options.log_dir.empty()) {
    log_dir = options.log_dir + "/e" + std::to_string(config_.epoch);
    CKPT_RETURN_IF_ERROR(fs.MakeDirs(log_dir));
  }
  std::vector<std::string> base;
  for (std::string& entry : os::CurrentEnv()) {
    if (entry.starts_with("CKPT_GANG_TOKEN=") || entry.starts_with("CKPT_AGENT=")) continue;
    base.push_back(std::move(entry));
  }
  const auto set = [&base](const char* name, const std::string& value) {
    os::SetEnv(&base, name, value);
  };
  set("WORLD_SIZE", std::to_string(config_.world));
  set("LOCAL_WORLD_SIZE", std::to_string(options.rank_count));
  set("MASTER_ADDR", config_.start.master_addr);
  set("MASTER_PORT", std::to_string(config_.start.master_port));
  set("CKPT_RUN", server_->socket_path());
  set("CKPT_JOB", options.job);
  set("CKPT_TOKEN_FILE", token_file);
  set("CKPT_EPOCH", std::to_string(config_.epoch));
  set("CKPT_STORE", options.store);
  if (options.save_every != 0) set("CKPT_SAVE_EVERY", std::to_string(options.save_every));

  std::vector<RankCommand> commands;
  const uint32_t count = options.launcher ? 1 : options.rank_count;
  for (uint32_t i = 0; i < count; ++i) {
    RankCommand command{.rank = config_.first_rank + i, .argv = options.command, .env = base};
    command.argv[0] = services_->command_path;
    if (!options.launcher) {
      os::SetEnv(&command.env, "RANK", std::to_string(command.rank));
      os::SetEnv(&command.env, "LOCAL_RANK", std::to_string(i));
    }
    if (!log_dir.empty()) {
      command.log_file = log_dir + "/rank" + std::to_string(command.rank) + ".log";
    }
    commands.push_back(std::move(command));
  }
  return commands;
}

void NodeLaunch::OnExited(uint32_t rank, const os::ExitStatus& status) {
  server_->Drain(rank);
  RankState& state = Of(rank);
  state.exited = true;
  // A program that never spoke to us and ended well has finished.
  if (status.Ok() && !state.finished && !noticed_) {
    state.finished = true;
    Feed(gang::RankFinished{Rank(rank)});
  }
  const bool suspended = !status.signaled && status.code == 75;
  if (!status.Ok() && !suspended && failure_.empty()) {
    failure_ = "rank " + std::to_string(rank) + " " + status.ToString();
  }
  Feed(gang::RankExited{Rank(rank), status.signaled ? 0 : status.code,
                        status.signaled ? status.code : 0});
  host_.changed();
}

void NodeLaunch::OnAllGone() {
  CKPT_PASS("run.node.gone");
  released_ = true;
  Hurry(true);
  stuck_.clear();
  released_ns_ = BoottimeNs();
  services_->loop->CancelTimer(sample_timer_);
  if (member_) {
    Feed(gang::AllReleased{});
  } else {  // it could not even be made
    host_.to_leader(MachineMsg{gang::Encode(
        {.type = gang::MsgType::kFact, .fact = gang::FactKind::kReleased, .number = 1})});
  }
  host_.released();
}

void NodeLaunch::SetConnected(bool connected) {
  if (!member_) return;
  if (connected) {
    Feed(gang::LeaderBack{});
  } else {
    Feed(gang::LeaderLost{});
  }
}

void NodeLaunch::Kill(const std::string& why) {
  if (failure_.empty()) failure_ = why;
  processes_.Kill();
}

void NodeLaunch::Feed(gang::MemberEvent event) {
  events_.push_back(std::move(event));
  if (stepping_ || !member_) return;
  stepping_ = true;
  while (!events_.empty()) {
    const gang::MemberEvent next = std::move(events_.front());
    events_.pop_front();
    for (const gang::MemberAction& action : member_->Step(BoottimeNs(), next)) Act(action);
  }
  stepping_ = false;
  ArmTimer();
}

void NodeLaunch::ArmTimer() {
  services_->loop->CancelTimer(machine_timer_);
  machine_timer_ = 0;
  const int64_t next = member_->next_deadline_ns();
  if (next == INT64_MAX) return;
  machine_timer_ = services_->loop->AddTimer(Nanos(std::max<int64_t>(0, next - BoottimeNs())),
                                             [this] { Feed(gang::Tick{}); });
}

void NodeLaunch::Act(const gang::MemberAction& action) {
  if (const auto* send = std::get_if<gang::SendToLeader>(&action)) {
    host_.to_leader(MachineMsg{gang::Encode(send->msg)});
  } else if (const auto* barrier = std::get_if<gang::ReleaseBarrier>(&action)) {
    CKPT_PASS(barrier->barrier == 2 ? "run.node.barrier2" : "run.node.barrier3");
    Reply(barrier->rank.value(), 0,
          wire::BarrierReleased{barrier->operation, barrier->round, barrier->barrier});
  } else if (const auto* back = std::get_if<gang::TellRolledBack>(&action)) {
    Of(back->rank.value()).rebuild = back->rebuild_id;
    Reply(
        back->rank.value(), 0,
        wire::RolledBack{back->operation, back->round, back->rebuild, back->rebuild_id, back->why});
  } else if (const auto* write = std::get_if<gang::WriteShards>(&action)) {
    Act(*write);
  } else if (const auto* stop = std::get_if<gang::StopWriters>(&action)) {
    writers_.Stop(stop->attempt);
  } else if (const auto* grant = std::get_if<gang::GrantSave>(&action)) {
    Act(*grant);
  } else if (const auto* refuse = std::get_if<gang::RefuseSave>(&action)) {
    Fail(refuse->rank.value(), Of(refuse->rank.value()).save_request, refuse->status);
  } else if (const auto* mark = std::get_if<gang::MarkGeneration>(&action)) {
    Act(*mark);
  } else if (const auto* kill = std::get_if<gang::KillRanks>(&action)) {
    if (!kill->why.empty() && failure_.empty()) failure_ = kill->why;
    processes_.Kill();
  } else if (std::holds_alternative<gang::MemberReport>(action)) {
    host_.changed();
  }
  // FreeSlot: the region's state, set by the mark before it, says that it may be filled.
}

// Writing leaves training alone, as long as there is some.
void NodeLaunch::Hurry(bool hurry) {
  if (!hurry) hurry_.reset();
  if (hurry && !hurry_) hurry_.emplace(pace_.get());
}

// Signals that a rank's handler left on the page, the pace of the steps, and the first one: seen
// without a frame.
void NodeLaunch::SamplePages() {
  bool all_stepped = true;
  uint64_t boundaries = 0;
  for (size_t i = 0; i < ranks_.size(); ++i) {
    const wire::ControlPage& page = pages_->page(RankAt(i));
    const uint32_t boundary = wire::LoadWord(page).boundary;
    boundaries += boundary;
    all_stepped = all_stepped && boundary > 0;
    SamplePhase(RankAt(i));
    const uint32_t count = page.signal_count.load(std::memory_order_relaxed);
    if (count == ranks_[i].signals_seen) continue;
    ranks_[i].signals_seen = count;
    On(RankAt(i), wire::Notice{page.signal.load(std::memory_order_relaxed)});
  }
  if (all_stepped && first_step_ns_ == 0) first_step_ns_ = BoottimeNs();
  pace_->Look(BoottimeNs(), boundaries);
  Hurry(member_ && member_->phase() != "running");
  host_.changed();
}

// What the program says that it does without boundaries.
void NodeLaunch::SamplePhase(uint32_t rank) {
  const wire::ControlPage& page = pages_->page(rank);
  std::pair<uint32_t, int64_t> now{page.phase.load(), page.phase_until_boottime_ns.load()};
  std::string kind;
  switch (static_cast<wire::RankPhase>(now.first)) {
    case wire::RankPhase::kSetup:
      kind = "set-up";
      break;
    case wire::RankPhase::kCompile:
      kind = "compile";
      break;
    case wire::RankPhase::kEvaluation:
      kind = "evaluation";
      break;
    default:
      now = {0, 0};
  }
  if (now == Of(rank).phase) return;
  Of(rank).phase = now;
  Of(rank).phase_name = kind;
  int64_t expected = 0;
  if (now.second != 0) {
    expected = std::clamp<int64_t>(now.second - BoottimeNs(), 1, kPhaseNsMax);
  }
  Feed(gang::RankInPhase{Rank(rank), kind, kind.empty() ? 0 : expected});
}

void NodeLaunch::OnLeader(const GangBody& body) {
  if (const auto* machine = std::get_if<MachineMsg>(&body)) {
    Result<gang::Msg> msg = gang::Decode(machine->bytes);
    if (!msg.ok()) return LogWarning("from the gang's leader: " + msg.status().ToString());
    Feed(gang::FromLeader{std::move(msg).value()});
  } else if (const auto* plan = std::get_if<PlanMsg>(&body)) {
    OnPlan(*plan);
  } else if (const auto* value = std::get_if<KvValueMsg>(&body)) {
    OnKvValue(*value);
  }
}

std::vector<SlotPtr> NodeLaunch::slots() const {
  std::vector<SlotPtr> all;
  for (const SlotSet& set : retired_) all.insert(all.end(), set.begin(), set.end());
  for (const SlotSet& set : slots_) all.insert(all.end(), set.begin(), set.end());
  return all;
}

NodeStatus NodeLaunch::status() const {
  NodeStatus status{.all_registered = true, .all_restored = true, .all_finished = true};
  status.released = released_;
  status.phase = member_ ? member_->phase() : "starting";
  status.failure = failure_;
  status.failed = !failure_.empty();
  if (!stuck_.empty()) {
    status.phase = "stopping";
    status.failure = stuck_;
  }
  status.first_step_ns = first_step_ns_;
  status.released_ns = released_ns_;
  for (size_t i = 0; i < ranks_.size(); ++i) {
    const RankState& rank = ranks_[i];
    status.all_registered = status.all_registered && rank.registered;
    status.all_restored = status.all_restored && rank.restored.has_value();
    status.all_finished = status.all_finished && rank.finished;
    if (!rank.phase_name.empty() && status.rank_phase.empty()) {
      status.rank_phase = "rank " + std::to_string(RankAt(i)) + " in " + rank.phase_name;
    }
    status.stall_ns = std::max(status.stall_ns, rank.stall_ns);
    const int64_t step = pages_ ? pages_->page(RankAt(i)).user_step.load() : 0;
    status.step = i == 0 ? step : std::min(status.step, step);
    if (pages_) {
      status.step_time_ns = std::max(status.step_time_ns, pages_->StepNs(Rank(RankAt(i))));
    }
    if (i < plans_.size()) status.stage_bytes += plans_[i].StageBytes(plan_layouts_[i]);
  }
  AddStaging(&status);
  AddRestoring(&status);
  status.running = status.all_registered || (!ever_registered_ && started_ns_ != 0 &&
                                             BoottimeNs() - started_ns_ > kRegisterNs);
  if (!ranks_.empty()) status.methods = ranks_[0].methods;
  for (wire::Capability& method : status.methods) {
    if (method.method != "suspend" || !method.yes || staging_error_.ok()) continue;
    method.yes = false;
    method.reason = staging_error_.message();
  }
  return status;
}

WriteProgress NodeLaunch::drain() const {
  WriteProgress sum;
  for (const auto& [attempt, id] : writing_) {
    const WriteProgress one = writers_.progress(attempt);
    sum.bytes_done += one.bytes_done;
    sum.bytes_total += one.bytes_total;
  }
  return sum;
}

// What a rank says of its progress is held to what its plan allows.
void NodeLaunch::AddStaging(NodeStatus* status) const {
  uint64_t done = 0;
  uint64_t total = 0;
  bool any = false;
  for (size_t i = 0; pages_ && i < ranks_.size() && i < plans_.size(); ++i) {
    const wire::ControlPage& page = pages_->page(RankAt(i));
    uint64_t most = plans_[i].StageBytes(plan_layouts_[i]);
    if (wire::LoadWord(page).state == WordState::kStaging) {
      any = true;
      most = std::min(most, page.total_bytes.load(std::memory_order_relaxed));
      done += std::min(most, page.staged_bytes.load(std::memory_order_relaxed));
    }
    total += most;
  }
  if (!any) return;
  status->staging_done = done;
  status->staging_total = total;
}

// A rank has no plan to hold it to yet: what it says is only shown.
void NodeLaunch::AddRestoring(NodeStatus* status) const {
  constexpr uint64_t kMost = uint64_t{1} << 46;  // of a rank: the sums of a node do not overflow
  if (status->all_restored || !pages_) return;
  for (size_t i = 0; i < ranks_.size(); ++i) {
    const wire::ControlPage& page = pages_->page(RankAt(i));
    if (page.phase.load() != static_cast<uint32_t>(wire::RankPhase::kRestoring)) continue;
    const uint64_t total = std::min(kMost, page.total_bytes.load(std::memory_order_relaxed));
    status->restoring_done += std::min(total, page.staged_bytes.load(std::memory_order_relaxed));
    status->restoring_total += total;
  }
}

}  // namespace ckpt::run
