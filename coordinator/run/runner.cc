#include "coordinator/run/runner.h"

#include <signal.h>
#include <string.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "coordinator/run/console.h"
#include "coordinator/run/gang_token.h"
#include "coordinator/run/memcpy_speed.h"
#include "coordinator/run/report.h"
#include "libckpt/base/fault.h"
#include "libckpt/base/log.h"
#include "libckpt/os/file.h"
#include "libckpt/os/memory_room.h"
#include "libckpt/os/stream.h"
#include "libckpt/os/uring/uring_file.h"
#include "libckpt/storage/file/file_store.h"

namespace ckpt::run {
namespace {

constexpr size_t kQueueMax = 4096;
constexpr size_t kWritersMax = 4;
constexpr Nanos kLineTimeout = std::chrono::milliseconds(100);
constexpr Nanos kReportPause = std::chrono::milliseconds(20);
constexpr Nanos kLeaveTimeout = std::chrono::seconds(3);
constexpr Nanos kDrawEvery = std::chrono::milliseconds(250);
constexpr Nanos kReconnectPause = std::chrono::milliseconds(500);

std::string FirstLine(const Status& status) { return status.message(); }

}  // namespace

// A reader that has stopped (a pager, Ctrl-S) costs the loop this much once a line, and lines.
void Say(const std::string& line) {
  Console::Get()
      .Write(2, "ckpt-run: " + line + "\n", Deadline("a line on stderr", kLineTimeout))
      .IgnoreError();
}

Runner::Runner(Options options) { services_.options = std::move(options); }

Runner::~Runner() {
  *alive_ = false;
  agent_.reset();
  client_.reset();
  server_.reset();
  leader_.reset();
  node_.reset();
  // Threads end before the loop that they post to.
  prep_.reset();
  write_.reset();
  store_calls_.reset();
  if (!services_.dir.empty()) os::PosixFileSystem().RemoveTree(services_.dir).IgnoreError();
}

int Runner::Run() {
  if (const Status ready = Prepare(); !ready.ok()) {
    Say(FirstLine(ready));
    return ready.code() == Code::kInvalidArgument ? 2 : 1;
  }
  const Status status = loop_->Run();
  if (!status.ok()) {
    Say(status.ToString());
    return 1;
  }
  return exit_code_;
}

Status Runner::Prepare() {
  Options& options = services_.options;
  // Before the first thread, and before anything that may take long: what arrives now waits.
  CKPT_ASSIGN_OR_RETURN(loop_, os::EventLoop::Create());
  services_.loop = loop_.get();
  CKPT_RETURN_IF_ERROR(HandleSignals());
  if (!options.drain) {
    CKPT_ASSIGN_OR_RETURN(services_.command_path,
                          FindCommand(options.command[0], ProcessEnvironment()));
  }
  CKPT_RETURN_IF_ERROR(PrepareStore());
  if (options.staging_budget_bytes == 0) {
    CKPT_ASSIGN_OR_RETURN(const os::MemoryRoom room, os::AvailableMemory());
    options.staging_budget_bytes = room.bytes / 2;
  }
  services_.budget = std::make_shared<StagingBudget>(options.staging_budget_bytes);
  CKPT_ASSIGN_OR_RETURN(services_.dir, os::MakePrivateDir("ckpt-run-"));
  CKPT_RETURN_IF_ERROR(os::BecomeSubreaper());
  prep_ = std::make_unique<os::WorkerPool>("ckpt-prep", 1, kQueueMax);
  write_ = std::make_unique<os::WorkerPool>(
      "ckpt-write", std::clamp<size_t>(options.rank_count, 1, kWritersMax), kQueueMax);
  store_calls_ = std::make_unique<os::WorkerPool>("ckpt-store", 2, kQueueMax);
  services_.prep = prep_.get();
  services_.write = write_.get();
  services_.store_calls = store_calls_.get();
  return StartGang();
}

// The job's directory is made now, so that a store that cannot be written is known before anything
// runs.
Status Runner::PrepareStore() {
  Options& options = services_.options;
  std::error_code error;
  const auto absolute = std::filesystem::absolute(options.store, error);
  if (!error) options.store = absolute.lexically_normal().string();
  os::FileSystem& fs = os::PosixFileSystem();
  Status made = fs.MakeDirs(options.store);
  const std::string probe =
      os::JoinPath(options.store, ".probe-" + os::HostName() + "-" + std::to_string(os::SelfPid()));
  if (made.ok()) made = os::WriteNewFile(fs, probe, "");
  if (made.ok()) made = fs.Unlink(probe);
  if (!made.ok()) {
    return std::move(made).Annotate("the store " + options.store +
                                    " cannot be written (--store names another)");
  }
  services_.store = storage::OpenFileStore(os::UringFileSystem(), options.store);
  services_.retention = std::make_shared<engine::Retention>(services_.store.get(), options.keep);
  if (options.node_count > 1 && options.gang_token.empty()) {
    CKPT_ASSIGN_OR_RETURN(options.gang_token, GangTokenOf(options.store));
  }
  return OkStatus();
}

Status Runner::HandleSignals() {
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2}) {
    CKPT_RETURN_IF_ERROR(
        loop_->AddSignal(signal, [this](const os::SignalInfo& info) { OnSignal(info); }));
  }
  ::signal(SIGPIPE, SIG_IGN);
  return OkStatus();
}

void Runner::MakeRunParts() {
  auto node = std::make_unique<NodeHost>(
      &services_,
      NodeHost::Host{
          .to_leader = [this](const GangMessage& m) { ToLeader(m); },
          .changed = [this] { ReportSoon(); },
          .leave = [this](int code, const std::string& message) { Leave(code, message); },
          .launched = [this](const NodeLaunch& launch) { AttachLaunch(launch); },
          .slots_made =
              [this](const NodeLaunch&, const std::vector<SlotPtr>& slots) {
                if (agent_) agent_->AddSlots(slots);
              },
      });
  ranks_ = node.get();
  node_ = std::move(node);
  if (!services_.options.leads()) return;
  auto leader = std::make_unique<GangLeader>(
      &services_, GangLeader::Host{
                      .send = [this](uint64_t peer, const GangMessage& m) { ToPeer(peer, m); },
                      .close =
                          [this](uint64_t peer) {
                            if (server_) server_->Close(peer);
                          },
                      .changed = [this] { ReportSoon(); },
                      .outcome = [](int, const std::string&) {},  // comes to the node as well
                      .step =
                          [this] {
                            const NodeLaunch* launch = ranks_->current();
                            return launch == nullptr ? int64_t{0} : launch->status().step;
                          },
                  });
  gang_ = leader.get();
  leader_ = std::move(leader);
}

void Runner::MakeDrainParts() {
  auto node = std::make_unique<DrainNode>(
      &services_,
      DrainNode::Host{
          .to_leader = [this](const GangMessage& m) { ToLeader(m); },
          .changed = [this] { ReportSoon(); },
          .leave = [this](int code, const std::string& message) { Leave(code, message); },
      });
  drain_ = node.get();
  node_ = std::move(node);
  if (!services_.options.leads()) return;
  leader_ = std::make_unique<DrainLeader>(
      &services_, DrainLeader::Host{
                      .send = [this](uint64_t peer, const GangMessage& m) { ToPeer(peer, m); },
                      .close =
                          [this](uint64_t peer) {
                            if (server_) server_->Close(peer);
                          },
                  });
}

Status Runner::StartGang() {
  const Options& options = services_.options;
  if (options.drain) {
    MakeDrainParts();
  } else {
    MakeRunParts();
  }
  DrawStatus();
  if (leader_) {
    CKPT_RETURN_IF_ERROR(Serve());
    leader_->Start();
  }
  if (options.agent_socket.empty()) {
    BeginJoin({});
    return OkStatus();
  }
  agent_ = std::make_unique<AgentLink>(
      &services_,
      AgentLink::Handler{
          .adopted = [this](std::vector<SlotPtr> slots) { BeginJoin(std::move(slots)); },
          .stop = [this](const AgentStop& stop) { return OnAgentStop(stop); }});
  agent_->Start();
  ReportSoon();
  return OkStatus();
}

void Runner::DrawStatus() {
  if (!Console::Get().draws()) return;
  if (ranks_ != nullptr) status_.emplace(services_.options, *ranks_, gang_);
  if (drain_ != nullptr) status_.emplace(services_.options, *drain_);
  loop_->AddPeriodic(kDrawEvery, [this] {
    if (exit_code_ < 0) Console::Get().Draw(status_->Now());
  });
}

Status Runner::Serve() {
  const Options& options = services_.options;
  os::HostPort address{options.listen_host, 0};
  if (!options.rendezvous.empty()) {
    CKPT_ASSIGN_OR_RETURN(address, os::ParseHostPort(options.rendezvous));
  }
  if (options.node_count == 1) return OkStatus();
  CKPT_ASSIGN_OR_RETURN(server_, GangServer::Listen(loop_.get(), address, options.gang_token,
                                                    {.message =
                                                         [this](uint64_t peer, GangMessage m) {
                                                           streams_.insert(peer);
                                                           leader_->OnMessage(peer, m);
                                                         },
                                                     .closed =
                                                         [this](uint64_t peer) {
                                                           streams_.erase(peer);
                                                           leader_->OnClosed(peer);
                                                         }}));
  Say("serving the gang at " + server_->address());
  return OkStatus();
}

void Runner::BeginJoin(std::vector<SlotPtr> adopted) {
  node_->Adopt(std::move(adopted));
  if (leader_) return node_->Join();
  Say("waiting for node 0 of the gang at " + services_.options.rendezvous);
  join_until_ns_ = BoottimeNs() + services_.options.join_timeout.count();
  ConnectToLeader();
}

void Runner::ConnectToLeader() {
  Result<std::unique_ptr<GangClient>> client =
      GangClient::Connect(loop_.get(), services_.options.rendezvous, services_.options.gang_token,
                          {.message = [this](GangMessage m) { node_->OnLeader(m); },
                           .closed = [this](const Status& why) { OnLeaderClosed(why); }});
  if (!client.ok()) return node_->Abandon(2, client.status().message());
  client_ = std::move(client).value();
  node_->Join();
  if (node_->joined()) return;
  loop_->CancelTimer(connect_timer_);
  connect_timer_ =
      loop_->AddTimer(Nanos(std::max<int64_t>(0, join_until_ns_ - BoottimeNs())), [this] {
        if (node_->joined()) return;
        node_->Abandon(1, "node 0 of the gang was not reached at " + services_.options.rendezvous +
                              " within " + FormatDuration(services_.options.join_timeout));
      });
}

// The leader may only be out of reach for a while: the ranks train on, and we knock again.
void Runner::OnLeaderClosed(const Status& why) {
  if (exit_code_ >= 0) return;
  if (why.code() == Code::kPermissionDenied && !node_->joined()) {
    return node_->Abandon(1, why.message());
  }
  if (node_->joined()) Say(why.message());
  node_->LeaderLost();
  loop_->CancelTimer(reconnect_timer_);
  reconnect_timer_ = loop_->AddTimer(kReconnectPause, [this] {
    if (exit_code_ < 0) ConnectToLeader();
  });
}

void Runner::ToLeader(const GangMessage& message) {
  if (client_) return client_->Send(message);
  loop_->Post([this, alive = alive_, message] {
    if (*alive && leader_) leader_->OnMessage(LeaderPart::kSelf, message);
  });
}

void Runner::ToPeer(uint64_t peer, const GangMessage& message) {
  if (peer != LeaderPart::kSelf) {
    if (server_) server_->Send(peer, message);
    return;
  }
  loop_->Post([this, alive = alive_, message] {
    if (*alive) node_->OnLeader(message);
  });
}

void Runner::OnSignal(const os::SignalInfo& info) {
  const char* name = sigabbrev_np(info.signal);
  const bool save = info.signal == SIGUSR2;
  const gang::Request request = save ? gang::Request::kSave : gang::Request::kSuspend;
  node_->Notice(NoticeMsg{.request = static_cast<uint32_t>(request),
                          .left_ns = save ? 0 : services_.options.grace.count(),
                          .hard = !save,
                          .source = "SIG" + std::string(name != nullptr ? name : "?")});
}

std::string Runner::OnAgentStop(const AgentStop& stop) {
  const NodeLaunch* launch = ranks_ != nullptr ? ranks_->current() : nullptr;
  if (stop.epoch != 0 && services_.options.epoch != 0 && stop.epoch != services_.options.epoch) {
    return "this ckpt-run runs epoch " + std::to_string(services_.options.epoch);
  }
  if (!stop.kill && (drain_ != nullptr || (launch != nullptr && launch->released()))) {
    return "no process of the job is left here";
  }
  gang::Request request = stop.save ? gang::Request::kSave : gang::Request::kSuspend;
  if (stop.withdraw) request = gang::Request::kNone;
  if (stop.kill) request = gang::Request::kKill;
  node_->Notice(NoticeMsg{.operation = stop.operation,
                          .request = static_cast<uint32_t>(request),
                          .left_ns = stop.left_ns,
                          .hard = stop.source != "operator",
                          .source = stop.source});
  // A kill must not wait for a leader that is out of reach.
  if (stop.kill) node_->KillHere("killed by " + stop.source);
  return "";
}

void Runner::AttachLaunch(const NodeLaunch& launch) {
  if (!agent_) return;
  const uint64_t epoch =
      services_.options.epoch != 0 ? services_.options.epoch : launch.config().epoch;
  std::vector<std::pair<wire::AttachedFd, os::UniqueFd>> fds;
  for (uint32_t i = 0; launch.pages() != nullptr && i < services_.options.rank_count; ++i) {
    const uint32_t rank = launch.config().first_rank + i;
    Result<os::Memfd> page = launch.pages()->memfd(rank).Dup();
    if (!page.ok()) continue;
    const uint64_t bytes = page->bytes();
    fds.emplace_back(wire::AttachedFd{wire::AttachedKind::kPage, rank, 0, bytes, 0},
                     std::move(*page).TakeFd());
  }
  for (const auto& [rank, pidfd] : launch.processes()) {
    Result<os::UniqueFd> copy = os::DupFd(pidfd->fd());
    if (!copy.ok()) continue;
    fds.emplace_back(
        wire::AttachedFd{wire::AttachedKind::kRankPidfd, rank, 0, 0, int64_t{pidfd->pid()}},
        std::move(copy).value());
  }
  agent_->SetLaunch({launch.config().job_id, epoch, launch.token()}, std::move(fds));
}

void Runner::ReportSoon() {
  if (reporting_ || !agent_) return;
  reporting_ = true;
  loop_->AddTimer(kReportPause, [this] {
    reporting_ = false;
    Report();
  });
}

void Runner::Report() {
  if (drain_ != nullptr) {
    return agent_->SetReport(
        MakeDrainReport(services_, *drain_, server_ ? server_->address() : "", exit_message_));
  }
  MeasureMemcpy();
  agent_->SetReport(MakeReport({.services = &services_,
                                .node = ranks_,
                                .leader = gang_,
                                .gang_address = server_ ? server_->address() : "",
                                .memcpy_ratio = memcpy_ratio_,
                                .exit_code = exit_code_,
                                .message = exit_message_}));
}

// What a plain copy of the same bytes takes on this machine right now: once, after the release.
void Runner::MeasureMemcpy() {
  const NodeLaunch* launch = ranks_->current();
  if (measuring_ || launch == nullptr || !launch->released()) return;
  const NodeStatus status = launch->status();
  if (status.stall_ns == 0 || status.stage_bytes == 0) return;
  measuring_ = memcpy_pending_ = true;
  const uint32_t threads = services_.options.rank_count;
  const Status queued =
      prep_->TrySubmit([this, alive = alive_, loop = loop_.get(), status, threads] {
        CKPT_PASS("run.runner.memcpy");
        const Nanos took = TimeMemcpy(status.stage_bytes, threads);
        loop->Post([this, alive, took, stall_ns = status.stall_ns] {
          if (!*alive) return;
          memcpy_pending_ = false;
          if (took.count() == 0) return;
          memcpy_ratio_ = static_cast<double>(stall_ns) / static_cast<double>(took.count());
          ReportSoon();
        });
      });
  if (queued.ok()) return;
  memcpy_pending_ = false;
  LogWarning("memcpy is not measured: " + queued.message());
}

// An agent that is away now reads it when it is back.
void Runner::LeaveResult() {
  const std::string& path = services_.options.result_path;
  if (path.empty() || !agent_) return;
  const Status left = os::ReplaceFile(os::PosixFileSystem(), path, agent_->report());
  if (!left.ok()) LogWarning("leaving the last report: " + left.ToString());
}

// The last report and the outcome leave before the process does.
void Runner::Leave(int exit_code, const std::string& message) {
  exit_code_ = exit_code;
  exit_message_ = message;
  Console::Get().Draw("");
  if (exit_code != 0 || !message.empty()) Say(message);
  if (agent_) Report();
  LeaveResult();
  client_.reset();
  const auto stop_when_settled = [this] {
    const bool told = !agent_ || (agent_->Flushed() && !memcpy_pending_ && !reporting_);
    if (!told || !streams_.empty()) return;
    LeaveResult();  // with what was measured meanwhile
    loop_->Stop();
  };
  stop_when_settled();
  loop_->AddPeriodic(kReportPause, stop_when_settled);
  loop_->AddTimer(kLeaveTimeout, [this] { loop_->Stop(); });
}

}  // namespace ckpt::run
