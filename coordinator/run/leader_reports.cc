// What the machine reports, as facts for the agent and as lines for people.
#include <algorithm>

#include "coordinator/run/leader_launch.h"
#include "libckpt/base/log.h"

namespace ckpt::run {
namespace {

std::string Ranks(const std::vector<uint32_t>& ranks) {
  std::string text;
  for (const uint32_t rank : ranks) text += (text.empty() ? "" : ", ") + std::to_string(rank);
  return text;
}

}  // namespace

void LeaderLaunch::OnReport(const gang::Report& report) {
  using gang::OpPhase;
  const bool stop =
      report.request != gang::Request::kNone && report.request != gang::Request::kSave;
  if (report.attempt != 0 &&
      (report.phase == OpPhase::kStaged || report.phase == OpPhase::kDurable))
    steps_[report.attempt] = report.step;
  NoteTrouble(report);
  switch (report.phase) {
    case OpPhase::kQueued:
      if (stop) times_ = LaunchTimes{.noticed_ns = report.noticed_ns};
      break;
    case OpPhase::kQuiesced:
      if (stop) times_.cut_ns = report.at_ns;
      break;
    case OpPhase::kStaged:
      if (stop) {
        times_.staged_ns = report.at_ns;
        Feed(gang::Measured{{.stage_ns = times_.staged_ns - times_.cut_ns}});
        stop_attempt_ = report.attempt;
        stage_seen_ = true;
      }
      break;
    case OpPhase::kCommsDown:
      times_.comms_down_ns = report.at_ns;
      break;
    case OpPhase::kReleased:
      times_.released_ns = report.at_ns;
      if (report.status.ok()) SetEnd(LaunchEnd::kSuspended, "");
      break;
    case OpPhase::kDurable:
      durable_.insert(report.attempt);
      if (report.attempt == stop_attempt_) times_.durable_ns = report.at_ns;
      break;
    case OpPhase::kNotDurable:
      not_durable_[report.attempt] = report.status.message();
      LookForNewerEpoch();
      break;
    case OpPhase::kEnded:
      stop_attempt_ = report.attempt;
      SetEnd(report.request == gang::Request::kKill ? LaunchEnd::kKilled : LaunchEnd::kFailed,
             report.status.message());
      break;
    case OpPhase::kFinished:
      if (report.operation == 0) SetEnd(LaunchEnd::kFinished, "");
      NoteRefusal(report, stop);
      break;
    case OpPhase::kRolledBack:
    case OpPhase::kRefused:
      // Not because the stop that came first is nearly through.
      if (view().decision == gang::Decision::kRelease) break;
      NoteRefusal(report, stop);
      sources_.clear();
      break;
    case OpPhase::kTooLate:
    case OpPhase::kLate:
    case OpPhase::kNotified:
    case OpPhase::kReleasing:
    case OpPhase::kAgain:
      break;
  }
  SayPhase(report);
  host_.changed();
}

// Each of a coordinator's operations has its own result, whatever else was merged with it since.
void LeaderLaunch::NoteRefusal(const gang::Report& report, bool stop) {
  if (report.operation == 0) return;
  if (stop && report.operation == agent_stop_) refusal_ = report.status.message();
  if (!stop && report.operation == agent_save_) save_refusal_ = report.status.message();
}

// What holds the attempt or the stop up is forgotten when it goes on, or is over.
void LeaderLaunch::NoteTrouble(const gang::Report& report) {
  using gang::OpPhase;
  if (report.phase == OpPhase::kLate) {
    held_up_[report.attempt] = report.status.message();
  } else {
    held_up_.erase(report.attempt);
  }
  const bool on_its_way = report.phase == OpPhase::kQueued || report.phase == OpPhase::kTooLate ||
                          report.phase == OpPhase::kLate || report.phase == OpPhase::kNotified ||
                          report.phase == OpPhase::kAgain;
  if (!on_its_way && answered_.erase(report.operation) != 0 && answered_.empty()) {
    notice_text_.clear();
  }
}

// Said at once, and again when it changes: what a person can still do, can be done now.
void LeaderLaunch::OnAnswer(const gang::NoticeAnswer& answer) {
  const bool late = answer.answer == gang::Answer::kFallback;
  notice_text_ = answer.answer == gang::Answer::kAck ? "" : answer.why;
  answered_ = {answer.operations.begin(), answer.operations.end()};
  if (const std::string never = WhyNotReady(); late && !never.empty()) {
    Say("cannot suspend: " + never + "; the ranks run on until the deadline, what is durable " +
        "already stays");
  } else if (late) {
    Say("the notice is too short: " + answer.why);
  } else if (!notice_text_.empty()) {
    Say(answer.why);
  }
  host_.changed();
}

void LeaderLaunch::OnLoss(const gang::LossBooked& loss) {
  const bool copy = loss.attempt != 0;
  const int64_t from = copy ? loss.step : config_.resumed_from.step.value();
  const int64_t steps = std::max<int64_t>(0, host_.step() - from);
  std::string stands = "the job begins anew";
  if (copy) {
    stands = IdOf(loss.attempt, loss.step).ToString() + " stands";
  } else if (config_.resumed_from.epoch.value() != 0) {
    stands = config_.resumed_from.ToString() + " stands";
  }
  Say("lost: " + std::to_string(steps) + " steps, " + FormatDuration(Nanos(loss.lost_ns)) +
      " of each of " + std::to_string(config_.world) + " ranks (" + loss.why + "); " + stands);
  host_.changed();
}

void LeaderLaunch::SetEnd(LaunchEnd end, std::string reason) {
  if (end_ != LaunchEnd::kNone) return;
  end_ = end;
  end_reason_ = std::move(reason);
}

void LeaderLaunch::SayPhase(const gang::Report& report) {
  using gang::OpPhase;
  const std::string id = IdOf(report.attempt, report.step).ToString();
  const bool stop =
      report.request != gang::Request::kNone && report.request != gang::Request::kSave;
  const std::string missing =
      report.missing.empty() ? "" : " (ranks " + Ranks(report.missing) + " are missing)";
  switch (report.phase) {
    case OpPhase::kStaged:
      if (stop) {
        Say("all " + std::to_string(config_.world) + " ranks stopped at boundary " +
            std::to_string(report.cut) + " (step " + std::to_string(report.step) + "), staged " +
            FormatBytes(stage_bytes_) + " in " +
            FormatDuration(Nanos(times_.staged_ns - times_.cut_ns)));
      }
      return;
    case OpPhase::kReleased:
      if (report.status.ok()) {
        Say("all ranks are gone, " + FormatDuration(Nanos(report.at_ns - times_.noticed_ns)) +
            " after the notice; GPUs are free" +
            (durable_.contains(report.attempt)
                 ? ""
                 : "; " + id + " is in RAM of this gang only, writing to " +
                       services_->store->Describe() + " ..."));
      }
      return;
    case OpPhase::kDurable:
      return Say("durable: " + id);
    case OpPhase::kNotDurable:
      return Say(id + " will not become durable: " + report.status.message());
    case OpPhase::kRolledBack:
      return Say(std::string(stop ? "suspend" : "save") +
                 " rolled back, training goes on: " + report.status.message() + missing);
    case OpPhase::kRefused:
      return Say(std::string(gang::Name(report.request)) + " refused: " + report.status.message() +
                 missing);
    case OpPhase::kAgain:
      return Say("this try to stop failed: " + report.status.message() + missing +
                 "; it is tried again");
    case OpPhase::kTooLate:
    case OpPhase::kLate:
      return Say(report.status.message());
    case OpPhase::kEnded:
      return Say("the gang ends: " + report.status.message() +
                 (report.attempt != 0 ? "; " + id + " stands" : ""));
    default:
      LogDebug(std::string(gang::Name(report.phase)) + ": " + report.status.ToString());
  }
}

}  // namespace ckpt::run
