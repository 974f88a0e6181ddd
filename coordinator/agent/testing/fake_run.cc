// Stands in for ckpt-run in the agent's tests: a real process with a real rank below it, that
// speaks the real frames, and behaves as the "command" after "--" says:
//
//   run     suspends and saves when told; one sealed, gang-complete region for each rank
//   deaf    takes commands and does nothing
//   crash   leaves with 3 once the test has had time to see it run; its rank stays behind
//   refuse  refuses every suspend
//   stuck   as run; as a drain it ends only when it is killed
//   finish  finishes when its agent has gone, and leaves its result
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>

#include "ckpt/v1/agent.pb.h"
#include "coordinator/agent/testing/region.h"
#include "libckpt/os/file.h"
#include "libckpt/os/process.h"
#include "libckpt/wire/channel.h"

namespace ckpt::agent {
namespace {

constexpr auto kLong = std::chrono::seconds(120);

struct Args {
  std::map<std::string, std::string> flags;
  std::string mode;
  bool drain = false;
  uint64_t Number(const std::string& name) { return std::stoull(flags.at(name)); }
};

Args Parse(int argc, char** argv) {
  Args args;
  int i = 1;
  for (; i + 1 < argc && std::string(argv[i]) != "--"; i += 2) {
    if (std::string(argv[i]) == "--drain") {
      args.drain = true;
      --i;
    } else {
      args.flags[argv[i]] = argv[i + 1];
    }
  }
  if (i + 1 < argc) args.mode = argv[i + 1];
  return args;
}

class FakeRun {
 public:
  explicit FakeRun(Args args) : args_(std::move(args)) {
    report_.set_job(args_.flags.at("--job"));
    report_.set_epoch(args_.Number("--epoch"));
    report_.set_op_id(args_.Number("--operation"));
  }

  int Run() {
    if (args_.drain) return Drain();
    if (!StartRank().ok() || !MakeRegions().ok()) return 11;
    for (;;) {
      if (const Status connected = Connect(); !connected.ok()) {
        std::fprintf(stderr, "fake run: %s\n", connected.ToString().c_str());
        return 12;
      }
      while (true) {
        auto frame = channel_.Receive(Deadline("command", kLong));
        if (frame.status().code() == Code::kDeadlineExceeded) return 13;
        if (!frame.ok() && args_.mode == "finish") return Finish();
        if (!frame.ok()) break;  // the agent is away
        if (const auto* command = std::get_if<wire::Command>(&frame->frame.body)) {
          const int code = Obey(*command);
          if (code >= 0) return code;
        }
      }
    }
  }

  // Says that everything it was given is durable; in mode "stuck" nothing more.
  int Drain() {
    if (!Connect().ok()) return 12;
    if (args_.mode == "stuck") ::poll(nullptr, 0, 120'000);
    return adopted_ == 0 ? 76 : 75;
  }

 private:
  Status StartRank() {
    WriteRankLog();
    // In a session of its own, as a careless program does.
    CKPT_ASSIGN_OR_RETURN(
        rank_, os::Spawn({.argv = {"sleep", "1000"}, .grouping = os::Grouping::kNewSession}));
    report_.add_rank_pids(rank_.pid());
    return OkStatus();
  }

  void WriteRankLog() {
    os::FileSystem& fs = os::PosixFileSystem();
    const std::string dir = args_.flags.at("--log-dir") + "/e" + std::to_string(report_.epoch());
    fs.MakeDirs(dir).IgnoreError();
    os::WriteNewFile(fs, dir + "/rank" + args_.flags.at("--first-rank") + ".log",
                     "hello from the rank\n")
        .IgnoreError();
  }

  Status MakeRegions() {
    const auto first = static_cast<uint32_t>(args_.Number("--first-rank"));
    for (uint32_t i = 0; i < args_.Number("--ranks"); ++i) {
      TestRegion region;
      region.rank = first + i;
      region.world = 8;
      region.id = {Epoch(report_.epoch()), Step(120), Attempt(2)};
      CKPT_ASSIGN_OR_RETURN(os::Memfd memory, MakeTestRegion(region));
      regions_.push_back(std::move(memory));
    }
    return OkStatus();
  }

  Status Connect() {
    const Deadline deadline("agent", kLong);
    const char* path = getenv("CKPT_AGENT");
    if (path == nullptr) return NotFound("CKPT_AGENT is not set");
    for (;;) {
      auto channel = wire::AgentChannel::Connect(path, deadline);
      if (channel.ok()) {
        channel_ = std::move(*channel);
        if (Introduce(deadline).ok()) return OkStatus();
      }
      if (deadline.Expired()) return deadline.Exceeded();
      ::poll(nullptr, 0, 20);
    }
  }

  Status Introduce(const Deadline& deadline) {
    wire::Attach attach{.job = report_.job(), .epoch = report_.epoch(), .pid = getpid()};
    CKPT_RETURN_IF_ERROR(channel_.Send({0, attach}, deadline));
    for (bool last = false; !last;) {
      CKPT_ASSIGN_OR_RETURN(const auto in, channel_.Receive(deadline));
      const auto* adopt = std::get_if<wire::Adopt>(&in.frame.body);
      if (adopt == nullptr) return Internal("expected ADOPT");
      adopted_ += in.fds.size();
      last = adopt->last;
    }
    std::vector<int> fds;
    for (uint32_t i = 0; i < regions_.size(); ++i) {
      const auto rank = static_cast<uint32_t>(args_.Number("--first-rank")) + i;
      attach.fds.push_back({wire::AttachedKind::kStaging, rank, 0, regions_[i].bytes(), 0});
      fds.push_back(regions_[i].fd());
    }
    if (args_.drain) return SendDrained();
    attach.fds.push_back({wire::AttachedKind::kRankPidfd, 0, 0, 0, rank_.pid()});
    fds.push_back(rank_.fd());
    CKPT_RETURN_IF_ERROR(channel_.Send({0, attach}, fds, deadline));
    report_.set_state(v1::NODE_JOB_RUNNING);
    report_.set_message("adopted " + std::to_string(adopted_));
    report_.set_resumed_from(args_.flags.at("--staging-budget"));  // for the test to see
    CKPT_RETURN_IF_ERROR(SendReport());
    if (args_.mode == "crash") {
      std::fprintf(stderr, "the fake run crashes as it was told\n");
      exit(3);
    }
    return OkStatus();
  }

  int Finish() {
    report_.set_state(v1::NODE_JOB_FINISHED);
    v1::AgentMsg message;
    *message.mutable_job() = report_;
    rank_.Signal(SIGKILL).IgnoreError();
    rank_.Reap(Deadline("rank", kLong)).status().IgnoreError();
    return os::ReplaceFile(os::PosixFileSystem(), args_.flags.at("--result"),
                           message.SerializeAsString())
                   .ok()
               ? 0
               : 15;
  }

  Status SendDrained() {
    report_.set_state(v1::NODE_JOB_RELEASED);
    report_.set_gang_address("drain:1");
    if (args_.mode == "stuck") report_.set_held_up("no space left, try 2 of 10");
    v1::CopyState* copy = report_.add_copies();
    copy->set_epoch(report_.epoch());
    copy->set_attempt(2);
    copy->set_step(120);
    copy->set_staged_gang(true);
    copy->set_durable(args_.mode != "stuck");
    return SendReport();
  }

  // A negative number: run on.
  int Obey(const wire::Command& command) {
    v1::CoordinatorMsg message;
    if (!message.ParseFromString(command.message)) return 14;
    if (args_.mode == "deaf") return -1;
    const bool stop = message.has_stop();
    const bool kill = stop && message.stop().kind() == v1::STOP_KILL;
    v1::AgentMsg answer;
    answer.mutable_result()->set_op_id(stop ? message.stop().op_id() : message.save().op_id());
    answer.mutable_result()->set_accepted(args_.mode != "refuse");
    if (args_.mode == "refuse") answer.mutable_result()->set_error("not now");
    channel_.Send({0, wire::Report{answer.SerializeAsString()}}, Deadline("answer", kLong))
        .IgnoreError();
    if (args_.mode == "refuse" || !stop) return -1;
    rank_.Signal(SIGKILL).IgnoreError();
    rank_.Reap(Deadline("rank", kLong)).status().IgnoreError();
    report_.set_state(kill ? v1::NODE_JOB_FAILED : v1::NODE_JOB_RELEASED);
    report_.set_op_id(message.stop().op_id());
    v1::CopyState* copy = report_.add_copies();
    copy->set_epoch(report_.epoch());
    copy->set_attempt(2);
    copy->set_step(120);
    copy->set_staged_gang(true);
    SendReport().IgnoreError();
    return 75;
  }

  Status SendReport() {
    v1::AgentMsg message;
    *message.mutable_job() = report_;
    return channel_.Send({0, wire::Report{message.SerializeAsString()}}, Deadline("report", kLong));
  }

  Args args_;
  v1::JobReport report_;
  os::Pidfd rank_;
  std::vector<os::Memfd> regions_;
  wire::AgentChannel channel_;
  size_t adopted_ = 0;
};

}  // namespace
}  // namespace ckpt::agent

int main(int argc, char** argv) {
  return ckpt::agent::FakeRun(ckpt::agent::Parse(argc, argv)).Run();
}
