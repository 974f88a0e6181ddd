#include "coordinator/ckptctl/wait.h"

#include <poll.h>
#include <unistd.h>

#include <iostream>
#include <set>

#include "coordinator/ckptctl/render.h"
#include "coordinator/ckptctl/terminal.h"
#include "libckpt/base/clock.h"
#include "libckpt/os/terminal.h"

namespace ckpt::ckptctl {
namespace {

constexpr int64_t kLineEveryNs = 10'000'000'000;  // of progress, where there is no terminal
constexpr int kLookEveryMs = 200;
constexpr auto kStalledMax = std::chrono::minutes(2);

// Where progress is shown: a line that moves on a terminal, a line now and then elsewhere.
class ProgressLine {
 public:
  explicit ProgressLine(bool json)
      : json_(json), live_(os::IsTerminal(STDERR_FILENO)), block_(std::cerr, STDERR_FILENO) {}

  // A line that stays.
  void Say(const std::string& line) {
    if (json_) return;
    block_.Clear();
    std::cout << line << std::endl;
  }
  void Clear() { block_.Clear(); }
  void Show(const std::string& head, const std::string& progress) {
    if (live_) return block_.Draw(head + (progress.empty() ? "" : ": " + progress) + "\n");
    const int64_t now_ns = BoottimeNs();
    if (said_ns_ == 0) said_ns_ = now_ns;
    if (progress.empty() || now_ns - said_ns_ < kLineEveryNs) return;
    said_ns_ = now_ns;
    Say(head + ": " + progress);
  }

 private:
  const bool json_;
  const bool live_;
  LiveBlock block_;
  int64_t said_ns_ = 0;
};

std::string Head(const v1::Operation& operation) {
  return operation.kind() + " of " + operation.job() + ": " + operation.phase();
}

Status WaitEnd(Client& client, v1::Operation* operation, ProgressLine* line) {
  OperationProgress progress;
  std::string phase;
  const auto seen = [&](const v1::Operation& now) {
    if (now.state() == v1::OPERATION_RUNNING) {
      if (now.phase() != phase) line->Say(Head(now));
      line->Show(Head(now), progress.Describe(now, BoottimeNs()));
    }
    phase = now.phase();
    return !InterruptNote::Noted();
  };
  return client.WaitFor(operation->op_id(), operation, seen);
}

// The newest copy that the suspend left behind, until it is in the store.
Status WaitDurable(Client& client, const v1::Operation& operation, ProgressLine* line) {
  const std::string& name = operation.job();
  RateMeter meter;
  uint64_t written = 0;
  Deadline stalled("drain", kStalledMax);
  v1::GetJobRequest request;
  request.set_name(name);
  while (true) {
    if (InterruptNote::Noted()) {
      return Cancelled("no longer waiting; the copy of " + name + " is still being written:\n" +
                       "  look: `ckptctl job " + name + "`, or `ckptctl job " + name + " --watch`");
    }
    v1::Job job;
    const Status asked = client.Call(&v1::Coordinator::Stub::GetJob, request, &job);
    if (asked.code() == Code::kUnavailable || asked.code() == Code::kDeadlineExceeded) {
      CKPT_RETURN_IF_ERROR(client.Reconnect());
      continue;
    }
    CKPT_RETURN_IF_ERROR(asked);
    if (job.copies_size() == 0) return OkStatus();
    const v1::CopyState& copy = job.copies(0);
    const std::string what = "step " + std::to_string(copy.step()) + " of " + name;
    if (copy.durable()) {
      line->Say(what + " is durable");
      return OkStatus();
    }
    if (!copy.failure().empty() && job.drain().empty()) {
      return Aborted(what + " is in RAM only and will not become durable: " + copy.failure());
    }
    if (job.state() != v1::JOB_SUSPENDED) {
      return FailedPrecondition(name + " is " + StateWord(job.state()) +
                                " again, and its copy is not durable yet");
    }
    if (copy.bytes_durable() != written) stalled = Deadline("drain", kStalledMax);
    written = copy.bytes_durable();
    if (stalled.Expired()) {
      return DeadlineExceeded("writing " + what + ": nothing was written for 2 min; " +
                              "`ckptctl why " + name + "` and the store know more");
    }
    meter.Add(written, BoottimeNs());
    line->Show(
        "suspend of " + name,
        copy.bytes_to_write() == 0
            ? "waits for the store"
            : DescribeProgress("written", written, copy.bytes_to_write(), meter.BytesPerSecond()));
    ::poll(nullptr, 0, kLookEveryMs);
  }
}

}  // namespace

std::string OperationProgress::Describe(const v1::Operation& operation, int64_t now_ns) {
  std::set<std::string> jobs;
  for (const v1::Progress& progress : operation.progress()) jobs.insert(progress.job());
  std::string text;
  for (const v1::Progress& progress : operation.progress()) {
    RateMeter& meter = meters_[{progress.job(), progress.what()}];
    meter.Add(progress.bytes_done(), now_ns);
    const std::string what = (jobs.size() > 1 ? progress.job() + " " : "") + progress.what();
    text += (text.empty() ? "" : "; ") + DescribeProgress(what, progress.bytes_done(),
                                                          progress.bytes_total(),
                                                          meter.BytesPerSecond());
  }
  return text;
}

std::string LeavingMessage(const v1::Operation& operation) {
  const std::string& job = operation.job();
  const std::string id = std::to_string(operation.op_id());
  const std::string& kind = operation.kind();
  std::string back = "it cannot be taken back";
  const std::string withdraw = "`ckptctl withdraw " + id + "`";
  if (kind == "preempt") back = withdraw + " lets its victims go on";
  if (kind == "suspend") {
    back = withdraw + ", or `ckptctl resume " + job + "` once it is suspended";
  }
  if (kind == "resume") back = "`ckptctl suspend " + job + "` once it runs";
  if (kind == "checkpoint") back = "nothing to take back, the job runs on";
  if (kind == "migrate") back = withdraw + ", or `ckptctl migrate` back once it is there";
  return "no longer waiting; the " + kind + " of " + job + " goes on (operation " + id + "):\n" +
         "  look: `ckptctl operation " + id + "`, with --wait to wait again\n" +
         "  take back: " + back;
}

Status FinishOperation(Client& client, const Globals& globals, const WaitOptions& options,
                       v1::Operation operation) {
  const InterruptNote note;
  ProgressLine line(globals.json());
  if (options.wait || options.durable) {
    const Status waited = WaitEnd(client, &operation, &line);
    if (waited.code() == Code::kCancelled) return Cancelled(LeavingMessage(operation));
    CKPT_RETURN_IF_ERROR(waited);
  }
  line.Clear();
  if (globals.json()) {
    std::cout << ToJson(operation) << std::endl;
  } else if (operation.state() != v1::OPERATION_FAILED) {
    PrintOperation(std::cout, operation);
  }
  if (operation.state() == v1::OPERATION_FAILED) {
    return Aborted(operation.kind() + " of " + operation.job() + " failed: " + operation.message());
  }
  return options.durable ? WaitDurable(client, operation, &line) : OkStatus();
}

}  // namespace ckpt::ckptctl
