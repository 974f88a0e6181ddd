// logs: what a rank has written, to the end of what is there, or on and on.
#include <poll.h>

#include <CLI/CLI.hpp>
#include <iostream>

#include "coordinator/ckptctl/client.h"
#include "coordinator/ckptctl/render.h"

namespace ckpt::ckptctl {
namespace {

constexpr size_t kChunksMax = 1 << 16;
constexpr int kLookEveryMs = 300;

// Prints from where `request` stands and moves it on. What cannot be had now is no error here:
// `*missing` says why.
Status Drain(Client& client, v1::ReadLogRequest* request, std::string* missing) {
  for (size_t chunk = 0; chunk < kChunksMax; ++chunk) {
    v1::ReadLogResponse answer;
    const Status status = client.Call(&v1::Coordinator::Stub::ReadLog, *request, &answer);
    *missing = status.ok() ? "" : status.message();
    if (!status.ok()) return status;
    std::cout.write(answer.data().data(), static_cast<std::streamsize>(answer.data().size()));
    request->set_epoch(answer.epoch());
    if (answer.data().empty() || answer.next_offset() <= request->offset()) break;
    request->set_offset(answer.next_offset());
  }
  std::cout.flush();
  return OkStatus();
}

// Follows one rank from launch to launch until the job has ended. What it waits for is said on
// stderr, once each.
class Follower {
 public:
  Follower(const Globals& globals, const v1::ReadLogRequest& first)
      : globals_(globals), request_(first), one_epoch_(first.epoch() != 0) {}

  Status Run(Client& client) {
    while (true) {
      const Result<bool> over = Look(client);
      if (over.ok() && *over) return OkStatus();
      const Code code = over.status().code();
      if (code == Code::kUnavailable || code == Code::kDeadlineExceeded) {
        Say("no coordinator in reach, trying again");
        CKPT_RETURN_IF_ERROR(client.Reconnect());
      } else if (!over.ok()) {
        return over.status();
      }
      ::poll(nullptr, 0, kLookEveryMs);
    }
  }

 private:
  // True when there will be nothing more. The state is taken first: what was written before the end
  // is printed after it is known.
  Result<bool> Look(Client& client) {
    v1::GetJobRequest ask;
    ask.set_name(request_.job());
    v1::Job job;
    CKPT_RETURN_IF_ERROR(client.Call(&v1::Coordinator::Stub::GetJob, ask, &job));
    if (request_.rank() >= job.spec().ranks()) {
      return NotFound("job " + request_.job() + " has no rank " + std::to_string(request_.rank()));
    }
    std::string missing;
    Drain(client, &request_, &missing).IgnoreError();
    const bool newer = job.epoch() > request_.epoch() && request_.epoch() != 0;
    if (newer && !one_epoch_) {
      said_.clear();
      Say("epoch " + std::to_string(job.epoch()) + " on " + DescribePlacement(job.placement()));
      request_.set_epoch(job.epoch());
      request_.set_offset(0);
      return false;
    }
    if (IsEnded(job.state()) || newer) return true;
    const bool runs = job.state() == v1::JOB_RUNNING || job.state() == v1::JOB_STARTING ||
                      job.state() == v1::JOB_SUSPENDING;
    if (!runs) Say("is " + StateWord(job.state()) + ", waiting: " + job.reason());
    if (runs && !missing.empty()) Say("waiting: " + missing);
    if (runs && missing.empty()) said_.clear();
    return false;
  }

  void Say(const std::string& what) {
    if (what == said_) return;
    said_ = what;
    std::cerr << "-- " << request_.job() << ": " << what << std::endl;
  }

  const Globals& globals_;
  v1::ReadLogRequest request_;
  const bool one_epoch_;
  std::string said_;
};

int Logs(const v1::ReadLogRequest& first, bool follow, const Globals& globals) {
  return WithClient(globals, [&](Client& client) -> Status {
    if (follow) return Follower(globals, first).Run(client);
    v1::ReadLogRequest request = first;
    std::string missing;
    return Drain(client, &request, &missing);
  });
}

}  // namespace

void RegisterLogs(CLI::App& app, const Globals& globals, Run* run) {
  auto of = std::make_shared<std::string>();
  auto rank = std::make_shared<uint32_t>(0);
  auto epoch = std::make_shared<uint64_t>(0);
  auto follow = std::make_shared<bool>(false);
  CLI::App* logs = app.add_subcommand("logs", "print what a rank has written");
  logs->fallthrough();
  logs->add_option("job", *of, "its name")->required();
  logs->add_option("--rank", *rank, "which rank (default 0)");
  logs->add_option("--epoch", *epoch, "which launch (default: the newest)");
  logs->add_flag("-f,--follow", *follow,
                 "go on, also over suspends and restarts, until the job has ended");
  logs->callback([=, &globals] {
    *run = [=, &globals] {
      v1::ReadLogRequest request;
      request.set_job(*of);
      request.set_rank(*rank);
      request.set_epoch(*epoch);
      return Logs(request, *follow, globals);
    };
  });
}

}  // namespace ckpt::ckptctl
